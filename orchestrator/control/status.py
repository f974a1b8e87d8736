"""Where a sweep stands, as one frozen record: from its folder alone, by any process that can read it."""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from orchestrator.control.node_exclusion import excluded
from orchestrator.records import status_cache
from orchestrator.records.locks import is_alive
from orchestrator.records.snapshot import TrialRecord
from orchestrator.records.trial_dir import SweepDir, TrialDir
from orchestrator.records.trial_spec import Outcome, TrialSpec, TrialState

NO_CONTROLLER = "no controller runs this sweep; submit it again to go on"
SPEC_FIELDS = ("trial_id", "architecture", "preset", "seed", "steps")
"""What a status takes from the spec alone."""
RESULT_FIELDS = ("attempt", "step", "loss", "reason")
"""What else of the status of a trial that is done is kept as it is."""


@dataclass(frozen=True, kw_only=True)
class TrialStatus:
    """Where one trial stands."""

    trial_id: str
    architecture: str
    preset: str | None
    seed: int
    state: TrialState
    attempt: int = 0
    """Number of the last attempt; 0 when none was started."""
    step: int | None = None
    """Optimizer steps done, as last heard."""
    steps: int
    """Of the whole run."""
    phase: str | None = None
    """data, train, evaluate or checkpoint; None unless it runs."""
    loss: float | None = None
    """Last training loss while it runs; `valid/loss`, else `train/loss`, of the result when it is done. Nats per token."""
    tokens_per_s: float | None = None
    eta_s: float | None = None
    """Predicted seconds of training left, from its own rate; None when that is not known yet."""
    wait: str = ""
    """Why it waits, in one sentence; empty unless it does."""
    outcome: Outcome | None = None
    """How the last ended attempt ended."""
    reason: str = ""
    """Why it ended so, in one sentence."""


@dataclass(frozen=True, kw_only=True)
class SweepStatus:
    """Where a sweep stands."""

    sweep: str
    submission: int | None
    """Of the last controller; None when there never was one."""
    trials: tuple[TrialStatus, ...]
    """In the order of the submission; trials of earlier submissions are left out."""
    controller_alive: bool
    controller: str
    """`pid 123 on host`, empty when there never was one."""
    stopping: bool
    """Whether the controller was asked to stop and waits for checkpoints."""
    time_left_s: float | None
    """Predicted seconds until nothing is left to do; None when there is no telling."""
    updated_at: float
    """Seconds since 1970."""
    excluded: tuple[str, ...] = ()
    """Nodes that are left out, a sentence each."""

    def count(self, state: TrialState) -> int:
        """Return how many trials are in a state."""
        return self.totals[state]

    @cached_property
    def totals(self) -> Mapping[TrialState, int]:
        """Trials per state; a state that nobody is in counts 0."""
        return Counter(trial.state for trial in self.trials)

    @property
    def complete(self) -> bool:
        """Whether every trial is done."""
        return all(trial.state is TrialState.DONE for trial in self.trials)


@dataclass(frozen=True, kw_only=True)
class QueueReasons:
    """A sweep's jobs in a batch system, as reasons why trials wait that no controller runs."""

    by_trial: Mapping[str, str] = field(default_factory=dict)
    rest: str | None = None
    """The reason of all trials that are not in `by_trial`; None when no job will run them."""
    n_jobs: int = 0
    """Jobs of the sweep that wait or run."""

    def reason(self, trial: TrialDir) -> str | None:
        """Return why one trial waits, None if it waits for no job."""
        if trial.trial_id in self.by_trial:
            return self.by_trial[trial.trial_id]
        if self.rest is None or trial.state() not in (TrialState.WAITING, TrialState.RUNNING):
            return None
        return self.rest


