"""Prices of trials before they run: parameters, FLOPs, memory and predicted time."""
