"""Checkpointing in simulated time: time and progress of attempts, best interval.

The pause before each checkpoint follows the trainer's rule (`workloads/training/checkpointing.py`):
at least as configured, and at least ten times what writing one takes. Before the first one of an
attempt the trainer expects that by the checkpoint's size; here it is known.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

MIN_PAUSE_OVER_COST = 10
"""As in the trainer; a test compares the two."""
RESTART_S = 60.0
"""From the start of an attempt to its first new step: processes, data, checkpoint. A guess."""
WRITE_BYTES_PER_S = 1e9
"""Rate at which a trial writes a checkpoint. A guess."""
CHECKPOINT_BYTES_PER_PARAM = 12
"""A weight and two moments of four bytes each."""
_SHORTEST_S, _LONGEST_S, _TRIED = 1.0, 1e7, 400
"""Intervals that are tried for the best: from and to, and how many."""


class AttemptProgress(NamedTuple):
    """How far an attempt got, in seconds of training."""

    saved_s: float
    """Of the last complete checkpoint."""
    reached_s: float
    """Of the last step."""


@dataclass(frozen=True, kw_only=True)
class Checkpointing:
    """When a trial saves its state, and what that takes."""

    every_s: float
    """Seconds of training before each checkpoint, as configured; above 0."""
    write_s: float
    """Seconds that training stands still for one."""
    restart_s: float = RESTART_S

    @property
    def pause_s(self) -> float:
        """Seconds of training before each checkpoint of an attempt."""
        return max(self.every_s, MIN_PAUSE_OVER_COST * self.write_s)

    def attempt_s(self, work_s: float) -> float:
        """Return how long an attempt takes that nothing ends, with so much training to do."""
        n = max(0, math.ceil(work_s / self.pause_s) - 1)  # none after the last step
        return self.restart_s + work_s + n * self.write_s

    def progress(self, elapsed_s: float, work_s: float) -> AttemptProgress:
        """Return how far an attempt has got so long after its start."""
        training = max(0.0, elapsed_s - self.restart_s)
        n, rest = divmod(training, self.pause_s + self.write_s)
        saved = n * self.pause_s
        return AttemptProgress(min(saved, work_s), min(saved + min(rest, self.pause_s), work_s))


class CheckpointedWork(NamedTuple):
    """A trial's training, for its expected time."""

    work_s: float
    checkpointing: Checkpointing
    mtbf_s: float
    """Mean seconds between failures of any of its nodes."""
    weight: float = 1.0
    """GPUs that it holds."""


def expected_s(one: CheckpointedWork) -> float:
    """Return the expected seconds to the end under failures, restarts included.

    A segment of s seconds takes M exp(R/M) (exp(s/M) - 1), where failures come M seconds apart on
    average and each is followed by R seconds of restart. Source: Daly 2006, "A higher order
    estimate of the optimum checkpoint interval for restart dumps". The last segment ends without a
    checkpoint here. Exact if every pause is `every_s`.
    """
    check, mtbf = one.checkpointing, one.mtbf_s
    if math.isinf(mtbf):
        return check.attempt_s(one.work_s)
    n = max(0, math.ceil(one.work_s / check.every_s) - 1)
    rest = one.work_s - n * check.every_s
    with np.errstate(over="ignore"):
        segment = np.expm1((check.every_s + check.write_s) / mtbf)
        last = np.expm1(rest / mtbf)
        total = np.exp(check.restart_s / mtbf) * (n * segment + last)
        return float(mtbf * (np.expm1(check.restart_s / mtbf) + total))


def expected_goodput(trials: Sequence[CheckpointedWork], every_s: float | None = None) -> float:
    """Return the share of the GPU-seconds held that trains what is kept, under failures alone.

    Args:
        trials: What trains.
        every_s: Of checkpoints; None: as each trial is configured.
    """
    useful = sum(one.work_s * one.weight for one in trials)
    held = 0.0
    for one in trials:
        check = one.checkpointing
        check = replace(check, every_s=check.pause_s if every_s is None else every_s)
        held += one.weight * expected_s(one._replace(checkpointing=check))
    return useful / held if held else 0.0


def best_interval(trials: Sequence[CheckpointedWork]) -> float | None:
    """Return the seconds between checkpoints with the highest expected goodput.

    Of trials that cost alike one is looked at, with their weight. None if nothing fails.
    """
    if not trials or all(math.isinf(one.mtbf_s) for one in trials):
        return None
    merged: dict[tuple[object, ...], CheckpointedWork] = {}
    for one in trials:
        # Two digits of the work are enough: the best interval hardly depends on it.
        key = (float(f"{one.work_s:.1e}"), float(f"{one.checkpointing.write_s:.1e}"), one.mtbf_s)
        before = merged.get(key)
        merged[key] = one._replace(weight=one.weight + (before.weight if before else 0.0))
    few = list(merged.values())
    tried = np.geomspace(_SHORTEST_S, min(_LONGEST_S, max(t.work_s for t in few) + 1), _TRIED)
    return float(max(tried, key=lambda every_s: expected_goodput(few, float(every_s))))
