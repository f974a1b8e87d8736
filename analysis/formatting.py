"""Number formats and text tables, shared by terminal, report and figures."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pandas as pd

SHORT_CELL = 40
"""Characters of a cell that rows may repeat."""


class Column(NamedTuple):
    """One column of a table: its heading, how to write the cell of an item, and its numbers."""

    heading: str
    cell: Callable[[Any], str]
    numeric: bool = False
    """Whether to align right."""
    fields: Callable[[Any], Mapping[str, Any]] | None = None
    """Item to the values behind the cell, by names with their units; None: the cell's text."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Text in rows, with what a reader has to know below it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    """Columns to align right."""
    notes: tuple[str, ...] = ()
    values: tuple[Mapping[str, Any], ...] | None = None
    """The numbers behind each row by name, for files; None: the text of the cells."""

    @classmethod
    def of(
        cls, title: str, items: Iterable[Any], columns: Sequence[Column], notes: Iterable[str] = ()
    ) -> "Table":
        """Return a table with one row per item."""
        listed = list(items)
        return cls(
            title=title,
            columns=tuple(column.heading for column in columns),
            rows=tuple(tuple(column.cell(item) for column in columns) for item in listed),
            numeric=tuple(column.numeric for column in columns),
            notes=tuple(notes),
            values=tuple(_values(item, columns) for item in listed),
        )

    @property
    def name(self) -> str:
        """The title as the stem of a file."""
        return identifier(self.title)

    def records(self) -> list[dict[str, Any]]:
        """Return one dict per row: numbers where they are known, not their text."""
        if self.values is not None:
            return [dict(row) for row in self.values]
        names = [identifier(column) for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    def said_once(self) -> "Table":
        """Return the table as it is shown: a sentence that ends several rows is a note."""
        counts = Counter(row[-1] for row in self.rows)
        several = [text for text, n in counts.items() if n > 1 and len(text) > SHORT_CELL]
        marks = {text: f"({i})" for i, text in enumerate(several, 1)}
        return replace(
            self,
            rows=tuple((*row[:-1], marks.get(row[-1], row[-1])) for row in self.rows),
            notes=(*(f"{marks[s]}, {counts[s]} rows: {s}" for s in several), *self.notes),
        )

    def to_frame(self) -> pd.DataFrame:
        """Return the cells as a DataFrame of text, for a notebook."""
        return pd.DataFrame(list(self.rows), columns=list(self.columns))


def _values(item: Any, columns: Sequence[Column]) -> dict[str, Any]:
    """Return the numbers of all columns of one item."""
    found: dict[str, Any] = {}
    for column in columns:
        if column.fields is None:
            found[identifier(column.heading)] = column.cell(item)
        else:
            found.update(column.fields(item))
    return found


def identifier(text: str) -> str:
    """Return a heading as a name: `FLOPs ratio` becomes `flops_ratio`."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def number(value: float) -> str:
    """Return about four significant digits, scientific where that is shorter."""
    if not math.isfinite(value):
        return "∞" if value > 0 else str(value)
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e5:
        return f"{value:.3e}"
    return f"{value:.{decimals(value, significant=4)}f}"


def count(value: float) -> str:
    """Return 812, 12.3 k, 4.56 M, 1.23 G, scientific from 1e15 on."""
    if not math.isfinite(value):
        return "∞"
    if abs(value) >= 0.9995e15:
        return f"{value:.2e}"
    for scale, suffix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= 0.9995 * scale:
            scaled = float(f"{value / scale:.3g}")
            return f"{scaled:,.{decimals(scaled)}f}{suffix}"
    return f"{value:.0f}"


def flops(value: float | None) -> str:
    """Return 1.23e+15."""
    return "–" if value is None else f"{value:.2e}"


def seconds(value: float) -> str:
    """Return 1,234, or 2.5 where seconds are few."""
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"


def decimals(value: float, *, significant: int = 3) -> int:
    """Return the decimals that show so many significant digits of a value."""
    if value == 0 or not math.isfinite(value):
        return significant
    return max(0, significant - 1 - math.floor(math.log10(abs(value))))


MOST_NAMED = 3
"""Names that a sentence lists; of more it says how many."""


def some_of(names: Sequence[str]) -> str:
    """Return `a, b and c`, or `a, b and 4 more`."""
    if len(names) > MOST_NAMED:
        return f"{', '.join(names[: MOST_NAMED - 1])} and {len(names) - MOST_NAMED + 1} more"
    return " and ".join([*filter(None, [", ".join(names[:-1])]), names[-1]])
