"""Evaluation of a trained model on suites: log-likelihoods in, metrics and their errors out."""

import hashlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import lm_eval
import torch
from lm_eval.tasks import TaskManager

from workloads.evaluation import suite as suites
from workloads.evaluation import task_rows
from workloads.evaluation.harness_model import HarnessModel
from workloads.evaluation.harness_tasks import LIKELIHOOD, build
from workloads.evaluation.suite import Suite, TaskSpec
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
    def at_chance(self) -> bool:
        """Whether no accuracy is clearly above guessing."""
        if self.chance is None:
            return False
        return all(
            self.metrics[name] - self.chance < CHANCE_ERRORS * self.metrics[f"{name}_stderr"]
            for name in ("acc", "acc_norm")
            if name in self.metrics
        )


@dataclass(frozen=True, kw_only=True)
class PreparedSuite:
    """A suite whose files were read and checked, for any number of models."""

    suite: Suite
    rows: dict[str, tuple[list[Row], list[Row]]]
    """Task -> rows and solved examples."""

    @property
    def digest(self) -> str:
        """SHA-256 over tasks, rows and the harness's version: where equal, numbers are equal."""
        content = (self.suite.tasks, self.rows, harness_version())
        return hashlib.sha256(repr(content).encode()).hexdigest()

    def evaluate(
        self,
        model: HarnessModel,
        progress: Callable[[str, int, int], None] = lambda task, done, total: None,
    ) -> Iterator[TaskResult]:
        """Yield the result of each task.

        `progress` is told the task, and how many requests of how many are done.
        """
        for task in self.suite.tasks:
            model.progress = partial(progress, task.name)
            yield evaluate_task(model, task, *self.rows[task.name])


def prepare(names: Sequence[str], data: Path, *, limit: int | None = None) -> list[PreparedSuite]:
    """Return suites with all their files read and checked.

    Args:
        names: Of bundled suites, or YAML files.
        data: Folder of the task files.
        limit: Rows of each task, the first ones; None takes all.

    Raises:
        ValueError: If there is no such suite, a file is missing or a row is wrong.
    """
    chosen = [suites.load(name) for name in dict.fromkeys(names)]
    seen: dict[str, str] = {}
    for one in chosen:
        for task in one.tasks:
            if task.name in seen:
                raise ValueError(
                    f"task {task.name} is in suites {seen[task.name]} and {one.name}; rename one"
                )
            seen[task.name] = one.name
    task_rows.require_files(chosen, data)
    return [
        PreparedSuite(suite=one, rows={task.name: _rows(data, task, limit) for task in one.tasks})
        for one in chosen
    ]


def _rows(data: Path, task: TaskSpec, limit: int | None) -> tuple[list[Row], list[Row]]:
    asked = task_rows.read(data, task, name=task.file)[:limit]
    examples = []
    if task.shots_file is not None:
        examples = task_rows.read(data, task, name=task.shots_file)
    return asked, examples


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


def harness_version() -> str:
    """Return the version of lm-evaluation-harness."""
    return version("lm-eval")


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
