"""Snapshots of a sweep's folder: every file read once, as frozen records.

Pricing, the check for a live controller, the first status and the controller's restart all start
from the same files. They share one snapshot, so that what they decide agrees, and so that ten
thousand trials are read once. What must be fresh later (requests, new ends) is read from
`trial_dir.TrialDir` again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from orchestrator.records.errors import StoreError
from orchestrator.records.trial_spec import Outcome, TrialSpec, TrialState

JsonObject = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """One attempt: how it was launched and how it ended."""

    path: Path
    launch: JsonObject | None
    end: JsonObject | None
    """None while it runs, or if its controller died."""

    @property
    def number(self) -> int:
        """1 for the first attempt."""
        return int(self.path.name)


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One trial's small files; `sweep_dir` says what each of them holds."""

    path: Path
    spec_source: JsonObject | TrialSpec | None
    """Content of spec.json, or the spec that a submission has just written there."""
    attempts: tuple[AttemptRecord, ...] = ()
    """Oldest first."""
    result: JsonObject | None = None
    heartbeat: JsonObject | None = None
    controller: JsonObject | None = None
    """Of a controller that runs this trial alone (a Slurm job)."""
    retry_request: JsonObject | None = None
    cancel_requested: bool = False
    checkpoint_step: int = 0
    """Step that a resumed run goes on after; 0 without a checkpoint."""

    @property
    def trial_id(self) -> str:
        """Name of the folder."""
        return self.path.name

    @cached_property
    def spec(self) -> TrialSpec:
        """The trial's spec.

        Raises:
            StoreError: If spec.json is missing or was altered.
        """
        if isinstance(self.spec_source, TrialSpec):
            return self.spec_source
        return parse_spec(self.path, self.spec_source)

    def check_spec(self) -> None:
        """Read the spec now, which is kept.

        Raises:
            StoreError: As `spec`.
        """
        _ = self.spec

    @property
    def last_end(self) -> JsonObject | None:
        """end.json of the last attempt."""
        return self.attempts[-1].end if self.attempts else None

    @property
    def state(self) -> TrialState:
        """The state that the files say; see `TrialDir.state`."""
        return derive_state(
            done=self.result is not None,
            last_attempt=self.attempts[-1].number if self.attempts else 0,
            end=self.last_end,
            cancel_requested=self.cancel_requested,
            retry_request=self.retry_request,
        )


@dataclass(frozen=True, kw_only=True)
class SweepSnapshot:
    """A sweep's folder at one moment; of a folder that does not exist an empty one."""

    path: Path
    controller: JsonObject | None = None
    submissions: tuple[JsonObject, ...] = ()
    """Oldest first."""
    excluded_nodes: Mapping[Path, JsonObject] = field(default_factory=dict)
    """The file of each excluded node, with its content."""
    trials: Mapping[str, TrialRecord] = field(default_factory=dict)
    """By trial id, in order of the ids; folders without a spec are left out."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Trial id -> why its files cannot be read. These trials are set aside."""

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self.path.name

    def submitted(self, specs: Iterable[TrialSpec]) -> "SweepSnapshot":
        """Return the snapshot after a submission of these specs, which takes back cancellations."""
        trials = dict(self.trials)
        for spec in specs:
            path = self.path / "trials" / spec.trial_id
            trial = trials.get(spec.trial_id) or TrialRecord(path=path, spec_source=None)
            trials[spec.trial_id] = replace(trial, spec_source=spec, cancel_requested=False)
        return replace(self, trials=trials)


def parse_spec(path: Path, record: JsonObject | None) -> TrialSpec:
    """Return the spec of the trial in folder `path` from the content of its spec.json.

    Raises:
        StoreError: If there is no spec.json, or it was altered.
    """
    if record is None:
        # Not that the folder be deleted: it may hold checkpoints and a result, which stay good.
        raise StoreError(
            f"{path}: no spec.json; submit the sweep again, which writes it and keeps all else"
        )
    try:
        return TrialSpec.from_json(record)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{path / 'spec.json'}: {error}") from error


def derive_state(
    *,
    done: bool,
    last_attempt: int,
    end: JsonObject | None,
    cancel_requested: bool,
    retry_request: JsonObject | None,
) -> TrialState:
    """Return a trial's state from its files.

    RUNNING means that the last attempt has no end.json; whether its controller is still alive is
    for the caller to ask.

    Args:
        done: Whether there is a result.json.
        last_attempt: Number of the last attempt, 0 when none was started.
        end: end.json of the last attempt.
        cancel_requested: Whether there is a cancel.json.
        retry_request: retry.json.
    """
    if done:
        return TrialState.DONE
    if last_attempt and end is None:
        return TrialState.RUNNING
    # Before the request: a trial that failed while it was cancelled has failed.
    if end is not None and end.get("final") and not is_open(retry_request, last_attempt):
        return TrialState.CANCELLED if end["outcome"] == Outcome.CANCELLED else TrialState.FAILED
    return TrialState.CANCELLED if cancel_requested else TrialState.WAITING


def is_open(retry_request: JsonObject | None, last_attempt: int) -> bool:
    """Whether a retry was requested and no attempt was made since: that alone meets a request."""
    return retry_request is not None and retry_request["after"] == last_attempt
