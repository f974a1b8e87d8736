"""Record of an evaluation, as a trial keeps it."""

from collections.abc import Sequence
from typing import Any

from workloads.evaluation.task_result import TaskResult


def record(
    results: Sequence[TaskResult],
    *,
    start: float,
    end: float,
    digest: str | None,
    step: int | None,
    harness: str | None = None,
) -> dict[str, Any]:
    """Return metrics, sizes and chances of tasks, and what they were measured by.

    Args:
        results: Of the tasks that came to an end.
        start: When the evaluation began, in seconds since 1970.
        end: When it ended.
        digest: What was asked; None if not all of it was.
        step: Optimizer steps of the model; None where nobody says.
        harness: Version of lm-evaluation-harness; None without it.
    """
    return {
        "finished_at": end,
        "seconds": end - start,
        "digest": digest,
        "harness": harness,
        "step": step,
        "metrics": {
            f"eval/{one.task}/{metric}": value
            for one in results
            for metric, value in one.all_metrics.items()
        },
        "tasks": {
            one.task: {
                "n": one.n,
                "chance": one.chance,
                "at_chance": one.at_chance,
                "n_truncated": one.n_truncated,
            }
            for one in results
        },
    }
