"""Status of a sweep and its trials, read from the sweep's folder by any process."""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from orchestrator.control.node_exclusion import excluded
from orchestrator.control.terminal_text import printable
from orchestrator.records import earlier_submissions, status_cache, storage_errors
from orchestrator.records.errors import StoreError
from orchestrator.records.liveness import is_alive, living
from orchestrator.records.locks import STALE_S
from orchestrator.records.processes import ProcessId
from orchestrator.records.snapshot import TrialRecord
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import Outcome, TrialSpec, TrialState
from orchestrator.records.varied_settings import trial_labels

MOST_SPECS = 1000
"""Trials whose specs are read to name what varies, where no controller has written it down."""
NO_CONTROLLER = "no controller runs this sweep; submit it again to go on"
SPEC_FIELDS = ("trial_id", "architecture", "preset", "seed", "steps")
"""Fields of a status that the spec alone determines."""
RESULT_FIELDS = ("attempt", "step", "loss", "reason", "benchmarks")
"""Further fields that are final once a trial is done."""


@dataclass(frozen=True, kw_only=True)
class TrialStatus:
    """Status of one trial."""

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
    """Nats per token: the last training loss while it runs; when it is done `valid/loss`, else
    `train/loss`, of the result."""
    tokens_per_s: float | None = None
    eta_s: float | None = None
    """Predicted seconds of training left, from its own rate; None: not known yet."""
    wait: str = ""
    """Why it waits, in one sentence; empty unless it does."""
    outcome: Outcome | None = None
    """How the last ended attempt ended."""
    reason: str = ""
    """Why it ended so, in one sentence."""
    benchmarks: str = ""
    """What benchmarks took of its training's time, and which were left out, once it is done."""
    varied: str = ""
    """What varies in the sweep beside architecture, preset and seed: `lr=3e-3 · n_keys=64`."""

    def __post_init__(self) -> None:
        for name in ("architecture", "preset", "phase", "wait", "reason"):
            text = getattr(self, name)
            if text is not None and not text.isprintable():
                object.__setattr__(self, name, printable(text))


