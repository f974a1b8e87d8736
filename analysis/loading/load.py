"""Loading of finished trials into one checked table, from a folder, a tracker or a table.

    load("runs", sweep="quickstart")
    load("sqlite:///runs/mlflow.db", sweep="quickstart")
    load("published.csv", columns={"params": "N (non-emb)"}, units={"tokens": 1e9})

All sources give the same table for the same sweep (docs/metrics.md, "The table of runs"). This
is the only file of `analysis` that meets MLflow, and only inside a function.
"""

import json
import logging
import math
import os
import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.loading.from_folder import folder_histories, read_folder
from analysis.loading.histories import USAGE_METRICS, HistoryPoint, framed
from analysis.loading.provenance import common_facts
from analysis.loading.schema import (
    OUTCOMES,
    SHORT_NAMES,
    Reading,
    checked,
    exclusion,
    exclusions,
    metric_value,
    plain_row,
)
from analysis.loading.table_file import SUFFIXES, table_suffix
from analysis.loading.table_import import import_table
from orchestrator.records.errors import StoreError
from orchestrator.records.trial_spec import TrialState

DATA_FRAME = "DataFrame"
"""`Runs.source` of a table that somebody made."""

ANY_ARCHITECTURE = "all runs"
"""Architecture of the rows of a table that names none."""

_SWEEP_NAMES = {"total_params": "params", "training_flops": "flops", "training_tokens": "tokens"}
"""What a sweep calls the sizes that laws call by shorter names: a table has both."""

_LIKE_A_LOSS = re.compile("loss|nll|entropy|bpb|bpc|per_byte", re.IGNORECASE)

LOG = logging.getLogger(__name__)

