"""Memory tables: value rows that layers read, and the cost of reading them."""

from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workloads.accounting.counts import Component, FlopCount, ParamCount, Precision, distinct_rows
from workloads.kernels.gated_bag.op import gated_bag
from workloads.kernels.gathered_dot.op import gathered_dot
from workloads.kernels.hash_bag.op import hash_bag
from workloads.kernels.sign_hash.op import sign_hash
from workloads.kernels.weighted_bag.op import weighted_bag
from workloads.layers.memory.held_rows import HeldRows
from workloads.layers.memory.host_offload import empty_on_host, fetch_rows, zeros_on_host
from workloads.layers.memory.sparse_gradient import SparseGradient
from workloads.layers.modules.autocast import to_autocast_dtype
from workloads.layers.modules.init import write_normal_part


class TableReader(Protocol):
    """Reads a table of which this rank holds a part (`sharding/table_shard.py` implements it)."""

    n_rows: int
    width: int
    """Rows and columns of the whole table."""
    columns: range
    """Those of this rank's part."""

    def row_numbers(self) -> Int[Tensor, " rows"]:
        """Return the rows of this rank's part, in their order there."""

    def weighted_bag(
        self,
        part: Float[Tensor, "rows columns"],
        ids: Int[Tensor, "bags bag_size"],
        weights: Float[Tensor, "bags bag_size"],
        sparse_gradient: SparseGradient | None = None,
    ) -> Float[Tensor, "bags width"]:
        """Return `weighted_bag` of the whole table. Collective."""

    def gathered_dot(
        self,
        part: Float[Tensor, "rows columns"],
        ids: Int[Tensor, "bags bag_size"],
        x: Float[Tensor, "bags width"],
        sparse_gradient: SparseGradient | None = None,
    ) -> Float[Tensor, "bags bag_size"]:
        """Return `gathered_dot` of the whole table. Collective."""


class MemoryTable(nn.Module):
    """Value rows, read as weighted sums or by their dot products.

    A model owns its tables; a layer that reads one holds a `ModuleRef`.
    """

    PARAM_GROUP: ClassVar[str] = "memory_values"

    def __init__(self, n_rows: int, width: int, *, std: float | None = None) -> None:
        """Make a table, initially normal with standard deviation `std` (None: 1 / sqrt(width))."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_rows, width))
        self.std = width**-0.5 if std is None else std
        self.shard: TableReader | None = None
        """Which part of the table `weight` is, where ranks share it out
        (`sharding/materialise.py`); None is all of it."""
        self.sparse_gradient: SparseGradient | None = None
        """Where backward passes leave the table's gradient; None: in `weight.grad`, as large as the
        table."""
        self.same_reads_as: ModuleRef[MemoryTable] | None = None
        """A table whose backward pass adds the same ids just before this one's in every layer."""
        self.on_host = False
        """Whether the values lie in host memory (`host_offload.py`), whatever device computes with
        them."""
        self.prefetched = False
        """Whether training steps read copies (`training/optimizer/row_prefetch.py`), of host tables
        only."""
        self.held: HeldRows | None = None
        """The copies that this step reads; None: the values themselves are read."""

    def defer_gradient(self, *, prefetched: bool = False) -> None:
        """Keep the gradient sparse from now on, for `training/optimizer/table_optimizer.py`."""
        self.prefetched = prefetched
        self.sparse_gradient = SparseGradient(
            fetch_rows if self.on_host and not prefetched else None, device=self.weight.device
        )

    @property
    def initialises_in_place(self) -> bool:
        """Whether first values are written where they lie, since no copy may fit beside them."""
        return self.on_host

    @property
    def is_whole(self) -> bool:
        """Whether `weight` holds all values, where they are read, and gets a dense gradient."""
        return self.sparse_gradient is None and self.shard is None and not self.on_host

    def to_host(self, device: torch.device, *, dtype: torch.dtype | None = None) -> None:
        """Keep the values, or open ones of a table on the meta device, in host memory.

        `device` computes with them. `dtype` becomes their type; None keeps the one they have.

        Raises:
            ValueError: If ranks share the table out.
        """
        if self.shard is not None:
            raise ValueError(
                "memory_tables: host holds whole tables, this one is shared out over ranks; "
                "set memory_ranks to 1"
            )
        weight = self.weight
        values = empty_on_host(*weight.shape, dtype=dtype or weight.dtype, device=device)
        if not weight.is_meta:
            values.copy_(weight.detach())
        self.weight = nn.Parameter(values, requires_grad=weight.requires_grad)
        self.on_host = True

    def store_as(self, dtype: torch.dtype) -> None:
        """Change the type of the values, which stay the same parameter where they are."""
        if self.weight.dtype == dtype:
            return
        if self.on_host:
            values = empty_on_host(*self.weight.shape, dtype=dtype, device=self.weight.device)
            self.weight.data = values.copy_(self.weight.detach())
        else:
            self.to(dtype)

    def zeros_like(self, tensor: Tensor, *, dtype: torch.dtype) -> Tensor:
        """Return zeros of the shape of `tensor`, where the optimizer state of the table lies.

        In host memory, if the values do. But a number per row lies on the device where no row is
        prefetched: updates read it row by row, and it is small.
        """
        if self.on_host and (self.prefetched or tensor.ndim > 1):
            return zeros_on_host(tensor, dtype=dtype)
        return torch.zeros_like(tensor, dtype=dtype)

    def forward(
        self, ids: Int[Tensor, "bags bag_size"], weights: Float[Tensor, "bags bag_size"]
    ) -> Float[Tensor, "bags width"]:
        """Return the weighted sum of the rows of each bag, in the table's type."""
        rows, places = self._rows(ids)
        weights = weights.to(self.weight.dtype)
        if self.shard is not None:
            return self.shard.weighted_bag(rows, places, weights, self.sparse_gradient)
        if self.sparse_gradient is not None:
            return self.sparse_gradient.weighted_bag(rows, places, weights)
        return weighted_bag(rows, places, weights)

    def hashed(
        self, z: Float[Tensor, "tokens chunks bits"], *, temperature: float, times_l1: bool
    ) -> tuple[
        Float[Tensor, "tokens width"], Int[Tensor, "tokens chunks"], Float[Tensor, "tokens chunks"]
    ]:
        """Return the sum of the rows that the signs of `z` name, their ids and their weights.

        The sum has the table's type or, with `is_whole`, autocast's: every row is read by many
        tokens, like those of a matrix.
        """
        if self.is_whole:
            table = to_autocast_dtype(self.weight)
            return hash_bag(table, z, temperature=temperature, times_l1=times_l1)
        ids, weights = sign_hash(z, temperature=temperature, times_l1=times_l1)
        return self(ids, weights), ids, weights

    def gated(
        self,
        gates: "MemoryTable",
        ids: Int[Tensor, "bags bag_size"],
        scores: Float[Tensor, "bags bag_size"],
        x: Float[Tensor, "bags gate_width"],
    ) -> tuple[Float[Tensor, "bags width"], Float[Tensor, "bags bag_size"]]:
        """Return the weighted sum of the rows of each bag, in the table's type, and the weights.

        These are the scores times the product of the same row of `gates` with the bag's `x`.
        """
        if self.is_whole and gates.is_whole:
            return gated_bag(self.weight, gates.weight, ids, scores, x.to(gates.weight.dtype))
        weights = scores * gates.gathered_dot(ids, x)
        return self(ids, weights), weights

    def gathered_dot(
        self, ids: Int[Tensor, "bags bag_size"], x: Float[Tensor, "bags width"]
    ) -> Float[Tensor, "bags bag_size"]:
        """Return the product of every row of each bag with the bag's `x`, in the table's type."""
        rows, places = self._rows(ids)
        x = x.to(self.weight.dtype)
        if self.shard is not None:
            return self.shard.gathered_dot(rows, places, x, self.sparse_gradient)
        if self.sparse_gradient is not None:
            return self.sparse_gradient.gathered_dot(rows, places, x)
        return gathered_dot(rows, places, x)

    def _rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return a tensor that holds the rows read, and where in it they are.

        A deferred gradient fetches them itself.
        """
        if self.held is not None:
            return self.held.values, self.held.places(ids)
        if self.on_host and self.sparse_gradient is None:
            return fetch_rows(self.weight, ids)
        return self.weight, ids

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write a normal: of a part what the whole would have there."""
        if self.shard is None and not self.on_host:
            value.normal_(0.0, self.std, generator=generator)
            return
        n_rows, width = self.weight.shape
        shard = self.shard
        write_normal_part(
            value,
            self.std,
            generator,
            width=width if shard is None else shard.width,
            n_rows=n_rows if shard is None else shard.n_rows,
            rows=torch.arange(n_rows) if shard is None else shard.row_numbers(),
            columns=range(width) if shard is None else shard.columns,
        )


