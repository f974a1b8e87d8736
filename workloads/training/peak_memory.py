"""Bytes that training holds at once on one rank: closed forms, by what holds them."""

from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

import torch

from workloads.accounting.counts import Components, ParamCount, Precision
from workloads.kernels.table_update.update_rules import new_state
from workloads.layers.memory.table import TableComponent
from workloads.sharding.column_parallel import split_columns
from workloads.sharding.materialise import Layout
from workloads.training.config import TrainConfig
from workloads.training.table_optimizer import READ_AS, RULE_OF

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
    """What one rank holds, beside what the process and libraries take.

    Weights are fp32, and tables 2 bytes a number with `table_precision: bf16 | bf16_master`. AdamW
    keeps two moments like the weights; `table_update.rule` says what the others keep of a table and
    of a master. Of tables that `memory_ranks` share out it is the largest part, and of dense
    parameters that all ranks shard an equal part. Of tables in the host's memory, the rank's device
    holds only the rows that it fetched, and what is kept per row or block of a row. Left out: step
    counts, buffers, the batch, and how much more than an equal part one rank has of what does not
    divide evenly.
    """

    parameters: int
    gradients: int
    """Of everything, but for tables whose gradient is deferred."""
    optimizer_state: int
    weight_copies: int
    """With bf16, of the weights outside the embedding and the tables; of sharded ones the head's
    and one block's."""
    activations: float
    """What the forward pass of one micro batch keeps for the backward pass."""
    fetched_rows: float
    """Of tables in the host's memory, the rows that one micro batch reads, if evenly."""
    own_reads: int
    """Of deferred gradients, what waits for the update after this rank's share of a step, all micro
    batches."""
    all_reads: int
    """The same of the whole step: every rank makes the whole update of a table."""
    sorting: int
    """What the update needs for a moment, beside the reads."""
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
        passes = (1.0 + TEMPORARIES) * self.activations + self.fetched_rows + self.own_reads
        passes += self.gathered
        return held + max(passes, self.all_reads + self.sorting)


class Trainable(Protocol):
    """What `training_memory` asks of an architecture's Config."""

    @property
    def n_layers(self) -> int:
        """Blocks."""

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
        """Return bytes of parameters read per token and group when `batch_tokens` tokens pass at once."""


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
) -> TrainingMemory:
    """Count what the rank holds that holds most.

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
        tables_on_host: Whether the tables, and moments as large, lie in the host's memory instead.
        dense_sharded: Whether all else is sharded over the ranks.
    """
    tables = [
        (n, component)
        for n, component in config.components(vocab_size)
        if n and isinstance(component, TableComponent)
    ]
    count = config.param_count(vocab_size)
    rest = count.total - count.memory_values
    shapes = [
        _largest_part(table, memory_ranks, memory_layout) for n, table in tables for _ in range(n)
    ]
    values = sum(map(prod, shapes))
    # fp32: value, gradient, two moments.
    own, copied, gathered = rest, rest - count.embedding, 0
    if dense_sharded and ranks > 1:
        # Copies are made anew for each block (`sharding/autocast_recompute.py`).
        outside = count.embedding + count.head
        block = -(-(rest - outside) // config.n_layers)
        own, copied = -(-rest // ranks), count.head + block
        gathered = 8 * outside + 16 * block
    parameters, gradients, state = 4 * own, 4 * own, 8 * own
    activations = config.activation_bytes_per_token(vocab_size, train.seq_len, precision=precision)
    reads = reads_bytes = 0
    fetched = 0.0
    if train.table_optimizer == "adamw":
        parameters, gradients, state = (
            parameters + 4 * values,
            gradients + 4 * values,
            state + 8 * values,
        )
    else:
        dtype = READ_AS[train.table_precision]
        master = train.table_precision == "bf16_master"
        for shape in shapes:
            with torch.device("meta"):
                table = torch.empty(shape, dtype=dtype)
            parameters += 0 if tables_on_host else table.nbytes
            state += sum(
                kept.nbytes
                for kept in new_state(
                    RULE_OF[train.table_optimizer],
                    table,
                    master=master,
                ).values()
                if not (tables_on_host and kept.shape == table.shape)
            )
        if tables_on_host and micro_batch_tokens:
            read = config.bytes_per_token(
                vocab_size, batch_tokens=micro_batch_tokens, element_bytes=dtype.itemsize
            )
            fetched = read["memory_values"] * micro_batch_tokens
        reads = sum(n * table.reads for n, table in tables)
        # Of a row that ranks share by columns, each keeps its columns.
        held = [
            (n, replace(table, width=_largest_part(table, memory_ranks, memory_layout)[1]))
            for n, table in tables
        ]
        reads_bytes = sum(
            n * table.sparse_gradient_bytes_per_token(element_bytes=dtype.itemsize)
            for n, table in held
        )
    if memory_ranks > 1:
        read_bytes = _kept_of_a_shared_read(memory_ranks, memory_layout)
        activations += read_bytes * sum(n * table.reads for n, table in tables)
    return TrainingMemory(
        parameters=parameters,
        gradients=gradients,
        optimizer_state=state,
        weight_copies=2 * copied if precision == "bf16" else 0,
        activations=activations * micro_batch_tokens,
        fetched_rows=fetched,
        # A part of a table has the reads of all ranks that hold the table together; by rows at
        # most, if all read there.
        own_reads=reads_bytes * memory_ranks * -(-train.batch_tokens // ranks),
        all_reads=reads_bytes * train.batch_tokens,
        sorting=SORTED_READ_BYTES * reads * train.batch_tokens,
        gathered=gathered,
    )


def _largest_part(table: TableComponent, memory_ranks: int, layout: Layout) -> tuple[int, int]:
    """Return rows and columns of the largest part of a table that ranks share out."""
    if layout == "rows":
        return -(-table.n_rows // memory_ranks), table.width
    return table.n_rows, max(map(len, split_columns(table.width, memory_ranks)))


def _kept_of_a_shared_read(memory_ranks: int, layout: Layout) -> int:
    """Return what a read keeps for the backward pass beside what it keeps where the table is whole.

    By columns: ids and weights of the other ranks' reads, 8 bytes each, and its own ids as they
    were sent. By rows: of its own reads order and ids, which a whole table keeps too, if other
    ones; of what is held here id, weight and place, 16 bytes, in bags as long as the longest, which
    depends on the reading: as much as if this rank held all of them.
    """
    if layout == "columns":
        return 8 * (memory_ranks - 1) + 4
    return 16 * memory_ranks
