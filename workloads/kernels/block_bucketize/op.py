"""Entry points of block bucketize, for a table of whole rows over ranks.

FBGEMM's `block_bucketize_sparse_features` regroups ids by the block of rows that they fall in, one
block for each rank. Here that is done within each bag, so that no length depends on the ids. It is
to the reads of a bag what permute and unpermute of expert dispatch are to the choices of a token.
Rank r of P holds rows r * n_rows // P up to (r + 1) * n_rows // P (`RankGroup.local_range`). Some
ranks may hold none.

Numbers are only moved. Autograd does not see through these.
"""

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from jaxtyping import Int, Shaped
from torch import Tensor

from workloads.kernels.block_bucketize import reference


def bucketize(
    ids: Int[Tensor, "bags bag_size"],
    scalars: Sequence[Shaped[Tensor, "bags bag_size"]],
    *,
    n_rows: int,
    n_ranks: int,
    out: Sequence[Shaped[Tensor, "bags bag_size"]] | None = None,
) -> Sequence[Shaped[Tensor, "bags bag_size"]]:
    """Return the scalars of the reads, in each bag in the order of the ranks that hold the rows.

    Those of one rank keep their order.

    Args:
        ids: Below `n_rows`.
        scalars: One tensor or two, of any type; the ids may be one of them.
        n_rows: Of the whole table.
        n_ranks: That hold it.
        out: Where to write them: contiguous, of their types. None: in new tensors.
    """
    moved: Sequence[Tensor] = _of(ids).bucketize(
        ids, scalars, n_rows=n_rows, n_ranks=n_ranks, out=out
    )
    return moved


def unbucketize(
    ids: Int[Tensor, "bags bag_size"],
    parts: Shaped[Tensor, "ranks bags bag_size"],
    *,
    n_rows: int,
) -> Shaped[Tensor, "bags bag_size"]:
    """Return the scalar of each read from the part of the rank that holds its row.

    In every part the reads of a bag stand as `bucketize` puts them. Those of other ranks' rows may
    be anything.
    """
    taken: Tensor = _of(ids).unbucketize(ids, parts, n_rows=n_rows)
    return taken


def local_ids(
    ids: Sequence[Int[Tensor, "_ bag_size"]], rows: range
) -> Int[Tensor, "held_bags bag_size"]:
    """Return ids counted from the first of `rows`, of all tensors one after another.

    Of rows that are not among these it is their number, which the ids' type must hold.
    """
    local: Tensor = _of(ids[0]).local_ids(ids, rows)
    return local


def _of(ids: Tensor) -> ModuleType:
    # Not by the type of the scalars: float64, too, is only moved.
    return import_module("workloads.kernels.block_bucketize.triton") if ids.is_cuda else reference
