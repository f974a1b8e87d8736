"""The one entry to the products of rows."""

from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.row_dot import reference


def row_dot(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags width"],
) -> Float[Tensor, "bags bag_size"]:
    """Return `y[b, g] = table[ids[b, g]] . x[b]` (`reference.row_dot`)."""
    return reference.row_dot(table, ids, x)
