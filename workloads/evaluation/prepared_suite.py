"""Suites with their files read and checked, and what asking them costs."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar, NamedTuple

from workloads.evaluation import suite as suites
from workloads.evaluation import task_rows
from workloads.evaluation.suite import BLANK_LINE, Suite, TaskSpec
from workloads.evaluation.task_rows import Row

BYTES_PER_TOKEN = 3.5
"""Of English text in a vocabulary of some ten thousand tokens: for costs, not for results."""


class TokenCount(NamedTuple):
    """Tokens that a model passes over to be evaluated once."""

    read: float
    """Read in passes over whole prompts."""
    generated: float
    """Generated one by one, at most."""
    decoding_passes: float
    """Passes that generate them, where batches are not bounded."""


@dataclass(frozen=True, kw_only=True)
class PreparedSuite:
    """A suite whose files were read and checked, for any number of models."""

    needs_text: ClassVar[bool] = True
    suite: Suite
    rows: dict[str, tuple[list[Row], list[Row]]]
    """Task -> rows and solved examples."""

    @property
    def name(self) -> str:
        """The suite's."""
        return self.suite.name

    @property
    def task_names(self) -> tuple[str, ...]:
        """Tasks, in the order in which they are asked."""
        return tuple(task.name for task in self.suite.tasks)

    @property
    def answer_tokens(self) -> dict[str, int]:
        """Task -> tokens that are generated for an answer, at most; only tasks that generate."""
        return {task.name: task.max_tokens for task in self.suite.tasks if task.kind == "answer"}

    @property
    def digest(self) -> str:
        """SHA-256 over tasks, rows and the harness's version: where equal, numbers are equal."""
        # Left out where a task is as it always was, so that earlier records stand.
        later: list[tuple[str, ...]] = [
            (task.name, task.shots_delimiter, task.delimiter)
            for task in self.suite.tasks
            if task.shots_delimiter != BLANK_LINE or not task.delimiter
        ]
        later += [(task.name, "whole_line") for task in self.suite.tasks if task.whole_line]
        content = (self.suite.tasks, self.rows, harness_version(), *later)
        return hashlib.sha256(repr(content).encode()).hexdigest()

    @property
    def most_rows(self) -> int:
        """Rows of the longest task."""
        return max(len(rows) for rows, _ in self.rows.values())

    def tokens(self, *, seq_len: int, n_rows: int) -> TokenCount:
        """Estimate the tokens of one evaluation, without a tokenizer.

        Args:
            seq_len: Longest sequence of the model; longer prompts are cut to it.
            n_rows: Rows of each task, at most.
        """
        counts = [
            _tokens(task, *self.rows[task.name], seq_len=seq_len, n_rows=n_rows)
            for task in self.suite.tasks
        ]
        return TokenCount(*(sum(column) for column in zip(*counts, strict=True)))


def prepare(
    names: Sequence[str], data: Path, *, limit: int | None = None
) -> tuple[PreparedSuite, ...]:
    """Return suites with all their files read and checked.

    Args:
        names: Of bundled suites, or YAML files.
        data: Folder of the task files.
        limit: Rows of each task, the first ones; None takes all.

    Raises:
        ValueError: If there is no such suite, a file is missing, a row is wrong, examples are too
            few, or they solve all rows.
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
    return tuple(
        PreparedSuite(suite=one, rows={task.name: _rows(data, task, limit) for task in one.tasks})
        for one in chosen
    )


def harness_version() -> str:
    """Return the version of lm-evaluation-harness."""
    return version("lm-eval")


def _rows(data: Path, task: TaskSpec, limit: int | None) -> tuple[list[Row], list[Row]]:
    asked = task_rows.read(data, task, name=task.file)
    if task.shots_file is None:
        return asked[:limit], []
    examples = task_rows.read(data, task, name=task.shots_file)
    asked = task_rows.without_solved(task, asked, examples)[:limit]
    task_rows.require_examples(data, task, asked, examples)
    return asked, examples


def _tokens(
    task: TaskSpec, rows: list[Row], examples: list[Row], *, seq_len: int, n_rows: int
) -> TokenCount:
    prompt = task_rows.template(task.prompt)

    def length(row: Row, text: str) -> float:
        return len((prompt.render(row) + text).encode()) / BYTES_PER_TOKEN

    sample = examples[: 4 * task.shots]
    shots = (
        task.shots * sum(length(row, _target(task, row)) for row in sample) / max(1, len(sample))
    )
    read = generated = 0.0
    lengths = set[int]()
    for row in rows[:n_rows]:
        texts = [_target(task, row)]
        if task.kind == "choices":
            texts = row["choices"]
        elif task.kind == "contexts":
            texts = [context + row["continuation"] for context in row["contexts"]]
        read += sum(min(seq_len, shots + length(row, text)) for text in texts)
        if task.kind == "answer":
            prompt_length = min(seq_len, shots + length(row, ""))
            read += prompt_length
            generated += task.max_tokens
            lengths.add(int(prompt_length))
    # Prompts of one length are read together, and all are continued together.
    return TokenCount(read, generated, float(len(lengths) + task.max_tokens * bool(lengths)))


def _target(task: TaskSpec, row: Row) -> str:
    """Return what follows the prompt in a solved example."""
    if task.kind == "choices":
        return str(row["choices"][row["label"]])
    if task.kind == "answer":
        return str(row["answers"][0])
    return "" if task.kind == "contexts" else task_rows.template(task.target).render(row)
