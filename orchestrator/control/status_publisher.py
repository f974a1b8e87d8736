"""Status publisher: builds a running sweep's status and hands it to readers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from orchestrator.control import node_exclusion
from orchestrator.control.attempt_exits import AttemptExits
from orchestrator.control.controller_state import ControllerState
from orchestrator.control.status import (
    SweepStatus,
    TrialStatus,
    cache_line,
    spec_fields,
    trial_status,
)
from orchestrator.control.trial_state import ManagedTrial, RunningAttempt
from orchestrator.records import storage_errors
from orchestrator.records.locks import ControllerLock
from orchestrator.records.processes import ProcessId
from orchestrator.records.status_cache import SpecTimes, StatusCache, result_ns, spec_ns
from orchestrator.records.trial_spec import TrialState
from orchestrator.records.varied_settings import trial_labels
from orchestrator.scheduling.runtime_prediction import time_left_s


class StatusPublisher:
    """Builds a sweep's status and hands it to readers, at least once a second."""

    def __init__(self, state: ControllerState, exits: AttemptExits, lock: ControllerLock) -> None:
        """Start without a status."""
        self._state = state
        self._exits = exits
        self._lock = lock
        self._cache = StatusCache(state.sweep)
        self._labels: dict[str, str] = {}
        """What varies in the sweep, by trial id."""
        self._full_since: float | None = None
        """When the disk was first seen to be full, seconds since 1970; None: it is not."""
        self._last: SweepStatus | None = None
        """The status as last read."""
        self.final: dict[str, TrialStatus] = {}
        """Statuses of finished trials, which do not change any more."""

    def reset_cache(self) -> None:
        """Write a line for each trial into the status cache."""
        trials, spec_times = self._state.trials.values(), SpecTimes(self._state.sweep)
        self._labels = trial_labels(trial.spec for trial in trials)
        self._cache.reset(
            {
                **spec_fields(trial.spec),
                "varied": self._labels[trial.spec.trial_id],
                "spec_ns": spec_times.ns(trial.folder.trial_id),
            }
            for trial in trials
        )

    def publish(self, on_update: Callable[[SweepStatus], None]) -> None:
        """Tell everybody the current status; controller.json only while the storage works."""
        status = self.current()
        self._cache.flush()
        if not self._state.breaker.is_open:
            self._lock.heartbeat(self._heartbeat(status))
        on_update(status)

    def _heartbeat(self, status: SweepStatus) -> dict[str, Any]:
        """Return what readers of controller.json need beyond the trial folders."""
        return {
            "trial_ids": list(self._state.trial_ids),
            "waits": {t.trial_id: t.wait for t in status.trials if t.state is TrialState.WAITING},
            "stopping": status.stopping,
            "time_left_s": status.time_left_s,
        }

    def publish_last(self, on_update: Callable[[SweepStatus], None]) -> None:
        """Tell the status as last read, while the storage fails."""
        if self._last is not None:
            on_update(self._with_outage(self._last))

    def publish_end(self) -> SweepStatus:
        """Write the last status and return it."""
        status = self.current()
        self._cache.flush()
        self._lock.heartbeat(self._heartbeat(status))
        return status

    def current(self) -> SweepStatus:
        """Return the status of the sweep; as last read if its storage fails now.

        Raises:
            OSError: If it fails before the status was ever read.
        """
        if self._last is None:
            self._last = self._read()
            return self._last
        with self._state.breaker.guarded():
            self._last = self._read()
            return self._last
        return self._with_outage(self._last)

    def _with_outage(self, status: SweepStatus) -> SweepStatus:
        """Return an earlier status, in which all that waits now waits for the storage."""
        reason = self._state.breaker.reason()
        return replace(
            status,
            trials=tuple(
                replace(trial, wait=reason) if trial.state is TrialState.WAITING else trial
                for trial in status.trials
            ),
            stopping=self._state.n_stops > 0,
            updated_at=self._state.wall_clock(),
        )

    def _read(self) -> SweepStatus:
        state, own = self._state, ProcessId.own()
        since = state.wall_clock() if self._full_since is None else self._full_since
        full_disk = storage_errors.full_disk(state.sweep.path, since=since)
        refused = self._lock.refused
        if not full_disk and refused is not None and storage_errors.is_limited(refused):
            full_disk = storage_errors.full_message(refused, state.sweep.path)
        self._full_since = since if full_disk else None
        trials = self._read_trials()
        return SweepStatus(
            sweep=state.sweep.name,
            submission=state.submission,
            trials=trials,
            unreadable=tuple(
                f"{state.unreadable[trial_id]}; this trial is set aside"
                for trial_id in state.trial_ids
                if trial_id in state.unreadable
            ),
            controller_alive=True,
            controller=f"pid {own.pid} on {own.host}",
            stopping=state.n_stops > 0,
            time_left_s=self._time_left_s(trials, state.clock()),
            updated_at=state.wall_clock(),
            full_disk=full_disk,
            excluded=tuple(node_exclusion.excluded(state.sweep.excluded_nodes()).values()),
        )

    def _read_trials(self) -> tuple[TrialStatus, ...]:
        """Return the statuses of the trials that can be read."""
        state, cancelled = self._state, self._state.sweep.cancel_requested()
        statuses: list[TrialStatus] = []
        for trial_id in state.trial_ids:
            # One that ended well or badly can be set aside, too: by a damaged request to retry it.
            if trial_id in state.unreadable:
                continue
            if trial_id in self.final:
                statuses.append(self.final[trial_id])
            # A trial is in neither if reading the sweep's folder failed at the start.
            elif trial_id in state.trials:
                with state.setting_aside(trial_id):
                    trial = state.trials[trial_id]
                    statuses.append(self._read_trial(trial, sweep_cancelled=cancelled))
        return tuple(statuses)

    def _read_trial(self, trial: ManagedTrial, *, sweep_cancelled: bool) -> TrialStatus:
        waits = trial.attempt is None and not trial.finished
        if waits and trial.waiting_status is not None:
            if trial.waiting_status.wait != trial.wait:
                trial.waiting_status = replace(trial.waiting_status, wait=trial.wait)
            return trial.waiting_status
        record, trial.record = trial.record, None
        if trial.attempt is not None:
            self._state.check_folder(trial.attempt.folder)
        status = trial_status(
            record or trial.folder.record(for_status=True),
            trial.spec,
            wait=trial.wait if waits else None,
            controlled=True,
            sweep_cancelled=sweep_cancelled,
        )
        status = replace(status, varied=self._labels.get(status.trial_id, ""))
        if waits:
            if status.state is TrialState.RUNNING:
                # Its attempt has ended, but the disk is too full for end.json.
                status = replace(status, state=TrialState.WAITING, wait=trial.wait)
            trial.waiting_status = status
        if trial.finished and not self._exits.unwritten:
            self._keep_final(trial, status)
        return status

    def _keep_final(self, trial: ManagedTrial, status: TrialStatus) -> None:
        """Keep the status alone: with the specs of finished trials, memory would grow."""
        folder = trial.folder.path
        written_ns = result_ns(folder)
        self.final[trial.folder.trial_id] = status
        del self._state.trials[trial.folder.trial_id]
        if status.state is TrialState.DONE and written_ns is not None:
            self._cache.add(cache_line(status, result_ns=written_ns, spec_ns=spec_ns(folder)))

    def predicted_end(self, trial: ManagedTrial, attempt: RunningAttempt, now: float) -> float:
        """Return when an attempt will end, in monotonic seconds: by its own rate if it has one."""
        cancelled, eta_s = self._state.sweep.cancel_requested(), None
        with self._state.setting_aside(trial.folder.trial_id):
            eta_s = self._read_trial(trial, sweep_cancelled=cancelled).eta_s
        return attempt.started_at + attempt.predicted_s if eta_s is None else now + eta_s

    def _time_left_s(self, statuses: tuple[TrialStatus, ...], now: float) -> float | None:
        state, estimator = self._state, self._state.estimator
        status_of = {status.trial_id: status for status in statuses}
        # What waits is predicted anew by the rates of what runs.
        estimator.observe_running(
            (trial, status_of[trial.folder.trial_id])
            for trial, _ in state.running
            if trial.folder.trial_id in status_of
        )
        work = [
            (max(0.0, self.predicted_end(trial, attempt, now) - now), attempt.launch.demand)
            for trial, attempt in state.running
        ]
        work += [
            (estimator.left_s_now(trial), estimator.demand(trial, state.nodes))
            for trial in state.waiting
            if trial.folder.trial_id not in state.impossible
        ]
        return time_left_s(work, state.nodes)
