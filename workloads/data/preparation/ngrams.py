"""Hashes of word n-grams, to find evaluation items in training text.

Words are runs of letters and digits in lower case. An item counts as contaminated if at least 70 %
of its 8-grams occur in the training text. Source of both numbers: Chowdhery et al. 2022 (PaLM),
section 8.
"""

import re

import numpy as np
from numpy.typing import NDArray

NGRAM_WORDS = 8
CONTAMINATED_SHARE = 0.7

_WORD = re.compile(r"[^\W_]+")
_WORDS_AT_ONCE = 1 << 14
"""Bounds memory in long documents."""
_MODULUS = 1 << 64
_BASE = 0x9E3779B97F4A7C15
_VALUES = np.random.default_rng(8).integers(1 << 63, size=256, dtype=np.uint64)
"""A number for each byte, so that the polynomial has no small coefficients."""


def ngram_hashes(text: str) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each 8-gram of words, in order; none for shorter texts."""
    words = [word.encode() for word in _WORD.findall(text.lower())]
    last = len(words) - NGRAM_WORDS + 1
    parts = [
        _hashes(words[start : min(start + _WORDS_AT_ONCE, last) + NGRAM_WORDS - 1])
        for start in range(0, last, _WORDS_AT_ONCE)
    ]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint64)


def _hashes(words: list[bytes]) -> NDArray[np.uint64]:
    """Return polynomial hashes modulo 2**64 of all n-grams, from differences of prefix sums."""
    joined = np.frombuffer(b" ".join(words), dtype=np.uint8)
    powers, inverses = _powers(len(joined))
    prefix = np.zeros(len(joined) + 1, dtype=np.uint64)
    np.cumsum(_VALUES[joined] * powers, out=prefix[1:])
    ends = np.cumsum(np.array([len(word) + 1 for word in words])) - 1
    starts = ends - np.array([len(word) for word in words])
    first, last = starts[: len(words) - NGRAM_WORDS + 1], ends[NGRAM_WORDS - 1 :]
    hashes: NDArray[np.uint64] = (prefix[last] - prefix[first]) * inverses[first]
    return hashes


_known_powers = np.ones((2, 1), dtype=np.uint64)


def _powers(n: int) -> NDArray[np.uint64]:
    """Return (2, n) powers of the base and of its inverse, from 0 on."""
    global _known_powers
    if _known_powers.shape[1] < n:
        bases = np.array([[_BASE], [pow(_BASE, -1, _MODULUS)]], dtype=np.uint64)
        steps = np.broadcast_to(bases, (2, 2 * n)).copy()
        steps[:, 0] = 1
        _known_powers = np.cumprod(steps, axis=1, dtype=np.uint64)
    return _known_powers[:, :n]
