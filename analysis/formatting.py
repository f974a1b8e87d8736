"""Number formats and text tables, the same in the terminal, the report and the figures."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd


class Column(NamedTuple):
    """One column of a table: its heading, and how to write the cell of an item."""

    heading: str
    cell: Callable[[Any], str]
    numeric: bool = False
    """Whether to align right."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Text in rows, with what a reader has to know below it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    """Columns to align right."""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, title: str, items: Iterable[Any], columns: Sequence[Column], notes: Iterable[str] = ()
    ) -> "Table":
        """Return a table with one row per item."""
        return cls(
            title=title,
            columns=tuple(column.heading for column in columns),
            rows=tuple(tuple(column.cell(item) for column in columns) for item in items),
            numeric=tuple(column.numeric for column in columns),
            notes=tuple(notes),
        )

    def to_frame(self) -> pd.DataFrame:
        """Return the cells as a DataFrame of text, for a notebook."""
        return pd.DataFrame(list(self.rows), columns=list(self.columns))


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
    """Return 812, 12.3 k, 4.56 M, 1.23 G."""
    if not math.isfinite(value):
        return "∞"
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
