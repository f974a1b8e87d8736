"""Optimizer of memory tables: one merged sparse update per table and step."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int32
from torch import Tensor, nn

from workloads.distributed.mesh import Mesh, all_reduce_copy
from workloads.distributed.process_group import RankGroup
from workloads.kernels.table_update.op import RowSums, row_sums
from workloads.kernels.table_update.split_master import write_halves
from workloads.kernels.table_update.update_rules import (
    PACKED_WORDS,
    Kind,
    Rule,
    new_state,
    pack,
)
from workloads.layers.memory.lookup_grad import JoinedIds, LookupGrad
from workloads.layers.memory.sparse_gradient import SparseGradient
from workloads.layers.memory.table import MemoryTable
from workloads.layers.memory.token_reads import token_readers
from workloads.sharding.column_parallel import ColumnParallelShard
from workloads.sharding.row_parallel import RowParallelShard
from workloads.training.config import TrainConfig
from workloads.training.optimizer.prefetched_rows import VALUES, Rows
from workloads.training.optimizer.row_prefetch import RowPrefetch

RULE_OF: Mapping[str, Kind] = {
    "deferred_adamw": "adamw",
    "lazy_adamw": "lazy_adamw",
    "rowwise": "rowwise",
    "sgd": "sgd",
}
"""Rule of each `train.table_optimizer` but adamw, which needs dense gradients."""
READ_AS: Mapping[str, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "bf16_master": torch.bfloat16,
}
"""Type that a table has for whoever reads it, by `train.table_precision`."""


def prefetches(table_optimizer: str, *, by_token: bool, ranks: int) -> bool:
    """Whether the rows of a table in host memory are fetched before the step (`RowPrefetch`).

    `deferred_adamw` updates rows that no token names, and other ranks read rows that this one does
    not know of.
    """
    return by_token and ranks == 1 and table_optimizer != "deferred_adamw"


class TableOptimizer:
    """Updates all tables of a model by one rule, clipped by their joint norm.

    With `table_clip: exact` the norm is that of the step's own gradients, as in the dense path: on
    a CPU the update then has the bits of `torch.optim.AdamW(foreach=False)` where a table is read
    once in a step and nothing is clipped, and otherwise differs by the order of sums. `previous`
    clips by the norm of the step before, which is known for free (the first step's is exact), so it
    is another algorithm wherever clipping acts. bf16 tables are rounded stochastically: they follow
    the fp32 ones on average. With a master their updates are the fp32 ones.

    Of a table that the ranks of `mesh` share out, each updates its part as the whole would be
    updated there: norms, and for the rowwise rule under columns the squares of each row, are summed
    over the ranks that hold it together.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        mesh: Mesh | None = None,
        *,
        seed: int = 0,
    ) -> None:
        """Defer the gradients of all trained tables, and convert them to `table_precision`."""
        self._mesh = mesh or Mesh()
        self._tables = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, MemoryTable) and module.weight.requires_grad
        }
        self._config, self._seed = config, seed
        self._kind = RULE_OF[config.table_optimizer]
        readers = token_readers(model)
        fetched = {
            name: table
            for name, table in self._tables.items()
            if table.on_host
            and prefetches(
                config.table_optimizer, by_token=table in readers, ranks=self._mesh.world.size
            )
        }
        self._states = {
            name: self._begin(table, prefetched=name in fetched)
            for name, table in self._tables.items()
        }
        for table in self._tables.values():
            if table.same_reads_as is not None and table.sparse_gradient is not None:
                others = table.same_reads_as.module.sparse_gradient
                table.sparse_gradient.same_reads_as = others
        self.prefetch = RowPrefetch(fetched, readers, self._states)
        self._steps = dict.fromkeys(self._tables, 0)
        self._rules: dict[str, Rule] = {}
        """Of the next step."""
        self._packed = self._room_for_rules()
        self._row_numbers = {
            name: table.shard.row_numbers().to(table.weight.device, table.shard.id_dtype)
            for name, table in self._tables.items()
            if isinstance(table.shard, RowParallelShard) and config.table_precision == "bf16"
        }
        """Of rows in another order than the table's, which are rounded by their numbers."""
        self._updated: tuple[str, ...] = ()
        """The tables that the last `update` updated."""
        self._previous_norm: Tensor | None = None
        self._gathered: dict[str, LookupGrad] | None = None
        """The lookups of the next step by table, between `gather` and `sum_lookups`."""
        self._has_micro_batches = False
        """Whether lookups may have been summed in this step, on some ranks if not on all."""
        self._sums: dict[str, RowSums] | None = None
        """Of the next step, between `sum_lookups` and `update`."""
        self._norms: dict[str, Tensor] | None = None
        """Of these sums, where they are clipped by their own."""
        self._coefficient: Tensor | None = None

    def _room_for_rules(self) -> Int32[Tensor, "tables words"] | None:
        """Return where kernels on a GPU find the rules of a step; None on a CPU."""
        device = next((table.weight.device for table in self._tables.values()), None)
        if device is None or device.type != "cuda":
            return None
        return torch.zeros(len(self._tables), PACKED_WORDS, dtype=torch.int32, device=device)

    def _begin(self, table: MemoryTable, *, prefetched: bool) -> dict[str, Tensor]:
        """Convert a table to `table_precision`; return its initial optimizer state."""
        precision = self._config.table_precision
        master = precision == "bf16_master"
        exact = table.weight.detach()
        if precision != "fp32":
            table.store_as(READ_AS[precision])
        table.defer_gradient(prefetched=prefetched)
        state = new_state(self._kind, table.weight, master=master, zeros_like=table.zeros_like)
        if master:
            write_halves(exact, high=table.weight.detach(), low=state["low"])
        return state

    @property
    def parameters(self) -> set[nn.Parameter]:
        """The tables' values."""
        return {table.weight for table in self._tables.values()}

    def reduce(self) -> None:
        """Between micro-batches, sum the lookups of tables where that takes less memory."""
        for table in self._tables.values():
            assert table.sparse_gradient is not None
            table.sparse_gradient.reduce()
        self._has_micro_batches = True

    def gather(self) -> None:
        """Gather the tables' reads of all ranks, in rank order.

        In one order, so that ranks with the same table make the same update.

        A part of a table that is shared out has the reads of all ranks that hold it together
        already.

        Reads are exchanged rather than sums: they are as large as the batch, and a sum over ranks
        would need a dense gradient. With v numbers of 2 bytes a row and G rows a token, a rank
        receives (P - 1) (2 v + 6 G) bytes for each of its tokens and layers, against 4 v N (P - 1)
        / P for a sum of dense gradients: less up to P = 7 ranks where three layers of 64k tokens
        read 128 rows of 1,024 in a table of 2^20, and up to more ranks in larger tables.
        """
        self._gathered, self._sums = {}, None
        joined: JoinedIds = {}
        for name, table in self._tables.items():
            assert table.sparse_gradient is not None
            world = self._mesh.world if table.shard is None else self._mesh.data
            hits = self._take(table.sparse_gradient, world, joined)
            if table.weight.grad is not None:
                raise ValueError(
                    f"{name}: has a dense gradient beside its deferred one, some layer reads the "
                    "weight itself; use table_optimizer: adamw"
                )
            if hits is not None:
                if table.shard is not None:
                    # How many of a bag's reads are held here differs from rank to rank.
                    hits = hits.widened(max(world.all_gather_objects(hits.ids.shape[1])))
                ids, weights, x = world.all_gather_rows([hits.ids, hits.weights, hits.x])
                self._gathered[name] = LookupGrad(ids=ids, weights=weights, x=x)
        self._has_micro_batches = False

    def _take(
        self, gradient: SparseGradient, world: RankGroup, joined: JoinedIds
    ) -> LookupGrad | None:
        """Return a table's reads, in the same form on all ranks: as they were, or summed by row."""
        reduced = self._has_micro_batches and any(world.all_gather_objects(gradient.reduced))
        return gradient.take_sums() if reduced else gradient.take(joined)

    def sum_lookups(self) -> None:
        """Sort the gathered reads by row, and sum them where a norm needs it.

        Tables with the very same ids share one sort: on one rank only, since `gather` makes ids of
        several ranks anew for each table.
        """
        if self._gathered is None:
            self.gather()
        assert self._gathered is not None
        self._sums = {}
        by_ids: dict[tuple[int, int], RowSums] = {}
        for name, hits in self._gathered.items():
            values = self._rows(name)[VALUES]
            key = id(hits.ids), len(values)
            self._sums[name] = by_ids[key] = row_sums(
                values, hits.ids, hits.weights, hits.x, like=by_ids.get(key)
            )
        self._gathered = None
        if self._previous_norm is None or self._config.table_clip == "exact":
            self._norms = {name: sums.norm() for name, sums in self._sums.items()}

    def clip(self) -> Tensor:
        """Find the clipping coefficient; return the norm before clipping, 0-d."""
        if self._sums is None:
            self.sum_lookups()
        own, self._norms = self._norms, None
        if own is None:
            assert self._previous_norm is not None
            norm = self._previous_norm.clone()  # the update overwrites it
        else:
            norm = self._norm(own)
        if self._config.grad_clip is not None:
            # As `nn.utils.clip_grads_with_norm_` has it.
            self._coefficient = (self._config.grad_clip / (norm + 1e-6)).clamp(max=1.0)
        return norm

    def step(self, lr: float) -> None:
        """Update the tables whose reads are clipped, with learning rate `lr`."""
        self.set_learning_rate(lr)
        self.update()
        self.finish()

    def set_learning_rate(self, lr: float) -> None:
        """Make the rules of the next `update`, and bring them where a captured one reads them."""
        self._rules = {
            name: Rule(
                kind=self._kind,
                lr=lr,
                beta1=self._config.beta1,
                beta2=self._config.beta2,
                eps=self._config.eps,
                weight_decay=self._config.value_weight_decay,
                step=self._steps[name] + 1,
                seed=self._seed,
                table=number,
                origin=_origin(table),
                packed=None if self._packed is None else self._packed[number],
            )
            for number, (name, table) in enumerate(self._tables.items())
        }
        if self._packed is not None:
            # From pinned memory, which is not used again before it is copied.
            self._packed.copy_(pack([*self._rules.values()]).pin_memory(), non_blocking=True)

    def update(self) -> None:
        """Update all tables that were read since the last step, and drop their reads.

        On a GPU it is the same sequence of kernels in every step, so it can be captured.
        """
        norms = {}
        waiting, self._sums = self._sums or {}, None
        for name, table in self._tables.items():
            if name not in waiting:
                continue
            # Popped, so that one table's sorted reads are gone before the next one's update.
            sums = waiting.pop(name)
            norms[name] = sums.update_(
                self._rows(name),
                self._rules[name],
                self._coefficient,
                mean_squares=self._mean_squares(table, sums),
                row_ids=self._row_numbers.get(name, self.prefetch.held_ids(name)),
            )
            torch.autograd.graph.increment_version(table.weight)
        if norms and self._config.table_clip == "previous":
            norm = self._norm(norms)
            if self._previous_norm is None:
                self._previous_norm = norm
            else:  # in place: a captured step knows the address
                self._previous_norm.copy_(norm)
        self._coefficient = None
        self._updated = tuple(norms)

    def finish(self) -> None:
        """Count the steps of updated tables, and write back the rows of those on the host.

        Called after each step, whether `update` ran or a graph of it was replayed.
        """
        for name in self._updated:
            self._steps[name] += 1
        self.prefetch.write_back()

    def _rows(self, name: str) -> Rows:
        """Return what the lookups of a table name the rows of: values and state."""
        held = self.prefetch.held(name)
        if held is not None:
            return held
        return {VALUES: self._tables[name].weight.detach(), **self._states[name]}

    def _norm(self, norms: Mapping[str, Tensor]) -> Tensor:
        """Return the norm over all tables, given the norms of what is held here."""
        parts = [norm for name, norm in norms.items() if self._tables[name].shard is not None]
        whole = [norm for name, norm in norms.items() if self._tables[name].shard is None]
        if not parts:
            return _together(whole)
        squares = all_reduce_copy(self._mesh.memory, _together(parts).square())
        return _together([*whole, squares.sqrt()])

    def _mean_squares(self, table: MemoryTable, sums: RowSums) -> Tensor | None:
        """Return mean squares of rows of which each rank has some columns, for rowwise."""
        if self._kind != "rowwise" or not isinstance(table.shard, ColumnParallelShard):
            return None
        return all_reduce_copy(self._mesh.memory, sums.row_squares()) / table.shard.width

    def state_dict(self) -> dict[str, Any]:
        """Return what the next step depends on; tensors are not copied."""
        return {
            "states": {name: dict(state) for name, state in self._states.items()},
            "steps": dict(self._steps),
            "previous_norm": self._previous_norm,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`.

        Raises:
            ValueError: If it is of other tables or another rule.
        """
        names = {(table, name) for table, state in self._states.items() for name in state}
        found = {(table, name) for table, state in saved["states"].items() for name in state}
        if names != found or self._steps.keys() != saved["steps"].keys():
            raise ValueError(
                f"checkpoint's table optimizer differs in {sorted(names ^ found)}; "
                "delete the trial's checkpoints to train it anew"
            )
        for table, name in names:
            self._states[table][name].copy_(saved["states"][table][name])
        self._steps = dict(saved["steps"])
        previous = saved["previous_norm"]
        if previous is not None and self._tables:
            previous = previous.to(next(iter(self._tables.values())).weight.device)
        self._previous_norm = previous


def _origin(table: MemoryTable) -> tuple[int, int]:
    shard = table.shard
    return (0, 0 if shard is None else shard.columns.start)


def _together(norms: list[Tensor]) -> Tensor:
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
