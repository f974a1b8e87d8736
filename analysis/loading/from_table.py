"""Reader of anybody's table of runs, whose rows count as finished trials."""

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.loading.schema import OUTCOMES, SHORT_NAMES, Reading, exclusion
from analysis.loading.table_import import import_table
from orchestrator.records.errors import NotFoundError

DATA_FRAME = "DataFrame"
"""`Runs.source` of a table that somebody made."""

ANY_ARCHITECTURE = "all runs"
"""Architecture of the rows of a table that names none."""

_SWEEP_NAMES = {"total_params": "params", "training_flops": "flops", "training_tokens": "tokens"}
"""What a sweep calls the sizes that laws call by shorter names: a table has both."""

_LIKE_A_LOSS = re.compile("loss|nll|entropy|bpb|bpc|per_byte", re.IGNORECASE)
_LIKE_A_SHARE = re.compile("accuracy|(^|[^a-z])acc([^a-z]|$)|recall|exact_match", re.IGNORECASE)


def read_table(
    source: Path | pd.DataFrame | Mapping[str, Any],
    name: str,
    names: Sequence[str] | None,
    columns: Mapping[str, str] | None,
    units: Mapping[str, float | str] | None,
    accept: Collection[str],
) -> Reading:
    """Return the rows of anybody's table as finished trials, and why others do not count.

    Args:
        source: As `analysis.load`.
        name: Of the source, in messages and in the call.
        names: Of sweeps; None reads all.
        columns: This package's names to the table's own.
        units: How many one of theirs is.
        accept: Kinds of warning that were looked into.

    Raises:
        StoreError: If a sweep has no rows.
        ValueError: If the table cannot be read, lacks a needed column, or has impossible units.
    """
    imported = import_table(source, columns=columns, units=units, accept=accept)
    table = imported.table
    reading = Reading(notes=list(imported.notes))
    _check_columns(table, imported.source_columns, name)
    for long, short in _SWEEP_NAMES.items():
        if long not in table and short in table:
            table[long] = table[short]
            for _, content, _ in imported.faults:
                content.setdefault(long, content.get(short, math.nan))
    if "architecture" not in table:
        reading.notes.append("no column of architectures: all rows are taken for one")
    stem = source.stem if isinstance(source, Path) else "table"
    for record in table.to_dict(orient="records"):
        # An empty cell is a gap in a table; in a journal NaN is a measurement.
        row = {str(k): v for k, v in record.items() if not _empty(v)}
        reading.rows.append(_as_trial(row, int(record["row"]), stem))
    for number, content, reason in imported.faults:
        row = _as_trial({k: v for k, v in content.items() if not _empty(v)}, number, stem)
        reading.left_out.append(exclusion(row, state="table", reason=reason))
    _unambiguous(reading.rows)
    if names is not None:
        there = ", ".join(sorted({str(row["sweep"]) for row in reading.rows})) or "none"
        reading.rows = [row for row in reading.rows if row["sweep"] in names]
        reading.left_out = [row for row in reading.left_out if row["sweep"] in names]
        found = {row["sweep"] for row in (*reading.rows, *reading.left_out)}
        for sweep in names:
            if sweep not in found:
                raise NotFoundError(f"{name}: no rows of sweep {sweep!r}; there are {there}")
    shown_names = names[0] if names and len(names) == 1 else names
    asked = {"sweep": shown_names, "columns": columns, "units": units, "accept": accept}
    options = "".join(f", {key}={value!r}" for key, value in asked.items() if value)
    shown = "table" if name == DATA_FRAME else repr(name)
    reading.call = f"analysis.load({shown}{options})"
    return reading


def _check_columns(table: pd.DataFrame, source_columns: Sequence[str], name: str) -> None:
    """Refuse a table without a size, or without an outcome.

    Args:
        table: With this package's names.
        source_columns: As the source names them.
        name: Of the source.
    """
    there = ", ".join(source_columns)
    if not {"params", "total_params", *_SWEEP_NAMES, *_SWEEP_NAMES.values()} & set(table.columns):
        raise ValueError(
            f"{name}: no column of sizes, got {there}; needed are params (or total_params), "
            f"tokens or flops, and one of {', '.join(OUTCOMES)}; "
            "say which they are with columns="
        )
    measured = [source_ for short in OUTCOMES for source_ in (short, *SHORT_NAMES[short])]
    if not set(measured) & set(table.columns):
        perplexity = next(
            (c for c in source_columns if re.search(r"(^|[_/ ])(ppl|perplexity)$", c.lower())), None
        )
        alike = [c for c in source_columns if _LIKE_A_LOSS.search(c) and c != perplexity]
        shares = [c for c in source_columns if _LIKE_A_SHARE.search(c)]
        hint = f", as columns={{'loss': {alike[0]!r}}}" if alike else " with columns={'loss': …}"
        if shares and not alike:
            hint = f", as columns={{'factual_recall': {shares[0]!r}}}"
            if shares[0] in table and _in_per_cent(table[shares[0]]):
                hint += " and units={'factual_recall': 0.01}, because it is in per cent"
        if perplexity:
            hint = f" with columns= (the loss is ln({perplexity}))"
        raise ValueError(
            f"{name}: no outcome, got {there}; needed is one of {', '.join(OUTCOMES)}; "
            f"say which it is{hint}"
        )


def _in_per_cent(values: pd.Series) -> bool:
    found = pd.to_numeric(values, errors="coerce").max()
    return bool(1 < found <= 100)


def _empty(value: Any) -> bool:
    """Whether a cell holds nothing; a list in it (a curve) is something."""
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


def _as_trial(row: dict[str, Any], number: int, sweep: str) -> dict[str, Any]:
    named: dict[str, Any] = {
        "trial_id": f"row {number}",
        "sweep": sweep,
        "architecture": ANY_ARCHITECTURE,
        "seed": 0,
    }
    row = named | row
    try:
        row["seed"] = int(float(row["seed"]))
    except (TypeError, ValueError):
        raise ValueError(
            f"seed, row {number}: must be a whole number, got {row['seed']!r}; "
            "correct the row, or rename the column"
        ) from None
    return row | {"architecture": str(row["architecture"])}


def _unambiguous(rows: Sequence[dict[str, Any]]) -> None:
    """Name rows by number where their run has several: checkpoints are not the trial again."""
    seen = Counter((str(row["trial_id"]), row["seed"]) for row in rows)
    for row in rows:
        if seen[str(row["trial_id"]), row["seed"]] > 1:
            row["trial_id"] = f"{row['trial_id']} (row {row['row']})"
