"""A weighted bag whose table gradient holds only the rows that were read, once each."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.backend import uses_triton
from workloads.kernels.weighted_bag import reference


def weighted_bag(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    weights: Float[Tensor, "bags bag_size"],
    forward: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Float[Tensor, "bags width"]:
    """Return `forward` of the arguments; the gradient of `table` is sparse, coalesced, its rows ascending."""
    result: Tensor = _RowSparseBag.apply(table, ids, weights, forward)  # type: ignore[no-untyped-call]
    return result


def gradients(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    weights: Float[Tensor, "bags bag_size"],
    grad: Float[Tensor, "bags width"],
    *,
    needs_weights: bool,
) -> tuple[
    Int[Tensor, " distinct"],
    Float[Tensor, "distinct width"],
    Float[Tensor, "bags bag_size"] | None,
]:
    """Return the rows that were read, ascending, the gradient of each, and that of the weights if it is needed.

    The numbers of the dense backward pass, bit for bit on a GPU. Waits for the device: how many rows there are is the
    shape of the result.
    """
    if uses_triton(table) and ids.numel() and table.shape[1]:
        return _with_triton(table, ids, weights, grad, needs_weights=needs_weights)
    rows, places = torch.unique(ids, return_inverse=True)
    return (
        rows,
        reference.table_gradient(len(rows), places, weights, grad.contiguous()),
        reference.row_products(table, ids, grad.contiguous()) if needs_weights else None,
    )


def _with_triton(
    table: Tensor, ids: Tensor, weights: Tensor, grad: Tensor, *, needs_weights: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    triton = import_module("workloads.kernels.segment_sum.triton")
    rows, reads = triton.only_read(triton.sort_reads(ids, weights, len(table)))
    sums, products = triton.reduce_rows(
        reads,
        grad,
        table.index_select(0, rows) if needs_weights else None,
        sums_dtype=table.dtype,
        products_dtype=weights.dtype,
    )
    return rows, sums, None if products is None else products.view(ids.shape)


class _RowSparseBag(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        table: Tensor,
        ids: Tensor,
        weights: Tensor,
        bag: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        ctx.save_for_backward(table, ids, weights)
        return bag(table, ids, weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        table, ids, weights = ctx.saved_tensors
        needs_weights = ctx.needs_input_grad[2]
        rows, sums, weights_grad = gradients(
            table, ids, weights, grads[0], needs_weights=needs_weights
        )
        table_grad = torch.sparse_coo_tensor(
            rows[None].long(), sums, table.shape, is_coalesced=True, check_invariants=False
        )
        return table_grad, None, weights_grad, None
