"""Rows of task files, each checked against what its task reads."""

import logging
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, Template

from workloads.data.readers.problems import DataError, Problems
from workloads.evaluation import row_files
from workloads.evaluation import suite as suites
from workloads.evaluation.suite import Suite, TaskSpec

LOG = logging.getLogger(__name__)
Row = dict[str, Any]


def require(name: str, folder: Path | None) -> None:
    """Check that there is a suite, and that its files are in the folder if one is given.

    Raises:
        ValueError: One line per mistake.
    """
    suite = suites.load(name)
    if folder is not None:
        require_files([suite], folder)


def require_files(asked: Iterable[Suite], folder: Path) -> None:
    """Check that every file of the suites is in the folder.

    Raises:
        DataError: One line per missing file: which it is, and where it goes.
    """
    missing = {}
    for suite in asked:
        for task in suite.tasks:
            for name, origin in (
                (task.file, task.origin),
                (task.shots_file, f"examples, {task.shots_origin or task.origin}"),
            ):
                if name is not None and find(folder, name) is None:
                    missing[name] = (
                        f"{folder / name}: not there (nor .gz, .zst, .csv or .parquet), and suite "
                        f"{suite.name} needs it: {origin}; as published, or JSON lines with "
                        f"{', '.join(sorted(task.row_fields))}"
                    )
    if missing:
        raise DataError(list(missing.values()))


def find(folder: Path, name: str) -> Path | None:
    """Return the file of a name, as JSON lines, CSV or Parquet; None without one."""
    stem = name.removesuffix(".jsonl")
    lines = (f"{one}{ending}" for one in (name, f"{stem}.csv") for ending in ("", ".gz", ".zst"))
    paths = (folder / one for one in (*lines, f"{stem}.parquet"))
    return next((path for path in paths if path.is_file()), None)


def read(folder: Path, task: TaskSpec, *, name: str) -> list[Row]:
    """Return the rows of a file, with the fields that the task reads.

    Args:
        folder: Of all task files.
        task: What must be in a row.
        name: Of the file; that of the task, or of its examples.

    Raises:
        DataError: One line per bad row.
    """
    path = find(folder, name)
    if path is None:
        raise DataError([f"{folder / name}: not there"])
    problems, rows = Problems(), []
    wanted = sorted(task.row_fields)
    for line, row in row_files.rows(path, problems):
        wrong = _fault(row, task)
        if wrong is None:
            rows.append({key: row[key] for key in wanted})
        else:
            problems.add(path, line, *wrong)
    if not rows and not problems.total:
        problems.add(path, None, "holds no row", "take a complete download")
    problems.raise_if_any()
    return rows


def require_examples(
    folder: Path, task: TaskSpec, asked: Sequence[Row], examples: Sequence[Row]
) -> None:
    """Check that every row has as many solved examples as its prompt takes.

    Raises:
        DataError: One line per value of `shots_of` with too few; one line without it.
    """
    field = task.shots_of
    wanted = {None if field is None else row[field] for row in asked}
    there = Counter(None if field is None else row[field] for row in examples)
    few = [value for value in wanted if there[value] < task.shots]
    if few:
        assert task.shots_file is not None
        path = find(folder, task.shots_file)
        raise DataError(
            [
                f"{path}: has {there[value]} examples"
                f"{'' if field is None else f' where {field} is {value}'}, task {task.name} takes "
                f"{task.shots}; add examples, or lower shots of the task"
                for value in sorted(few, key=str)
            ]
        )


def without_solved(task: TaskSpec, asked: Sequence[Row], examples: Sequence[Row]) -> list[Row]:
    """Return the rows that no solved example of their own prompt answers.

    Such a row asks what an example asks; where it has options, the right one is the same, too.

    Raises:
        DataError: If there is none.
    """
    shown: dict[Any, list[Row]] = {}
    for row in examples:
        of_field = shown.setdefault(task.shots_of and row[task.shots_of], [])
        if len(of_field) < task.shots:
            of_field.append(row)
    solved = {(field, _asks(task, row)) for field, rows in shown.items() for row in rows}
    open_rows = [
        row
        for row in asked
        if (task.shots_of and row[task.shots_of], _asks(task, row)) not in solved
    ]
    if not open_rows:
        raise DataError(
            [
                f"task {task.name}: the examples of {task.shots_file} solve every row of "
                f"{task.file}; take examples that are not asked"
            ]
        )
    if len(open_rows) < len(asked):
        LOG.warning(
            "task %s: rows of %s that the examples of %s solve are not asked: %s of %s",
            task.name,
            task.file,
            task.shots_file,
            f"{len(asked) - len(open_rows):,}",
            f"{len(asked):,}",
        )
    return open_rows


def _asks(task: TaskSpec, row: Row) -> Hashable:
    """Return what tells a question from others: its text, and the right one of its options."""
    right = None
    if task.options_field is not None and "label" in task.row_fields:
        right = row[task.options_field][row["label"]]
    continuation = row.get("continuation") if task.kind == "contexts" else None
    if task.kind == "continuation":
        continuation = template(task.target).render(row)
    return template(task.prompt).render(row), right, continuation


@lru_cache
def template(text: str) -> Template:
    """Return the template of a task's text, which a row fills."""
    return Environment().from_string(text)


def _fault(row: Row, task: TaskSpec) -> tuple[str, str] | None:
    """Return what is wrong with a row and what to do; None if nothing is."""
    absent = sorted(task.row_fields - row.keys())
    if absent:
        return f"has no {', '.join(absent)}", f"add it, task {task.name} reads it"
    for field in ("choices", "contexts", "answers"):
        if field in task.row_fields and not _texts(row[field]):
            return f"{field} must be a list of texts, got {row[field]!r}", "correct it"
    for field in sorted(task.row_fields - {"choices", "contexts", "answers", "label"}):
        if not isinstance(row[field], str | int | float) or not str(row[field]).strip():
            return f"{field} must be a text, got {row[field]!r}", "correct it"
    if task.options_field is None:
        return None
    options, label = row[task.options_field], row.get("label")
    if len(options) < 2:
        return f"has {len(options)} options, one cannot be chosen", "correct it"
    if task.n_options is not None and len(options) != task.n_options:
        what = f"has {len(options)} options, task {task.name} has {task.n_options}"
        return what, "correct it, or leave the row out"
    if "label" in task.row_fields and (type(label) is not int or not 0 <= label < len(options)):
        return f"label must lie in 0..{len(options) - 1}, got {label!r}", "count from 0"
    return None


def _texts(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and all(isinstance(item, str) and item for item in value)
    )
