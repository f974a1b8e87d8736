"""Sync state: what each tracker has, in tracking.json beside trial and sweep.

Keyed by tracking URI. Losing a trial's file loses nothing: everything is sent again, with the same
timestamps, into the same run.
"""

import hashlib
import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.records.errors import StoreError
from orchestrator.records.json_files import read_json, write_json
from orchestrator.records.redaction import without_password
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TrialDir
from orchestrator.tracking.journal_reader import Mark, batches

FILE = "tracking.json"
LOCK = "tracking.lock"
"""Of the sweep's only exporter."""
SECOND = "tracking.folder_id"
"""A copy of the sweep's `folder_id`: without it, a lost tracking.json would double every run."""


@dataclass(frozen=True, kw_only=True)
class TrialProgress:
    """What of one trial a tracker has."""

    run_id: str | None = None
    ignored: bool = False
    """Somebody deleted the run from the page: leave it alone."""
    described: str = ""
    """Digest of the params and accounting that were sent."""
    offsets: Mapping[str, int] = field(default_factory=dict)
    """Attempt number, as text, to the byte offset in its journal."""
    marks: Mapping[str, Mark] = field(default_factory=dict)
    finals: bool = False
    """Whether the values of result.json are there."""
    evaluation: str = ""
    """Digest of the metrics of `memscale evaluate` that were sent."""
    tags: str = ""
    """Digest of the tags that were sent."""
    status: str = ""
    artifacts: tuple[str, ...] = ()
    datasets: str = ""
    """Digest of the data sets that were sent."""
    model_version: str = ""
    """Its version in the registry; empty where it is not registered."""

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "TrialProgress":
        """Read what `dataclasses.asdict` and JSON made of one."""
        marks = {key: Mark(*mark) for key, mark in record["marks"].items()}
        return cls(**{**record, "marks": marks, "artifacts": tuple(record["artifacts"])})


@dataclass(frozen=True, kw_only=True)
class ParentProgress:
    """What of a sweep's parent run a tracker has."""

    run_id: str | None = None
    points: int = 0
    """How many of its points were sent."""
    tags: str = ""
    status: str = ""
    submissions: int = 0
    """How many submissions stand among its params."""
    sweep_file: str = ""
    """Digest of the sweep file that was sent."""
    report: str = ""
    """Digest of the report that was sent."""


