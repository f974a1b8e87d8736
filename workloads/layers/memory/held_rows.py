"""Rows of a table in host memory, copied to the device for one step."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class HeldRows:
    """Copies of the rows that one step reads; there is room for as many as it has reads."""

    ids: Int[Tensor, " held"]
    """Of the rows, ascending; the table's number of rows where there is room left."""
    values: Float[Tensor, "held width"]

    def places(self, ids: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Return where the rows `ids` are held. Every one must be."""
        return torch.searchsorted(self.ids, ids.to(self.ids.dtype), out_int32=True)


def distinct(ids: Int[Tensor, "*shape"], *, n_rows: int, room: int) -> Int[Tensor, " room"]:
    """Return the different ids, ascending, and then `n_rows` up to the end.

    Unlike `torch.unique` it has a fixed shape, so the host need not wait for their number. `room`
    must be the number of ids, or the number of rows where that is less.
    """
    ordered = ids.flatten().to(torch.int32 if n_rows < 2**31 else torch.int64).sort().values
    begins = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=begins[1:])
    numbers = torch.arange(1, room + 1, device=ids.device)
    # Where the first id of each number stands; past the end where there are not as many.
    first = torch.searchsorted(begins.cumsum(0), numbers)
    named = ordered[first.clamp_max(len(ordered) - 1)]
    return named.masked_fill_(first == len(ordered), n_rows)
