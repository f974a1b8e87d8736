"""Reader of facts from TSV, CSV or JSON-lines files.

A row is one fact (subject, relation, object), or one subject with a relation in each column.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from workloads.data.readers.csv_cells import csv_cells
from workloads.data.readers.lines import JSON_LINES, file_format, json_rows, numbered_lines
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
    as_relations: tuple[str, ...] | None = None
    """Columns that are relations, in place of `relation` and `object`; their cells are objects, and
    empty cells no facts."""

    @property
    def wanted(self) -> tuple[str, ...]:
        """Columns that have to be there."""
        if self.as_relations is not None:
            return self.subject, *self.as_relations
        return tuple(
            name for name in (self.subject, self.relation, self.object) if name is not None
        )


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


@dataclass
class MergedRows:
    """Rows that repeat the subject and relation of an earlier one."""

    copies: int = 0
    """Those with the same answers."""
    other_answers: int = 0
    """Those with another one."""
    first: str | None = None
    """The first of the latter, with file and line."""


def read_facts(
    path: Path,
    *,
    columns: FactColumns,
    layout: Literal["auto", "tsv", "csv", "jsonl"],
    problems: Problems,
    log: Callable[[str], None] = lambda message: None,
) -> tuple[list[Fact], MergedRows]:
    """Return the facts of a file in its order, and which rows were merged into an earlier one.

    Rows that share subject and relation are one fact: the first row's object is stated in training,
    the others are accepted as answers. Mistakes are added to `problems`; `log` is told of rows of
    several lines.
    """
    if layout == "auto":
        layout = _guess_layout(path)
    if layout == "jsonl":
        rows = json_rows(path, problems)
    else:
        rows = _table_rows(path, columns, problems, log, quoted=layout == "csv")
    read = _facts_of_entity if columns.as_relations is not None else _fact_of_row
    facts: dict[tuple[str, str], Fact] = {}
    merged = MergedRows()
    for line, fact in ((n, f) for n, row in rows for f in read(row, columns, path, n, problems)):
        known = facts.get((fact.subject, fact.relation))
        if known is None:
            facts[fact.subject, fact.relation] = fact
            continue
        answers = tuple(dict.fromkeys((*known.answers, *fact.answers)))
        if answers == known.answers:
            merged.copies += 1
            continue
        facts[fact.subject, fact.relation] = replace(known, answers=answers)
        merged.other_answers += 1
        if merged.first is None:
            merged.first = (
                f"{path.name}:{line}: {fact.subject} has a second {fact.relation_name}, "
                f"{answers[len(known.answers)]} beside {known.answers[0]}"
            )
    if not facts and not problems.total:
        problems.add(path, None, "holds no facts", "give a file with at least one row")
    return list(facts.values()), merged


def guessing_share(facts: Sequence[Fact]) -> float:
    """Return the share of facts answered by always guessing a relation's most common object."""
    objects: dict[str, Counter[str]] = {}
    for fact in facts:
        objects.setdefault(fact.relation, Counter())[fact.answers[0]] += 1
    best = sum(counts.most_common(1)[0][1] for counts in objects.values())
    return best / len(facts) if facts else 0.0


