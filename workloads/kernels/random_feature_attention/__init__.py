"""Causal linear attention by positive random features, on a GPU."""
