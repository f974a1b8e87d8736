"""Reader of (subject, relation, object) facts from TSV or JSON-lines files."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from workloads.data.readers.lines import file_format, json_rows, numbered_lines
from workloads.data.readers.problems import Problems

QA_TRAIN, QA_TEST = "qa_train", "qa_test"
_SPLITS = (QA_TRAIN, QA_TEST)
_ANSWER_COLUMNS = ("all_objects_json", "all_objects")


@dataclass(frozen=True, kw_only=True)
class FactColumns:
    """Names of the columns (or JSON fields) that hold a fact."""

    subject: str
    relation: str | None
    """None: `relation_id` where there is such a column, else `relation`."""
    object: str


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One subject and relation, with what may be answered."""

    subject: str
    relation: str
    """Identifier that selects the templates."""
    relation_name: str
    """For people and for generic wordings; equal to the identifier where the file has no name."""
    answers: tuple[str, ...]
    """The first one is the object that statements name."""
    split: str | None
    """qa_train, qa_test, or None where the file does not say."""


def read_facts(
    path: Path,
    *,
    columns: FactColumns,
    layout: Literal["auto", "tsv", "jsonl"],
    problems: Problems,
) -> tuple[list[Fact], int]:
    """Return the facts of a file in its order, and how many rows were merged into an earlier one.

    Rows that share subject and relation are one fact: the first row's object is stated in training,
    the others are accepted as answers. Mistakes are added to `problems`.
    """
    if layout == "auto":
        layout = _guess_layout(path)
    rows = _tsv_rows(path, columns, problems) if layout == "tsv" else json_rows(path, problems)
    facts: dict[tuple[str, str], Fact] = {}
    n_rows = 0
    for line, row in rows:
        fact = _fact(row, columns, path, line, problems)
        if fact is None:
            continue
        n_rows += 1
        known = facts.get((fact.subject, fact.relation))
        if known is None:
            facts[fact.subject, fact.relation] = fact
        elif fact.answers != known.answers:
            answers = tuple(dict.fromkeys((*known.answers, *fact.answers)))
            facts[fact.subject, fact.relation] = replace(known, answers=answers)
    if not n_rows and not problems.total:
        problems.add(path, None, "holds no facts", "give a file with at least one row")
    return list(facts.values()), n_rows - len(facts)


def unit_hash(text: str, purpose: str) -> float:
    """Return a hash in [0, 1) of two texts, to split subjects and sample facts."""
    digest = hashlib.blake2b(f"{purpose}\0{text}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _guess_layout(path: Path) -> Literal["tsv", "jsonl"]:
    return "jsonl" if file_format(path) in ("jsonl", "json", "ndjson") else "tsv"


def _tsv_rows(
    path: Path, columns: FactColumns, problems: Problems
) -> Iterator[tuple[int, dict[str, Any]]]:
    lines = numbered_lines(path, problems)
    _, header_text = next(lines, (0, None))
    if header_text is None:
        return  # empty or unreadable: reported by the caller or by the lines
    header = header_text.split("\t")
    wanted = (columns.subject, columns.relation, columns.object)
    missing = [name for name in wanted if name is not None and name not in header]
    if columns.relation is None and not {"relation_id", "relation"} & set(header):
        missing.append("relation_id or relation")
    if missing:
        problems.add(
            path,
            1,
            f"the header has no column {', '.join(missing)}; it has {', '.join(map(repr, header))}",
            "separate columns with tabs, or name yours in data.subject_column, "
            "data.relation_column and data.object_column",
        )
        return
    for line, text in lines:
        if not text.strip():
            continue
        cells = text.split("\t")
        if len(cells) != len(header):
            problems.add(
                path,
                line,
                f"has {len(cells)} columns, the header has {len(header)}",
                "separate columns with single tabs; quotes do not protect a tab",
            )
            continue
        yield line, dict(zip(header, cells, strict=True))


def _fact(
    row: Mapping[str, Any], columns: FactColumns, path: Path, line: int, problems: Problems
) -> Fact | None:
    relation_column = columns.relation or ("relation_id" if "relation_id" in row else "relation")
    wanted = (columns.subject, relation_column, columns.object)
    missing = [name for name in wanted if name not in row]
    if missing:
        problems.add(
            path,
            line,
            f"{', '.join(missing)} missing; the row has {', '.join(map(repr, row)) or 'nothing'}",
            "give every row these fields, or name yours in data.subject_column, "
            "data.relation_column and data.object_column",
        )
        return None
    cells = {}
    for name in wanted:
        value = row[name]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            problems.add(path, line, f"{name} must be text, got {value!r}", "correct it")
        elif not str(value).strip():
            problems.add(path, line, f"{name} is empty", "fill it in or delete the row")
        else:
            cells[name] = str(value).strip()
    if len(cells) < len(set(wanted)):
        return None
    answers = _answers(row, cells[columns.object], path, line, problems)
    split = row.get("qa_split") or None
    if split is not None and split not in _SPLITS:
        problems.add(
            path, line, f"qa_split must be qa_train or qa_test, got {split!r}", "correct it"
        )
        return None
    return Fact(
        subject=cells[columns.subject],
        relation=cells[relation_column],
        relation_name=str(row.get("relation") or cells[relation_column]),
        answers=answers,
        split=split,
    )


def _answers(
    row: Mapping[str, Any], canonical: str, path: Path, line: int, problems: Problems
) -> tuple[str, ...]:
    """Return the canonical object and every other accepted one."""
    for name in _ANSWER_COLUMNS:
        value = row.get(name)
        if value in (None, ""):
            continue
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except json.JSONDecodeError:
                value = None
        if not isinstance(value, list) or not all(isinstance(v, str | int | float) for v in value):
            problems.add(
                path, line, f"{name} must be a JSON list of texts, got {row[name]!r}", "correct it"
            )
            return (canonical,)
        texts = (str(v).strip() for v in value)
        return tuple(dict.fromkeys((canonical, *(text for text in texts if text))))
    return (canonical,)
