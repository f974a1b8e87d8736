"""Schedule of usage statistics of memories and experts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

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


def usage_statistics(model: nn.Module) -> dict[str, float]:
    """Return what the model recorded since the last call.

    Of rank 0's tokens, but for the rows ever read, which are those of all ranks.
    """
    statistics: Callable[[], dict[str, float]] | None = getattr(model, "statistics", None)
    return statistics() if statistics is not None else {}


def rows_ever_read(model: nn.Module) -> list[Tensor]:
    """Return the model's flags of table rows that training has read on this rank, if it has any."""
    ever_read: Callable[[], list[Tensor]] | None = getattr(model, "ever_read", None)
    return ever_read() if ever_read is not None else []
