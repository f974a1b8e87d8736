"""Peak memory of training on one rank, in closed form and by category."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

import torch

from workloads.accounting.counts import Components, ParamCount, Precision
from workloads.kernels.table_update.op import keeps_sums
from workloads.kernels.table_update.update_rules import new_state
from workloads.layers.memory.lookup_grad import sums_bytes
from workloads.layers.memory.sparse_gradient import REDUCED_FROM
from workloads.layers.memory.table import TableComponent
from workloads.layers.modules.linear import VocabularyComponent
from workloads.layers.modules.usage_stats import MemoryUsage
from workloads.sharding.column_parallel import split_columns
from workloads.sharding.materialise import Layout
from workloads.training.config import TrainConfig
from workloads.training.row_prefetch import N_COPIES
from workloads.training.table_optimizer import READ_AS, RULE_OF, prefetches

TEMPORARIES = 0.2
"""Share of the activations added for temporaries.

Measured over a few training steps. Growth of the resident set on one CPU core, fp32, dense and
memory_plus at d64, 1m and 10m with 2,048 to 8,192 tokens: the estimate is 0.96 to 1.04 of the peak
(0.82 to 0.90 without this share). Peak of the allocator on an H200, both at 10m and 134m with
16,384 tokens: 1.23 to 1.28 of the peak in fp32 and 1.25 to 1.54 in bf16, because fused norms there
keep less; too much rather than too little."""

SORTED_READ_BYTES = 39
"""Per read, what sorting the reads for an update takes beside them: the peaks of docs/kernels.md,
"table_update", less table, state and reads. They include the products of the bags, so it is at most
this."""


@dataclass(frozen=True, kw_only=True)
class TrainingMemory:
    """Bytes that one rank holds, beside those of the process and libraries.

    Weights are fp32, and tables 2 bytes a number with `table_precision: bf16 | bf16_master`. AdamW
    keeps two moments like the weights; `kernels/table_update/update_rules.py` says what the others
    keep of a table and of a master. Of tables that `memory_ranks` share out it is the largest part,
    and of dense parameters that all ranks shard an equal part. Of tables in the host's memory, the
    rank's device holds only the rows that it fetched, and what is kept per row or block of a row.
    Left out: step counts, small buffers, the batch, and how much more than an equal part one rank
    has of what does not divide evenly.
    """

    parameters: int
    gradients: int
    """Of everything, but for tables whose gradient is deferred."""
    optimizer_state: int
    weight_copies: int
    """With bf16, of the weights outside the embedding and of tables that `MemoryTable.hashed` reads
    whole; of sharded weights the head's and one block's."""
    activations: float
    """What the forward pass of one micro batch keeps for the backward pass; of checkpointed blocks
    their inputs, and one block that runs again."""
    fetched_rows: float
    """Of tables in the host's memory, the rows that one micro batch reads, if evenly."""
    held_rows: int
    """Of those whose rows tokens name, the copies that a step reads and updates, with their
    optimizer state (`row_prefetch.py`)."""
    own_reads: int
    """Of deferred gradients, what waits for the update after this rank's share of a step: the
    lookups of all micro-batches, or of one and the sums of rows (`SparseGradient.reduce`)."""
    all_reads: int
    """The same of the whole step: every rank makes the whole update of a table."""
    sorting: int
    """What the update needs for a moment, beside the reads."""
    usage: int = 0
    """Of every row, what its readers record of its use, also where the table lies in the host's
    memory or ranks share it out."""
    recording: int = 0
    """What a pass that records use counts for a moment, of one layer."""
    gathered: int = 0
    """Of sharded dense parameters, what is whole for a while: weights and gradients of embedding
    and head; weights of two blocks, one that runs and one that is fetched; a block's gradients, and
    the message that takes them to their parts."""

    @property
    def peak(self) -> float:
        """Estimate the most at once.

        Gradients of the last layers exist while activations of the first still do, so the passes
        hold everything but what belongs to the update, whose reads of all ranks come when the
        activations are gone.
        """
        held = self.parameters + self.gradients + self.optimizer_state + self.weight_copies
        held += self.held_rows + self.usage
        passes = (1.0 + TEMPORARIES) * self.activations + self.fetched_rows + self.own_reads
        passes += self.recording + self.gathered
        return held + max(passes, self.all_reads + self.sorting)


