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
from workloads.kernels.weighted_bag.gaps import nearest_rows

Gradients: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""Given the gradient of the bags, returns that of the table, and of the weights if they were asked
for."""


def sorted_reads(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    weights: Float[Tensor, "bags bag_size"],
    *,
    products: bool,
    gaps: bool = False,
) -> Gradients:
    """Sort the reads of `weighted_bag(table, ids, weights)`; what is returned gives its gradients.

    The same numbers as its backward pass, which sorts and sums in one call. Autograd does not see
    through it. With `gaps`, reads of row `len(table)` are skipped (`gaps.py`).
    """
    if not table.numel() or not ids.numel():
        found = torch.zeros_like(table), weights.new_zeros(ids.shape) if products else None
        return lambda grad: found
    if not uses_triton(table):
        if gaps:
            ids, weights = nearest_rows(table, ids, weights)

        def summed(grad: Tensor) -> tuple[Tensor, Tensor | None]:
            table_grad, weights_grad = reference.backward(
                table, ids, weights, grad, needs_table=True, needs_weights=products
            )
            assert table_grad is not None
            return table_grad, weights_grad

        return summed
    return _with_triton(table, ids, weights, products=products)


def segment_sum(
    n_rows: int,
    ids: Int[Tensor, "bags bag_size"],
    weights: Float[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags width"],
) -> Float[Tensor, "rows width"]:
    """Return `s[r] = sum over (b, i) with ids[b, i] = r of weights[b, i] * x[b]`.

    In fp32 (float64 for `x` of it), in an order fixed by `ids`. Autograd does not see through it.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    if not ids.numel() or not x.shape[1]:
        return x.new_zeros(n_rows, x.shape[1], dtype=wide)
    if not uses_triton(x):
        return reference.table_gradient(n_rows, ids, weights.to(wide), x.to(wide))
    triton = import_module("workloads.kernels.segment_sum.triton")
    reads = triton.sort_reads(ids, weights, n_rows)
    sums: Tensor
    sums, _ = triton.reduce_rows(reads, x, None, sums_dtype=wide, products_dtype=weights.dtype)
    return sums


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
