"""Memory traffic of a training step, in closed form.

Counted is what any implementation of the step moves through the device's memory: weights and
activations, gradients, optimizer state. Left out is what depends on how operations are fused, so
the bytes that a device really moved are more.
"""

from dataclasses import dataclass

from workloads.accounting.counts import Precision
from workloads.training.config import TrainConfig
from workloads.training.memory_estimate.peak_memory import Trainable
from workloads.training.optimizer.table_optimizer import READ_AS, RULE_OF

_ADAMW_BYTES = 24
"""Per number: weight and two moments in fp32, read and written."""


@dataclass(frozen=True, kw_only=True)
class StepTraffic:
    """Bytes of one optimizer step, summed over the ranks."""

    weights: float
    """Weights and table rows, read by every forward and every backward pass; with bf16, the
    copies of weights in it, made once a pass."""
    activations: float
    """Written by forward passes, read by backward passes."""
    gradients: float
    """Of dense parameters: written by each backward pass, read by the next and by the update."""
    update: float
    """Weights and optimizer state, read and written; of tables with an optimizer of their own
    only the rows that it changes, and not what it keeps per row."""

    @property
    def total(self) -> float:
        """Bytes of the step."""
        return self.weights + self.activations + self.gradients + self.update


def step_traffic(
    config: Trainable,
    vocab_size: int,
    train: TrainConfig,
    *,
    precision: Precision,
    passes: int,
    ranks: int = 1,
    memory_ranks: int = 1,
    dense_sharded: bool = False,
) -> StepTraffic:
    """Return the bytes that a step moves at least.

    Args:
        config: Config of the architecture.
        vocab_size: Token ids.
        train: Batch, sequence, and how tables are updated.
        precision: Type of matrix products.
        passes: Forward passes of a rank.
        ranks: Ranks of the trial.
        memory_ranks: How many of them hold one copy of the tables together.
        dense_sharded: Whether all else is sharded over the ranks.
    """
    count = config.param_count(vocab_size)
    own_tables = train.table_optimizer != "adamw"
    table_bytes = READ_AS[train.table_precision].itemsize if own_tables else 4
    element_bytes = 2 if precision == "bf16" else 4
    # Numbers read in one pass: of tables the different rows, of all else every one.
    pass_tokens = -(-train.batch_tokens // (ranks * passes))
    read = _numbers_read(config, vocab_size, pass_tokens)
    rows = read.pop("memory_values", 0.0)
    all_passes = float(ranks * passes)
    weights = 2 * (element_bytes * sum(read.values()) + table_bytes * rows)
    if precision == "bf16":
        weights += 6 * sum(n for group, n in read.items() if group != "embedding")
    kept = config.activation_bytes_per_token(vocab_size, train.seq_len, precision=precision)

    tables = count.memory_values
    dense = count.total - (tables if own_tables else 0)
    update = (1 if dense_sharded else ranks) * _ADAMW_BYTES * float(dense)
    if own_tables:
        rows = min(_numbers_read(config, vocab_size, train.batch_tokens)["memory_values"], tables)
        # AdamW's own rule changes every row in every step, the others those that were read.
        rows = tables if train.table_optimizer == "deferred_adamw" else rows
        update += ranks / memory_ranks * 2 * rows * _bytes_per_table_number(train)
    return StepTraffic(
        weights=all_passes * weights,
        activations=2 * kept * train.batch_tokens,
        gradients=ranks * 4.0 * dense * (2 * passes),
        update=update,
    )


def _bytes_per_table_number(train: TrainConfig) -> int:
    """Return the bytes of a table's number with its master's lower half and its moments."""
    stored = READ_AS[train.table_precision].itemsize
    master = train.table_precision == "bf16_master"
    n_moments = {"adamw": 2, "lazy_adamw": 2}.get(RULE_OF[train.table_optimizer], 0)
    return stored + 2 * master + n_moments * (4 if master else stored)


def _numbers_read(config: Trainable, vocab_size: int, tokens: int) -> dict[str, float]:
    """Return how many parameters a pass over so many tokens reads, per group."""
    read = config.bytes_per_token(vocab_size, batch_tokens=tokens, element_bytes=1)
    return {group: number * tokens for group, number in read.items()}