class Trainable(Protocol):
    """What `training_memory` asks of an architecture's Config."""

    @property
    def n_layers(self) -> int:
        """Blocks."""

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""

    def param_count(self, vocab_size: int) -> ParamCount:
        """Count per group."""

    def components(self, vocab_size: int) -> Components:
        """Return the components of the model, tables among them."""

    def activation_bytes_per_token(
        self, vocab_size: int, seq_len: int, *, precision: Precision
    ) -> float:
        """Return what a forward pass keeps for the backward pass."""

    def bytes_per_token(
        self, vocab_size: int, *, batch_tokens: int = 1, element_bytes: int = 2
    ) -> dict[str, float]:
        """Return bytes of parameters read per token and group, in batches of `batch_tokens`."""


def training_memory(
    config: Trainable,
    vocab_size: int,
    train: TrainConfig,
    *,
    precision: Precision,
    micro_batch_tokens: int,
    ranks: int = 1,
    memory_ranks: int = 1,
    memory_layout: Layout = "columns",
    tables_on_host: bool = False,
    dense_sharded: bool = False,
    activation_checkpointing: bool = False,
) -> TrainingMemory:
    """Return the peak memory of the most loaded rank, by category.

    Args:
        config: Of the architecture.
        vocab_size: Token ids.
        train: Batch, sequence, and how tables are updated. `train.precision` may be auto, so it is
            not asked.
        precision: Type of matrix products.
        micro_batch_tokens: Tokens of one forward pass.
        ranks: Of the trial.
        memory_ranks: How many of them hold one copy of the tables together.
        memory_layout: Whether by columns or by rows.
        tables_on_host: Whether the tables and their moments lie in the host's memory instead.
        dense_sharded: Whether all else is sharded over the ranks.
        activation_checkpointing: Whether blocks run again for the backward pass.
    """
    count = config.param_count(vocab_size)
    tables = [
        (n, component)
        for n, component in config.components(vocab_size)
        if n and isinstance(component, TableComponent)
    ]
    # The most loaded rank has the largest part of every table.
    largest = [
        (n, table, _largest_shard(table, memory_ranks, memory_layout)) for n, table in tables
    ]
    # What lies on the rank throughout: dense parameters, tables, and what optimizers keep of both.
    held, copied, gathered = _dense_shares(
        count,
        config.n_layers,
        ranks if dense_sharded else 1,
        checkpointed=activation_checkpointing,
    )
    values, gradients, state = _table_bytes(largest, train, ranks=ranks, on_host=tables_on_host)
    # What a forward pass keeps for its backward pass, a token.
    kept = checkpointed_activations if activation_checkpointing else _activations
    activations = kept(config, vocab_size, train.seq_len, precision=precision)
    reads = sum(n * table.reads for n, table in tables)
    if memory_ranks > 1:
        # Ids and weights of the other ranks' reads, and its own ids as they were sent.
        activations += (8 * (memory_ranks - 1) + 4) * reads

    # AdamW's gradient of a table is dense; the other rules keep the reads of a step instead.
    deferred, fetched, held_rows = _Deferred(), 0.0, 0
    if train.table_optimizer == "adamw" and memory_ranks == 1 and not tables_on_host:
        copied += sum(n * prod(shape) for n, table, shape in largest if table.hashed)
    if train.table_optimizer != "adamw":
        deferred = _deferred_gradients(
            largest,
            train,
            micro_batch_tokens=micro_batch_tokens,
            ranks=ranks,
            memory_ranks=memory_ranks,
        )
        if tables_on_host:
            fetched, held_rows = _rows_on_device(
                tables, train, micro_batch_tokens=micro_batch_tokens, ranks=ranks
            )
    return TrainingMemory(
        # In fp32: value, gradient, two moments.
        parameters=4 * held + values,
        gradients=4 * held + gradients,
        optimizer_state=8 * held + state,
        weight_copies=2 * copied if precision == "bf16" else 0,
        activations=activations * micro_batch_tokens,
        fetched_rows=fetched,
        held_rows=held_rows,
        own_reads=deferred.own,
        all_reads=deferred.all,
        sorting=deferred.sorting,
        # Use is counted by row on the device, wherever the rows themselves lie.
        usage=int(MemoryUsage.BYTES_PER_ROW * sum(n * table.usage_rows for n, table in tables)),
        recording=MemoryUsage.RECORDING_BYTES_PER_ROW
        * max((table.n_rows for _, table in tables), default=0),
        gathered=gathered,
    )


