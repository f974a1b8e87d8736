"""Starting of attempts: a snapshot for the scheduler, launches of its placements."""

import logging
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from orchestrator.control import node_exclusion
from orchestrator.control.attempt_exits import AttemptExits
from orchestrator.control.controller_state import ControllerState, removed_folder
from orchestrator.control.failure_classifier import EXIT_CODES, AttemptExit
from orchestrator.control.launcher_port import Launch, NotPlaced, SharedLauncher, SharedUsage
from orchestrator.control.status_publisher import StatusPublisher
from orchestrator.control.trial_state import ManagedTrial, RunningAttempt
from orchestrator.records import storage_errors, units
from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.errors import StoreError
from orchestrator.records.processes import ProcessId
from orchestrator.records.rank_registry import TRAIN
from orchestrator.records.trial_spec import Outcome
from orchestrator.scheduling.demand import Node
from orchestrator.scheduling.fair_share import Grant, SweepUsage
from orchestrator.scheduling.gpu_sharing import memory_fraction_per_rank
from orchestrator.scheduling.interface import Placement, Running, Snapshot, schedule
from orchestrator.scheduling.preemption import PreemptionCandidate, trials_to_preempt
from orchestrator.scheduling.wait_queue import Waiting

LOG = logging.getLogger(__name__)
STARTING_S = 1.0
"""Limit on one round of starts: exits, requests and the heartbeat must not wait for hundreds."""
REPLACE_S = 2.0
"""Delay after the launcher could not place what the scheduler thought would fit."""


