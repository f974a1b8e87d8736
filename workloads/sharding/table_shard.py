"""Table shards: one rank's part, and lookups of the whole table."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workloads.distributed.hash_partition import HashPartition
from workloads.distributed.mesh import Mesh
from workloads.layers.memory.handle_registry import Registered
from workloads.layers.memory.sparse_gradient import SparseGradient
from workloads.sharding import sharded_lookup, sharded_lookup_ops
from workloads.sharding.table_route import TableRoute


class TableShard(Registered, ABC):
    """A rectangle of a table: some columns of all rows, or some rows with all columns.

    Lookups and all their gradients are those of the whole table, up to the order of sums. Ranks of
    the memory group must make them together.
    """

    rows: range
    """Of the whole table, or with a `partition` the places of rows."""
    columns: range
    partition: HashPartition | None = None
    """Where rows stand, if not in their order."""

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

    def row_numbers(self) -> Int[Tensor, " rows"]:
        """Return which rows of the table these are, in their order here, int64."""
        if self.partition is None:
            return torch.arange(self.rows.start, self.rows.stop)
        return self.partition.rows(self.rows)

    @property
    def id_dtype(self) -> torch.dtype:
        """The type in which ids are sent: half the bytes of the largest messages."""
        return torch.int32 if self.n_rows < 2**31 else torch.int64

    def route(self, ids: Int[Tensor, "bags bag_size"]) -> TableRoute:
        """Return the route of a lookup of the rows at these places, `id_dtype`. Collective."""
        bags = self.mesh.bags_per_rank(len(ids))
        n_chunks = max(1, min(self.mesh.n_chunks, max(bags)))
        return self.route_of(ids, bags, n_chunks=n_chunks)

    def restore_route(self, ids: Int[Tensor, "bags bag_size"], state: Sequence[int]) -> TableRoute:
        """Return the route of places with this `TableRoute.state`, for its backward pass."""
        n_chunks, *bags = state
        return self.route_of(ids, bags, n_chunks=n_chunks)

    @abstractmethod
    def route_of(self, ids: Tensor, bags: Sequence[int], *, n_chunks: int) -> TableRoute:
        """Return the route of a lookup of the rows at these places; each rank brings `bags`."""

    def weighted_bag(
        self,
        part: Float[Tensor, "rows columns"],
        ids: Int[Tensor, "bags bag_size"],
        weights: Float[Tensor, "bags bag_size"],
        sparse_gradient: SparseGradient | None = None,
    ) -> Float[Tensor, "bags width"]:
        """Return the weighted sums of rows of the whole table (`kernels/weighted_bag`). Collective.

        The gradient of `part` is added to `sparse_gradient` if there is one.
        """
        return self._read("weighted_bag", part, ids, weights, sparse_gradient)

    def gathered_dot(
        self,
        part: Float[Tensor, "rows columns"],
        ids: Int[Tensor, "bags bag_size"],
        x: Float[Tensor, "bags width"],
        sparse_gradient: SparseGradient | None = None,
    ) -> Float[Tensor, "bags bag_size"]:
        """Return the dot products of rows of the whole table with `x` (`kernels/gathered_dot`).

        Collective. The gradient of `part` is added to `sparse_gradient` if there is one.
        """
        return self._read("gathered_dot", part, ids, x, sparse_gradient)

    def _read(
        self,
        operation: str,
        part: Tensor,
        ids: Tensor,
        second: Tensor,
        sparse_gradient: SparseGradient | None,
    ) -> Tensor:
        # Here, where a compiled graph can do it with what made the ids.
        places = ids if self.partition is None else self.partition.places(ids)
        ids = places.to(self.id_dtype)
        if torch.compiler.is_compiling():
            return sharded_lookup_ops.read(operation, part, ids, second, self, sparse_gradient)
        return sharded_lookup.read(operation, part, second, self.route(ids), sparse_gradient)


def table_shards(model: nn.Module) -> dict[str, TableShard]:
    """Return parameter name -> shard, of every table of which this rank holds a part only."""
    return {
        f"{path}.weight" if path else "weight": module.shard
        for path, module in model.named_modules()
        if isinstance(getattr(module, "shard", None), TableShard)
    }


def count_params(model: nn.Module) -> int:
    """Return the trainable numbers of a model, counting sharded tables whole."""
    shards = table_shards(model)
    return sum(
        math.prod(shards[name].whole) if name in shards else parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    )
