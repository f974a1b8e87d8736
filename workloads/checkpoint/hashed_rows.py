"""Saved tables whose rows a hash partition has put in another order."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from workloads.checkpoint.tensor_block import SavedTensor
from workloads.distributed.hash_partition import HashPartition

_READ_BYTES = 2**26
"""Of a table at a time, where its rows are wanted in another order."""


class HashedRows(SavedTensor):
    """A saved tensor of which `stored` has each row at its place (`HashPartition`)."""

    def __init__(self, stored: SavedTensor) -> None:
        self.stored, self.whole = stored, stored.whole

    def read(self, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """Return a rectangle of the table, whose rows are in their own order."""
        rows = torch.arange(offsets[0], offsets[0] + sizes[0])
        places = HashPartition(self.whole[0]).places(rows)
        return read_rows(self.stored, places, offsets[1:], sizes[1:])


def read_rows(
    saved: SavedTensor,
    rows: Int[Tensor, " rows"],
    offsets: Sequence[int] = (),
    sizes: Sequence[int] = (),
) -> Tensor:
    """Return rows of a saved tensor in any order; of each, what `offsets` and `sizes` say.

    All rows between the first and the last are read, some at a time.
    """
    ascending, order = rows.sort()
    if not len(rows):
        return saved.read([0, *offsets], [0, *sizes])
    first, end = int(ascending[0]), int(ascending[-1]) + 1
    found: Tensor | None = None
    at_once = 1
    while first < end:
        piece = saved.read([first, *offsets], [min(at_once, end - first), *sizes])
        if found is None:
            found = piece.new_empty(len(rows), *piece.shape[1:])
            at_once = max(1, _READ_BYTES // max(1, piece.nbytes))
        last = first + len(piece)
        begins, ends = torch.searchsorted(ascending, torch.tensor([first, last])).tolist()
        found[order[begins:ends]] = piece[ascending[begins:ends] - first]
        first = last
    assert found is not None
    return found