class AttemptStarter:
    """Asks the scheduler what may start, and starts it."""

    def __init__(
        self,
        state: ControllerState,
        exits: AttemptExits,
        publisher: StatusPublisher,
        *,
        cache: Path,
        job: str,
    ) -> None:
        """Prepare to start attempts.

        Args:
            state: Shared with the rest of the controller.
            exits: Takes attempts that could not even begin.
            publisher: Says when running attempts will end.
            cache: Folder of prepared data, shared by all trials.
            job: What ranks run; see `orchestrator.node.worker`.
        """
        self._state = state
        self._exits = exits
        self._publisher = publisher
        self._cache = cache
        self._job = job
        self._order = {trial_id: i for i, trial_id in enumerate(state.trial_ids)}
        self._reserved_nodes: tuple[str, ...] = ()
        """Nodes on which room is kept for the next in line."""
        self._n_started = 0
        self.cluster_may_grow = False
        """Whether what fits no node now may fit one that comes later."""

    def start_what_fits(self, now: float) -> bool:
        """Start what the scheduler places; return whether anything was started."""
        state = self._state
        if state.n_stops:
            for trial in state.waiting:
                trial.wait = "the sweep is being stopped; submit again to resume"
            return False
        state.nodes = state.launcher.nodes()
        if self._waits_for_disk():
            state.impossible = frozenset()
            return False
        excluded = list(node_exclusion.excluded(state.sweep.excluded_nodes()))
        nodes = node_exclusion.usable_nodes(state.nodes, excluded)
        snapshot = self._snapshot(nodes, now)
        # The policy sees what others hold as placeholder trials; what this sweep may hold beside
        # them is a grant, checked at each start since a start uses it up.
        usage = self._usage(snapshot)
        shared = SharedUsage()
        if isinstance(state.launcher, SharedLauncher):
            shared = state.launcher.exchange_usage(usage)
        self._preempt(shared.grant)
        with_others = replace(snapshot, running=[*snapshot.running, *shared.foreign_load])
        decided = schedule(with_others, now)
        state.impossible, self._reserved_nodes = decided.impossible, decided.reserved_nodes
        self.cluster_may_grow = shared.may_grow
        suffix = f" ({shared.grant.why})" if shared.grant.why else ""
        for trial_id, reason in decided.waits.items():
            state.trials[trial_id].wait = reason + suffix
        for placement in decided.placements:
            # An earlier reason is no longer true, even if this round ends before its turn.
            state.trials[placement.trial_id].wait = ""
        demands = {waiting.trial_id: waiting.demand for waiting in snapshot.waiting}
        # Hundreds of starts take seconds; the rest waits for the next round. What came before does
        # not count: with ten thousand trials it takes seconds too, and nothing would ever start.
        started, begun = False, state.clock()
        for placement in decided.placements:
            if state.n_stops or state.clock() - begun > STARTING_S:
                break
            trial, demand = state.trials[placement.trial_id], demands[placement.trial_id]
            if not shared.grant.allows(usage, demand):
                trial.wait = f"fits, and leaves room to others: {shared.grant.why}"
            elif self._start(trial, placement, nodes):
                started = True
                usage = usage.holding(demand)
        return started

    def _preempt(self, grant: Grant) -> None:
        """Have trials make way for sweeps of higher priority."""
        candidates = [
            PreemptionCandidate(
                trial_id=trial.folder.trial_id,
                demand=attempt.launch.demand,
                node_ids=[node.node_id for node in attempt.launch.all_nodes],
                started_at=attempt.started_at,
                stopping=attempt.stop_outcome is not None,
            )
            for trial, attempt in self._state.running
        ]
        for trial_id in trials_to_preempt(candidates, grant):
            attempt = self._state.trials[trial_id].attempt
            assert attempt is not None, "candidates run"
            LOG.info("trial %s makes way for a sweep of higher priority", trial_id)
            self._state.ask_to_stop(attempt, Outcome.YIELDED)

    def _waits_for_disk(self) -> bool:
        """Return whether nothing can start because the disk is full or fails.

        Trials share the disk, so one that could not write its checkpoint keeps the others from
        trying in vain. Every waiting trial says what it waits for.
        """
        self._exits.write_ends()
        waiting, folder = self._state.waiting, self._state.sweep.path
        needs = max((trial.needs_disk_bytes for trial in waiting), default=0.0)
        if not self._exits.unwritten and storage_errors.free_bytes(folder) >= needs:
            for trial in waiting:
                trial.needs_disk_bytes = 0.0
            return False
        if self._state.breaker.is_open:
            reason = self._state.breaker.reason()
        elif self._exits.limit_reached:
            reason = self._exits.limit_reached
        else:
            about = f", a checkpoint needs about {units.size(needs)}" if needs else ""
            reason = (
                f"the disk of {folder} is full: {storage_errors.free_space_text(folder)}{about}; "
                f"{storage_errors.full_advice(folder)}"
            )
        for trial in waiting:
            trial.wait = reason
        return True

    def _usage(self, snapshot: Snapshot) -> SweepUsage:
        """Return what this sweep holds, and would hold if all that can run did."""
        possible = [w for w in snapshot.waiting if w.trial_id not in self._state.impossible]
        usage = SweepUsage(
            wants_gpus=sum(waiting.demand.gpus for waiting in possible),
            wants_cpus=sum(waiting.demand.cpus for waiting in possible),
            keeps=self._reserved_nodes if possible else (),
            started=self._n_started,
        )
        for running in snapshot.running:
            usage = usage.holding(running.demand, wanted=True)
        return usage

    def _snapshot(self, nodes: Sequence[Node], now: float) -> Snapshot:
        state, estimator = self._state, self._state.estimator
        running = [
            Running(
                trial_id=trial.folder.trial_id,
                node_id=attempt.launch.node_id,
                demand=attempt.launch.demand,
                gpus=attempt.gpu_ids,
                predicted_end=self._publisher.predicted_end(trial, attempt, now),
                sweep=state.sweep.name,
                other_nodes=tuple(node.node_id for node in attempt.launch.other_nodes),
            )
            for trial, attempt in state.running
        ]
        waiting = [
            Waiting(
                trial_id=trial.folder.trial_id,
                demand=estimator.demand(trial, nodes),
                predicted_s=estimator.left_s(trial),
                begun=trial.checkpoint_step > 0,
                not_before=trial.not_before,
                delay_reason=trial.delay_reason,
                order=self._order[trial.folder.trial_id],
                sweep=state.sweep.name,
                prediction_group=trial.prediction_group,
            )
            for trial in state.waiting
        ]
        return Snapshot(nodes=nodes, running=running, waiting=waiting)

    def _start(self, trial: ManagedTrial, placement: Placement, nodes: Sequence[Node]) -> bool:
        """Start an attempt; return False if it has to be tried again later."""
        try:
            attempt = self._new_attempt(trial, placement, nodes)
        except StoreError as error:
            self._state.set_aside(trial.folder.trial_id, str(error))
            return False
        except FileNotFoundError:
            if not self._state.sweep.path.exists():
                raise
            why = removed_folder(trial.folder.path, while_it="started")
            self._state.set_aside(trial.folder.trial_id, why)
            return False
        except OSError as error:
            if not storage_errors.is_transient(error):
                raise
            full = storage_errors.is_full(error)
            message = storage_errors.full_message if full else storage_errors.failing_message
            self._try_later(trial, message(error, trial.folder.path))
            return False
        trial.attempt, trial.wait = attempt, ""
        try:
            try:
                attempt.gpu_ids = self._state.launcher.launch(attempt.launch)
            except NotPlaced as problem:
                self._try_later(trial, str(problem))
                with suppress(FileNotFoundError):  # somebody was faster
                    shutil.rmtree(attempt.folder.path)
                trial.attempt = None
                return False
        except OSError as error:
            if not storage_errors.is_failing(error):
                raise
            # Neither begun nor taken back: an attempt that came to nothing.
            attempt_exit = AttemptExit(
                trial_id=attempt.launch.trial_id,
                attempt=attempt.launch.attempt,
                exit_codes={0: EXIT_CODES[Outcome.STORAGE]},
            )
            self._exits.pending.append(attempt_exit)
        self._n_started += 1
        return True

    def _try_later(self, trial: ManagedTrial, reason: str) -> None:
        trial.delay(until=self._state.clock() + REPLACE_S, reason=reason)

    def _new_attempt(
        self, trial: ManagedTrial, placement: Placement, nodes: Sequence[Node]
    ) -> RunningAttempt:
        """Make the attempt's folder with launch.json; return the attempt, not launched yet.

        Raises:
            OSError: If the storage does not take it.
            StoreError: If a record of its last attempt cannot be read.
        """
        resources = self._state.estimator.resources(trial, nodes)
        memory_halvings = self._state.estimator.memory_halvings(trial)
        hosts = {node.node_id: node.host for node in nodes}
        node_ids = (placement.node_id, *(node.node_id for node in placement.other_nodes))
        # A fraction may be more than was asked for: what trials like it were measured to need.
        shared = 0 < float(resources.gpus) < 1
        gpus = placement.share if shared else float(resources.gpus)
        if not trial.folder.has_spec():
            trial.folder.start(trial.spec)
        folder: AttemptDir = trial.folder.new_attempt(
            {
                "started_at": self._state.wall_clock(),
                "controller": ProcessId.own().to_json(),
                "submission": self._state.submission,
                "ranks": resources.ranks,
                "cpus": resources.cpus,
                "gpus": gpus,
                "micro_batch_tokens": resources.micro_batch_tokens,
                "memory_halvings": memory_halvings,
                "node": ", ".join(hosts[node_id] for node_id in node_ids),
                "why": trial.attempt_reason,
            }
        )
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
            memory_halvings=memory_halvings,
            gpu_memory_share=memory_fraction_per_rank(gpus, resources.ranks) if shared else None,
            mps=shared and not trial.met_gpu_fault,
            hang_after_s=resources.hang_after_s,
            job=self._job,
            alike=trial.kind if gpus and self._job == TRAIN else None,
        )
        return RunningAttempt(
            folder=folder,
            launch=launch,
            started_at=self._state.clock(),
            predicted_s=self._state.estimator.left_s(trial),
            first_step=trial.checkpoint_step,
            gpu_ids=placement.gpus,
        )