def unit_hash(text: str, purpose: str) -> float:
    """Return a hash in [0, 1) of two texts, to split subjects and sample facts."""
    digest = hashlib.blake2b(f"{purpose}\0{text}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _guess_layout(path: Path) -> Literal["tsv", "csv", "jsonl"]:
    kind = file_format(path)
    if kind in JSON_LINES:
        return "jsonl"
    return "csv" if kind == "csv" else "tsv"


def _table_rows(
    path: Path,
    columns: FactColumns,
    problems: Problems,
    log: Callable[[str], None],
    *,
    quoted: bool,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a table: commas and quotes, or tabs that nothing protects."""
    lines = numbered_lines(path, problems)
    cells_of = (
        csv_cells(lines, path, problems, log)
        if quoted
        else ((n, text.split("\t")) for n, text in lines)
    )
    _, header = next(cells_of, (0, None))
    if header is None:
        return  # empty or unreadable: reported by the caller or by the lines
    if quoted and len(header) == 1 and "\t" in header[0]:
        # Tabs under a name that ends in .csv.
        header = header[0].split("\t")
        cells_of = ((n, text.split("\t")) for n, text in lines)
    missing = [name for name in columns.wanted if name not in header]
    melted = columns.as_relations is None and columns.relation is None
    if melted and not {"relation_id", "relation"} & set(header):
        missing.append("relation_id or relation")
    if missing:
        problems.add(
            path,
            1,
            f"the header has no column {', '.join(missing)}; it has {', '.join(map(repr, header))}",
            f"separate columns with {'commas' if quoted else 'tabs'}, or name yours in "
            "data.subject_column, data.relation_column and data.object_column; where columns are "
            "relations, name them in data.columns_as_relations",
        )
        return
    for line, cells in cells_of:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            problems.add(
                path,
                line,
                f"has {len(cells)} columns, the header has {len(header)}",
                "put quotes around cells that hold a comma"
                if quoted
                else "separate columns with single tabs; quotes do not protect a tab",
            )
            continue
        yield line, dict(zip(header, cells, strict=True))


def _facts_of_entity(
    row: Mapping[str, Any], columns: FactColumns, path: Path, line: int, problems: Problems
) -> list[Fact]:
    """Return the facts of a row that holds a subject and a relation in each column."""
    relations = columns.as_relations or ()
    subject = row.get(columns.subject)
    if not isinstance(subject, str) or not subject.strip():
        problems.add(path, line, f"{columns.subject} is empty or missing", "fill it in")
        return []
    facts = []
    for name in relations:
        value = row.get(name)
        if value is None or not _text(value):
            continue
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            problems.add(path, line, f"{name} must be text, got {value!r}", "correct it")
        elif str(value).strip():
            facts.append(
                Fact(
                    subject=subject.strip(),
                    relation=name,
                    relation_name=name.replace("_", " "),
                    answers=(str(value).strip(),),
                    split=None,
                )
            )
    return facts


def _fact_of_row(
    row: Mapping[str, Any], columns: FactColumns, path: Path, line: int, problems: Problems
) -> list[Fact]:
    """Return the fact of a row, none after noting what is wrong with it."""
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
        return []
    cells = {}
    for name in wanted:
        value = row[name]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            problems.add(path, line, f"{name} must be text, got {value!r}", "correct it")
        elif not _text(value).strip():
            problems.add(path, line, f"{name} is empty", "fill it in or delete the row")
        else:
            cells[name] = str(value).strip()
    if len(cells) < len(set(wanted)):
        return []
    answers = _answers(row, cells[columns.object], path, line, problems)
    split = row.get("qa_split") or None
    if split is not None and split not in _SPLITS:
        problems.add(
            path, line, f"qa_split must be qa_train or qa_test, got {split!r}", "correct it"
        )
        return []
    return [
        Fact(
            subject=cells[columns.subject],
            relation=cells[relation_column],
            relation_name=_text(row.get("relation") or "") or cells[relation_column],
            answers=answers,
            split=split,
        )
    ]


def _answers(
    row: Mapping[str, Any], canonical: str, path: Path, line: int, problems: Problems
) -> tuple[str, ...]:
    """Return the canonical object and every other accepted one."""
    for name in _ANSWER_COLUMNS:
        value = row.get(name)
        if value is None or not _text(value):
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
        texts = (_text(v).strip() for v in value)
        return tuple(dict.fromkeys((canonical, *(text for text in texts if text))))
    return (canonical,)


def _text(value: Any) -> str:
    """Return a cell as text. NaN, which pandas writes for an empty cell, is empty."""
    return "" if isinstance(value, float) and math.isnan(value) else str(value)
