"""Products of rows in plain torch: the definition of correct, and the CPU path.

The twin of the weighted bag: what is one's forward pass is the other's backward pass, so both are made of the same
two functions.
"""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, autograd
from torch.nn import functional

from workloads.kernels.weighted_bag.reference import row_products, table_gradient


def row_dot(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags width"],
) -> Float[Tensor, "bags bag_size"]:
    """Return the product of each bag's `x` with every row that it names: `y[b, g] = table[ids[b, g]] . x[b]`.

    A row may occur several times in a bag. Table and `x` have one type, which autocast leaves alone. Gradients reach
    `table` (dense) and `x`. On a CPU both passes are deterministic: every sum is taken in an order fixed by `ids`.
    """
    result: Tensor = _RowDot.apply(table, ids, x)  # type: ignore[no-untyped-call]
    return result


class _RowDot(autograd.Function):
    """Autograd through an indexed table would keep every row read, and add up its gradient row by row."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(table, ids, x)
        return row_products(table, ids, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        table, ids, x = ctx.saved_tensors
        grad = grads[0].contiguous()
        table_grad = x_grad = None
        if ctx.needs_input_grad[0]:
            table_grad = table_gradient(len(table), ids, grad, x.contiguous())
        if ctx.needs_input_grad[2]:
            x_grad = functional.embedding_bag(ids, table, per_sample_weights=grad, mode="sum")
        return table_grad, None, x_grad
