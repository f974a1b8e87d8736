"""Keeps a sweep running until nothing is left to do. The single writer of a sweep's decisions.

It holds no state of its own that matters: everything is read back from the trial directories at the start, so
it may be killed at any moment and started again. `run` is a loop of: what ended, what was asked for, what can
start, tell.
"""

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.control import node_exclusion
from orchestrator.control.failure_classifier import EXIT_CODES, AttemptExit, Verdict, classify
from orchestrator.control.launcher_port import (
    Launch,
    Launcher,
    NotPlaced,
    SharedLauncher,
    SharedUsage,
)
from orchestrator.control.resource_estimator import ResourceEstimator
from orchestrator.control.retry_policy import Action, decide_retry
from orchestrator.control.status import (
    SweepStatus,
    TrialStatus,
    cache_line,
    spec_fields,
    status_from_disk,
    trial_status,
)
from orchestrator.control.trial_state import (
    ManagedTrial,
    RunningAttempt,
    checkpoint_bytes,
    submission_of,
    why_next,
)
from orchestrator.records import storage_errors, units
from orchestrator.records.circuit_breaker import CircuitBreaker
from orchestrator.records.errors import BusyError
from orchestrator.records.locks import HEARTBEAT_S, ControllerLock
from orchestrator.records.processes import ProcessId
from orchestrator.records.rank_registry import TRAIN, registered
from orchestrator.records.status_cache import StatusCache, result_ns
from orchestrator.records.trial_dir import (
    WRITTEN_BY_OTHERS,
    AttemptDir,
    SweepDir,
    TrialDir,
    remove_temporary,
    write_json,
)
from orchestrator.records.trial_spec import Outcome, TrialState
from orchestrator.scheduling.demand import Demand, Node
from orchestrator.scheduling.fair_share import SweepUsage
from orchestrator.scheduling.gpu_sharing import max_enlargements, memory_fraction_per_rank
from orchestrator.scheduling.interface import Placement, Running, Snapshot, schedule
from orchestrator.scheduling.runtime_prediction import time_left_s
from orchestrator.scheduling.wait_queue import Waiting

__all__ = ["Controller", "SweepStatus", "TrialStatus", "status_from_disk"]

