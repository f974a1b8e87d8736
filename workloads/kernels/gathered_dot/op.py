"""Entry point of gathered dot products."""

from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.custom_op import register_lookup
from workloads.kernels.gathered_dot import reference


def gathered_dot(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags width"],
) -> Float[Tensor, "bags bag_size"]:
    """Return the product of each bag's `x` with every row that it names.

    `y[b, g] = table[ids[b, g]] . x[b]`.

    A row may occur several times in a bag. Table and `x` have one type, which autocast leaves
    alone. Gradients reach `table` (dense) and `x`. Both passes are deterministic: every sum is
    taken in an order fixed by `ids`. `torch.compile` sees one operation.
    """
    if not table.is_cuda:
        # A custom operation costs half a millisecond more, which small models feel, and says
        # nothing new.
        return reference.gathered_dot(table, ids, x)
    return _forward(table, ids, x)


_forward = register_lookup(
    "gathered_dot",
    second="x",
    new_output=lambda table, ids, x: table.new_empty(ids.shape),
)
