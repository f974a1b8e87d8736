"""Lookups in a part of a table: reads of rows that are held elsewhere are skipped.

Their id is the number of rows held here. Sums leave them out, products of them may be anything, and
no row counts as read by them. Those of a bag that are made stand side by side
(`kernels/block_bucketize`), so that kernels pass over the others in one step. Autograd does not see
through these.
"""

from importlib import import_module

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.backend import uses_triton
from workloads.kernels.weighted_bag import reference


def bag_with_gaps(
    part: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    weights: Float[Tensor, "bags bag_size"],
) -> Float[Tensor, "bags width"]:
    """Return `weighted_bag` of the reads whose rows are here. The part has a row at least."""
    if uses_triton(part):
        triton = import_module("workloads.kernels.weighted_bag.triton")
        bags: Tensor = triton.forward(part, ids, weights, gaps=True)
        return bags
    return reference.forward(part, *nearest_rows(part, ids, weights))


def products_with_gaps(
    part: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags width"],
) -> Float[Tensor, "bags bag_size"]:
    """Return `gathered_dot` of the reads whose rows are here. The part has a row at least."""
    if uses_triton(part):
        triton = import_module("workloads.kernels.weighted_bag.triton")
        products: Tensor = triton.row_products(part, ids, x, gaps=True)
        return products
    return reference.row_products(part, ids.clamp(max=len(part) - 1), x)


def nearest_rows(
    part: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    weights: Float[Tensor, "bags bag_size"],
) -> tuple[Int[Tensor, "bags bag_size"], Float[Tensor, "bags bag_size"]]:
    """Return ids and weights in which a skipped read is one of the last row with weight 0."""
    return ids.clamp(max=len(part) - 1), torch.where(ids < len(part), weights, 0)
