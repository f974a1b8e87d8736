"""Streams of random numbers by key, and evenly spaced samples."""

import numpy as np
from numpy.typing import NDArray


def random_stream(*key: int) -> np.random.Generator:
    """Return the random numbers of a key of non-negative integers."""
    return np.random.default_rng(np.random.SeedSequence(key))


def non_negative(number: int) -> tuple[int, int]:
    """Return an integer as two that a key takes."""
    return abs(number), int(number < 0)


def spread(n: int, at_most: int) -> NDArray[np.int64]:
    """Return min(n, at_most) different numbers of 0..n-1, evenly spaced."""
    k = min(n, at_most)
    return np.arange(k, dtype=np.int64) * n // max(k, 1)
