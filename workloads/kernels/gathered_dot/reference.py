"""Gathered dot products in plain torch: the definition, and the CPU path.

The twin of the weighted bag: what is one's forward pass is the other's backward pass, so both are
made of the same two functions.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.weighted_bag import reference as weighted_bag
from workloads.kernels.weighted_bag.reference import row_products, table_gradient


def gathered_dot(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags width"],
) -> Float[Tensor, "bags bag_size"]:
    """Return `forward` with the gradients of `backward`."""
    result: Tensor = _RowDot.apply(table, ids, x)  # type: ignore[no-untyped-call]
    return result


class _RowDot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(table, ids, x)
        return forward(table, ids, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        needs_table, _, needs_x = ctx.needs_input_grad
        table, ids, x = ctx.saved_tensors
        table_grad, x_grad = backward(
            table, ids, x, grads[0], needs_table=needs_table, needs_x=needs_x
        )
        return table_grad, None, x_grad


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
