"""Control loop of a sweep: runs its trials until nothing is left to do.

The controller is the single writer of a sweep's decisions. It holds no state that matters:
everything is read back from the trial folders at the start (`recovery.py`), so it may be killed at
any moment and started again. Each turn of the loop handles exits (`attempt_exits.py`), requests,
starts (`attempt_starts.py`) and the status (`status_publisher.py`).
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.control import node_exclusion
from orchestrator.control.attempt_exits import AttemptExits
from orchestrator.control.attempt_starts import AttemptStarter
from orchestrator.control.controller_state import ControllerState
from orchestrator.control.launcher_port import Launcher
from orchestrator.control.launcher_start import LauncherStart
from orchestrator.control.recovery import orphaned, recover_trial
from orchestrator.control.resource_estimator import ResourceEstimator
from orchestrator.control.status import SweepStatus
from orchestrator.control.status_publisher import StatusPublisher
from orchestrator.records.circuit_breaker import CircuitBreaker
from orchestrator.records.errors import BusyError, MovedError
from orchestrator.records.json_files import remove_temporary
from orchestrator.records.locks import HEARTBEAT_S, ControllerLock
from orchestrator.records.rank_registry import TRAIN
from orchestrator.records.snapshot import SweepSnapshot
from orchestrator.records.sweep_dir import WRITTEN_BY_OTHERS, SweepDir
from orchestrator.records.trial_spec import Outcome, TrialState

LOG = logging.getLogger(__name__)
TICK_S = 0.1
"""How often the launcher is asked."""

OnUpdate = Callable[[SweepStatus], None]


class Controller:
    """Runs the trials of one submission."""

    def __init__(
        self,
        sweep: SweepDir,
        *,
        submission: int,
        trial_ids: Sequence[str],
        launcher: Launcher,
        cache: Path,
        predicted_s: Mapping[str, float] | None = None,
        job: str = TRAIN,
        lock: ControllerLock | None = None,
        start: LauncherStart | None = None,
        snapshot: SweepSnapshot | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare; nothing is read, locked or started yet.

        Args:
            sweep: Its trials have their spec.json already.
            submission: Its number; attempts of other submissions do not count against budgets.
            trial_ids: Which trials to bring to an end, in the order to show them. Done ones are
                fine.
            launcher: Not started; `run` starts and closes it.
            cache: Folder of prepared data, shared by all trials.
            predicted_s: Predicted seconds of whole trials. Of those that have a checkpoint, and of
                the others after them, longer ones start first.
            job: What ranks run; see `orchestrator.node.worker`.
            lock: The right to run these trials; default: to run the whole sweep.
            start: Of the launcher, where it has begun; `run` waits for it.
            snapshot: Of the sweep as this submission left it; read anew where another controller
                ran since. None: read under the lock. Not for sweeps that Slurm jobs run trial by
                trial, whose controllers leave no trace in the sweep's controller.json.
            clock: Monotonic seconds, for durations.
            wall_clock: Seconds since 1970, for records.
            sleep: Waits between two turns.
        """
        self._sleep = sleep
        self._snapshot = snapshot
        # A launcher takes seconds to start: whoever writes the records meanwhile has begun it.
        self._start = start or LauncherStart(launcher)
        self._lock = lock or ControllerLock(sweep, submission=submission, wall_clock=wall_clock)
        # Exits, starts and the status read what the others decide: all of it is in one place.
        self._state = ControllerState(
            sweep=sweep,
            submission=submission,
            trial_ids=tuple(trial_ids),
            launcher=launcher,
            estimator=ResourceEstimator(predicted_s or {}),
            breaker=CircuitBreaker(sweep.path, clock=clock),
            clock=clock,
            wall_clock=wall_clock,
        )
        self._exits = AttemptExits(self._state)
        self._publisher = StatusPublisher(self._state, self._exits, self._lock)
        self._starter = AttemptStarter(
            self._state, self._exits, self._publisher, cache=cache, job=job
        )
        self._failure: str | None = None
        """What ended the controller itself before its trials."""
        self._checked_at = -math.inf
        """When requests and starts were last handled, or failing storage was last tried."""
        self._published_at = -math.inf

    def stop(self, why: Outcome = Outcome.INTERRUPTED) -> None:
        """Ask running trials to checkpoint and leave; the second call kills them.

        Safe in a signal handler.

        Args:
            why: INTERRUPTED when a person asked, PREEMPTED when the machine is taken away.
        """
        if not self._state.n_stops:
            self._state.stop_outcome = why
        self._state.n_stops += 1

    def run(
        self,
        on_update: OnUpdate = lambda status: None,
        *,
        on_locked: Callable[[], None] = lambda: None,
    ) -> SweepStatus:
        """Bring every trial to an end, or stop when asked to; return the last status.

        Returns early when all that is left can run on no node; those trials stay waiting and say
        why.

        Args:
            on_update: Called about once a second and at every change.
            on_locked: Called once no other controller can run this sweep any more.

        Raises:
            BusyError: If another controller runs this sweep, or took it over while the storage
                did not answer.
            MovedError: If somebody moved or removed the sweep's folder.
            ExperimentError: If the launcher cannot start.
        """
        state = self._state
        self._lock.acquire()
        try:
            on_locked()
            try:
                self._run(on_update)
            except OSError:
                self._lock.check_place()  # it may explain what was not found
                raise
        except (BusyError, MovedError):
            # From now on everything is another's to decide and to write down.
            state.trials.clear()
            self._exits.unwritten.clear()
            raise
        except Exception as error:
            self._failure = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            raise
        finally:
            # Whatever went wrong: end the ranks, record what they came to, then free the lock.
            try:
                self._start.close()
            finally:
                self._exits.close_running(self._failure)
                self._exits.write_ends()
                for path in self._exits.unwritten:
                    LOG.error("%s: not written, since the disk is full or fails", path)
                try:
                    status = self._publisher.publish_end()
                finally:
                    self._lock.release()
        status = replace(status, controller_alive=False, stopping=False, time_left_s=None)
        with state.breaker.guarded():
            on_update(status)
        return status

    def _run(self, on_update: OnUpdate) -> None:
        """Recover the state of the sweep, and run what is left of it."""
        state = self._state
        snapshot = self._take_snapshot()
        node_exclusion.readmit_all(snapshot.excluded_nodes)
        remove_temporary(state.sweep.path, but=WRITTEN_BY_OTHERS)
        for trial_id, why in snapshot.unreadable.items():
            state.set_aside(trial_id, why)
        cancelled = state.sweep.cancel_requested()
        for trial_id in state.trial_ids:
            if trial_id not in state.unreadable:
                with state.setting_aside(trial_id):
                    record = snapshot.trials.get(trial_id) or state.sweep.trial(trial_id).record()
                    state.trials[trial_id] = recover_trial(state, record, sweep_cancelled=cancelled)
        self._publisher.reset_cache()
        # Of all trials under our lock, those too that this submission did not ask for.
        orphans = orphaned(snapshot.trials.values())
        del snapshot  # with the specs of ten thousand trials
        if orphans or state.waiting:
            self._publisher.publish(on_update)
            self._start.wait()
            self._exits.close_orphans(orphans)
            self._loop(on_update)

    def _take_snapshot(self) -> SweepSnapshot:
        """Return the files of the trials under our lock: as given unless another controller ran."""
        given, self._snapshot = self._snapshot, None
        if given is not None and given.controller == self._lock.predecessor:
            return given
        return self._state.sweep.snapshot(self._lock.trial_ids)

    def _loop(self, on_update: OnUpdate) -> None:
        state, first = self._state, True
        while True:
            with state.breaker.guarded():
                self._exits.pending += state.launcher.poll()
            # While the storage fails nothing is decided; the turn after it answers goes on at once.
            if state.breaker.is_open:
                self._probe_storage(on_update)
            if not state.breaker.is_open:
                with state.breaker.guarded():
                    if self._lock.stale:  # something took so long that another may have taken over
                        self._lock.heartbeat({})
                    self._turn(on_update, changed=first)
            self._forward_stops()
            if self._is_over():
                return
            first = False
            self._sleep(TICK_S)

    def _turn(self, on_update: OnUpdate, *, changed: bool) -> None:
        """Handle exits at once, and requests and starts after a change or once a second."""
        changed |= self._exits.process_pending()
        now = self._state.clock()
        if changed or now - self._checked_at >= HEARTBEAT_S:
            self._checked_at = now
            self._handle_requests(now)
            changed |= self._starter.start_what_fits(now)
        if changed or now - self._published_at >= HEARTBEAT_S:
            self._published_at = now
            self._publisher.publish(on_update)

    def _probe_storage(self, on_update: OnUpdate) -> None:
        """Try once a second whether the storage answers.

        Until it does nothing is decided, and what runs goes on.
        """
        now, breaker = self._state.clock(), self._state.breaker
        if now - self._checked_at < HEARTBEAT_S:
            return
        self._checked_at = now
        with breaker.guarded():
            # The heartbeat goes first: after a long silence it checks whether the sweep is ours.
            if self._lock.heartbeat({}):
                remove_temporary(self._state.sweep.path, but=WRITTEN_BY_OTHERS)
                self._exits.write_ends()
                if not self._exits.unwritten:
                    breaker.close()
                    return
        breaker.warn()
        with breaker.guarded():
            self._publisher.publish_last(on_update)

    def _handle_requests(self, now: float) -> None:
        """Stop trials that somebody cancelled or that reached their time limit; renew others."""
        all_cancelled = self._state.sweep.cancel_requested()
        for trial in self._state.trials.values():
            if trial.finished:
                continue
            attempt = trial.attempt
            if all_cancelled or trial.folder.cancel_requested():
                if attempt is None:
                    trial.finished = True
                else:
                    self._state.ask_to_stop(attempt, Outcome.CANCELLED)
            limit_s = trial.spec.resources.time_limit_s
            if attempt is not None and limit_s is not None and now - attempt.started_at > limit_s:
                self._state.ask_to_stop(attempt, Outcome.TIME_LIMIT)
        if not all_cancelled:
            self._handle_retry_requests()

    def _handle_retry_requests(self) -> None:
        """Let failed and cancelled trials wait again that somebody asked to retry.

        Nothing is written: the next attempt meets the request.
        """
        state, final = self._state, self._publisher.final
        unmet = [i for i, status in final.items() if status.state is not TrialState.DONE]
        for trial_id in unmet:
            if trial_id in state.unreadable:
                continue
            folder = state.sweep.trial(trial_id)
            with state.setting_aside(trial_id):
                if folder.retry_requested() and not folder.cancel_requested():
                    trial = recover_trial(state, folder.record(), sweep_cancelled=False)
                    del final[trial_id]
                    state.trials[trial_id] = trial
                    LOG.info("trial %s: somebody asked for a retry", trial_id)

    def _forward_stops(self) -> None:
        """Pass the controller's own stop on to what runs, a second one as a kill."""
        if not self._state.n_stops:
            return
        for _, attempt in self._state.running:
            self._state.ask_to_stop(attempt, self._state.stop_outcome)
            if self._state.n_stops > 1 and not attempt.killed:
                attempt.killed = True
                launch = attempt.launch
                self._state.launcher.stop(launch.trial_id, launch.attempt, hard=True)

    def _is_over(self) -> bool:
        state, n_running = self._state, len(self._state.running)
        stopped, storage_fails = state.n_stops > 0, state.breaker.is_open
        if n_running:
            # Who asks twice does not wait for the storage; the next controller closes what ended.
            return state.n_stops > 1 and storage_fails and len(self._exits.pending) >= n_running
        waiting = state.waiting
        if waiting and self._starter.cluster_may_grow and not stopped:
            return False
        if self._exits.unwritten and storage_fails and not stopped:
            return False
        return stopped or all(t.folder.trial_id in state.impossible for t in waiting)
