"""Evaluation of a trained model on suites: log-likelihoods in, metrics and their errors out."""

import io
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import partial
from typing import Any

import lm_eval
import torch
from lm_eval.tasks import TaskManager

from workloads.evaluation.harness_model import HarnessModel
from workloads.evaluation.harness_tasks import LIKELIHOOD, build
from workloads.evaluation.prepared_suite import PreparedSuite, harness_version
from workloads.evaluation.suite import TaskSpec
from workloads.evaluation.task_rows import Row
from workloads.training import device
from workloads.training.trained_model import TrainedModel

CHANCE_ERRORS = 2.0
"""Standard errors above chance from which on an accuracy is more than guessing."""


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """What one task measured."""

    task: str
    n: int
    """Rows that were asked."""
    metrics: dict[str, float]
    """Name -> mean over the rows, and name with `_stderr` -> its standard error."""
    chance: float | None
    """Accuracy of guessing; None where nothing is chosen."""
    n_truncated: int
    """Requests whose prompt did not fit the model's sequence and was cut from the left."""

    @property
    def all_metrics(self) -> dict[str, float]:
        """The metrics, and where something is chosen `chance`."""
        return self.metrics if self.chance is None else {**self.metrics, "chance": self.chance}

    @property
    def at_chance(self) -> bool:
        """Whether no accuracy is clearly above guessing."""
        if self.chance is None:
            return False
        return all(
            self.metrics[name] - self.chance < CHANCE_ERRORS * self.metrics[f"{name}_stderr"]
            for name in ("acc", "acc_norm")
            if name in self.metrics
        )


def evaluate_suite(
    prepared: PreparedSuite,
    model: HarnessModel,
    progress: Callable[[str, int, int], None] = lambda task, done, total: None,
) -> Iterator[TaskResult]:
    """Yield the result of each task of a suite.

    `progress` is told the task, and how many requests of how many are done.
    """
    for task in prepared.suite.tasks:
        model.progress = partial(progress, task.name)
        yield evaluate_task(model, task, *prepared.rows[task.name])


def measure(
    prepared: PreparedSuite,
    model: HarnessModel,
    progress: Callable[[str, int, int], None] = lambda task, done, total: None,
    *,
    step: int | None,
    clock: Callable[[], float] = time.time,
) -> dict[str, Any]:
    """Return the record of a suite: metrics, sizes and chances of its tasks, what it rests on.

    Args:
        prepared: The suite.
        model: After `step` optimizer steps.
        progress: Told the task, and how many requests of how many are done.
        step: None where nobody says.
        clock: Seconds since 1970.
    """
    start = clock()
    results = list(evaluate_suite(prepared, model, progress))
    end = clock()
    return {
        "finished_at": end,
        "seconds": end - start,
        "digest": prepared.digest,
        "harness": harness_version(),
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


@contextmanager
def harness_model(
    trained: TrainedModel,
    *,
    device_name: str = "auto",
    precision: str = "auto",
) -> Iterator[HarnessModel]:
    """Build a model for the harness, on a device whose numerics are set for the time being.

    Args:
        trained: The model.
        device_name: auto, cpu or cuda.
        precision: auto, fp32 or bf16, as in training.

    Raises:
        ValueError: If the model has no tokenizer for text.
    """
    if trained.tokenizer is None:
        raise ValueError(
            "its data have words of their own and no tokenizer for text, so suites cannot be "
            "asked; evaluate a trial of source text or triples"
        )
    here = device.pick(device_name, rank=0)
    bf16 = device.uses_bf16(precision, here)
    with device.numerics(here, n_threads=torch.get_num_threads(), bf16=bf16):
        yield HarnessModel(
            model=trained.build(here),
            text_tokenizer=trained.tokenizer,
            seq_len=trained.seq_len,
            vocab_size=trained.vocab_size,
            here=here,
            bf16=bf16,
        )


def evaluate_task(
    model: HarnessModel, task: TaskSpec, rows: Sequence[Row], examples: Sequence[Row]
) -> TaskResult:
    """Return what the harness measures of a model on one task."""
    before = model.n_truncated
    with _quiet():
        # Not `simple_evaluate`, which spends seconds on describing the machine.
        found = lm_eval.evaluate(
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
        n_truncated=model.n_truncated - before,
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
