"""Loading of finished trials from a folder, a tracker or anybody's table.

    load("runs", sweep="quickstart")
    load("runs", sweep=["quickstart", "mine"])
    load("sqlite:///runs/mlflow.db", sweep="quickstart")
    load("published.csv", columns={"params": "N (non-emb)"}, units={"tokens": 1e9})

All sources give the same table for the same sweep (docs/metrics.md, "The table of runs").
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.loading.from_folder import folder_histories, read_folder
from analysis.loading.from_table import DATA_FRAME, read_table
from analysis.loading.from_tracker import read_tracker, tracked_histories
from analysis.loading.histories import USAGE_METRICS, HistoryPoint, histories_table
from analysis.loading.mixed_counts import mixed_counts
from analysis.loading.mixed_evaluations import mixed_evaluations
from analysis.loading.provenance import common_facts
from analysis.loading.schema import Reading, check_rows, diverged_rows, exclusions, framed
from analysis.loading.table_file import SUFFIXES, table_suffix
from orchestrator.records.errors import NotFoundError, StoreError


@dataclass(frozen=True, kw_only=True, eq=False)
class Runs:
    """What a sweep has produced so far."""

    table: pd.DataFrame
    """One row per trial that counts."""
    excluded: pd.DataFrame
    """The others: trial_id, sweep, architecture, seed, state, reason, and their sizes where they
    are known."""
    diverged: pd.DataFrame = field(default_factory=partial(framed, ()))
    """Those of `excluded` that diverged, with their settings: columns as in `table`."""
    source: str
    """Where the rows were read."""
    sweep: str | tuple[str, ...] | None
    """The sweep asked for, or several; None is all of them."""
    question: str | None = None
    """What the sweep file says it asks."""
    notes: Sequence[str] = ()
    """Of somebody's table: which column was taken for what, and what is doubtful
    (`analysis/loading/validation.py`). Of a runs folder: trials of earlier submissions, seeds that
    different code trained, and evaluations that differ between trials. Of both it and a tracker:
    seeds that different code counted."""
    call: str | None = None
    """How somebody's table was loaded, to do it again."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Commit, packages and hardware of the attempts that finished; several values are counted."""

    def __repr__(self) -> str:
        n, without = len(self.table), len(self.excluded)
        names = ", ".join(sweep_names(self.sweep) or ["all sweeps"])
        return f"<Runs of {names}: {n} in table, {without} in excluded>"


def load(
    source: str | os.PathLike[str] | pd.DataFrame | Mapping[str, Any],
    sweep: str | Sequence[str] | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    units: Mapping[str, float | str] | None = None,
    accept: Collection[str] = (),
) -> Runs:
    """Return the table of runs and what was excluded.

    Somebody's table needs a column of sizes (`params`, `tokens` or `flops`) and one of an outcome;
    `architecture`, `run`, `seed` and `status` are used where they are there. Rows are counted from
    0.

    Args:
        source: A runs folder (or the folder of one sweep), a tracking URI
            (`sqlite:///runs/mlflow.db`, `http://…`), or a table: a file (.csv, .tsv, .parquet,
            .json, .jsonl), a DataFrame or a dict of columns.
        sweep: Name of one sweep, or a list of names to compare; None reads all.
        columns: Of a table, this package's names to the table's own: `{"params": "N", "loss":
            "val/loss"}`.
        units: Of a table, how many one of theirs is: `{"params": 1e6}` for millions, or `"M"`.
        accept: Of a table, kinds of warning that were looked into
            (`analysis/loading/validation.py`).

    Raises:
        StoreError: If nothing readable is there, or a sweep is not; the message lists the sweeps
            that are.
        ValueError: If the list of sweeps is empty, or a table cannot be read, lacks a needed
            column, or has units that cannot be right.

    Example:
        >>> table = {"N": ["70M", "1.4B"], "D": [2, 28], "val/loss": [3.9, 2.7]}
        >>> runs = load(table, columns={"params": "N", "tokens": "D"}, units={"tokens": 1e9})
        >>> runs.table["params"].tolist(), runs.table["tokens"].tolist()
        ([70000000.0, 1400000000.0], [2000000000.0, 28000000000.0])
    """
    sweep = sweep if sweep is None or isinstance(sweep, str) else tuple(sweep)
    names = sweep_names(sweep)
    if names == []:
        raise ValueError("sweep: an empty list names no sweep; give names, or None to read all")
    if isinstance(source, pd.DataFrame | Mapping):
        reading = read_table(source, DATA_FRAME, names, columns, units, accept)
        return _completed(reading, DATA_FRAME, sweep)
    text = os.fspath(source)
    path = Path(text)
    if path.is_file() and table_suffix(path) is not None:
        reading = read_table(path, text, names, columns, units, accept)
        return _completed(reading, text, sweep)
    if columns or units or accept:
        raise ValueError(
            f"{text}: columns, units and accept are for tables ({', '.join(SUFFIXES)}); "
            "a sweep's names are fixed"
        )
    if "://" in text:
        return _completed(read_tracker(text, names), text, sweep)
    if path.is_dir():
        return _completed(read_folder(path, names), text, sweep)
    if path.is_file() and path.suffix in {".db", ".sqlite", ".sqlite3"}:
        return load(f"sqlite:///{path}", sweep)
    raise NotFoundError(
        f"{text}: nothing there that can be read; give a runs folder, "
        f"a tracking URI like sqlite:///runs/mlflow.db, or a table ({', '.join(SUFFIXES)})"
    )


