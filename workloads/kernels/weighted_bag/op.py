"""Entry point of the weighted bag."""

from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.custom_op import register_lookup
from workloads.kernels.weighted_bag import reference


def weighted_bag(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    weights: Float[Tensor, "bags bag_size"],
) -> Float[Tensor, "bags width"]:
    """Return for each bag the weighted sum of the rows it names.

    `y[b] = sum_g weights[b, g] * table[ids[b, g]]`.

    A row may occur several times in a bag. Gradients reach `table` and `weights`. Both passes are
    deterministic: every sum is taken in an order fixed by `ids`. `torch.compile` sees one
    operation.

    Args:
        table: The rows.
        ids: Which of them each bag sums, from 0 up to `rows`.
        weights: What each is multiplied with.
    """
    if not table.is_cuda:
        # A custom operation costs half a millisecond more, which small models feel, and says
        # nothing new.
        return reference.weighted_bag(table, ids, weights)
    return _forward(table, ids, weights)


_forward = register_lookup(
    "weighted_bag",
    second="weights",
    new_output=lambda table, ids, weights: table.new_empty(ids.shape[0], table.shape[1]),
)
