"""Counts of parameters, FLOPs, bytes and activations."""
