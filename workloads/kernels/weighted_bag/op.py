"""The one entry to the weighted bag."""

from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.weighted_bag import reference


def weighted_bag(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    weights: Float[Tensor, "bags bag_size"],
) -> Float[Tensor, "bags width"]:
    """Return `y[b] = sum_g weights[b, g] * table[ids[b, g]]` (`reference.weighted_bag`)."""
    return reference.weighted_bag(table, ids, weights)
