"""Gathered dot products in Triton: the weighted bag's kernels, exchanged."""

from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.segment_sum.triton import reduce_rows, sort_reads
from workloads.kernels.weighted_bag import triton as weighted_bag


def forward(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags width"],
) -> Float[Tensor, "bags bag_size"]:
    """Return `reference.forward`, summed in fp32."""
    return weighted_bag.row_products(table, ids, x)


def backward(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags width"],
    grad: Float[Tensor, "bags bag_size"],
    *,
    needs_table: bool,
    needs_x: bool,
) -> tuple[Float[Tensor, "rows width"] | None, Float[Tensor, "bags width"] | None]:
    """Return `reference.backward`, summed in fp32."""
    table_grad = x_grad = None
    if needs_table:
        reads = sort_reads(ids, grad, len(table))
        table_grad, _ = reduce_rows(reads, x, sums_dtype=table.dtype, products_dtype=x.dtype)
    if needs_x:
        x_grad = weighted_bag.forward(table, ids, grad)
    return table_grad, x_grad
