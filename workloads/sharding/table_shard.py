"""This rank's part of a table, and how the whole is read with it."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workloads.distributed.mesh import Mesh
from workloads.layers.memory.sparse_gradient import SparseGradient
from workloads.sharding import sharded_lookup, sharded_lookup_ops


class TableShard(sharded_lookup_ops.RouteFactory):
    """A rectangle of a table: some columns of all rows, or some rows with all columns.

    What a read returns, and every gradient, is what the whole table would give, up to the order of sums.
    """

    rows: range
    columns: range

    def __init__(self, mesh: Mesh, *, n_rows: int, width: int) -> None:
        """Find this rank's part of a table of `n_rows` rows of `width` columns."""
        super().__init__()
        self.mesh = mesh
        self.n_rows, self.width = n_rows, width

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of this part."""
        return len(self.rows), len(self.columns)

    @property
    def whole(self) -> tuple[int, int]:
        """Rows and columns of the table."""
        return self.n_rows, self.width

    def bag(
        self,
        part: Float[Tensor, "rows columns"],
        ids: Int[Tensor, "bags bag_size"],
        weights: Float[Tensor, "bags bag_size"],
        deferred: SparseGradient | None = None,
    ) -> Float[Tensor, "bags width"]:
        """Return the weighted sums of rows of the whole table (`kernels/weighted_bag`). Collective.

        The gradient of `part` is left in `deferred` if there is one.
        """
        if torch.compiler.is_compiling():
            return sharded_lookup_ops.weighted_sums(part, ids, weights, self.name, deferred)
        route = self.route(ids)
        return sharded_lookup.weighted_sums(part, weights, route, deferred)

    def products(
        self,
        part: Float[Tensor, "rows columns"],
        ids: Int[Tensor, "bags bag_size"],
        x: Float[Tensor, "bags width"],
        deferred: SparseGradient | None = None,
    ) -> Float[Tensor, "bags bag_size"]:
        """Return the products of rows of the whole table with `x` (`kernels/gathered_dot`). Collective.

        The gradient of `part` is left in `deferred` if there is one.
        """
        if torch.compiler.is_compiling():
            return sharded_lookup_ops.products(part, ids, x, self.name, deferred)
        route = self.route(ids)
        return sharded_lookup.products(part, x, route, deferred)


def table_shards(model: nn.Module) -> dict[str, TableShard]:
    """Return parameter name -> shard, of every parameter of which this rank holds a part only."""
    return {
        f"{path}.weight" if path else "weight": module.shard
        for path, module in model.named_modules()
        if isinstance(getattr(module, "shard", None), TableShard)
    }


def count_params(model: nn.Module) -> int:
    """Return the trainable numbers of a model, of a table that is shared out all of them."""
    parts = table_shards(model)
    return sum(
        math.prod(parts[name].whole) if name in parts else parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    )
