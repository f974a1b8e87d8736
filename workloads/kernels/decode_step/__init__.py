"""Fused operations of a decoding step: a handful of tokens, each with a whole matrix to read."""