@dataclass(frozen=True, kw_only=True)
class SweepStatus:
    """Status of a sweep."""

    sweep: str
    submission: int | None
    """Of the last controller; None when there never was one."""
    trials: tuple[TrialStatus, ...]
    """In the order of the submission; `earlier` tells of trials that it does not ask for."""
    controller_alive: bool
    controller: str
    """`pid 123 on host`, empty when there never was one."""
    stopping: bool
    """Whether the controller was asked to stop, and waits for checkpoints."""
    time_left_s: float | None
    """Predicted seconds until nothing is left to do; None: not known."""
    updated_at: float
    """Seconds since 1970."""
    full_disk: str = ""
    """A sentence while the disk of the sweep is full: which folder, what is free, since when; or
    while its quota is, or may be, used up."""
    excluded: tuple[str, ...] = ()
    """Excluded nodes, a sentence each."""
    unreadable: tuple[str, ...] = ()
    """Trials with damaged files or a removed folder, a sentence each; they are not among
    `trials`."""
    hidden: int = 0
    """Trials that a filter leaves out; they are not among `trials`."""
    earlier: str = ""
    """A sentence on trials of earlier submissions that are not among `trials`; empty without."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "controller", printable(self.controller))
        for name in ("excluded", "unreadable"):
            object.__setattr__(self, name, tuple(map(printable, getattr(self, name))))

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
        done = all(trial.state is TrialState.DONE for trial in self.trials)
        return done and not self.unreadable


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
        with suppress(StoreError):
            if trial.state() in (TrialState.WAITING, TrialState.RUNNING):
                return self.rest
        return None


def status_from_disk(
    sweep: SweepDir,
    *,
    now: float | None = None,
    ask_queue: Callable[[SweepDir], QueueReasons | None] = lambda sweep: None,
) -> SweepStatus:
    """Return the status of a sweep, whatever process runs it on whatever machine.

    Args:
        sweep: Its folder.
        now: Seconds since 1970; default: the clock's.
        ask_queue: Returns the sweep's jobs in a batch system, None if it never had any. Called
            only while no controller is alive, for asking takes a while.

    Raises:
        StoreError: If a file of the sweep itself is damaged.
    """
    now = time.time() if now is None else now
    record = sweep.controller() or {}
    alive = is_alive(sweep.path, record or None)
    # Of a controller that is dead, controller.json is out of date.
    live = record if alive else {}
    listed = _listed_trials(sweep, record, alive=alive)
    waits: Mapping[str, str] = live.get("waits", {})
    controlled = set(listed) if alive else set()
    queue = None if alive else ask_queue(sweep)
    if queue is not None:
        folders = {trial_id: sweep.trial(trial_id) for trial_id in listed}
        alive_there = living({trial.path: trial.controller() for trial in folders.values()})
        controlled = {i for i, trial in folders.items() if trial.path in alive_there}
        reasons = {trial_id: queue.reason(trial) for trial_id, trial in folders.items()}
        waits = {trial_id: reason for trial_id, reason in reasons.items() if reason is not None}
    statuses, unreadable = _trial_statuses(sweep, listed, waits=waits, controlled=controlled)
    return SweepStatus(
        sweep=sweep.name,
        submission=record.get("submission"),
        trials=statuses,
        unreadable=unreadable,
        earlier=earlier_submissions.told(earlier_submissions.earlier_trials(sweep, listed)),
        controller_alive=alive or bool(controlled) or (queue is not None and queue.n_jobs > 0),
        controller=f"pid {record['pid']} on {record['host']}" if record else "",
        stopping=bool(live.get("stopping")),
        time_left_s=live.get("time_left_s"),
        updated_at=now,
        excluded=tuple(excluded(sweep.excluded_nodes()).values()),
        # A full disk takes no heartbeat: the last one says since when.
        full_disk=storage_errors.full_disk(sweep.path, since=float(live.get("updated_at", now)))
        or _unwritten_records(sweep, live),
    )


def _unwritten_records(sweep: SweepDir, live: Mapping[str, Any]) -> str:
    """Return a sentence if a controller of this machine lives and has written nothing for long.

    Its quota may be used up, which the free space of the disk does not show.
    """
    if live.get("host") != ProcessId.own().host:
        return ""  # clocks of machines differ
    file = sweep.path / "controller.json"
    silent_s = time.time() - file.stat().st_mtime
    if silent_s < STALE_S:
        return ""
    return (
        f"{file}: pid {live['pid']} runs the sweep and has not written here for {silent_s:.0f} s; "
        "perhaps your disk quota is used up (`quota -s` shows it), or the process stands still"
    )


def _listed_trials(sweep: SweepDir, record: Mapping[str, Any], *, alive: bool) -> Sequence[str]:
    """Return the trials to show.

    They are those of the live controller, else of the last submission, else of the last
    controller, else all.
    """
    listed: Sequence[str] | None = record.get("trial_ids")
    if not (alive and listed is not None) and (submissions := sweep.submissions()):
        listed = submissions[-1]["trial_ids"]
    return [trial.trial_id for trial in sweep.trials()] if listed is None else listed


def _trial_statuses(
    sweep: SweepDir,
    trial_ids: Sequence[str],
    *,
    waits: Mapping[str, str],
    controlled: AbstractSet[str],
) -> tuple[tuple[TrialStatus, ...], tuple[str, ...]]:
    """Return the status of each trial, from the status cache where that is final.

    Beside them, why others cannot be read.
    """
    cancelled = sweep.cancel_requested()
    cache = status_cache.read(sweep)
    spec_times, folder = status_cache.SpecTimes(sweep), str(sweep.path / "trials")
    statuses: list[TrialStatus] = []
    unreadable: list[str] = []
    unnamed = False
    for trial_id in trial_ids:
        wait, is_controlled = waits.get(trial_id), trial_id in controlled
        status = _cached_status(
            cache.get(trial_id),
            f"{folder}/{trial_id}" if trial_id in spec_times.folders else None,
            spec_ns=spec_times.ns(trial_id),
            wait=wait,
            controlled=is_controlled,
            sweep_cancelled=cancelled,
        )
        if status is None:
            try:
                record = sweep.trial(trial_id).record()
                spec = record.spec
            except StoreError as error:
                unreadable.append(f"{error}; this trial is set aside")
                continue
            status = trial_status(
                record, spec, wait=wait, controlled=is_controlled, sweep_cancelled=cancelled
            )
            line = cache.get(trial_id)
            unnamed = unnamed or line is None
            status = replace(status, varied=(line or {}).get("varied", ""))
        statuses.append(status)
    if unnamed and len(trial_ids) <= MOST_SPECS:
        # No controller has named them yet.
        labels = trial_labels(sweep.trial(status.trial_id).spec() for status in statuses)
        statuses = [replace(status, varied=labels.get(status.trial_id, "")) for status in statuses]
    return tuple(statuses), tuple(unreadable)


def _cached_status(
    line: Mapping[str, Any] | None,
    folder: str | None,
    *,
    spec_ns: int | None,
    wait: str | None,
    controlled: bool,
    sweep_cancelled: bool,
) -> TrialStatus | None:
    """Return the status of a trial that is done or was never started, from its line in the cache.

    None means that its files must be read.
    """
    if line is None:
        return None
    try:
        if line["spec_ns"] != spec_ns:
            return None
        if "result_ns" in line:
            if folder is None or line["result_ns"] != status_cache.result_ns(folder):
                return None
            return TrialStatus(
                **{field: line[field] for field in (*SPEC_FIELDS, *RESULT_FIELDS)},
                varied=line.get("varied", ""),
                state=TrialState.DONE,
                outcome=Outcome(line["outcome"]) if line["outcome"] else None,
            )
        names = os.listdir(folder) if folder is not None else ()  # noqa: PTH208 -- names, no paths
        if not {"attempts", "result.json", "checkpoints"}.isdisjoint(names):
            return None
        fields = {field: line[field] for field in SPEC_FIELDS} | {"varied": line.get("varied", "")}
    except (KeyError, ValueError, TypeError, OSError):
        return None
    # Its folder has neither attempts nor a result: it was never started.
    if sweep_cancelled or "cancel.json" in names:
        return TrialStatus(**fields, state=TrialState.CANCELLED, step=0)
    if wait is None:
        wait = "" if controlled else NO_CONTROLLER
    return TrialStatus(**fields, state=TrialState.WAITING, step=0, wait=wait)


def spec_fields(spec: TrialSpec) -> dict[str, Any]:
    """Return the fields of a status that the spec alone determines."""
    return {
        "trial_id": spec.trial_id,
        "architecture": spec.architecture,
        "preset": spec.preset,
        "seed": spec.seed,
        "steps": spec.steps,
    }


def cache_line(status: TrialStatus, *, result_ns: int, spec_ns: int | None) -> dict[str, Any]:
    """Return the line of a done trial in the status cache."""
    fields = {field: getattr(status, field) for field in (*SPEC_FIELDS, "varied", *RESULT_FIELDS)}
    return {
        **fields,
        "outcome": status.outcome and status.outcome.value,
        "result_ns": result_ns,
        "spec_ns": spec_ns,
    }


def trial_status(
    trial: TrialRecord,
    spec: TrialSpec,
    *,
    wait: str | None,
    controlled: bool,
    sweep_cancelled: bool,
) -> TrialStatus:
    """Return the status of one trial, read from its folder.

    Args:
        trial: Its files, as `TrialDir.record` reads them for a status.
        spec: Its spec.
        wait: The controller's sentence. A trial that has one waits, even if an earlier submission
            gave it up.
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
        "benchmarks": _benchmarks({}, spec, trial),
    }
    if state is TrialState.DONE:
        result = trial.result or {}
        metrics = result.get("metrics", {})
        base |= {
            "step": result.get("steps"),
            "loss": metrics.get("valid/loss", metrics.get("train/loss")),
            "benchmarks": _benchmarks(metrics, spec, trial),
        }
    elif state is TrialState.RUNNING and fresh:
        base |= {
            "phase": heartbeat.get("phase"),
            "loss": heartbeat.get("loss"),
            "tokens_per_s": heartbeat.get("tokens_per_s"),
            "eta_s": _eta_s(spec, heartbeat),
        }
    return TrialStatus(**base)


