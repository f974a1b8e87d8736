"""Hash partitioning of a table's rows: each rank has rows from everywhere.

Rows that are read often stand together: product keys number a row by its two sub-keys, so ranges of
rows share a sub-key. The rank that has the range of a popular one reads more than others. So row r
is put at place `r * a mod n`, and ranks have ranges of places. `a / n` is near the inverse of the
golden ratio, which spreads rows at equal distances over all ranks.

Source: multiplicative (Fibonacci) hashing, Knuth, The Art of Computer Programming 3, section 6.4.
"""

import math

import torch
from jaxtyping import Int
from torch import Tensor


class HashPartition:
    """A permutation of the rows of a table, the same for any number of ranks.

    Tables of 2^31 rows and more, whose products would not fit into 64 bits, are left as they are.
    """

    def __init__(self, n_rows: int) -> None:
        self._n_rows = n_rows
        self._multiplier = 1 if n_rows >= 2**31 else _nearest_coprime(n_rows)
        self._inverse = pow(self._multiplier, -1, n_rows)

    def places(self, rows: Int[Tensor, " *any"]) -> Int[Tensor, " *any"]:
        """Return where rows stand, int64."""
        return rows.long() * self._multiplier % self._n_rows

    def rows(self, places: range, *, device: torch.device | None = None) -> Int[Tensor, " places"]:
        """Return the rows that stand there, int64."""
        numbers = torch.arange(places.start, places.stop, device=device)
        return numbers * self._inverse % self._n_rows


def _nearest_coprime(n: int) -> int:
    """Return what is nearest to n over the golden ratio and shares no divisor with n."""
    wanted = round(n * (math.sqrt(5) - 1) / 2)
    nearest = (wanted + sign * distance for distance in range(n) for sign in (1, -1))
    return next(each for each in nearest if each > 0 and math.gcd(each, n) == 1)
