"""Peak memory of training on one rank, in closed form and by category."""

from dataclasses import dataclass
from typing import Protocol

from workloads.accounting.counts import Components, ParamCount, Precision
from workloads.layers.modules.linear import VocabularyComponent
from workloads.sharding.materialise import Layout
from workloads.training.config import TrainConfig
from workloads.training.memory_estimate.table_memory import table_memory

TEMPORARIES = 0.2
"""Share of the activations added for temporaries.

Measured over a few training steps. Growth of the resident set on one CPU core, fp32, dense and
memory_plus at d64, 1m and 10m with 2,048 to 8,192 tokens: the estimate is 0.96 to 1.04 of the peak
(0.82 to 0.90 without this share). Peak of the allocator on an H200, both at 10m and 134m with
16,384 tokens: 1.23 to 1.28 of the peak in fp32 and 1.25 to 1.54 in bf16, because fused norms there
keep less; too much rather than too little."""


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
    reader_gradients: int
    """Of the largest table with a gradient of its size, what readers are about to add to it."""
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
    optimizer state (`training/optimizer/row_prefetch.py`)."""
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
    and head; weights of two blocks, one that runs and one that is fetched, or of all where they
    stay gathered; a block's gradients, and the message that takes them to their parts."""

    @property
    def model_state(self) -> int:
        """Count what is held through a whole step, whatever its micro batch."""
        held = self.parameters + self.gradients + self.optimizer_state + self.weight_copies
        return held + self.held_rows + self.usage

    @property
    def peak(self) -> float:
        """Estimate the most at once.

        Gradients of the last layers exist while activations of the first still do, so the passes
        hold everything but what belongs to the update, whose reads of all ranks come when the
        activations are gone. Readers of a table stand in the middle of the model: half of the
        activations are gone when their gradients are added.
        """
        passes = (1.0 + TEMPORARIES) * self.activations + self.fetched_rows + self.own_reads
        passes += self.recording + self.gathered
        while_added = self.reader_gradients + self.activations / 2
        return self.model_state + max(passes, while_added, self.all_reads + self.sorting)


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
    reshard_after_forward: bool = True,
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
        reshard_after_forward: Whether sharded blocks are gathered again for the backward pass; else
            all stay gathered from the forward pass on.
    """
    count = config.param_count(vocab_size)
    held, copied, gathered = _dense_shares(
        count,
        config.n_layers,
        ranks if dense_sharded else 1,
        checkpointed=activation_checkpointing,
        resharded=reshard_after_forward,
    )
    tables = table_memory(
        config.components(vocab_size),
        train,
        micro_batch_tokens=micro_batch_tokens,
        ranks=ranks,
        memory_ranks=memory_ranks,
        memory_layout=memory_layout,
        on_host=tables_on_host,
    )
    if activation_checkpointing:
        kept = checkpointed_activations(config, vocab_size, train.seq_len, precision=precision)
    else:
        kept = config.activation_bytes_per_token(vocab_size, train.seq_len, precision=precision)
    return TrainingMemory(
        # In fp32: value, gradient, two moments.
        parameters=4 * held + tables.values,
        gradients=4 * held + tables.gradients,
        reader_gradients=tables.reader_gradients,
        optimizer_state=8 * held + tables.optimizer_state,
        weight_copies=2 * (copied + tables.read_whole) if precision == "bf16" else 0,
        activations=(kept + tables.exchanged_per_token) * micro_batch_tokens,
        fetched_rows=tables.fetched_rows,
        held_rows=tables.held_rows,
        own_reads=tables.own_reads,
        all_reads=tables.all_reads,
        sorting=tables.sorting,
        usage=tables.usage,
        recording=tables.recording,
        gathered=gathered,
    )


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
    whole = config.activation_bytes_per_token(vocab_size, seq_len, precision=precision)
    return min(checkpointed, whole)


def _dense_shares(
    count: ParamCount, n_layers: int, ranks: int, *, checkpointed: bool, resharded: bool
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
    weights = 2 * block if resharded else dense - outside
    return -(-dense // ranks), copied, 8 * outside + 4 * weights + 8 * block
