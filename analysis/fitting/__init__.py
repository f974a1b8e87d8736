"""Fits of laws: optimisers, intervals, model selection."""