def status_from_disk(
    sweep: SweepDir,
    *,
    now: float | None = None,
    ask_queue: Callable[[SweepDir], QueueReasons | None] = lambda sweep: None,
) -> SweepStatus:
    """Return where a sweep stands, whoever runs it and wherever.

    Args:
        sweep: Its folder.
        now: Seconds since 1970; default: the clock's.
        ask_queue: Returns the sweep's jobs in a batch system, None if it never had any. Called
            only while no controller is alive, for asking takes a while.

    Raises:
        StoreError: If a file of it is damaged.
    """
    now = time.time() if now is None else now
    record = sweep.controller()
    alive = is_alive(record, now=now)
    submissions = sweep.submissions()
    listed: Sequence[str] = (
        record["trial_ids"]
        if record is not None and "trial_ids" in record
        else submissions[-1]["trial_ids"]
        if submissions
        else [trial.trial_id for trial in sweep.trials()]
    )
    if not alive and submissions:
        listed = submissions[-1]["trial_ids"]
    waits: Mapping[str, str] = record.get("waits", {}) if record is not None and alive else {}
    queue = None if alive else ask_queue(sweep)
    controlled = {
        trial_id
        for trial_id in listed
        if alive or (queue is not None and is_alive(sweep.trial(trial_id).controller(), now=now))
    }
    if queue is not None:
        waits = {
            trial_id: reason
            for trial_id in listed
            if (reason := queue.reason(sweep.trial(trial_id))) is not None
        }
    cancelled = sweep.cancel_requested()
    known = status_cache.read(sweep)
    folder = str(sweep.path / "trials")
    trials = tuple(
        _without_reading(
            known.get(trial_id),
            f"{folder}/{trial_id}",
            wait=waits.get(trial_id),
            controlled=trial_id in controlled,
            sweep_cancelled=cancelled,
        )
        or _read(sweep.trial(trial_id), waits.get(trial_id), trial_id in controlled, cancelled)
        for trial_id in listed
    )
    return SweepStatus(
        sweep=sweep.name,
        submission=None if record is None else record.get("submission"),
        trials=trials,
        controller_alive=alive or bool(controlled) or (queue is not None and queue.n_jobs > 0),
        controller="" if record is None else f"pid {record['pid']} on {record['host']}",
        stopping=alive and record is not None and bool(record.get("stopping")),
        time_left_s=record.get("time_left_s") if record is not None and alive else None,
        updated_at=now,
        excluded=tuple(excluded(sweep.excluded_nodes()).values()),
    )


def _read(trial: TrialDir, wait: str | None, controlled: bool, cancelled: bool) -> TrialStatus:
    record = trial.record()
    return trial_status(
        record, record.spec, wait=wait, controlled=controlled, sweep_cancelled=cancelled
    )


def _without_reading(
    known: Mapping[str, Any] | None,
    folder: str,
    *,
    wait: str | None,
    controlled: bool,
    sweep_cancelled: bool,
) -> TrialStatus | None:
    """Return the status of a trial that is done, or was never started, from its known line; None: read its folder."""
    if known is None:
        return None
    try:
        if "result_ns" in known:
            if known["result_ns"] != status_cache.result_ns(folder):
                return None
            return TrialStatus(
                **{field: known[field] for field in (*SPEC_FIELDS, *RESULT_FIELDS)},
                state=TrialState.DONE,
                outcome=Outcome(known["outcome"]) if known["outcome"] else None,
            )
        names = os.listdir(folder)  # noqa: PTH208 -- names, no paths
        if not {"attempts", "result.json", "checkpoints"}.isdisjoint(names):
            return None
        facts = {field: known[field] for field in SPEC_FIELDS}
    except (KeyError, ValueError, TypeError, OSError):
        return None
    return never_started(
        facts,
        wait=wait,
        controlled=controlled,
        cancelled=sweep_cancelled or "cancel.json" in names,
    )


