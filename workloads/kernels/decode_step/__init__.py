"""Fused operations of a decoding step: few tokens, bound by reading matrices."""
