"""Gradients of a weighted bag in two steps, the sort before the sum.

The reads are sorted before the gradient of the output arrives.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.backend import uses_triton
from workloads.kernels.weighted_bag import reference

Gradients: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""Given the gradient of the bags, returns that of the table, and of the weights if they were asked
for."""


def sorted_reads(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    weights: Float[Tensor, "bags bag_size"],
    *,
    products: bool,
) -> Gradients:
    """Sort the reads of `weighted_bag(table, ids, weights)`; what is returned gives its gradients.

    The same numbers as its backward pass, which sorts and sums in one call. Autograd does not see
    through it.
    """
    if not table.numel() or not ids.numel():
        found = torch.zeros_like(table), weights.new_zeros(ids.shape) if products else None
        return lambda grad: found
    if not uses_triton(table):

        def summed(grad: Tensor) -> tuple[Tensor, Tensor | None]:
            table_grad, weights_grad = reference.backward(
                table, ids, weights, grad, needs_table=True, needs_weights=products
            )
            assert table_grad is not None
            return table_grad, weights_grad

        return summed
    return _with_triton(table, ids, weights, products=products)


def _with_triton(table: Tensor, ids: Tensor, weights: Tensor, *, products: bool) -> Gradients:
    triton = import_module("workloads.kernels.segment_sum.triton")
    reads = triton.sort_reads(ids, weights, len(table))

    def summed(grad: Tensor) -> tuple[Tensor, Tensor | None]:
        table_grad, found = triton.reduce_rows(
            reads,
            grad,
            table if products else None,
            sums_dtype=table.dtype,
            products_dtype=weights.dtype,
        )
        return table_grad, None if found is None else found.view(ids.shape)

    return summed