def digest(record: Mapping[str, Any]) -> str:
    """Return a short digest of plain values."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]


def load_trial(trial: TrialDir, uri: str) -> TrialProgress:
    """Return how far a trial was sent. An unreadable file counts as nothing sent."""
    record = _read_trial(trial.path / FILE).get(without_password(uri))
    try:
        return TrialProgress() if record is None else TrialProgress.from_json(record)
    except (TypeError, KeyError, ValueError, AttributeError):
        return TrialProgress()


def save_trial(trial: TrialDir, uri: str, progress: TrialProgress) -> None:
    """Replace what is kept for this tracker, without fsync: what a crash loses is sent again."""
    path = trial.path / FILE
    record = {**_read_trial(path), without_password(uri): asdict(progress)}
    path.parent.mkdir(exist_ok=True)  # a trial that waits may have no folder
    write_json(path, record, durable=False)


def load_parent(sweep: SweepDir, uri: str) -> ParentProgress | None:
    """Return how far the parent run was sent, None if the tracker has nothing of the sweep."""
    kept = _tracker(sweep, uri)
    if "parent" in kept:
        return ParentProgress(**kept["parent"])
    # Earlier versions kept a record of each submission.
    return ParentProgress() if "submissions" in kept else None


def save_parent(sweep: SweepDir, uri: str, progress: ParentProgress) -> None:
    """Replace what is kept for this tracker."""
    _save_tracker(sweep, uri, {**_tracker(sweep, uri), "parent": asdict(progress)})


def problem(sweep: SweepDir, uri: str) -> str | None:
    """Return why the tracker did not take everything in the last round; None if it did."""
    found = _tracker(sweep, uri).get("problem")
    return None if found is None else str(found)


def problems(sweep: SweepDir) -> dict[str, str]:
    """Return why trackers lack something, by URI without password; needs no tracker.

    A damaged record is a problem of "the tracker": nobody knows which.
    """
    try:
        records = (read_json(sweep.path / FILE) or {}).items()
    except StoreError as error:
        return {"the tracker": str(error)}
    found = {uri: kept.get("problem") for uri, kept in records if isinstance(kept, Mapping)}
    return {uri: str(sentence) for uri, sentence in found.items() if sentence is not None}


def save_problem(sweep: SweepDir, uri: str, sentence: str | None) -> None:
    """Keep, or clear, the reason why the tracker does not take things."""
    kept = _tracker(sweep, uri)
    if kept.get("problem") != sentence:
        _save_tracker(sweep, uri, {**kept, "problem": sentence})


def trackers(sweep: SweepDir) -> frozenset[str]:
    """Return the addresses of all trackers that the sweep has a record of."""
    return frozenset(read_json(sweep.path / FILE) or {})


def forget_unused(sweep: SweepDir, *, but: Collection[str] = ()) -> None:
    """Drop trackers that never took anything of the sweep: their addresses may be wrong.

    The caller holds the exporter's lock.

    Args:
        sweep: Whose trackers.
        but: Addresses that are kept in any case: a tracker that is only down took nothing, either.
    """
    record = read_json(sweep.path / FILE) or {}
    unused = [
        uri
        for uri, kept in record.items()
        if isinstance(kept, Mapping)
        and uri not in but
        and not kept.keys() & {"parent", "submissions"}
        # The parent run gets its record after the trials' runs.
        and all(load_trial(trial, uri).run_id is None for trial in sweep.trials())
    ]
    if unused:
        write_json(sweep.path / FILE, {u: kept for u, kept in record.items() if u not in unused})


def retries_taken(sweep: SweepDir, uri: str) -> dict[str, dict[str, int]]:
    """Return the retry tags being acted on: run id to trial id to its last attempt's number."""
    found: dict[str, dict[str, int]] = _tracker(sweep, uri).get("retries_taken", {})
    return found


def save_retries_taken(sweep: SweepDir, uri: str, taken: Mapping[str, Mapping[str, int]]) -> None:
    """Keep the retry tags being acted on: a killed exporter's successor acts on none twice."""
    kept = _tracker(sweep, uri)
    if kept.get("retries_taken", {}) != taken:
        _save_tracker(sweep, uri, {**kept, "retries_taken": taken})


def folder_id(sweep: SweepDir) -> str:
    """Return the name that this sweep's folder has in every tracker, made on first use.

    Two people may run the same sweep against one server; their runs must not mix.
    """
    path, second = sweep.path / FILE, sweep.path / SECOND
    record, copied = read_json(path) or {}, _text(second)
    kept = str(record.get("folder_id") or copied or uuid.uuid4().hex)
    # The copy goes first: whoever is killed in between finds it again.
    if copied != kept:
        second.write_text(kept, encoding="utf-8")
    if "folder_id" not in record:
        write_json(path, {"folder_id": kept, **record})
    return kept


def points_waiting(sweep: SweepDir, uri: str) -> int:
    """Return how many points of the journals the tracker lacks. Needs no tracker, no mlflow."""
    waiting = 0
    for trial in sweep.trials():
        progress = load_trial(trial, uri)
        if progress.ignored:
            continue
        marks = progress.marks
        for attempt in trial.attempts():
            offset = progress.offsets.get(str(attempt.number), 0)
            for batch in batches(attempt, offset=offset, marks=marks):
                waiting += len(batch.points)
                marks = batch.marks
    return waiting


def _tracker(sweep: SweepDir, uri: str) -> dict[str, Any]:
    record: dict[str, Any] = (read_json(sweep.path / FILE) or {}).get(without_password(uri), {})
    return record


def _save_tracker(sweep: SweepDir, uri: str, record: Mapping[str, Any]) -> None:
    path = sweep.path / FILE
    write_json(path, {**(read_json(path) or {}), without_password(uri): record})


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return ""


def _read_trial(path: Path) -> dict[str, Any]:
    try:
        return read_json(path) or {}
    except StoreError:
        return {}