M = TypeVar("M", bound=nn.Module)


class ModuleRef(Generic[M]):
    """A module that is used here and owned, saved and counted elsewhere in the model."""

    def __init__(self, module: M) -> None:
        self.module = module


@dataclass(frozen=True, kw_only=True)
class TableComponent(Component):
    """A table, and the layers that read it."""

    n_rows: int
    width: int
    bag_size: int
    """Rows that one token reads in one layer."""
    distinct: int
    """Of those, how many are drawn together without repetition: one head's share."""
    n_readers: int = 1
    """Layers that read it."""
    hashed: bool = False
    """Read by signs: under autocast in its type, like the weight of a product."""
    by_token: bool = False
    """Whether tokens alone name the rows (`token_reads.py`)."""
    paired: bool = False
    """One of two tables of which the same ids are read, so that their use is recorded once."""

    def param_count(self) -> ParamCount:
        """Count the rows once, however many layers read them."""
        return ParamCount(memory_values=self.n_rows * self.width)

    def active_params(self) -> int:
        """Count the rows that one token reads, up to the whole table.

        As if heads and layers never read the same row.
        """
        return min(self.n_rows, self.n_readers * self.bag_size) * self.width

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count the weighted sums, or the products, of the rows read."""
        return FlopCount(memory=2.0 * self.n_readers * self.bag_size * self.width)

    def bytes_per_token(self, *, batch_tokens: int, element_bytes: int) -> dict[str, float]:
        """Return the rows that the batch reads in each layer, each once.

        Expected number under even use.
        """
        rows = distinct_rows(
            self.n_rows,
            draws=batch_tokens * (self.bag_size // self.distinct),
            without_repetition=self.distinct,
        )
        per_token = self.n_readers * rows * self.width / batch_tokens
        return {"memory_values": element_bytes * per_token}

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return nothing: ids and weights are kept by whoever made them."""
        return 0.0

    @property
    def reads(self) -> int:
        """Rows that one token reads in all layers, each as often as it is read."""
        return self.n_readers * self.bag_size

    @property
    def usage_rows(self) -> float:
        """Rows of which the readers record the use (`MemoryUsage`), this table's share of them."""
        return self.n_readers * self.n_rows / (2 if self.paired else 1)

    def sparse_gradient_bytes_per_token(self, *, element_bytes: int) -> int:
        """Return what a deferred gradient keeps until the update (`LookupGrad`).

        Ids (int32), weights, and a row per bag.
        """
        return self.reads * (4 + element_bytes) + self.n_readers * self.width * element_bytes