def _activations(
    config: Trainable, vocab_size: int, seq_len: int, *, precision: Precision
) -> float:
    return config.activation_bytes_per_token(vocab_size, seq_len, precision=precision)


def checkpointed_activations(
    config: Trainable, vocab_size: int, seq_len: int, *, precision: Precision
) -> float:
    """Return the bytes per token that a forward pass keeps where blocks run again.

    These are what embedding, head and loss keep, the fp32 input of every block, and all of the
    block that has run again: the one that has a part of every kind.
    """
    outside = heaviest = 0.0
    for n, component in config.components(vocab_size):
        kept = component.activation_bytes_per_token(seq_len, precision)
        if isinstance(component, VocabularyComponent):
            outside += n * kept
        else:
            heaviest += -(-n // config.n_layers) * kept
    checkpointed = outside + heaviest + 4.0 * config.d_model * config.n_layers
    return min(checkpointed, _activations(config, vocab_size, seq_len, precision=precision))


@dataclass(frozen=True)
class _Deferred:
    """Bytes of deferred gradients: `own_reads`, `all_reads` and `sorting` of `TrainingMemory`."""

    own: int = 0
    all: int = 0
    sorting: int = 0

    def __add__(self, other: "_Deferred") -> "_Deferred":
        return _Deferred(self.own + other.own, self.all + other.all, self.sorting + other.sorting)


def _deferred_gradients(
    tables: Sequence[tuple[int, TableComponent, tuple[int, int]]],
    train: TrainConfig,
    *,
    micro_batch_tokens: int,
    ranks: int,
    memory_ranks: int,
) -> _Deferred:
    """Return what the gradients of tables take: how many of each, and the largest shard's shape."""
    parts = [
        # Of a row that ranks share by columns, each keeps its columns.
        _deferred(
            replace(table, width=width),
            rows=rows,
            element_bytes=READ_AS[train.table_precision].itemsize,
            norm_first=train.table_clip == "exact" or train.table_optimizer == "rowwise",
            batch_tokens=train.batch_tokens,
            micro_batch_tokens=micro_batch_tokens,
            ranks=ranks,
            memory_ranks=memory_ranks,
        )
        for n, table, (rows, width) in tables
        for _ in range(n)
    ]
    return sum(parts, start=_Deferred())


def _deferred(
    table: TableComponent,
    *,
    rows: int,
    element_bytes: int,
    norm_first: bool,
    batch_tokens: int,
    micro_batch_tokens: int,
    ranks: int,
    memory_ranks: int,
) -> _Deferred:
    """Return what one table's gradient takes, kept as its lookups until they exceed their sums."""

    def sorting(n_reads: int, element_bytes: int) -> int:
        kept = norm_first and keeps_sums(n_reads, rows, element_bytes=element_bytes)
        return SORTED_READ_BYTES * n_reads + (4 * rows * table.width if kept else 0)

    # A shard has the reads of all ranks that hold the table together. By rows this is a bound: all
    # of them could read from this rank.
    per_token = table.sparse_gradient_bytes_per_token(element_bytes=element_bytes) * memory_ranks
    share = -(-batch_tokens // ranks)
    pass_tokens = min(share, micro_batch_tokens)
    one_pass = pass_tokens * per_token
    sums = sums_bytes(rows, table.width)
    if share * per_token - one_pass <= REDUCED_FROM * sums:
        return _Deferred(
            own=share * per_token,
            all=batch_tokens * per_token // memory_ranks,
            sorting=sorting(table.reads * batch_tokens, element_bytes),
        )
    holders = ranks // memory_ranks
    return _Deferred(
        # Lookups that just exceed the limit, those of one layer sorted, two sums that are added.
        own=one_pass
        + SORTED_READ_BYTES * table.bag_size * pass_tokens * memory_ranks
        + (REDUCED_FROM + 3) * sums,
        all=sums * holders,
        sorting=sorting(rows * holders, 4),
    )


def _rows_on_device(
    tables: Sequence[tuple[int, TableComponent]],
    train: TrainConfig,
    *,
    micro_batch_tokens: int,
    ranks: int,
) -> tuple[float, int]:
    """Return `fetched_rows` and `held_rows` of tables in the host's memory, how many of each."""
    dtype = READ_AS[train.table_precision]
    master = train.table_precision == "bf16_master"
    fetched, held = 0.0, 0
    for n, table in tables:
        if prefetches(train.table_optimizer, by_token=table.by_token, ranks=ranks):
            row = torch.empty(1, table.width, dtype=dtype, device="meta")
            state = new_state(RULE_OF[train.table_optimizer], row, master=master)
            row_bytes = 4 + row.nbytes + sum(each.nbytes for each in state.values())
            room = min(table.n_rows, table.reads * train.batch_tokens)
            held += n * N_COPIES * room * row_bytes
        elif micro_batch_tokens:
            read = table.bytes_per_token(
                batch_tokens=micro_batch_tokens, element_bytes=dtype.itemsize
            )
            fetched += n * read["memory_values"] * micro_batch_tokens
    return fetched, held


def _dense_shares(
    count: ParamCount, n_layers: int, ranks: int, *, checkpointed: bool
) -> tuple[int, int, int]:
    """Return what a rank has of dense parameters that `ranks` shard.

    Returns:
        Numbers that it holds, numbers of which bf16 copies exist at once, and bytes of what is
        gathered for a while.
    """
    dense = count.total - count.memory_values
    if ranks == 1:
        return dense, dense - count.embedding, 0
    outside = count.embedding + count.head
    block = -(-(dense - outside) // n_layers)
    # A compiled block keeps its copies for the backward pass, unless it runs again for that. One
    # that is not compiled makes them anew (`sharding/autocast_recompute.py`).
    copied = count.head + block if checkpointed else dense - count.embedding
    return -(-dense // ranks), copied, 8 * outside + 16 * block


def _table_bytes(
    tables: Sequence[tuple[int, TableComponent, tuple[int, int]]],
    train: TrainConfig,
    *,
    ranks: int,
    on_host: bool,
) -> tuple[int, int, int]:
    """Return bytes of the tables' values, gradients and optimizer state.

    Of each: how many, and the largest shard's shape. With `on_host`, what stays on the device:
    numbers kept per row, of tables whose rows are not prefetched.
    """
    if train.table_optimizer == "adamw":
        values = sum(n * prod(shape) for n, _, shape in tables)
        return 4 * values, 4 * values, 8 * values
    values = state = 0
    for n, component, shape in tables:
        table = torch.empty(shape, dtype=READ_AS[train.table_precision], device="meta")
        kept = new_state(
            RULE_OF[train.table_optimizer], table, master=train.table_precision == "bf16_master"
        )
        prefetched = prefetches(train.table_optimizer, by_token=component.by_token, ranks=ranks)
        values += 0 if on_host else n * table.nbytes
        state += n * sum(
            tensor.nbytes
            for tensor in kept.values()
            if not (on_host and (prefetched or tensor.shape == table.shape))
        )
    return values, 0, state


def _largest_shard(table: TableComponent, memory_ranks: int, layout: Layout) -> tuple[int, int]:
    """Return rows and columns of the largest shard of a table."""
    if layout == "rows":
        return -(-table.n_rows // memory_ranks), table.width
    return table.n_rows, max(map(len, split_columns(table.width, memory_ranks)))
