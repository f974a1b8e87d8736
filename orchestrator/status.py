"""Where a sweep stands, as one frozen record: from its folder alone, by any process that can read it."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.exclusion import excluded
from orchestrator.lease import is_alive
from orchestrator.records import Outcome, TrialSpec, TrialState
from orchestrator.slurm import book
from orchestrator.trial_dir import SweepDir, TrialDir

NO_CONTROLLER = "no controller runs this sweep; submit it again to go on"


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

    @property
    def totals(self) -> Mapping[TrialState, int]:
        """Trials per state; a state that nobody is in counts 0."""
        return Counter(trial.state for trial in self.trials)

    @property
    def complete(self) -> bool:
        """Whether every trial is done."""
        return all(trial.state is TrialState.DONE for trial in self.trials)


def status_from_disk(sweep: SweepDir, *, now: float | None = None) -> SweepStatus:
    """Return where a sweep stands, whoever runs it and wherever.

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
    on_slurm = book.used(sweep) and not alive
    queue = book.waits(sweep) if on_slurm else book.Waits()
    controlled = {
        trial_id
        for trial_id in listed
        if alive or (on_slurm and is_alive(sweep.trial(trial_id).controller(), now=now))
    }
    trials = tuple(
        trial_status(
            trial,
            trial.spec(),
            wait=waits.get(trial_id) or queue.why(trial),
            controlled=trial_id in controlled,
            sweep_cancelled=sweep.cancel_requested(),
        )
        for trial_id in listed
        for trial in [sweep.trial(trial_id)]
    )
    return SweepStatus(
        sweep=sweep.name,
        submission=None if record is None else record.get("submission"),
        trials=trials,
        controller_alive=alive or bool(queue.jobs or controlled),
        controller="" if record is None else f"pid {record['pid']} on {record['host']}",
        stopping=alive and record is not None and bool(record.get("stopping")),
        time_left_s=record.get("time_left_s") if record is not None and alive else None,
        updated_at=now,
        excluded=tuple(excluded(sweep).values()),
    )


def trial_status(
    trial: TrialDir,
    spec: TrialSpec,
    *,
    wait: str | None,
    controlled: bool,
    sweep_cancelled: bool,
) -> TrialStatus:
    """Return where one trial stands.

    Args:
        trial: Its folder.
        spec: Its spec.
        wait: The controller's sentence; a trial that has one waits, even if an earlier submission gave it up.
        controlled: Whether a live controller runs the sweep.
        sweep_cancelled: Whether somebody cancelled the whole sweep.
    """
    state = trial.state()
    if state is TrialState.RUNNING and not controlled:
        # Its controller is dead and so are its ranks; the next controller will write that down.
        state, wait = TrialState.WAITING, wait or NO_CONTROLLER
    elif wait is not None and state in (TrialState.FAILED, TrialState.CANCELLED):
        state = TrialState.WAITING
    if state is TrialState.WAITING and (trial.cancel_requested() or sweep_cancelled):
        state = TrialState.CANCELLED
    if state is not TrialState.WAITING:
        wait = ""
    elif wait is None:
        wait = "" if controlled else NO_CONTROLLER
    attempts = trial.attempts()
    ends = [end for end in (attempt.end() for attempt in attempts[-2:]) if end is not None]
    heartbeat = (trial.heartbeat() or {}) if attempts else {}
    fresh = bool(attempts) and heartbeat.get("attempt") == attempts[-1].number
    base: dict[str, Any] = {
        "trial_id": trial.trial_id,
        "architecture": spec.architecture,
        "preset": spec.preset,
        "seed": spec.seed,
        "state": state,
        "attempt": attempts[-1].number if attempts else 0,
        "step": heartbeat.get("step") if state is TrialState.RUNNING else trial.checkpoint_step(),
        "steps": steps_of(spec),
        "wait": wait,
        "outcome": Outcome(ends[-1]["outcome"]) if ends else None,
        "reason": ends[-1]["reason"] if ends else "",
    }
    if state is TrialState.DONE:
        result = trial.result() or {}
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
