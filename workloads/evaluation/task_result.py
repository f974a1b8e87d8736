"""Result of one task: means over its rows, standard errors, chance level."""

import math
from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[str, int, int], None]
"""Told the task, and how many requests of how many are done."""
CHANCE_ERRORS = 2.0
"""Standard errors above chance from which on an accuracy is more than guessing."""


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """What one task measured."""

    task: str
    n: int
    """Rows that were asked."""
    metrics: dict[str, float]
    """Name -> mean over the rows, and name with `_stderr` -> its standard error.

    Of one row the harness gives no standard error.
    """
    chance: float | None
    """Accuracy of guessing; None where nothing is chosen."""
    n_truncated: int
    """Prompts that did not fit the model's sequence and were cut from the left, each once."""

    @property
    def all_metrics(self) -> dict[str, float]:
        """The metrics, and where something is chosen `chance`."""
        return self.metrics if self.chance is None else {**self.metrics, "chance": self.chance}

    @property
    def at_chance(self) -> bool:
        """Whether no accuracy is clearly above guessing; that of one row never is."""
        if self.chance is None:
            return False
        return all(
            self.metrics[name] - self.chance
            < CHANCE_ERRORS * self.metrics.get(f"{name}_stderr", math.inf)
            for name in ("acc", "acc_norm")
            if name in self.metrics
        )


def silent(task: str, done: int, total: int) -> None:
    """Tell nobody of progress."""