LOG = logging.getLogger(__name__)
TICK_S = 0.1
"""How often the launcher is asked."""
STARTING_S = 1.0
"""How long one look may go on starting trials: endings, requests and the heartbeat must not wait for hundreds."""
REPLACE_S = 2.0
"""How long to wait after the launcher could not place what the scheduler thought would fit."""


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
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare; nothing is read, locked or started yet.

        Args:
            sweep: Its trials have their spec.json already.
            submission: Its number; attempts of other submissions do not count against the retry budgets.
            trial_ids: Which trials to bring to an end, in the order to show them. Done ones are fine.
            launcher: Not started; `run` starts and closes it.
            cache: Folder of prepared data, shared by all trials.
            predicted_s: Predicted seconds of whole trials. Longer ones start first.
            job: What ranks run; see `orchestrator.node.worker`.
            lock: The right to run these trials; default: to run the whole sweep.
            clock: Seconds since 1970.
            sleep: Waits between two looks.
        """
        self._sweep = sweep
        self._submission = submission
        self._trial_ids = tuple(trial_ids)
        self._order = {trial_id: i for i, trial_id in enumerate(trial_ids)}
        self._launcher = launcher
        self._cache = cache
        self._needs = ResourceEstimator(predicted_s or {})
        self._job = job
        self._clock = clock
        self._sleep = sleep
        self._lock = lock or ControllerLock(sweep, submission=submission, clock=clock)
        self._trials: dict[str, ManagedTrial] = {}
        """Those that are not finished, or have just become so."""
        self._nodes: Sequence[Node] = ()
        """The cluster as last seen."""
        self._impossible: frozenset[str] = frozenset()
        self._blame = node_exclusion.FailureTracker()
        self._ended: list[AttemptExit] = []
        """Attempts that ended and are not dealt with yet: their folders could not be read."""
        self._unwritten: dict[Path, dict[str, Any]] = {}
        """Ends of attempts that the disk did not take yet."""
        self._breaker = CircuitBreaker(sweep.path, clock=clock)
        self._seen: SweepStatus | None = None
        """The status as last read."""
        self._kept: tuple[str, ...] = ()
        """Nodes on which room is kept for the next in line."""
        self._growing = False
        """Whether the cluster may get more nodes."""
        self._n_started = 0
        self._stops = 0
        self._why_stop = Outcome.INTERRUPTED
        self._failure: str | None = None
        """What ended the controller itself before its trials."""
        self._told_at = 0.0
        self._looked_at = 0.0
        self._frozen: dict[str, TrialStatus] = {}
        """Statuses of finished trials, which do not change any more."""
        self._status_cache = StatusCache(sweep)

    def stop(self, why: Outcome = Outcome.INTERRUPTED) -> None:
        """Ask running trials to checkpoint and leave; the second call ends them at once. Safe in a signal handler.

        Args:
            why: INTERRUPTED when a person asked, PREEMPTED when the machine is taken away.
        """
        if not self._stops:
            self._why_stop = why
        self._stops += 1

    def run(self, on_update: Callable[[SweepStatus], None] = lambda status: None) -> SweepStatus:
        """Bring every trial to an end, or stop when asked to; return where the sweep stands then.

        Returns early when all that is left can run on no node; those trials stay waiting and say why.

        Args:
            on_update: Called about once a second and at every change.

        Raises:
            BusyError: If another controller runs this sweep, or took it over while the storage did not answer.
            ExperimentError: If the launcher cannot start.
        """
        self._lock.acquire()
        try:
            node_exclusion.readmit_all(self._sweep.excluded_nodes())
            remove_temporary(self._sweep.path, but=WRITTEN_BY_OTHERS)
            self._read()
            self._status_cache.reset(spec_fields(trial.spec) for trial in self._trials.values())
            open_attempts = self._open_attempts()
            if open_attempts or self._waiting():
                self._tell(on_update)
                self._launcher.start()
                self._close_open(open_attempts)
                self._loop(on_update)
        except BusyError:
            # From now on everything is the other's to decide and to write down.
            self._trials.clear()
            self._unwritten.clear()
            raise
        except Exception as error:
            self._failure = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            raise
        finally:
            try:
                self._launcher.close()
            finally:
                self._give_up_running()
                self._write_ends()
                for path in self._unwritten:
                    LOG.error("%s: not written, since the disk is full or fails", path)
                try:
                    status = self._look()
                    self._status_cache.flush()
                    self._lock.heartbeat(self._heartbeat(status))
                finally:
                    self._lock.release()
        status = replace(status, controller_alive=False, stopping=False, time_left_s=None)
        with self._breaker.guarded():
            on_update(status)
        return status

    def _loop(self, on_update: Callable[[SweepStatus], None]) -> None:
        changed = True
        while True:
            with self._breaker.guarded():
                self._ended += self._launcher.poll()
            if self._breaker.is_open:
                self._look_again(on_update)
            if not self._breaker.is_open:
                with self._breaker.guarded():
                    if self._lock.stale:  # whatever it was that took so long
                        self._lock.heartbeat({})
                    self._turn(on_update, changed=changed)
            self._pass_on_stops()
            if self._over():
                return
            changed = False
            self._sleep(TICK_S)

    def _turn(self, on_update: Callable[[SweepStatus], None], *, changed: bool) -> None:
        for ended in list(self._ended):
            # One that cannot be read keeps nothing else from going on.
            with self._breaker.guarded():
                self._take_ended(ended)
                self._ended.remove(ended)
                changed = True
        now = self._clock()
        if changed or now - self._looked_at >= HEARTBEAT_S:
            self._looked_at = now
            self._heed_requests(now)
            changed |= self._start_what_fits(now)
        if changed or now - self._told_at >= HEARTBEAT_S:
            self._told_at = now
            self._tell(on_update)

    def _look_again(self, on_update: Callable[[SweepStatus], None]) -> None:
        """See now and then whether the storage answers; until it does nothing is decided, and what runs goes on."""
        now = self._clock()
        if now - self._looked_at < HEARTBEAT_S:
            return
        self._looked_at = now
        with self._breaker.guarded():
            # The beat goes first: after a long silence it looks whether the sweep is still ours.
            if self._lock.heartbeat({}):
                remove_temporary(self._sweep.path, but=WRITTEN_BY_OTHERS)
                self._write_ends()
                if not self._unwritten:
                    self._breaker.close()
                    return
        self._breaker.warn()
        with self._breaker.guarded():
            if self._seen is not None:
                on_update(self._as_last_seen(self._seen))

    # -- reading back ------------------------------------------------------------------------------------------

    def _read(self) -> None:
        for trial_id in self._trial_ids:
            self._trials[trial_id] = self._read_back(trial_id)

    def _read_back(self, trial_id: str) -> ManagedTrial:
        folder = self._sweep.trial(trial_id)
        asked = folder.retry_request() or {"after": 0, "by": None}
        trial = ManagedTrial(folder=folder, spec=folder.spec(), renewed_after=asked["after"])
        if folder.result() is not None:
            trial.finished = True
            self._needs.probe(trial)
            return trial
        for attempt in folder.attempts():
            end = attempt.end()
            if end is not None:
                trial.remember(attempt, Outcome(end["outcome"]))
                again = submission_of(attempt) != self._submission
                met = attempt.number != asked["after"]
                trial.why_next = why_next(end, again=again, by=None if met else asked["by"])
                trial.finished = bool(end["final"]) and not again and met
        if self._cancelled(trial):
            trial.finished = True
        return trial

    def _open_attempts(self) -> list[tuple[TrialDir, AttemptDir]]:
        """Return attempts without end.json, of all trials that are ours: their controller is dead, for we hold its lock."""
        found = []
        for folder in self._lock.trials():
            attempts = folder.attempts()
            if attempts and attempts[-1].end() is None:
                found.append((folder, attempts[-1]))
        return found

    def _close_open(self, open_attempts: Sequence[tuple[TrialDir, AttemptDir]]) -> None:
        for folder, attempt in open_attempts:
            left = self._launcher.end_orphans(registered(attempt))
            for process in left:
                LOG.warning(
                    "trial %s: rank %d on %s could not be ended",
                    folder.trial_id,
                    process.pid,
                    process.host,
                )
            # The rank may have finished between the end of its controller and its own.
            trial = self._trials.get(folder.trial_id) or ManagedTrial(
                folder=folder, spec=folder.spec()
            )
            self._close(
                trial,
                attempt,
                AttemptExit(trial_id=folder.trial_id, attempt=attempt.number),
                asked=None,
            )

    # -- endings -----------------------------------------------------------------------------------------------

    def _take_ended(self, ended: AttemptExit) -> None:
        trial = self._trials.get(ended.trial_id)
        attempt = None if trial is None else trial.attempt
        if trial is None or attempt is None or attempt.launch.attempt != ended.attempt:
            return
        at_once = ended.attempt == 1 and trial.folder.result() is not None
        self._needs.probe(trial)
        ending = self._close(trial, attempt.folder, ended, asked=attempt.asked)
        trial.attempt, trial.resting = None, None
        if at_once:
            self._needs.saw(trial, self._clock() - attempt.started_at)
        with self._breaker.guarded():
            self._hold_responsible(trial, attempt, ending)

    def _close(
        self, trial: ManagedTrial, attempt: AttemptDir, ended: AttemptExit, *, asked: Outcome | None
    ) -> Verdict:
        """Write end.json and decide what follows; return the verdict. If the folder cannot be read, nothing has changed."""
        for folder in (trial.folder.path, attempt.path):
            remove_temporary(folder, but=WRITTEN_BY_OTHERS)
        has_result = trial.folder.result() is not None
        ending = classify(
            ended,
            asked=asked,
            error=attempt.error(),
            has_result=has_result,
            folder=trial.folder.path,
        )
        cancelled = self._cancelled(trial)
        if ending.outcome is Outcome.DISK_FULL:
            trial.needs_bytes = checkpoint_bytes(trial)
        trial.remember(attempt, ending.outcome)
        if ending.outcome is Outcome.GPU_OOM:
            self._needs.ran_out(trial)
        decision = decide_retry(
            trial.past, trial.spec.retries, free_ooms=max_enlargements(trial.spec.resources.gpus)
        )
        now = self._clock()
        reason = (
            ending.reason
            if ending.outcome is Outcome.DONE
            else f"{ending.reason} ({decision.reason})"
        )
        end = {
            "outcome": ending.outcome.value,
            "reason": reason,
            "exit_codes": {str(rank): code for rank, code in ended.exit_codes.items()},
            "ended_at": now,
            "final": decision.action is Action.STOP,
        }
        self._unwritten[attempt.path / "end.json"] = end
        self._write_ends()
        trial.finished = decision.action is Action.STOP or cancelled
        trial.not_before = now + decision.delay_s
        trial.why_next = trial.delay_reason = why_next(end, again=False)
        trial.wait = f"{ending.outcome.value}: {reason}"
        LOG.info(
            "trial %s, attempt %d: %s: %s",
            trial.folder.trial_id,
            attempt.number,
            ending.outcome.value,
            reason,
        )
        return ending

    def _write_ends(self) -> None:
        """Write the ends of attempts, those too that a disk that was full or failed did not take before."""
        for path, end in list(self._unwritten.items()):
            with self._breaker.guarded():
                try:
                    write_json(path, end)
                except OSError as error:
                    if not storage_errors.is_full(error):
                        raise
                    return
                del self._unwritten[path]

    def _hold_responsible(
        self, trial: ManagedTrial, attempt: RunningAttempt, ending: Verdict
    ) -> None:
        """Leave a node out when too much fails there that has nothing else in common."""
        node = node_exclusion.node_names(self._nodes).get(attempt.launch.node_id)
        if node is None or attempt.asked is not None:
            return
        if ending.outcome is Outcome.STORAGE and self._unwritten:
            return  # it fails here too
        why = self._blame.record(
            node,
            kind=trial.configuration,
            trial_id=trial.folder.trial_id,
            outcome=ending.outcome,
        )
        left_out = node_exclusion.excluded(self._sweep.excluded_nodes())
        others = node_exclusion.node_names(self._nodes).values() - left_out.keys() - {node}
        if why is None or node in left_out or not others:
            return
        node_exclusion.exclude(
            self._sweep, node, why=why, submission=self._submission, now=self._clock()
        )
        LOG.warning("%s", node_exclusion.excluded(self._sweep.excluded_nodes())[node])

    def _give_up_running(self) -> None:
        """Close what still counted as running when the launcher was closed: the controller itself failed."""
        for ended in self._ended:
            with self._breaker.guarded():
                self._take_ended(ended)
        for trial in self._trials.values():
            attempt, trial.attempt, trial.resting = trial.attempt, None, None
            if attempt is None:
                continue
            with self._breaker.guarded():
                self._give_up(trial, attempt)

    def _give_up(self, trial: ManagedTrial, attempt: RunningAttempt) -> None:
        error = attempt.folder.error()
        lost = None if self._failure is None else f"its controller failed: {self._failure}"
        stopped = error is None and lost is None
        asked = attempt.asked or (Outcome.INTERRUPTED if stopped else None)
        ended = AttemptExit(
            trial_id=trial.folder.trial_id,
            attempt=attempt.launch.attempt,
            node_lost=lost if error is None else None,
        )
        self._close(trial, attempt.folder, ended, asked=asked)

    # -- requests ----------------------------------------------------------------------------------------------

    def _heed_requests(self, now: float) -> None:
        all_cancelled = self._sweep.cancel_requested()
        for trial in self._trials.values():
            if trial.finished:
                continue
            attempt = trial.attempt
            if all_cancelled or trial.folder.cancel_requested():
                if attempt is None:
                    trial.finished = True
                else:
                    self._ask(attempt, Outcome.CANCELLED)
            limit = trial.spec.resources.time_limit_s
            if attempt is not None and limit is not None and now - attempt.started_at > limit:
                self._ask(attempt, Outcome.TIME_LIMIT)
        if not all_cancelled:
            self._heed_requests_to_retry()

    def _heed_requests_to_retry(self) -> None:
        """Have trials wait again that had failed or were cancelled. Nothing is written: the next attempt meets the request."""
        over = [i for i, status in self._frozen.items() if status.state is not TrialState.DONE]
        for trial_id in over:
            folder = self._sweep.trial(trial_id)
            if folder.retry_requested() and not folder.cancel_requested():
                del self._frozen[trial_id]
                self._trials[trial_id] = self._read_back(trial_id)
                LOG.info("trial %s: somebody asked for a retry", trial_id)

    def _cancelled(self, trial: ManagedTrial) -> bool:
        return trial.folder.cancel_requested() or self._sweep.cancel_requested()

    def _pass_on_stops(self) -> None:
        if not self._stops:
            return
        for trial in self._running():
            attempt = trial.attempt
            assert attempt is not None, "running trials have one"
            self._ask(attempt, self._why_stop)
            if self._stops > 1 and not attempt.hard:
                attempt.hard = True
                self._launcher.stop(attempt.launch.trial_id, attempt.launch.attempt, hard=True)

    def _ask(self, attempt: RunningAttempt, why: Outcome) -> None:
        if attempt.asked is None:
            attempt.asked = why
            self._launcher.stop(attempt.launch.trial_id, attempt.launch.attempt, hard=False)

    # -- starting ----------------------------------------------------------------------------------------------

    def _start_what_fits(self, now: float) -> bool:
        """Start what the scheduler says; return whether anything was."""
        if self._stops:
            for trial in self._waiting():
                trial.wait = "the sweep is being stopped; submit again to resume"
            return False
        self._nodes = self._launcher.nodes()
        if self._waits_for_disk():
            self._impossible = frozenset()
            return False
        usable = node_exclusion.usable_nodes(
            self._nodes, list(node_exclusion.excluded(self._sweep.excluded_nodes()))
        )
        snapshot = self._snapshot(usable, now)
        standing = self._standing(snapshot)
        others = SharedUsage()
        if isinstance(self._launcher, SharedLauncher):
            others = self._launcher.exchange_usage(standing)
        decided = schedule(
            replace(snapshot, running=[*snapshot.running, *others.foreign_load]), now
        )
        self._impossible, self._kept = decided.impossible, decided.kept
        self._growing = others.may_grow
        shared = f" ({others.grant.why})" if others.grant.why else ""
        for trial_id, sentence in decided.waits.items():
            self._trials[trial_id].wait = sentence + shared
        demands = {waiting.trial_id: waiting.demand for waiting in snapshot.waiting}
        started = False
        for placement in decided.placements:
            if self._stops or self._clock() - now > STARTING_S:
                break
            trial, demand = self._trials[placement.trial_id], demands[placement.trial_id]
            if not others.grant.allows(standing, gpus=demand.gpus):
                trial.wait = f"fits, and leaves room to others: {others.grant.why}"
                continue
            if self._start(trial, placement, usable):
                started = True
                standing = _with(standing, demand)
        return started

    def _waits_for_disk(self) -> bool:
        """Whether nothing can start because the disk is full or fails; if so, every waiting trial says what it waits for.

        They share the disk, so one that could not write its checkpoint keeps the others from trying in vain.
        """
        self._write_ends()
        needs = max((trial.needs_bytes for trial in self._waiting()), default=0.0)
        place = self._sweep.path
        if not self._unwritten and storage_errors.free_bytes(place) >= needs:
            for trial in self._waiting():
                trial.needs_bytes = 0.0
            return False
        if self._breaker.is_open:
            for trial in self._waiting():
                trial.wait = self._breaker.reason()
            return True
        about = f", a checkpoint needs about {units.size(needs)}" if needs else ""
        for trial in self._waiting():
            trial.wait = f"the disk of {place} is full: {storage_errors.free_space_text(place)}{about}; {storage_errors.full_advice(place)}"
        return True

    def _standing(self, snapshot: Snapshot) -> SweepUsage:
        """Return what this sweep holds, and would hold if all that can run did."""
        held = [running.demand for running in snapshot.running]
        wanted = [
            waiting.demand
            for waiting in snapshot.waiting
            if waiting.trial_id not in self._impossible
        ]
        standing = SweepUsage(
            wants_gpus=sum(demand.gpus for demand in wanted),
            wants_cpus=sum(demand.cpus for demand in wanted),
            keeps=self._kept if wanted else (),
            started=self._n_started,
        )
        for demand in held:
            standing = _with(standing, demand, wanted=True)
        return standing

    def _snapshot(self, nodes: Sequence[Node], now: float) -> Snapshot:
        running = []
        for trial in self._running():
            attempt = trial.attempt
            assert attempt is not None, "running trials have one"
            running.append(
                Running(
                    trial_id=trial.folder.trial_id,
                    node_id=attempt.launch.node_id,
                    demand=attempt.launch.demand,
                    gpus=attempt.gpu_ids,
                    predicted_end=self._predicted_end(trial, attempt, now),
                    sweep=self._sweep.name,
                    other_nodes=tuple(part.node_id for part in attempt.launch.other_nodes),
                )
            )
        waiting = [
            Waiting(
                trial_id=trial.folder.trial_id,
                demand=self._needs.demand(trial, nodes),
                predicted_s=self._needs.left_s(trial),
                not_before=trial.not_before,
                delay_reason=trial.delay_reason,
                order=self._order[trial.folder.trial_id],
                sweep=self._sweep.name,
                prediction_group=trial.prediction_group,
            )
            for trial in self._waiting()
        ]
        return Snapshot(nodes=nodes, running=running, waiting=waiting)

    def _start(self, trial: ManagedTrial, placement: Placement, nodes: Sequence[Node]) -> bool:
        resources = self._needs.resources(trial, nodes)
        hosts = {node.node_id: node.host for node in nodes}
        parts = (placement.node_id, *(part.node_id for part in placement.other_nodes))
        now = self._clock()
        # A fraction may be more than was asked for: what trials like it were measured to need.
        shared = 0 < float(resources.gpus) < 1
        gpus = placement.share if shared else float(resources.gpus)
        try:
            folder = trial.folder.new_attempt(
                {
                    "started_at": now,
                    "controller": ProcessId.own().to_json(),
                    "submission": self._submission,
                    "ranks": resources.ranks,
                    "cpus": resources.cpus,
                    "gpus": gpus,
                    "micro_batch_tokens": resources.micro_batch_tokens,
                    "node": ", ".join(hosts[node_id] for node_id in parts),
                    "why": trial.why_next,
                }
            )
        except OSError as error:
            if not storage_errors.is_transient(error):
                raise
            what = (
                storage_errors.full_message
                if storage_errors.is_full(error)
                else storage_errors.failing_message
            )
            trial.not_before = self._clock() + REPLACE_S
            trial.delay_reason = what(error, trial.folder.path)
            return False
        launch = Launch(
            trial_id=trial.folder.trial_id,
            trial_path=str(trial.folder.path.absolute()),
            attempt=folder.number,
            node_id=placement.node_id,
            other_nodes=placement.other_nodes,
            ranks=resources.ranks,
            cpus=resources.cpus,
            gpus=gpus,
            gpu_ids=placement.gpus,
            cache=str(self._cache.absolute()),
            micro_batch_tokens=resources.micro_batch_tokens,
            gpu_memory_share=memory_fraction_per_rank(gpus, resources.ranks) if shared else None,
            hang_after_s=resources.hang_after_s,
            job=self._job,
        )
        trial.attempt = RunningAttempt(
            folder=folder,
            launch=launch,
            started_at=now,
            predicted_s=self._needs.left_s(trial),
            gpu_ids=placement.gpus,
        )
        trial.wait = ""
        try:
            try:
                trial.attempt.gpu_ids = self._launcher.launch(launch)
            except NotPlaced as problem:
                trial.not_before, trial.delay_reason = self._clock() + REPLACE_S, str(problem)
                shutil.rmtree(folder.path)
                trial.attempt = None
                return False
        except OSError as error:
            if not storage_errors.is_failing(error):
                raise
            # Neither begun nor taken back: an attempt that came to nothing.
            self._ended.append(
                AttemptExit(
                    trial_id=launch.trial_id,
                    attempt=launch.attempt,
                    exit_codes={0: EXIT_CODES[Outcome.STORAGE]},
                )
            )
        self._n_started += 1
        return True

    # -- predictions -------------------------------------------------------------------------------------------

    def _predicted_end(self, trial: ManagedTrial, attempt: RunningAttempt, now: float) -> float:
        eta_s = self._trial_status(trial).eta_s
        return attempt.started_at + attempt.predicted_s if eta_s is None else now + eta_s

    def _time_left_s(self, now: float) -> float | None:
        work = [
            (max(0.0, self._predicted_end(t, t.attempt, now) - now), t.attempt.launch.demand)
            for t in self._running()
            if t.attempt is not None
        ]
        work += [
            (self._needs.left_s(t), self._needs.demand(t, self._nodes))
            for t in self._waiting()
            if t.folder.trial_id not in self._impossible
        ]
        return time_left_s(work, self._nodes)

    # -- telling -----------------------------------------------------------------------------------------------

    def _tell(self, on_update: Callable[[SweepStatus], None]) -> None:
        status = self._look()
        self._status_cache.flush()
        if not self._breaker.is_open:
            self._lock.heartbeat(self._heartbeat(status))
        on_update(status)

    def _heartbeat(self, status: SweepStatus) -> dict[str, Any]:
        return {
            "trial_ids": list(self._trial_ids),
            "waits": {t.trial_id: t.wait for t in status.trials if t.state is TrialState.WAITING},
            "stopping": status.stopping,
            "time_left_s": status.time_left_s,
        }

    def _look(self) -> SweepStatus:
        """Return where the sweep stands; what was seen of it before, if its storage fails now."""
        if self._seen is None:
            self._seen = self._status()
            return self._seen
        with self._breaker.guarded():
            self._seen = self._status()
            return self._seen
        return self._as_last_seen(self._seen)

    def _as_last_seen(self, seen: SweepStatus) -> SweepStatus:
        why = self._breaker.reason()
        return replace(
            seen,
            trials=tuple(
                replace(trial, wait=why) if trial.state is TrialState.WAITING else trial
                for trial in seen.trials
            ),
            stopping=self._stops > 0,
            updated_at=self._clock(),
        )

    def _status(self) -> SweepStatus:
        own, now = ProcessId.own(), self._clock()
        return SweepStatus(
            sweep=self._sweep.name,
            submission=self._submission,
            trials=tuple(
                self._frozen.get(trial_id) or self._trial_status(self._trials[trial_id])
                for trial_id in self._trial_ids
                if trial_id in self._frozen
                or trial_id in self._trials  # not yet, if reading failed
            ),
            controller_alive=True,
            controller=f"pid {own.pid} on {own.host}",
            stopping=self._stops > 0,
            time_left_s=self._time_left_s(now),
            updated_at=now,
            excluded=tuple(node_exclusion.excluded(self._sweep.excluded_nodes()).values()),
        )

    def _trial_status(self, trial: ManagedTrial) -> TrialStatus:
        waiting = trial.attempt is None and not trial.finished
        if waiting and trial.resting is not None:
            if trial.resting.wait != trial.wait:
                trial.resting = replace(trial.resting, wait=trial.wait)
            return trial.resting
        status = trial_status(
            trial.folder,
            trial.spec,
            wait=trial.wait if waiting else None,
            controlled=True,
            sweep_cancelled=self._sweep.cancel_requested(),
        )
        if waiting and status.state is TrialState.RUNNING:
            # It has ended, and the disk is too full to say so.
            status = replace(status, state=TrialState.WAITING, wait=trial.wait)
        if waiting:
            trial.resting = status
        if trial.finished and not self._unwritten:
            written = result_ns(trial.folder.path)
            # Its status is all that is asked for from now on: with specs of trials that are over, memory would grow.
            self._frozen[trial.folder.trial_id] = status
            del self._trials[trial.folder.trial_id]
            if status.state is TrialState.DONE and written is not None:
                self._status_cache.add(cache_line(status, result_ns=written))
        return status

    # -- sets --------------------------------------------------------------------------------------------------

    def _waiting(self) -> list[ManagedTrial]:
        return [t for t in self._trials.values() if t.attempt is None and not t.finished]

    def _running(self) -> list[ManagedTrial]:
        return [t for t in self._trials.values() if t.attempt is not None]

    def _over(self) -> bool:
        if self._running():
            # Who asks twice does not wait for the storage; the next controller writes down what ended.
            return (
                self._stops > 1
                and self._breaker.is_open
                and len(self._ended) >= len(self._running())
            )
        waiting = self._waiting()
        if waiting and self._growing and not self._stops:
            return False
        if self._unwritten and self._breaker.is_open and not self._stops:
            return False
        return self._stops > 0 or all(t.folder.trial_id in self._impossible for t in waiting)


def _with(standing: SweepUsage, demand: Demand, *, wanted: bool = False) -> SweepUsage:
    """Return the standing with a trial more that runs."""
    return replace(
        standing,
        holds_gpus=standing.holds_gpus + demand.gpus,
        holds_cpus=standing.holds_cpus + demand.cpus,
        wants_gpus=standing.wants_gpus + demand.gpus * wanted,
        wants_cpus=standing.wants_cpus + demand.cpus * wanted,
    )
