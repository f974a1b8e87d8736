"""Reporter: the interface between a workload and whatever runs it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class Reporter(Protocol):
    """Receives what a trial measures, and passes on requests to stop."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Record measurements taken after `step` optimizer steps.

        Must not raise on a slow or dead tracker.
        """

    def checkpoint(self, step: int, path: Path) -> None:
        """Announce that `path` is complete and enough to resume after `step`."""

    def progress(self, step: int, steps: int, phase: str, values: Mapping[str, float]) -> None:
        """Report progress (phase: data, model, start, train, evaluate, checkpoint).

        Called every step; may drop calls. `start` is what precedes the end of the first step:
        optimizer, compilation, the step itself.
        """

    def should_stop(self) -> bool:
        """Whether the run was asked to checkpoint and stop.

        Polled once per step on every rank; one is enough.
        """


class ProgressReporter:
    """Reporter of every rank but the first: progress and requests to stop, nothing else."""

    def __init__(self, reporter: Reporter) -> None:
        """Speak to `reporter`."""
        self.progress = reporter.progress
        self.should_stop = reporter.should_stop

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Drop what rank 0 records."""

    def checkpoint(self, step: int, path: Path) -> None:
        """Drop what rank 0 announces."""


class Interrupted(Exception):
    """Raised by `train.run` because `should_stop` said so; every step is in a checkpoint."""

    def __init__(self, step: int) -> None:
        """Keep the step after which the run can resume; 0 is the beginning."""
        after = f"after step {step}; the checkpoint of that step is complete"
        super().__init__(f"stopped on request {after if step else 'before the first step'}")
        self.step = step


class Diverged(Exception):
    """Raised by `train.run` when the loss is not finite, or exploded and stayed there."""
