"""Choice of micro-batch and activation checkpointing, from the memory estimate."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from workloads.distributed.process_group import RankGroup
from workloads.training.config import TrainConfig
from workloads.training.memory_estimate.peak_memory import TrainingMemory, training_memory
from workloads.training.rank_job import RankJob
from workloads.training.step.train_step import rows_per_pass

OUTSIDE = 0.05
"""Share of a GPU's memory left for CUDA, its libraries and what lies idle between blocks of the
allocator: an allowance, not a measurement."""
OVERESTIMATE = 1.2
"""Factor by which an estimate may exceed the memory of a GPU: peaks measured there are lower by
1.23 at least (`peak_memory.TEMPORARIES`). Who runs out of memory all the same takes smaller passes
in the next attempt."""


@dataclass(frozen=True, kw_only=True)
class Passes:
    """How a rank takes its share of the batch."""

    rows: int
    """Sequences per forward pass at most."""
    activation_checkpointing: bool
    """Whether blocks run again for the backward pass."""
    reshard_after_forward: bool = True
    """Whether sharded dense parameters are gathered again for the backward pass."""


def choose_passes(
    peak_bytes: Callable[[int, bool], float],
    *,
    sequences: int,
    limit_bytes: float,
    checkpointing: bool | None = None,
) -> Passes:
    """Return the fewest passes whose peak fits.

    Running blocks again costs a third more FLOPs, and smaller passes only some speed. So blocks are
    checkpointed only where not even one sequence fits without.

    Args:
        peak_bytes: Estimate for passes of so many sequences, with checkpointing or without.
        sequences: Of the largest pass.
        limit_bytes: What the estimate may be. Where nothing fits, passes are of one sequence.
        checkpointing: Whether to checkpoint; None chooses.
    """
    ways = (False, True) if checkpointing is None else (checkpointing,)
    for way in ways:
        for rows in _even_shares(sequences):
            if peak_bytes(rows, way) <= limit_bytes:
                return Passes(rows=rows, activation_checkpointing=way)
    return Passes(rows=1, activation_checkpointing=ways[-1])


def smaller_passes(passes: Passes, times: int, *, checkpointing: bool | None = None) -> Passes:
    """Return the passes of an attempt after the trial ran out of memory `times` times.

    Rows are halved down to one; then, if `checkpointing` leaves it open, blocks are checkpointed.
    """
    rows, way = passes.rows, passes.activation_checkpointing
    for _ in range(times):
        if rows > 1:
            rows //= 2
        elif checkpointing is None:
            way = True
    return replace(passes, rows=rows, activation_checkpointing=way)


def _even_shares(sequences: int) -> Iterator[int]:
    """Yield the rows of 1, 2, 3 … passes as even as can be, each number once."""
    last, passes = 0, 1
    while last != 1:
        rows = -(-sequences // passes)
        if rows != last:
            yield rows
        last, passes = rows, passes + 1


def fitting_passes(
    estimate: Callable[..., TrainingMemory],
    *,
    sequences: int,
    seq_len: int,
    limit_bytes: float,
    micro_batch_tokens: int | None = None,
    checkpointing: bool | None = None,
    may_keep_gathered: bool = False,
) -> Passes:
    """Return the passes of a rank on a GPU, by what is asked for and the memory estimate.

    Sharded dense parameters stay gathered only in memory that these passes leave. Weights are
    estimated to the byte, so `OVERESTIMATE` is no excuse there.

    Args:
        estimate: `training_memory`, but for `micro_batch_tokens`, `activation_checkpointing` and
            `reshard_after_forward`.
        sequences: Of the rank's share of the batch.
        seq_len: Tokens per sequence.
        limit_bytes: What the estimate may be.
        micro_batch_tokens: Asked for; None chooses.
        checkpointing: Asked for; None chooses.
        may_keep_gathered: Whether there are such parameters, and memory has not run out.
    """

    def peak_bytes(rows: int, way: bool, **more: bool) -> float:
        tokens = rows * seq_len
        return estimate(micro_batch_tokens=tokens, activation_checkpointing=way, **more).peak

    if micro_batch_tokens is None:
        found = choose_passes(
            peak_bytes, sequences=sequences, limit_bytes=limit_bytes, checkpointing=checkpointing
        )
    else:
        rows = max(1, min(sequences, micro_batch_tokens // seq_len))
        if checkpointing is None:
            checkpointing = peak_bytes(rows, False) > limit_bytes
        found = Passes(rows=rows, activation_checkpointing=checkpointing)
    if not may_keep_gathered:
        return found
    kept = peak_bytes(found.rows, found.activation_checkpointing, reshard_after_forward=False)
    return replace(found, reshard_after_forward=kept > limit_bytes / OVERESTIMATE)


def plan_passes(
    architecture: Any,
    vocab_size: int,
    train: TrainConfig,
    job: RankJob,
    world: RankGroup,
    *,
    bf16: bool,
    here: torch.device,
    n_gpus: int,
) -> Passes:
    """Return the passes of a trial, the same on every rank; every rank must call this.

    On a CPU nothing is chosen by memory: passes are as long as `rows_per_pass` says, which decides
    the order of sums, and blocks are checkpointed where that is asked for. A trial with a share of
    a GPU is planned for all of it: where its share is too small it gets a larger one first
    (`orchestrator/control/retry_policy.py`). Sharded dense parameters stay gathered until the
    backward pass where memory is left for that and has not run out before.

    Args:
        architecture: Its Config.
        vocab_size: Token ids.
        train: Batch, sequence, and how tables are updated.
        job: What is asked for, and how ranks share tables and dense parameters.
        world: The ranks.
        bf16: Whether matrix products run in bf16.
        here: Where this rank computes.
        n_gpus: That the ranks use together.
    """
    micro, checkpointing = job.micro_batch_tokens, job.activation_checkpointing
    if here.type == "cpu":
        rows = rows_per_pass(train, micro_batch_tokens=micro, vocab_size=vocab_size, here=here)
        return Passes(rows=rows, activation_checkpointing=checkpointing is True)
    total = float(torch.cuda.get_device_properties(here).total_memory)
    usable = min(world.all_gather_objects(total)) * n_gpus / world.size * (1.0 - OUTSIDE)
    sharded = job.dense_parameters == "sharded" and world.size > 1
    estimate = partial(
        training_memory,
        architecture,
        vocab_size,
        train,
        precision="bf16" if bf16 else "fp32",
        ranks=world.size,
        memory_ranks=job.memory_ranks,
        memory_layout=job.memory_layout,
        tables_on_host=job.memory_tables == "host",
        dense_sharded=sharded,
    )
    found = fitting_passes(
        estimate,
        sequences=-(-train.sequences_per_step // world.size),
        seq_len=train.seq_len,
        limit_bytes=usable * OVERESTIMATE,
        may_keep_gathered=sharded and not job.memory_halvings,
        micro_batch_tokens=micro,
        checkpointing=checkpointing,
    )
    # One that is asked for was halved already (`orchestrator/control/retry_policy.py`).
    halvings = job.memory_halvings if micro is None else 0
    return smaller_passes(found, halvings, checkpointing=checkpointing)
