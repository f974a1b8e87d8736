"""N-gram hash: table rows named by hashing the last tokens.

Multiply, exclusive or, remainder by a prime.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain, count, islice

import torch
from jaxtyping import Int
from torch import Tensor

from workloads.layers.cache import LayerCache

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class NgramHash:
    """Which rows the n-grams that end at a token name, one per order from 2 on and head.

    The n-gram t_0 (this token), t_1, … of order n is mixed to `m_0 t_0 ^ m_1 t_1 ^ … ^ m_{n-1}
    t_{n-1}`; head j takes the remainder by its own prime, so heads of one order collide on
    different n-grams. Each head has a part of the table to itself. Source: Cheng et al. 2026 (arXiv
    2601.07372) and its demonstration.
    """

    multipliers: tuple[int, ...]
    """By distance from this token; their number is the highest order."""
    primes: tuple[tuple[int, ...], ...]
    """By order, then head."""
    padding: int
    """What stands before the start of the sequence: an id that no token has."""

    @property
    def n_rows(self) -> int:
        """Rows of the table."""
        return sum(map(sum, self.primes))

    @property
    def table_rows(self) -> tuple[int, ...]:
        """Rows of every head's part, in the order in which they lie."""
        return tuple(chain.from_iterable(self.primes))

    def rows(
        self, tokens: Int[Tensor, "batch seq"], cache: LayerCache | None = None
    ) -> Int[Tensor, "batch seq rows"]:
        """Return the rows of every position.

        A cache holds the tokens before the first and gets the last ones.
        """
        tokens = tokens.long()
        before, seq = len(self.multipliers) - 1, tokens.shape[1]
        earlier = None if cache is None else cache.state("ngram_tokens")
        if earlier is None:
            earlier = tokens.new_full((len(tokens), before), self.padding)
        whole = torch.cat((earlier, tokens), dim=1)
        if cache is not None:
            cache.set_state("ngram_tokens", whole[:, seq:])
        mixed = [whole[:, before:] * self.multipliers[0]]
        for distance, multiplier in enumerate(self.multipliers[1:], start=1):
            start = before - distance
            mixed.append(mixed[-1] ^ (whole[:, start : start + seq] * multiplier))
        primes, offsets = _constants(self.primes, tokens.device)
        return (torch.stack(mixed[1:], dim=-1)[..., None] % primes + offsets).flatten(2)


@cache
def _constants(primes: tuple[tuple[int, ...], ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return primes and the first row of each head.

    Kept, because copying them to a device waits for it.
    """
    flat = list(chain.from_iterable(primes))
    # An evaluation may come first, and tensors born in inference mode are no good for training.
    with torch.inference_mode(False):
        offsets = torch.tensor([0, *accumulate(flat)][:-1], device=device)
        return torch.tensor(primes, device=device), offsets.view(len(primes), -1)


def multipliers(*, seed: int, layer: int, order: int, vocab_size: int) -> tuple[int, ...]:
    """Return `order` odd numbers whose products with ids stay below 2**63.

    They are a function of the arguments alone.

    Ids are those of the vocabulary and one more, `vocab_size`, for padding.
    """
    half = max(1, _INT64_MAX // max(1, vocab_size) // 2)
    digests = (
        hashlib.sha256(f"ngram_hash/{seed}/{layer}/{distance}".encode()).digest()
        for distance in range(order)
    )
    return tuple(2 * (int.from_bytes(digest[:8]) % half) + 1 for digest in digests)


@cache
def table_rows(rows_per_head: int, *, number: int) -> tuple[int, ...]:
    """Return the rows of `number` tables: different primes of at least `rows_per_head`, rising.

    `rows_per_head: 1` is the control without memory: all tables have one row. One is no prime, but
    every hash modulo one is the same row.
    """
    if rows_per_head == 1:
        return (1,) * number
    return primes_from(rows_per_head, number=number)


def primes_from(start: int, *, number: int) -> tuple[int, ...]:
    """Return the first `number` primes that are at least `start`, rising."""
    return tuple(islice(filter(is_prime, count(max(2, start))), number))


_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
"""Enough for every number below 3.3e24 (Sorenson & Webster 2015, arXiv 1509.00864)."""


def is_prime(n: int) -> bool:
    """Return whether `n`, below 3.3e24, is a prime (Miller & Rabin)."""
    if n < 2:
        return False
    for prime in _WITNESSES:
        if n % prime == 0:
            return n == prime
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return not any(_is_witness(a, n, odd, twos) for a in _WITNESSES)


def _is_witness(a: int, n: int, odd: int, twos: int) -> bool:
    """Return whether `a` proves `n = odd * 2**twos + 1` to be composite."""
    power = pow(a, odd, n)
    if power in (1, n - 1):
        return False
    for _ in range(twos - 1):
        power = power * power % n
        if power == n - 1:
            return False
    return True
