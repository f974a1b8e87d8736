"""Forms in which multiple-choice rows are published: our own, MMLU's JSON lines, MMLU's CSV."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workloads.data.readers.lines import json_rows, numbered_lines
from workloads.data.readers.problems import Problems

LETTERS = "ABCDEFGHIJ"
_MMLU_COLUMNS = ("question", "A", "B", "C", "D", "answer")


def rows(path: Path, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (1-based line, row) of a file of JSON lines or, by its name, of CSV.

    CSV has MMLU's six columns (question, A, B, C, D, answer), or a header that names its own.
    """
    found = json_rows(path, problems)
    if path.name.removesuffix(".gz").endswith(".csv"):
        found = _csv_rows(path, problems)
    for line, row in found:
        yield line, with_choices(row)


def with_choices(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of MMLU with `choices` and `label`; any other as it is.

    Choices may be columns A, B and so on; `answer` is a letter of theirs or counts from 0.
    """
    named = [letter for letter in LETTERS if letter in row]
    if "choices" not in row and len(named) > 1:
        row = {**row, "choices": [row[letter] for letter in named]}
    if "choices" in row and "label" not in row and "answer" in row:
        answer = row["answer"]
        if isinstance(answer, str) and answer.strip() in LETTERS and answer.strip():
            answer = LETTERS.index(answer.strip())
        row = {**row, "label": answer}
    return row


def _csv_rows(path: Path, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    header: tuple[str, ...] | None = None
    reader = csv.reader(f"{text}\n" for _, text in numbered_lines(path, problems))
    before = 0
    for cells in reader:
        line, before = before + 1, reader.line_num
        if not any(cells):
            continue
        if header is None:
            named = {"question", "answer"} <= set(cells)
            header = tuple(cells) if named else _MMLU_COLUMNS
            if named:
                continue
        if len(cells) != len(header):
            what = f"has {len(cells)} columns, not the {len(header)}: {', '.join(header)}"
            problems.add(path, line, what, "quote texts that hold a comma")
            continue
        yield line, dict(zip(header, cells, strict=True))
