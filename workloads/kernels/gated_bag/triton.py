"""Gated bag by the kernels of `weighted_bag` and `segment_sum`.

One sort serves both tables.
"""

from dataclasses import replace

from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.segment_sum.triton import reduce_rows, sort_reads
from workloads.kernels.weighted_bag import triton as weighted_bag


def forward(
    values: Float[Tensor, "rows width"],
    pre_values: Float[Tensor, "rows pre_width"],
    ids: Int[Tensor, "bags bag_size"],
    scores: Float[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags pre_width"],
) -> tuple[Float[Tensor, "bags width"], Float[Tensor, "bags bag_size"]]:
    """Return the weighted sums, and the products with pre-values, which the gradients need."""
    products = weighted_bag.row_products(pre_values, ids, x)
    return weighted_bag.forward(values, ids, scores * products), products


def backward(
    grad: Float[Tensor, "bags width"],
    products: Float[Tensor, "bags bag_size"],
    values: Float[Tensor, "rows width"],
    pre_values: Float[Tensor, "rows pre_width"],
    ids: Int[Tensor, "bags bag_size"],
    scores: Float[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags pre_width"],
    *,
    needs_tables: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor]:
    """Return the gradients of both tables, None unless needed, of scores and of x."""
    weights_grad = weighted_bag.row_products(values, ids, grad)
    products_grad = weights_grad * scores
    scores_grad = (weights_grad * products).to(scores.dtype)
    x_grad = weighted_bag.forward(pre_values, ids, products_grad)
    if not needs_tables:
        return None, None, scores_grad, x_grad
    reads = sort_reads(ids, scores * products, len(values))
    value_grad, _ = reduce_rows(reads, grad, sums_dtype=values.dtype, products_dtype=values.dtype)
    of_pre_values = replace(reads, weights=products_grad.float().view(-1)[reads.order])
    pre_value_grad, _ = reduce_rows(
        of_pre_values, x, sums_dtype=values.dtype, products_dtype=values.dtype
    )
    return value_grad, pre_value_grad, scores_grad, x_grad
