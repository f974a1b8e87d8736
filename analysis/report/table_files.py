"""Tables as files: CSV and JSON with numbers, LaTeX with the printed text."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.formatting import Table

FOLDER = "tables"
"""Beside the page."""

_ESCAPED = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "×": r"$\times$",
    "–": "--",
    "∞": r"$\infty$",
    "·": r"$\cdot$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "…": r"\dots{}",
}


def write_tables(tables: Sequence[Table], latex: Iterable[Table], out: Path) -> list[Path]:
    """Write `tables/NAME.csv` of each table that has rows, and LaTeX of some.

    Files of an earlier report that this one has no table for are removed.

    Args:
        tables: All of a report.
        latex: Those that are also written as `tables/NAME.tex`.
        out: Folder of the page.
    """
    folder = out / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    texts = {f"{table.name}.csv": csv_text(table) for table in tables if table.rows}
    texts |= {f"{table.name}.tex": latex_text(table) for table in latex if table.rows}
    for kind in ("csv", "tex"):
        for path in folder.glob(f"*.{kind}"):
            if path.name not in texts:
                path.unlink()
    paths = [folder / name for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def as_json(table: Table) -> dict[str, Any]:
    """Return a table for JSON: rows are objects, numbers that are not finite are null."""
    return {
        "name": table.name,
        "title": table.title,
        "rows": [{key: plain(value) for key, value in row.items()} for row in table.records()],
        "notes": list(table.notes),
    }


def plain(value: Any) -> Any:
    """Return a value as JSON knows it."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def csv_text(table: Table) -> str:
    """Return a table as CSV: a header of names, then numbers; nothing where there is no number."""
    records = [{key: plain(value) for key, value in row.items()} for row in table.records()]
    names = list(dict.fromkeys(key for row in records for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def latex_text(table: Table) -> str:
    """Return a table as LaTeX's tabular with booktabs, cells as printed, notes below it."""
    alignment = "".join("r" if numeric else "l" for numeric in table.numeric)
    lines = [
        f"% {table.title}; needs \\usepackage{{booktabs}}",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        _latex_row(table.columns),
        r"\midrule",
        *(_latex_row(row) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        *(f"% {note}" for note in table.notes),
    ]
    return "\n".join(lines) + "\n"


def _latex_row(cells: Iterable[str]) -> str:
    # Braces: a row that begins with a bracket would be taken for an option of \\.
    escaped = ("".join(_ESCAPED.get(c, c) for c in cell) for cell in cells)
    return " & ".join(f"{{{cell}}}" if cell.startswith("[") else cell for cell in escaped) + r" \\"
