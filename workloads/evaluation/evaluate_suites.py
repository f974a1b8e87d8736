"""Evaluation of suites by lm-evaluation-harness.

The harness takes log-likelihoods and gives metrics with their errors.
"""

import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import partial

from lm_eval import evaluator
from lm_eval.tasks import TaskManager

from workloads.evaluation.harness_model import HarnessModel
from workloads.evaluation.harness_tasks import LIKELIHOOD, build
from workloads.evaluation.prepared_suite import PreparedSuite
from workloads.evaluation.suite import TaskSpec
from workloads.evaluation.task_result import Progress, TaskResult, silent
from workloads.evaluation.task_rows import Row


def evaluate_suite(
    prepared: PreparedSuite, model: HarnessModel, progress: Progress = silent
) -> Iterator[TaskResult]:
    """Yield the result of each task of a suite."""
    for task in prepared.suite.tasks:
        model.progress = partial(progress, task.name)
        yield evaluate_task(model, task, *prepared.rows[task.name])


def evaluate_task(
    model: HarnessModel, task: TaskSpec, rows: Sequence[Row], examples: Sequence[Row]
) -> TaskResult:
    """Return what the harness measures of a model on one task."""
    model.cut_prompts.clear()
    with _quiet():
        # Not `simple_evaluate`, which spends seconds on describing the machine.
        found = evaluator.evaluate(
            lm=model,
            task_dict=TaskManager(include_defaults=False).load(build(task, rows, examples)),
            bootstrap_iters=1,  # standard errors of means have a closed form
            log_samples=False,
        )["results"]
    metrics: dict[str, float] = {}
    for name in (task.name, task.name + LIKELIHOOD):
        for key, value in found.get(name, {}).items():
            metric, _, filtered = key.partition(",")
            if filtered and isinstance(value, float | int):
                metrics[metric] = float(value)
    chance = None
    if task.kind in ("choices", "contexts"):
        chance = sum(1 / len(row[task.kind]) for row in rows) / len(rows)
    return TaskResult(
        task=task.name,
        n=len(rows),
        metrics=metrics,
        chance=chance,
        n_truncated=len(model.cut_prompts),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the harness's remarks and progress bars; mistakes still raise."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)
