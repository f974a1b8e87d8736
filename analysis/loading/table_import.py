"""Table import: anybody's table of runs under this package's column names.

`analysis.load` reads CSV, TSV, parquet and JSON files, DataFrames and dicts through this file.
Columns are found by name; `columns=` says where they differ. Numbers are read as people write them
(70M, 1.4e9, 1,024). Units are those of the header (`params (M)`) or of `units=`. Every such
decision is a note. A row that cannot count is handed back with its reason, never left out in
silence.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.loading.column_names import PER_PARAM, header, known_names, with_own_names
from analysis.loading.row_faults import (
    OLD_ROW,
    POSITIVE,
    SIZES,
    refuse_impossible,
    refuse_repeated,
)
from analysis.loading.run_checks import check_runs
from analysis.loading.size_units import check_size_units, check_small_sizes
from analysis.loading.table_file import read_table_file
from analysis.loading.validation import DataWarning, refuse_bad_units
from analysis.loading.written_numbers import (
    has_decimal_comma,
    has_one_comma,
    written_number,
    written_unit,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImportedTable:
    """A table in the names of this package."""

    table: pd.DataFrame
    """Rows that can count; `row` is their number in the source, from 0. Other columns are there as
    they were."""
    faults: list[tuple[int, dict[str, Any], str]] = field(default_factory=list)
    """The other rows: number, content, and the reason."""
    notes: list[str] = field(default_factory=list)
    """What was taken for what, and what is doubtful."""
    source_columns: tuple[str, ...] = ()
    """Names of the columns in the source."""


def import_table(
    source: str | os.PathLike[str] | pd.DataFrame | Mapping[str, Any],
    *,
    columns: Mapping[str, str] | None = None,
    units: Mapping[str, float | str] | None = None,
    accept: Collection[str] = (),
) -> ImportedTable:
    """Return the table of `source` with this package's column names.

    Args:
        source: File, DataFrame or dict of columns.
        columns: Name here to name there: `{"params": "Non-emb params", "loss": "c4 loss"}`.
        units: How many of the unit here one of theirs is: `{"params": 1e6}` for
            millions, or `{"params": "M"}`.
        accept: Kinds of warning that were looked into (`analysis/loading/validation.py`).

    Raises:
        ValueError: If the file cannot be read, a named column is missing, two columns could be
            meant, or the units cannot be right.
    """
    where = "table" if isinstance(source, pd.DataFrame | Mapping) else os.fspath(source)
    frame = _frame(source, where)
    source_columns = tuple(frame.columns)
    frame, scales, notes = with_own_names(frame, columns or {}, where)
    scales |= {name: written_unit(unit, name) for name, unit in (units or {}).items()}
    unknown = sorted(set(scales) - set(frame.columns))
    if unknown:
        there = ", ".join(map(str, frame.columns))
        raise ValueError(f"{where}: units: no column {', '.join(unknown)}; there are {there}")
    faults: dict[int, str] = {}
    for name in (n for n in frame.columns if n in POSITIVE or n in scales):
        frame[name] = _numbers(frame[name], name, scales.get(name, 1.0), faults)
    refuse_impossible(frame, faults)
    # A table that was loaded before, or has numbers of its own, keeps them under another name.
    if "row" in frame:
        frame = frame.drop(columns=OLD_ROW, errors="ignore").rename(columns={"row": OLD_ROW})
    frame.insert(0, "row", np.arange(len(frame)))
    refuse_repeated(frame, faults)
    good = frame[~frame["row"].isin(list(faults))].reset_index(drop=True)
    warnings = _check(good, scales)
    refuse_bad_units(warnings, where=where, accept=accept)
    _derive(good, notes)
    steps = good.drop_duplicates(["run", "step"]) if {"run", "step"} <= set(good) else None
    if steps is not None and steps["run"].duplicated().any():
        notes.append(
            f"{len(good)} rows are checkpoints of {good['run'].nunique()} runs: "
            "a law of final losses needs the last of each "
            "(table.sort_values('step').groupby('run').tail(1)), "
            "one of checkpoints clusters='run'"
        )
    notes += [w.sentence for w in warnings if w.kind not in accept]
    records = frame.to_dict(orient="records")
    content: list[dict[str, Any]] = [{str(k): v for k, v in r.items()} for r in records]
    return ImportedTable(
        table=good,
        faults=[(row, content[row], reason) for row, reason in sorted(faults.items())],
        notes=notes,
        source_columns=source_columns,
    )


def _frame(source: Any, where: str) -> pd.DataFrame:
    if isinstance(source, pd.DataFrame):
        frame = source.reset_index(drop=True).copy()
    elif isinstance(source, Mapping):
        sized = {
            k: v for k, v in source.items() if hasattr(v, "__len__") and not isinstance(v, str)
        }
        if len({len(v) for v in sized.values()}) > 1:
            lengths = ", ".join(f"{k} {len(v)}" for k, v in sized.items())
            raise ValueError(
                f"{where}: columns of different lengths ({lengths}); give one value per run"
            )
        frame = pd.DataFrame({str(k): v for k, v in source.items()})
    else:
        frame = read_table_file(Path(where), column_names=known_names())
    frame.columns = [
        "/".join(map(str, c)) if isinstance(c, tuple) else str(c).strip() for c in frame.columns
    ]
    twice = sorted({c for c in frame.columns if list(frame.columns).count(c) > 1})
    if twice:
        raise ValueError(
            f"{where}: two columns are named {', '.join(twice)}; "
            "rename one, so that it is clear which counts"
        )
    if not len(frame):
        raise ValueError(f"{where}: has no rows; a table of runs has one row per run")
    return frame


def _numbers(values: pd.Series, name: str, unit: float, faults: dict[int, str]) -> pd.Series:
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
        return values.astype("float64") * unit
    read = np.full(len(values), np.nan)
    # 3,900 is 3.9 beside 3,91, and as a loss: none is in the thousands.
    decimal = name == "loss" or any(has_decimal_comma(value) for value in values)
    for i, value in enumerate(values):
        if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
            continue
        comma = decimal and has_one_comma(value)
        number = None if comma else written_number(value)
        if number is not None:
            read[i] = number * unit
            continue
        reason = f"{name} is no number: {value!r}; correct it, or leave the cell empty"
        if comma:
            reason = (
                f"{name} is no number: {value!r} has a decimal comma; write a point, or give "
                "analysis.load the table pandas.read_csv(file, sep=';', decimal=',')"
            )
        faults.setdefault(i, reason)
    return pd.Series(read, index=values.index, name=values.name)


def _derive(table: pd.DataFrame, notes: list[str]) -> None:
    """Add what follows from C = 6 N D, or from tokens per parameter, where one is missing.

    Each is a note.
    """
    active = "active_params" if "active_params" in table else "params"
    if active not in table:
        if {"tokens", "flops"} <= set(table):
            table["params"] = table["flops"] / (6 * table["tokens"])
            notes.append("params = flops / (6 tokens): there is no column of parameters")
        return
    ratios = [
        c
        for c in table
        if header(str(c))[0] in PER_PARAM and pd.api.types.is_numeric_dtype(table[c])
    ]
    if not {"tokens", "flops"} & set(table) and ratios:
        table["tokens"] = table[ratios[0]] * table[active]
        notes.append(f"tokens = {ratios[0]} x {active}: there is no column of tokens")
    if "tokens" not in table and "flops" in table:
        table["tokens"] = table["flops"] / (6 * table[active])
        notes.append(f"tokens = flops / (6 {active}): there is no column of tokens")
    elif "flops" not in table and "tokens" in table:
        table["flops"] = 6 * table[active] * table["tokens"]
        notes.append(f"flops = 6 {active} x tokens: there is no column of FLOPs")


def _check(table: pd.DataFrame, units: Mapping[str, float]) -> list[DataWarning]:
    """Return the warnings about the table, with the rows of the source.

    Args:
        table: Rows that count.
        units: That its columns were multiplied by.
    """
    sizes = {n: table[n].to_numpy(dtype=np.float64) for n in SIZES if n in table}
    warnings = check_size_units(sizes, rows=table["row"].to_numpy())
    # Of mixed units a median says nothing.
    if not any(w.kind == "units" for w in warnings):
        small = check_small_sizes(sizes, units=units, rows=table["row"].to_numpy())
        if small is not None and small.kind == "units":
            warnings = []  # FLOPs would be blamed for it
        warnings += [] if small is None else [small]
    names = ("params", "active_params", "tokens", "experts")
    inputs = [n for n in names if n in sizes and np.isfinite(sizes[n]).all()]
    # Where there are only active parameters, they are the size.
    given = {"params" if n == "active_params" and "params" not in sizes else n: n for n in inputs}
    if not {"params", "tokens"} <= set(given) or "loss" not in table:
        return warnings
    kinds = pd.Series("", index=table.index)
    if "architecture" in table:
        kinds = table["architecture"].astype(str)
    for _, runs in table.groupby(kinds, sort=False):
        warnings += check_runs(
            {n: runs[c].to_numpy(dtype=np.float64) for n, c in given.items()},
            runs["loss"].to_numpy(dtype=np.float64),
            outcome="loss",
            seeds_named="seed" in table,
            rows=runs["row"].to_numpy(),
        )
    return warnings
