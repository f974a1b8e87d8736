"""Products of rows in plain torch: the definition of correct, and the CPU path.

The twin of the weighted bag: what is one's forward pass is the other's backward pass, so both are made of the same
two functions.
"""

from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.weighted_bag import reference as weighted_bag
from workloads.kernels.weighted_bag.reference import row_products, table_gradient


def forward(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags width"],
) -> Float[Tensor, "bags bag_size"]:
    """Return `y[b, g] = table[ids[b, g]] . x[b]`."""
    return row_products(table, ids, x)


def backward(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags width"],
    grad: Float[Tensor, "bags bag_size"],
    *,
    needs_table: bool,
    needs_x: bool,
) -> tuple[Float[Tensor, "rows width"] | None, Float[Tensor, "bags width"] | None]:
    """Return the gradients of table and x, None for what is not needed.

    Autograd through an indexed table would keep every row read, and add up its gradient row by row.
    """
    grad = grad.contiguous()
    return (
        table_gradient(len(table), ids, grad, x.contiguous()) if needs_table else None,
        weighted_bag.forward(table, ids, grad) if needs_x else None,
    )