def histories(runs: Runs, metrics: Sequence[str] = USAGE_METRICS) -> pd.DataFrame:
    """Return how metrics developed in training.

    Columns are trial_id, sweep, architecture, configuration, seed, step, tokens, metric and value.

    They are read now, not by `load`. A step that a resume repeated appears once: a journal gives
    the value of the weights that were kept, a tracker the one it holds (docs/metrics.md says
    which). Somebody's table has none.

    Args:
        runs: Of `load`; only trials in its table are read. `dataclasses.replace(runs, table=…)`
            narrows them.
        metrics: How the names begin.

    Raises:
        StoreError: If the source is no longer there or cannot be read.
    """
    trials = [
        (str(sweep), str(trial))
        for sweep, trial in zip(runs.table["sweep"], runs.table["trial_id"], strict=True)
    ]
    path = Path(runs.source)
    points: Iterable[HistoryPoint]
    if not trials or runs.source == DATA_FRAME or table_suffix(path) is not None:
        points = ()
    elif "://" in runs.source:
        points = tracked_histories(runs.source, sweep_names(runs.sweep), trials, metrics)
    elif path.is_dir():
        points = folder_histories(path, trials, metrics)
    else:
        raise StoreError(f"{runs.source}: no longer there; load the runs again")
    return histories_table(points, runs.table)


def sweep_names(sweep: str | tuple[str, ...] | None) -> list[str] | None:
    """Return the names of the sweeps asked for, each once; None is all of them."""
    if sweep is None:
        return None
    return [sweep] if isinstance(sweep, str) else list(dict.fromkeys(sweep))


def _completed(reading: Reading, source: str, sweep: str | tuple[str, ...] | None) -> Runs:
    table, faulty = check_rows(reading.rows)
    left_out = [*reading.left_out, *faulty]
    notes = list(reading.notes)
    if reading.call is None:  # in anybody's table seeds may differ in what was measured
        notes += [*mixed_counts(table), *mixed_evaluations(table, reading.digests)]
    if reading.call is not None and left_out and not len(table):
        first = left_out[0]
        notes.append(
            f"all {len(left_out):,} rows were excluded; "
            f"the first, {first['trial_id']}: {first['reason']}; all reasons are in `excluded`"
        )
    return Runs(
        call=reading.call,
        notes=tuple(notes),
        table=table,
        excluded=exclusions(left_out),
        diverged=framed(diverged_rows(reading, faulty)),
        source=source,
        sweep=sweep,
        question=reading.question,
        environment=common_facts(reading.environments),
    )
