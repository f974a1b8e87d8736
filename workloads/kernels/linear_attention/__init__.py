"""Causal linear attention on a GPU."""
