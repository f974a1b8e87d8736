"""Reader of an MLflow tracker (layout: docs/mlflow.md, "MLflow layout").

The only file of `analysis` that meets MLflow, and only inside a function.
"""

import json
import logging
import math
import os
import sqlite3
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from analysis.loading.histories import HistoryPoint
from analysis.loading.schema import SETTINGS, Reading, exclusion, metric_value, plain_row
from orchestrator.records.errors import NotFoundError, StoreError, not_installed
from orchestrator.records.redaction import message_without_password, without_password
from orchestrator.records.trial_spec import Outcome, TrialState

LOG = logging.getLogger(__name__)

_STATE_OF_STATUS = {
    "FINISHED": "done",
    "RUNNING": "running",
    "SCHEDULED": "waiting",
    "KILLED": "cancelled",
}


def read_tracker(uri: str, names: Collection[str] | None) -> Reading:
    """Read the child runs that docs/mlflow.md, "MLflow layout", describes; names None: of all."""
    client, experiments, found = _trial_runs(uri, names)
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


def _trial_runs(
    uri: str, names: Collection[str] | None
) -> tuple[Any, list[Any], list[tuple[str, Any]]]:
    """Return the client, the experiments asked for, and their trials as (experiment, run).

    Trials come oldest first.
    """
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        # MLflow would create an empty database and report that it holds nothing.
        raise NotFoundError(
            f"{uri}: no such database; submit a sweep, or give the runs folder instead"
        )
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ModuleNotFoundError as error:
        raise not_installed(error, "mlflow") from error

    try:
        client = MlflowClient(tracking_uri=uri)
        experiments = {
            experiment.name: experiment for experiment in _pages(client.search_experiments)
        }
        gone = [name for name in names or () if name not in experiments]
        if gone:
            known = sorted(name for name in experiments if name != "Default")
            raise NotFoundError(
                f"{without_password(uri)}: no sweep {gone[0]!r} here; there are "
                f"{', '.join(known) or 'none'}"
            )
        chosen = [experiments[name] for name in (sorted(experiments) if names is None else names)]
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
    except (MlflowException, ImportError) as error:  # a database's driver may be missing
        raise _unreadable(uri, error) from error
    return client, chosen, found


def _unreadable(uri: str, error: Exception) -> StoreError:
    return StoreError(
        message_without_password(f"{uri}: cannot be read ({error})", uri)
        + "; check the address, or give the runs folder instead"
    )


def tracked_histories(
    uri: str,
    names: Collection[str] | None,
    trials: Sequence[tuple[str, str]],
    metrics: Sequence[str],
) -> Iterator[HistoryPoint]:
    """Yield what the trials measured; of a repeated step, the value that the tracker got last."""
    client, _, found = _trial_runs(uri, names)
    runs: dict[tuple[str, str], Any] = {}
    for name, run in found:
        if _state(run) == TrialState.DONE:
            # The first run of a trial is the one in the table.
            key = (run.data.tags.get("memscale.sweep", name), _trial_id(run))
            runs.setdefault(key, run)
    gone = [trial[1] for trial in trials if trial not in runs]
    if gone:
        raise StoreError(
            f"{without_password(uri)}: no finished run of {', '.join(gone)} any more;"
            " load the runs again"
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
        diverged = state == TrialState.FAILED and tags.get("memscale.outcome") == Outcome.DIVERGED
        if diverged and not missing:
            sizes = {key: value for key, value in metrics.items() if "/" not in key}
            reading.diverged.append(_row(run, named, sizes))
        return False
    if missing:
        why = f"unreadable: run {run.info.run_id} has no {' and no '.join(missing)}"
        reading.left_out.append(exclusion(named, state="unreadable", reason=why))
        return False
    reading.rows.append(_row(run, named, metrics))
    return True


def _row(run: Any, named: Mapping[str, Any], metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return a run as a row.

    Args:
        run: Of the tracker.
        named: Trial id, sweep, architecture and seed.
        metrics: Of the run; those without a slash are its sizes and costs.
    """
    tags, params = run.data.tags, run.data.params
    presets = (params.get("preset"), tags.get("memscale.preset"))
    return plain_row(
        **named,
        preset=next((preset for preset in presets if preset not in {None, "", "None"}), None),
        settings={key: value for key, value in params.items() if key.startswith(SETTINGS)},
        accounting={key: value for key, value in metrics.items() if "/" not in key},
        metrics={key: value for key, value in metrics.items() if "/" in key},
        not_causal=tags.get("memscale.not_causal"),
    )


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
