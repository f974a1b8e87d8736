"""Report of evaluation items that occur in training text."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.data.cache import file_sha256
from workloads.data.preparation.ngrams import CONTAMINATED_SHARE, NGRAM_WORDS, ngram_hashes
from workloads.data.readers.lines import JSON_LINES, file_format, json_rows, numbered_lines
from workloads.data.readers.problems import Problems

_ITEM_FIELDS = ("question", "prompt", "context", "sentence", "text")
"""Fields of a JSON line that make up an item; answers alone are too short to tell anything."""


@dataclass(frozen=True, kw_only=True)
class EvaluationItems:
    """The items of one evaluation file."""

    path: Path
    lines: Sequence[int]
    """Line of each item."""
    ngrams: Sequence[NDArray[np.uint64]]
    """Hashes of each item's n-grams; none where it is too short."""


def read_items(path: Path, problems: Problems) -> EvaluationItems:
    """Return the items of JSON lines or of plain lines of text."""
    items = [(line, ngram_hashes(text)) for line, text in _items(path, problems)]
    if not items and not problems.total:
        problems.add(path, None, "holds no evaluation item", "give one item per line")
    return EvaluationItems(
        path=path, lines=[line for line, _ in items], ngrams=[hashes for _, hashes in items]
    )


def all_ngrams(files: Sequence[EvaluationItems]) -> NDArray[np.uint64]:
    """Return the hashes of all files, sorted."""
    return np.unique(
        np.concatenate([np.empty(0, np.uint64), *(h for f in files for h in f.ngrams)])
    )


def write_report(
    folder: Path, files: Sequence[EvaluationItems], found: set[int]
) -> tuple[Mapping[str, Any], ...]:
    """Write contamination.jsonl, one line per contaminated item; return the counts per file."""
    known = np.array(sorted(found), dtype=np.uint64)
    summary = []
    with (folder / "contamination.jsonl").open("w") as report:
        for file in files:
            shares = [float(np.isin(hashes, known).mean()) for hashes in file.ngrams if len(hashes)]
            lines = [line for line, h in zip(file.lines, file.ngrams, strict=True) if len(h)]
            contaminated = [
                {"file": file.path.name, "line": line, "share": round(share, 3)}
                for line, share in zip(lines, shares, strict=True)
                if share >= CONTAMINATED_SHARE
            ]
            report.writelines(json.dumps(row) + "\n" for row in contaminated)
            summary.append(
                {
                    "name": file.path.name,
                    "sha256": file_sha256(file.path),
                    "items": len(file.lines),
                    "too_short": len(file.lines) - len(lines),
                    "contaminated": len(contaminated),
                    "rule": f"{CONTAMINATED_SHARE:.0%} of the {NGRAM_WORDS}-grams of words",
                }
            )
    return tuple(summary)


def _items(path: Path, problems: Problems) -> Iterator[tuple[int, str]]:
    if file_format(path) not in JSON_LINES:
        yield from ((n, text) for n, text in numbered_lines(path, problems) if text.strip())
        return
    for line, row in json_rows(path, problems):
        parts = [row[name] for name in _ITEM_FIELDS if isinstance(row.get(name), str)]
        if parts:
            yield line, "\n".join(parts)
        else:
            problems.add(
                path,
                line,
                f"has none of the fields {', '.join(_ITEM_FIELDS)}",
                "name the text of each item so",
            )
