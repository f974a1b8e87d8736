"""Blocks shared by at least two architectures."""
