"""Suites and questions asked of one model: the record that a trial keeps."""

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from workloads.evaluation import prepared_suite, questions
from workloads.evaluation.prepared_suite import PreparedSuite
from workloads.evaluation.questions import QuestionSet
from workloads.evaluation.record import record
from workloads.evaluation.task_result import Progress, TaskResult, silent
from workloads.evaluation.text_model import TextModel
from workloads.evaluation.time_limit import OutOfTime, TimeLimit

Asked = PreparedSuite | QuestionSet
"""What a model is asked; `name` and `digest` say which."""


def measure(
    asked: Asked,
    model: TextModel,
    progress: Progress = silent,
    *,
    step: int | None,
    limit: TimeLimit | None = None,
    clock: Callable[[], float] = time.time,
) -> dict[str, Any]:
    """Return the record of what was asked: metrics, sizes and chances of its tasks.

    Args:
        asked: A suite or questions.
        model: After `step` optimizer steps.
        progress: Told the task, and how many requests of how many are done.
        step: None where nobody says.
        limit: After which what is left is not asked: the record names it as `unfinished`, and has
            no `digest`.
        clock: Seconds since 1970.
    """
    limit = limit or TimeLimit()
    start = clock()
    results: list[TaskResult] = []

    def tell(task: str, done: int, total: int) -> None:
        progress(task, done, total)
        limit.between_passes()

    try:
        for result in _results(asked, model, tell):
            results.append(result)
            if len(results) < len(asked.task_names):
                limit.between_tasks()
    except OutOfTime:
        pass
    unfinished = asked.task_names[len(results) :]
    found = record(
        results,
        start=start,
        end=clock(),
        digest=None if unfinished else asked.digest,
        step=step,
        harness=prepared_suite.harness_version() if isinstance(asked, PreparedSuite) else None,
    )
    return {**found, "unfinished": list(unfinished)} if unfinished else found


def prepare(
    suites: Sequence[str],
    data: Path | None,
    questions_file: Path | None = None,
    *,
    limit: int | None = None,
) -> tuple[Asked, ...]:
    """Return suites and questions, with their files read and checked.

    Args:
        suites: Names of bundled suites, or YAML files.
        data: Folder of their files; None where there is no suite.
        questions_file: See `workloads.evaluation.questions`.
        limit: Rows of each task, the first ones; None takes all.

    Raises:
        ValueError: If there is no such suite, a file is missing or a row is wrong.
    """
    asked: list[Asked] = []
    if suites and data is not None:
        asked += prepared_suite.prepare(suites, data, limit=limit)
    if questions_file is not None:
        asked.append(questions.read(questions_file).first(limit))
    names = [task for one in asked for task in one.task_names]
    if len(set(names)) < len(names):
        raise ValueError(f"{questions_file}: a suite has a task of that name; rename the file")
    return tuple(asked)


def import_harness() -> ModuleType:
    """Return what asks suites; the harness takes seconds to import, once, and is an extra."""
    return importlib.import_module("workloads.evaluation.evaluate_suites")


def _results(asked: Asked, model: TextModel, progress: Progress) -> Iterator[TaskResult]:
    if isinstance(asked, QuestionSet):
        yield questions.evaluate(asked, model, progress)
        return
    suites = import_harness()
    yield from suites.evaluate_suite(asked, suites.HarnessModel(model), progress)
