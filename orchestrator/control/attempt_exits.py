"""Handling of attempt exits: end.json, retry decisions, node failures."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from orchestrator.control import node_exclusion
from orchestrator.control.controller_state import ControllerState
from orchestrator.control.failure_classifier import AttemptExit, Verdict, classify
from orchestrator.control.retry_policy import Action, RetryDecision, decide_retry
from orchestrator.control.trial_state import (
    ManagedTrial,
    RunningAttempt,
    checkpoint_bytes,
    next_attempt_reason,
    submission_of,
)
from orchestrator.records import storage_errors
from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.errors import StoreError
from orchestrator.records.json_files import remove_temporary, write_json
from orchestrator.records.rank_registry import registered
from orchestrator.records.snapshot import TrialRecord
from orchestrator.records.sweep_dir import WRITTEN_BY_OTHERS
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import Outcome
from orchestrator.scheduling.gpu_sharing import max_enlargements

LOG = logging.getLogger(__name__)


class AttemptExits:
    """Closes attempts whose ranks are gone, also while the storage fails."""

    def __init__(self, state: ControllerState) -> None:
        """Start without an exit."""
        self._state = state
        self._failures = node_exclusion.FailureTracker()
        self.pending: list[AttemptExit] = []
        """Exits that are not dealt with: new ones, and those whose folders could not be read."""
        self.unwritten: dict[Path, dict[str, Any]] = {}
        """end.json of attempts, by path, that the disk did not take yet."""
        self.limit_reached = ""
        """A sentence if a quota, or another limit, keeps them from being written."""

    def process_pending(self) -> bool:
        """Close what ended; return whether anything was closed."""
        changed = False
        for attempt_exit in list(self.pending):
            # One folder that cannot be read must not keep other trials from going on.
            with self._state.breaker.guarded():
                self._process(attempt_exit)
                self.pending.remove(attempt_exit)
                changed = True
        return changed

    def _process(self, attempt_exit: AttemptExit) -> None:
        trial = self._state.trials.get(attempt_exit.trial_id)
        attempt = None if trial is None else trial.attempt
        if trial is None or attempt is None or attempt.launch.attempt != attempt_exit.attempt:
            return
        try:
            result = trial.folder.result()
            self._state.estimator.observe_memory(trial, result)
            verdict = self._close(
                trial, attempt.folder, attempt_exit, stop_outcome=attempt.stop_outcome
            )
        except StoreError as error:
            # Without end.json: whoever submits again once the files are restored closes it.
            trial.attempt = None
            self._state.set_aside(attempt_exit.trial_id, str(error))
            return
        trial.attempt, trial.waiting_status = None, None
        if attempt_exit.trial_id in self._state.unreadable:  # set aside while it ran
            del self._state.trials[attempt_exit.trial_id]
            return
        if result is not None:
            self._state.estimator.observe(
                trial,
                self._state.clock() - attempt.started_at,
                first_step=attempt.first_step,
            )
        with self._state.breaker.guarded():
            self._record_failure(trial, attempt, verdict)

    def close_orphans(self, records: Iterable[TrialRecord]) -> None:
        """End what a dead controller left of these trials' last attempts, and close them."""
        for record in records:
            folder, attempt = TrialDir(record.path), AttemptDir(record.attempts[-1].path)
            for process in self._state.launcher.end_orphans(registered(attempt)):
                LOG.warning(
                    "trial %s: rank %d on %s could not be ended",
                    *(folder.trial_id, process.pid, process.host),
                )
            # The rank may have finished between the end of its controller and its own.
            trial = self._state.trials.get(folder.trial_id)
            trial = trial or ManagedTrial(folder=folder, spec=record.spec)
            attempt_exit = AttemptExit(trial_id=folder.trial_id, attempt=attempt.number)
            submission = submission_of(record.attempts[-1].launch)
            with self._state.setting_aside(folder.trial_id):
                self._close(trial, attempt, attempt_exit, stop_outcome=None, submission=submission)

    def close_running(self, failure: str | None) -> None:
        """Close what still counts as running after the launcher was closed.

        Args:
            failure: What ended the controller itself; None if it was asked to stop.
        """
        for attempt_exit in self.pending:
            with self._state.breaker.guarded():
                self._process(attempt_exit)
        for trial in list(self._state.trials.values()):
            attempt, trial.attempt, trial.waiting_status = trial.attempt, None, None
            if attempt is None:
                continue
            trial_id = trial.folder.trial_id
            with self._state.breaker.guarded(), self._state.setting_aside(trial_id):
                unexplained = attempt.folder.error() is None
                blamed = unexplained and failure is not None
                stopped = unexplained and failure is None
                attempt_exit = AttemptExit(
                    trial_id=trial_id,
                    attempt=attempt.launch.attempt,
                    node_lost=f"its controller failed: {failure}" if blamed else None,
                )
                stop_outcome = attempt.stop_outcome or (Outcome.INTERRUPTED if stopped else None)
                self._close(trial, attempt.folder, attempt_exit, stop_outcome=stop_outcome)

    def _close(
        self,
        trial: ManagedTrial,
        attempt: AttemptDir,
        attempt_exit: AttemptExit,
        *,
        stop_outcome: Outcome | None,
        submission: int | None = None,
    ) -> Verdict:
        """Write end.json and decide what follows. Changes nothing if the folder cannot be read.

        Args:
            trial: Whose attempt it is.
            attempt: Its folder.
            attempt_exit: What is known of its end.
            stop_outcome: What its ranks were asked to stop for; None: they were not.
            submission: The one that started it; None: the controller's own.
        """
        # Reads come first: if one fails, the exit stays pending and is processed again later.
        self._state.check_folder(attempt)
        for folder in (trial.folder.path, attempt.path):
            remove_temporary(folder, but=WRITTEN_BY_OTHERS)
        verdict = classify(
            attempt_exit,
            stop_outcome=stop_outcome,
            error=attempt.error(),
            has_result=trial.folder.result() is not None,
            folder=trial.folder.path,
        )
        cancelled = self._state.cancel_requested(trial)
        if verdict.outcome is Outcome.DISK_FULL:
            trial.needs_disk_bytes = checkpoint_bytes(trial)
        trial.record_exit(
            attempt,
            verdict.outcome,
            submission=self._state.submission if submission is None else submission,
        )
        if verdict.outcome is Outcome.GPU_OOM:
            self._state.estimator.on_oom(trial)
        decision = decide_retry(
            trial.past_attempts,
            trial.spec.retries,
            free_ooms=max_enlargements(trial.spec.resources.gpus),
        )
        end = _end_record(verdict, decision, attempt_exit, ended_at=self._state.wall_clock())
        # A full or failing disk takes it later; until then nothing new starts in this sweep.
        self.unwritten[attempt.path / "end.json"] = end
        self.write_ends()
        trial.finished = decision.action is Action.STOP or cancelled
        trial.attempt_reason = next_attempt_reason(end, again=False)
        trial.delay(until=self._state.clock() + decision.delay_s, reason=trial.attempt_reason)
        trial.wait = f"{end['outcome']}: {end['reason']}"
        LOG.info(
            "trial %s, attempt %d: %s", trial.folder.trial_id, attempt_exit.attempt, trial.wait
        )
        return verdict

    def write_ends(self) -> None:
        """Write end.json of attempts, also those that the disk did not take before."""
        for path, end in list(self.unwritten.items()):
            with self._state.breaker.guarded():
                try:
                    write_json(path, end)
                except FileNotFoundError:
                    if not self._state.sweep.path.exists():  # moved as a whole
                        raise
                    LOG.warning("%s: not written, since somebody removed its folder", path)
                except OSError as error:
                    if not storage_errors.is_full(error):
                        raise
                    if storage_errors.is_limited(error):
                        folder = self._state.sweep.path
                        self.limit_reached = storage_errors.full_message(error, folder)
                    return
                del self.unwritten[path]
                self.limit_reached = ""

    def _record_failure(
        self, trial: ManagedTrial, attempt: RunningAttempt, verdict: Verdict
    ) -> None:
        """Exclude the node if too many trials failed there that have nothing else in common."""
        state = self._state
        names = node_exclusion.node_names(state.nodes)
        node = names.get(attempt.launch.node_id)
        if node is None or attempt.stop_outcome is not None:
            return
        if verdict.outcome is Outcome.STORAGE and self.unwritten:
            return  # the storage fails for the controller too, so it is not the node
        reason = self._failures.record(
            node,
            configuration=trial.configuration,
            trial_id=trial.folder.trial_id,
            outcome=verdict.outcome,
        )
        excluded = node_exclusion.excluded(state.sweep.excluded_nodes())
        others = names.values() - excluded.keys() - {node}
        if reason is None or node in excluded or not others:
            return
        node_exclusion.exclude(
            state.sweep, node, why=reason, submission=state.submission, now=state.wall_clock()
        )
        LOG.warning("%s", node_exclusion.excluded(state.sweep.excluded_nodes())[node])


def _end_record(
    verdict: Verdict, decision: RetryDecision, attempt_exit: AttemptExit, *, ended_at: float
) -> dict[str, Any]:
    """Return what end.json holds of an attempt."""
    done = verdict.outcome is Outcome.DONE
    return {
        "outcome": verdict.outcome.value,
        "reason": verdict.reason if done else f"{verdict.reason} ({decision.reason})",
        "exit_codes": {str(rank): code for rank, code in attempt_exit.exit_codes.items()},
        "ended_at": ended_at,
        "final": decision.action is Action.STOP,
    }
