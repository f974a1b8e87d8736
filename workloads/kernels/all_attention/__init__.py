"""Softmax jointly over the positions so far and vectors that are always there."""