def never_started(
    facts: Mapping[str, Any], *, wait: str | None, controlled: bool, cancelled: bool
) -> TrialStatus:
    """Return the status of a trial without attempts; `facts` as `spec_fields` returns them."""
    if cancelled:
        return TrialStatus(**facts, state=TrialState.CANCELLED, step=0)
    if wait is None:
        wait = "" if controlled else NO_CONTROLLER
    return TrialStatus(**facts, state=TrialState.WAITING, step=0, wait=wait)


def spec_fields(spec: TrialSpec) -> dict[str, Any]:
    """Return what a status takes from the spec alone."""
    return {
        "trial_id": spec.trial_id,
        "architecture": spec.architecture,
        "preset": spec.preset,
        "seed": spec.seed,
        "steps": steps_of(spec),
    }


def cache_line(status: TrialStatus, *, result_ns: int) -> dict[str, Any]:
    """Return what statuses.jsonl keeps of a trial that is done."""
    fields = {field: getattr(status, field) for field in (*SPEC_FIELDS, *RESULT_FIELDS)}
    return {**fields, "outcome": status.outcome and status.outcome.value, "result_ns": result_ns}


def trial_status(
    trial: TrialRecord,
    spec: TrialSpec,
    *,
    wait: str | None,
    controlled: bool,
    sweep_cancelled: bool,
) -> TrialStatus:
    """Return where one trial stands.

    Args:
        trial: Its files, as `TrialDir.record` reads them for a status.
        spec: Its spec.
        wait: The controller's sentence; a trial that has one waits, even if an earlier submission gave it up.
        controlled: Whether a live controller runs the sweep.
        sweep_cancelled: Whether somebody cancelled the whole sweep.
    """
    state = trial.state
    if state is TrialState.RUNNING and not controlled:
        # Its controller is dead and so are its ranks; the next controller will write that down.
        state, wait = TrialState.WAITING, wait or NO_CONTROLLER
    elif wait is not None and state in (TrialState.FAILED, TrialState.CANCELLED):
        state = TrialState.WAITING
    if state is TrialState.WAITING and (trial.cancel_requested or sweep_cancelled):
        state = TrialState.CANCELLED
    if state is not TrialState.WAITING:
        wait = ""
    elif wait is None:
        wait = "" if controlled else NO_CONTROLLER
    attempts = trial.attempts
    ends = [attempt.end for attempt in attempts[-2:] if attempt.end is not None]
    heartbeat = (trial.heartbeat or {}) if attempts else {}
    fresh = bool(attempts) and heartbeat.get("attempt") == attempts[-1].number
    base: dict[str, Any] = {
        **spec_fields(spec),
        "trial_id": trial.trial_id,
        "state": state,
        "attempt": attempts[-1].number if attempts else 0,
        "step": heartbeat.get("step") if state is TrialState.RUNNING else trial.checkpoint_step,
        "wait": wait,
        "outcome": Outcome(ends[-1]["outcome"]) if ends else None,
        "reason": ends[-1]["reason"] if ends else "",
    }
    if state is TrialState.DONE:
        result = trial.result or {}
        metrics = result.get("metrics", {})
        base |= {
            "step": result.get("steps"),
            "loss": metrics.get("valid/loss", metrics.get("train/loss")),
        }
    elif state is TrialState.RUNNING and fresh:
        base |= {
            "phase": heartbeat["phase"],
            "loss": heartbeat["loss"],
            "tokens_per_s": heartbeat["tokens_per_s"],
            "eta_s": _eta_s(spec, heartbeat),
        }
    return TrialStatus(**base)


def steps_of(spec: TrialSpec) -> int:
    """Return the optimizer steps of the whole run."""
    return -(-int(spec.train["tokens"]) // int(spec.train["batch_tokens"]))


def _eta_s(spec: TrialSpec, heartbeat: Mapping[str, Any]) -> float | None:
    rate = heartbeat["tokens_per_s"]
    if not rate or heartbeat["steps"] < 1:
        return None
    return float((heartbeat["steps"] - heartbeat["step"]) * int(spec.train["batch_tokens"]) / rate)