def _benchmarks(metrics: Mapping[str, float], spec: TrialSpec, trial: TrialRecord) -> str:
    """Return a phrase about the benchmarks that were asked during training; empty without any."""
    skipped = None if spec.evaluation is None else spec.evaluation.skipped
    if skipped is not None:
        asked_since = any(name.startswith("eval/") for name in metrics)
        return "" if asked_since else f"benchmarks skipped: {skipped}"
    train_s, seconds = metrics.get("time/train_s"), metrics.get("time/benchmarks_s")
    if not train_s or seconds is None:
        return ""
    phrase = f"benchmarks took {100 * seconds / train_s:.2g} % of the training time"
    left_out = _left_out(TrialDir(trial.path)) if metrics.get("eval/unfinished_tasks") else ""
    return phrase if not left_out else f"{phrase}, tasks left out: {left_out}"


def _left_out(trial: TrialDir) -> str:
    """Return the tasks that have no metrics yet, by step: `qa after step 49, 98`."""
    steps: dict[str, set[int]] = {}
    records = [one for of_step in trial.earlier_evaluations().values() for one in of_step.values()]
    for record in [*records, *trial.evaluations().values()]:
        for task in record.get("unfinished", ()):
            steps.setdefault(task, set()).add(record["step"])
    return "; ".join(
        f"{task} after step {', '.join(map(str, sorted(of)))}" for task, of in steps.items()
    )


def _eta_s(spec: TrialSpec, heartbeat: Mapping[str, Any]) -> float | None:
    rate, steps, step = (heartbeat.get(name) for name in ("tokens_per_s", "steps", "step"))
    if not rate or not steps or step is None:
        return None
    return float((steps - step) * int(spec.train["batch_tokens"]) / rate)
