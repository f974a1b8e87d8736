"""Block bucketize in plain torch: the definition, and the CPU path."""

from collections.abc import Sequence

import torch
from jaxtyping import Int, Shaped
from torch import Tensor


def bucketize(
    ids: Int[Tensor, "bags bag_size"],
    scalars: Sequence[Shaped[Tensor, "bags bag_size"]],
    *,
    n_rows: int,
    n_ranks: int,
    out: Sequence[Shaped[Tensor, "bags bag_size"]] | None = None,
) -> Sequence[Shaped[Tensor, "bags bag_size"]]:
    """Return the scalars as `op.bucketize` defines them."""
    order = holders(ids, n_rows=n_rows, n_ranks=n_ranks).argsort(dim=1, stable=True)
    if out is None:
        return [each.gather(1, order) for each in scalars]
    for each, target in zip(scalars, out, strict=True):
        torch.gather(each, 1, order, out=target)
    return out


def unbucketize(
    ids: Int[Tensor, "bags bag_size"],
    parts: Shaped[Tensor, "ranks bags bag_size"],
    *,
    n_rows: int,
) -> Shaped[Tensor, "bags bag_size"]:
    """Return what is taken of the parts as `op.unbucketize` defines it."""
    by_rank, order = holders(ids, n_rows=n_rows, n_ranks=len(parts)).sort(dim=1, stable=True)
    in_order = parts.gather(0, by_rank[None])[0]
    return torch.empty_like(in_order).scatter_(1, order, in_order)


def local_ids(
    ids: Sequence[Int[Tensor, "_ bag_size"]], rows: range
) -> Int[Tensor, "held_bags bag_size"]:
    """Return the ids as `op.local_ids` defines them."""
    local = torch.cat(list(ids)) - rows.start
    return torch.where((local >= 0) & (local < len(rows)), local, len(rows))


def holders(
    ids: Int[Tensor, "bags bag_size"], *, n_rows: int, n_ranks: int
) -> Int[Tensor, "bags bag_size"]:
    """Return the rank that holds the row of each read."""
    # Rows of a rank begin at rank * n_rows // n_ranks; this is the last rank for which that is at
    # most the id.
    return ((ids.long() + 1) * n_ranks - 1) // n_rows
