"""Entry point of fused table updates."""

from importlib import import_module
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.backend import uses_triton
from workloads.kernels.table_update import reference
from workloads.kernels.table_update.update_rules import Rule


class RowSums(Protocol):
    """The gradient of a table as its reads, sorted; sums of rows exist only while they are used."""

    def norm(self) -> Float[Tensor, ""]:
        """Return the Euclidean norm of all sums: the norm of the gradient."""

    def row_squares(self) -> Float[Tensor, " rows"]:
        """Return the sum of squares of every row's sum; 0 for rows that are not named."""

    def update_(
        self,
        state: dict[str, Tensor],
        rule: Rule,
        coefficient: Float[Tensor, ""] | None = None,
        *,
        mean_squares: Float[Tensor, " rows"] | None = None,
        row_ids: Int[Tensor, " rows"] | None = None,
    ) -> Float[Tensor, ""]:
        """Update table and state by the sums times `coefficient`.

        Return the norm of the sums without it.

        `mean_squares`, of every row's sum without the coefficient, is for the rowwise rule where
        the table holds some columns of its rows only. `row_ids` are the rows' places in the whole
        table, where they are copies of some of them; else they count from `rule.origin`.
        """

    def update_with_products_(
        self, state: dict[str, Tensor], rule: Rule, coefficient: Float[Tensor, ""] | None = None
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "bags bag_size"]]:
        """Update; return also the product of each bag's `x` with its rows as they were before.

        The gradient of a bag's weights in the pass that updates: for a table that is read once in a
        step.
        """


def row_sums(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    weights: Float[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags width"],
    *,
    like: RowSums | None = None,
) -> RowSums:
    """Return the row sums of a gradient, ready to update `table`.

    `g[r] = sum over (b, i) with ids[b, i] = r of weights[b, i] * x[b]`.

    Sums are taken in fp32 (float64 for tables of it), in an order fixed by `ids`. The table is
    changed in place, out of autograd's sight. A norm asked for before the update costs a second
    pass on a GPU: over the reads, or over sums where a row has many of them (`kept_sums.py`).

    Args:
        table: Values, changed by an update.
        ids: Rows that each bag reads.
        weights: Of these reads.
        x: Gradient of each bag.
        like: Sums of the very same ids for another table of as many rows, which is not checked. A
            GPU takes their order instead of sorting again.

    Raises:
        ValueError: If the table is neither fp32, bf16 nor, off the GPU kernels, float64.
    """
    if table.dtype not in (torch.float32, torch.bfloat16, torch.float64):
        raise ValueError(f"table must be fp32 or bf16, got {table.dtype}")
    if not table.is_contiguous():
        raise ValueError("table must be contiguous: it is updated in place")
    # A part without rows or columns has no grid.
    if uses_triton(table) and table.numel():
        module = import_module("workloads.kernels.table_update.triton")
        result: RowSums = module.TritonRowSums(table, ids, weights, x, like=like)
        return result
    return reference.ReferenceRowSums(table, ids, weights, x)
