"""Suites and questions asked of one model: the record that a trial keeps."""

import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from workloads.decoding.decoder import NotANumberError
from workloads.evaluation import prepared_suite, questions
from workloads.evaluation.prepared_suite import PreparedSuite
from workloads.evaluation.questions import QuestionSet
from workloads.evaluation.record import record
from workloads.evaluation.task_result import Progress, TaskResult, silent
from workloads.evaluation.text_model import TextModel
from workloads.evaluation.time_limit import OutOfTime, TimeLimit
from workloads.training.rank_job import section_config

Asked = PreparedSuite | QuestionSet
"""What a model is asked; `name` and `digest` say which."""


def measure(
    asked: Asked,
    model: TextModel,
    progress: Progress = silent,
    *,
    step: int | None,
    limit: TimeLimit | None = None,
    refused: Callable[[ValueError], None] | None = None,
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
        refused: Told that a task cannot be measured; what is left is `unfinished` then, too. None:
            that is raised.
        clock: Seconds since 1970.

    Raises:
        NotANumberError: If the model gives NaN.
        ValueError: If a task cannot be measured and nobody is told.
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
    except ValueError as error:
        if refused is None or isinstance(error, NotANumberError):
            raise
        refused(error)
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
        ValueError: If there is no such suite, a file is missing, a row is wrong or examples are too
            few.
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


def require_answers(asked: Sequence[Asked], *, model: Mapping[str, Any], seq_len: int) -> None:
    """Check that a model can generate the answers that are asked for.

    Args:
        asked: Suites and questions.
        model: Section of a trial's spec.
        seq_len: Longest sequence of the model, in tokens.

    Raises:
        ValueError: If answers leave no room for a prompt, or the architecture cannot decode.
    """
    tokens = {task: n for one in asked for task, n in one.answer_tokens.items()}
    if not tokens:
        return
    longest = max(tokens, key=lambda task: tokens[task])
    if tokens[longest] >= seq_len:
        raise ValueError(
            f"task {longest}: answers of {tokens[longest]} tokens leave no room for a prompt, "
            f"train.seq_len is {seq_len}; raise it, or lower max_tokens of a suite's task"
        )
    config = section_config("workloads.architectures", "architecture", model)
    why = getattr(config, "non_causal_reasons", {}).get("evaluation")
    if why is not None:
        raise ValueError(
            f"task {longest}: this {model['architecture']} model cannot decode answers token by "
            f"token, because {why}; make its evaluation causal, or ask suites without answers"
        )


def import_harness() -> ModuleType:
    """Return what asks suites; the harness takes seconds to import, once, and is an extra."""
    return importlib.import_module("workloads.evaluation.evaluate_suites")


def _results(asked: Asked, model: TextModel, progress: Progress) -> Iterator[TaskResult]:
    if isinstance(asked, QuestionSet):
        yield questions.evaluate(asked, model, progress)
        return
    suites = import_harness()
    yield from suites.evaluate_suite(asked, suites.HarnessModel(model), progress)
