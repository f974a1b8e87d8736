"""Schedule of usage statistics of memories and experts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workloads.distributed.process_group import RankGroup
from workloads.layers.modules.usage_stats import usage_counters

RECORDED_ONE_IN = 16
"""Usage is recorded in one of 16 steps. Recording costs up to a tenth of a step on an H200
(docs/benchmarks.md), so this is less than 1 % of a run that reports no more often."""


@dataclass(frozen=True, kw_only=True)
class UsageSchedule:
    """Decides by step number alone, so that ranks and resumed runs agree."""

    evaluate_at: frozenset[int]
    """Steps after which the run evaluates; they report usage too."""
    every_steps: int | None = None
    """Steps between further reports."""

    def reports(self, step: int) -> bool:
        """Whether a step reports how memories and experts were used since the last report."""
        every = self.every_steps
        return step in self.evaluate_at or (every is not None and step % every == 0)

    def records(self, step: int) -> bool:
        """Whether a step records usage.

        One in RECORDED_ONE_IN does, and each report that would be empty.
        """
        since = (step - 1) % RECORDED_ONE_IN
        if since == 0:
            return True
        return self.reports(step) and any(map(self.reports, range(step - since, step)))


def set_usage_recording(model: Any, *, now: bool) -> None:
    """Switch the recording of usage in the passes to come on or off, in models that have it."""
    if hasattr(model, "recording_usage"):
        # A step that records runs uncompiled (`compilation.py`): nothing for nothing.
        model.recording_usage = now and model.records_usage


@contextmanager
def usage_of_all_ranks(model: nn.Module, world: RankGroup) -> Iterator[None]:
    """Sum over the ranks what they record in this block. Every rank must call it.

    All ranks then hold the same counters. A checkpoint keeps rank 0's, and all ranks that resume
    from it get them.
    """
    counters = usage_counters(model) if world.size > 1 else []
    if not world.is_main:  # what was recorded before is summed already, and counts once
        for counter in counters:
            counter.zero_()
    yield
    for dtype in (torch.int64, torch.float64):
        world.all_reduce_sum([counter for counter in counters if counter.dtype == dtype])


def usage_statistics(model: nn.Module) -> dict[str, float]:
    """Return what the model recorded since the last call, of the tokens of all ranks."""
    statistics: Callable[[], dict[str, float]] | None = getattr(model, "statistics", None)
    return statistics() if statistics is not None else {}


def rows_ever_read(model: nn.Module) -> list[Tensor]:
    """Return the model's flags of table rows that training has read on this rank, if it has any."""
    ever_read: Callable[[], list[Tensor]] | None = getattr(model, "ever_read", None)
    return ever_read() if ever_read is not None else []