_STATE_OF_STATUS = {
    "FINISHED": "done",
    "RUNNING": "running",
    "SCHEDULED": "waiting",
    "KILLED": "cancelled",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Runs:
    """What a sweep has produced so far."""

    table: pd.DataFrame
    """One row per trial that counts."""
    excluded: pd.DataFrame
    """The others: trial_id, sweep, architecture, seed, state, reason, and their sizes where they
    are known."""
    source: str
    """Where the rows were read."""
    sweep: str | None
    """The sweep asked for; None is all of them."""
    question: str | None = None
    """What the sweep file says it asks."""
    notes: Sequence[str] = ()
    """Of somebody's table: which column was taken for what, and what is doubtful
    (`analysis/loading/validation.py`)."""
    call: str | None = None
    """How somebody's table was loaded, to do it again."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Commit, packages and hardware of the attempts that finished; several values are counted."""


def load(
    source: str | os.PathLike[str] | pd.DataFrame | Mapping[str, Any],
    sweep: str | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    units: Mapping[str, float] | None = None,
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
        sweep: Name of one sweep; None reads all.
        columns: Of a table, this package's names to the table's own: `{"params": "N", "loss":
            "val/loss"}`.
        units: Of a table, how many one of theirs is: `{"params": 1e6}` for millions.
        accept: Of a table, kinds of warning that were looked into (`analysis/loading/validation.py`).

    Raises:
        StoreError: If nothing readable is there, or the sweep is not; the message lists the sweeps
            that are.
        ValueError: If a table cannot be read, lacks a needed column, or has units that cannot be
            right.
    """
    if isinstance(source, pd.DataFrame | Mapping):
        return _read_table(source, DATA_FRAME, sweep, columns, units, accept)
    text = os.fspath(source)
    path = Path(text)
    if path.is_file() and table_suffix(path) is not None:
        return _read_table(path, text, sweep, columns, units, accept)
    if columns or units or accept:
        raise ValueError(
            f"{text}: columns, units and accept are for tables ({', '.join(SUFFIXES)}); "
            "a sweep's names are fixed"
        )
    if "://" in text:
        return _completed(_read_tracker(text, sweep), text, sweep)
    if path.is_dir():
        return _completed(read_folder(path, sweep), text, sweep)
    if path.is_file() and path.suffix in {".db", ".sqlite", ".sqlite3"}:
        return load(f"sqlite:///{path}", sweep)
    raise StoreError(
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
        points = _tracked_histories(runs.source, runs.sweep, trials, metrics)
    elif path.is_dir():
        points = folder_histories(path, trials, metrics)
    else:
        raise StoreError(f"{runs.source}: no longer there; load the runs again")
    return framed(points, runs.table)


def _completed(
    reading: Reading,
    source: str,
    sweep: str | None,
    notes: Sequence[str] = (),
    call: str | None = None,
) -> Runs:
    table, faulty = checked(reading.rows)
    return Runs(
        call=call,
        notes=tuple(notes),
        table=table,
        excluded=exclusions([*reading.left_out, *faulty]),
        source=source,
        sweep=sweep,
        question=reading.question,
        environment=common_facts(reading.environments),
    )


def _read_tracker(uri: str, sweep: str | None) -> Reading:
    """Read the child runs that docs/mlflow.md, "MLflow layout", describes."""
    client, experiments, found = _trial_runs(uri, sweep)
    question = experiments[0].tags.get("mlflow.note.content") if len(experiments) == 1 else None
    reading = Reading(question=question)
    last_run_id = None
    for name, run in found:
        if _read_run(run, name, reading):
            last_run_id = run.info.run_id
    if last_run_id is not None:
        # One run says what it was: the artifact store may be far away, and every trial has a file.
        reading.environments.append(_tracked_environment(client, last_run_id))
    return reading


def _trial_runs(uri: str, sweep: str | None) -> tuple[Any, list[Any], list[tuple[str, Any]]]:
    """Return the client, the experiments asked for, and their trials as (experiment, run).

    Trials come oldest first.
    """
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        # MLflow would create an empty database and report that it holds nothing.
        raise StoreError(
            f"{uri}: no such database; submit a sweep, or give the runs folder instead"
        )
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client = MlflowClient(tracking_uri=uri)
    try:
        experiments = {
            experiment.name: experiment for experiment in _pages(client.search_experiments)
        }
        if sweep is not None and sweep not in experiments:
            known = sorted(name for name in experiments if name != "Default")
            raise StoreError(
                f"{uri}: no sweep {sweep!r} here; there are {', '.join(known) or 'none'}"
            )
        chosen = [
            experiments[name] for name in ([sweep] if sweep is not None else sorted(experiments))
        ]
        found = [
            (experiment.name, run)
            for experiment in chosen
            for run in _pages(
                client.search_runs,
                experiment_ids=[experiment.experiment_id],
                filter_string="tags.`memscale.kind` = 'trial'",
                order_by=["attributes.start_time ASC"],
            )
        ]
    except MlflowException as error:
        raise _unreadable(uri, error) from error
    return client, chosen, found


def _unreadable(uri: str, error: Exception) -> StoreError:
    return StoreError(
        f"{uri}: cannot be read ({error}); check the address, or give the runs folder instead"
    )


def _tracked_histories(
    uri: str, sweep: str | None, trials: Sequence[tuple[str, str]], metrics: Sequence[str]
) -> Iterator[HistoryPoint]:
    """Yield what the trials measured; of a repeated step, the value that the tracker got last."""
    client, _, found = _trial_runs(uri, sweep)
    runs: dict[tuple[str, str], Any] = {}
    for name, run in found:
        if _state(run) == TrialState.DONE:
            # The first run of a trial is the one in the table.
            key = (run.data.tags.get("memscale.sweep", name), _trial_id(run))
            runs.setdefault(key, run)
    gone = [trial[1] for trial in trials if trial not in runs]
    if gone:
        raise StoreError(
            f"{uri}: no finished run of {', '.join(gone)} any more; load the runs again"
        )
    wanted = {
        (*trial, metric): runs[trial].info.run_id
        for trial in trials
        for metric in sorted(runs[trial].data.metrics)
        if metric.startswith(tuple(metrics))
    }
    pairs = [(run_id, metric) for (_, _, metric), run_id in wanted.items()]
    for (trial_sweep, trial_id, metric), points in zip(
        wanted, _tracked_points(client, uri, pairs), strict=True
    ):
        for step, value in sorted(points.items()):
            yield HistoryPoint(trial_sweep, trial_id, metric, step, metric_value(value))


def _tracked_points(
    client: Any, uri: str, pairs: Sequence[tuple[str, str]]
) -> Iterable[dict[int, float]]:
    """Return step -> value for each (run id, metric), in order.

    MLflow's client takes a request for each: 11 ms on two shared cores, a minute for 45 trials of
    100 metrics. So the table of an SQLite file is read as it is (3 s); should it look different one
    day, the client it is.
    """
    if uri.startswith("sqlite:///"):
        try:
            return _points_of_database(Path(uri.removeprefix("sqlite:///")), pairs)
        except sqlite3.Error as error:
            LOG.info("%s: read through MLflow's client, its tables are unfamiliar (%s)", uri, error)
    from mlflow.exceptions import MlflowException

    def one(pair: tuple[str, str]) -> dict[int, float]:
        history = client.get_metric_history(*pair)
        return {m.step: m.value for m in sorted(history, key=lambda m: m.timestamp)}

    try:
        with ThreadPoolExecutor(max_workers=8) as pool:
            return list(pool.map(one, pairs))
    except MlflowException as error:
        raise _unreadable(uri, error) from error


def _points_of_database(path: Path, pairs: Sequence[tuple[str, str]]) -> Iterable[dict[int, float]]:
    wanted: dict[str, dict[str, dict[int, float]]] = {}
    for run_id, metric in pairs:
        wanted.setdefault(run_id, {})[metric] = {}
    query = (
        "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid = ? "
        "ORDER BY timestamp, step, value"
    )
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        for run_id, of_run in wanted.items():
            for key, step, value, is_nan in database.execute(query, (run_id,)):
                if key in of_run:
                    of_run[key][int(step)] = math.nan if is_nan else float(value)
    return [wanted[run_id][metric] for run_id, metric in pairs]


def _read_run(run: Any, experiment: str, reading: Reading) -> bool:
    tags, params, metrics = run.data.tags, run.data.params, run.data.metrics
    state = _state(run)
    named = {
        "trial_id": _trial_id(run),
        "sweep": tags.get("memscale.sweep", experiment),
        "architecture": tags.get("memscale.architecture", params.get("architecture")),
        "seed": int(params["seed"]) if "seed" in params else None,
    }
    missing = [key for key in ("architecture", "seed") if named[key] is None]
    if state != TrialState.DONE:
        reason = {
            "running": "not finished: running",
            "waiting": "not started or waiting",
            "cancelled": "cancelled",
        }
        reading.left_out.append(
            exclusion(metrics | named, state=state, reason=reason.get(state, _failure(tags)))
        )
        return False
    if missing:
        why = f"unreadable: run {run.info.run_id} has no {' and no '.join(missing)}"
        reading.left_out.append(exclusion(named, state="unreadable", reason=why))
        return False
    presets = (params.get("preset"), tags.get("memscale.preset"))
    reading.rows.append(
        plain_row(
            **named,
            preset=next((preset for preset in presets if preset not in {None, "", "None"}), None),
            settings={
                key: value
                for key, value in params.items()
                if key.startswith(("model.", "train.", "data."))
            },
            accounting={key: value for key, value in metrics.items() if "/" not in key},
            metrics={key: value for key, value in metrics.items() if "/" in key},
            not_causal=tags.get("memscale.not_causal"),
        )
    )
    return True


def _state(run: Any) -> str:
    tag = run.data.tags.get("memscale.state")
    return str(tag or _STATE_OF_STATUS.get(run.info.status, "failed"))


def _trial_id(run: Any) -> str:
    return str(run.data.tags.get("memscale.trial_id", run.info.run_id))


def _failure(tags: Mapping[str, str]) -> str:
    outcome = tags.get("memscale.outcome", "failed")
    attempt = tags.get("memscale.attempt", "?")
    return f"{outcome} in attempt {attempt}: {tags.get('memscale.reason', 'no reason recorded')}"


def _pages(search: Any, **arguments: Any) -> Iterator[Any]:
    token = None
    while True:
        page = search(page_token=token, max_results=1000, **arguments)
        yield from page
        token = page.token
        if not token:
            return


def _tracked_environment(client: Any, run_id: str) -> dict[str, Any]:
    try:
        files = sorted(artifact.path for artifact in client.list_artifacts(run_id, "environment"))
        if not files:
            return {}
        with tempfile.TemporaryDirectory() as folder:
            record = json.loads(
                Path(client.download_artifacts(run_id, files[-1], folder)).read_text(
                    encoding="utf-8"
                )
            )
            return dict(record)
    except Exception as error:  # any store, any protocol: the table does not depend on this
        return {"environment": f"not readable from the tracker ({type(error).__name__}: {error})"}


def _read_table(
    source: Path | pd.DataFrame | Mapping[str, Any],
    name: str,
    sweep: str | None,
    columns: Mapping[str, str] | None,
    units: Mapping[str, float] | None,
    accept: Collection[str],
) -> Runs:
    sheet = import_table(source, columns=columns, units=units, accept=accept)
    table, notes = sheet.table, list(sheet.notes)
    there = ", ".join(c for c in map(str, table.columns) if c != "row")
    if not {"params", "total_params", *_SWEEP_NAMES, *_SWEEP_NAMES.values()} & set(table.columns):
        raise ValueError(
            f"{name}: no column of sizes, got {there}; needed are params (or total_params), "
            f"tokens or flops, and one of {', '.join(OUTCOMES)}; "
            "say which they are with columns="
        )
    measured = [source_ for short in OUTCOMES for source_ in (short, *SHORT_NAMES[short])]
    if not set(measured) & set(table.columns):
        perplexity = next(
            (c for c in table if re.search(r"(^|[_/ ])(ppl|perplexity)$", str(c).lower())), None
        )
        alike = [str(c) for c in table if _LIKE_A_LOSS.search(str(c)) and c != perplexity]
        hint = f", as columns={{'loss': {alike[0]!r}}}" if alike else ""
        if perplexity:
            hint = f" (the loss is ln({perplexity}))"
        raise ValueError(
            f"{name}: no outcome, got {there}; needed is one of {', '.join(OUTCOMES)}; "
            f"say which it is with columns={hint}"
        )
    for long, short in _SWEEP_NAMES.items():
        if long not in table and short in table:
            table[long] = table[short]
            for _, content, _ in sheet.faults:
                content.setdefault(long, content.get(short, math.nan))
    if "architecture" not in table:
        notes.append("no column of architectures: all rows are taken for one")
    stem = source.stem if isinstance(source, Path) else "table"
    reading = Reading()
    for record in table.to_dict(orient="records"):
        # An empty cell is a gap in a table; in a journal NaN is a measurement.
        row = {str(k): v for k, v in record.items() if not _empty(v)}
        reading.rows.append(_as_trial(row, int(record["row"]), stem))
    for number, content, reason in sheet.faults:
        row = _as_trial({k: v for k, v in content.items() if not _empty(v)}, number, stem)
        reading.left_out.append(exclusion(row, state="table", reason=reason))
    _unambiguous(reading.rows)
    if sweep is not None:
        there = ", ".join(sorted({str(row["sweep"]) for row in reading.rows})) or "none"
        reading.rows = [row for row in reading.rows if row["sweep"] == sweep]
        reading.left_out = [row for row in reading.left_out if row["sweep"] == sweep]
        if not reading.rows and not reading.left_out:
            raise StoreError(f"{name}: no rows of sweep {sweep!r}; there are {there}")
    asked = {"sweep": sweep, "columns": columns, "units": units, "accept": accept}
    options = "".join(f", {key}={value!r}" for key, value in asked.items() if value)
    call = f"analysis.load({'table' if name == DATA_FRAME else repr(name)}{options})"
    return _completed(reading, name, sweep, notes, call)


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
