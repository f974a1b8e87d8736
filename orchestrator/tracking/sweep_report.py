"""Report of a sweep in its MLflow parent run: files, fits, verdicts, answer.

Reads the `report.json` that `memscale report` left, and imports nothing that made it.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.tracking.journal_reader import Point, metric_name

FOLDER = "report"
"""Of the sweep's folder, and among the run's artifacts."""

NUMBERS = "report.json"

MOST_TEXT = 4900
"""Characters of a tag; MLflow takes 5,000."""


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """What of a report is sent."""

    folder: Path
    digest: str
    """Of page and numbers: an unchanged report is not sent again."""
    points: tuple[Point, ...]
    tags: Mapping[str, str]


def read_report(sweep: Path) -> SweepReport | None:
    """Return the report of a sweep's folder, None without one, or while it is being written."""
    numbers = sweep / FOLDER / NUMBERS
    try:
        content = numbers.read_bytes()
        report = json.loads(content)
        t = round(numbers.stat().st_mtime * 1000)
        points = tuple(Point(metric_name(k), v, t, 0) for k, v in _metrics(report["tables"]))
        tags = _tags(report)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    digest = hashlib.sha256(content).hexdigest()[:16]
    return SweepReport(folder=numbers.parent, digest=digest, points=points, tags=tags)


def _metrics(tables: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of fitted curves, differences and step times by name."""
    for table in tables:
        for row in table["rows"]:
            prefix = _prefix(table["name"], row)
            if prefix is None:
                continue
            for key, value in row.items():
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                if is_number and math.isfinite(value):
                    yield f"{prefix}/{key}", float(value)


def _prefix(table: str, row: Mapping[str, Any]) -> str | None:
    """Return where the numbers of a row stand among the run's metrics, None for other tables."""
    if table == "fitted_curves":
        return f"fit/{row['architecture']}/{row['outcome']}_against_{row['x']}"
    if table == "differences_at_equal_cost":
        return f"difference/{row['architecture']}/equal_{row['measure']}"
    if table == "step_time":
        return f"step_time/{row['architecture']}/{row['preset']}"
    return None


def _tags(report: Mapping[str, Any]) -> dict[str, str]:
    """Return the answer, the verdict on every fit, and both as the run's description."""
    answer = report["answer"]
    sentences = [*answer["sentences"], report["rests_on"]]
    question = [report["question"]] if report["question"] else []
    note = "\n\n".join([*question, f"**Answer: {answer['status']}.**", *sentences, _WHERE])
    tags = {
        "memscale.answer": f"{answer['status']}: {' '.join(answer['sentences'])}",
        "mlflow.note.content": note,
    }
    for table in report["tables"]:
        if table["name"] != "fitted_curves":
            continue
        for row in table["rows"]:
            name = metric_name(f"memscale.verdict.{_prefix(table['name'], row)}")
            tags[name] = f"{row['verdict']}: {row['why']}"
    return {name: text[:MOST_TEXT] for name, text in tags.items()}


_WHERE = "Figures and tables: `report/report.html` among this run's artifacts."
