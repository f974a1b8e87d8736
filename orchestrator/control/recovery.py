"""Recovery of a controller's state from a snapshot of its sweep."""

from collections.abc import Iterable

from orchestrator.control.controller_state import ControllerState
from orchestrator.control.trial_state import ManagedTrial, next_attempt_reason, submission_of
from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.snapshot import TrialRecord
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import Outcome


def recover_trial(
    state: ControllerState, record: TrialRecord, *, sweep_cancelled: bool
) -> ManagedTrial:
    """Return the state of a trial as its files tell it."""
    request = record.retry_request or {"after": 0, "by": None}
    trial = ManagedTrial(
        folder=TrialDir(record.path),
        spec=record.spec,
        record=record,
        budgets_reset_after=request["after"],
    )
    if record.result is not None:
        trial.finished = True
        state.estimator.observe_memory(trial, record.result)
        return trial
    for attempt in record.attempts:
        if attempt.end is None:
            continue
        submission = submission_of(attempt.launch)
        outcome = Outcome(attempt.end["outcome"])
        trial.record_exit(AttemptDir(attempt.path), outcome, submission=submission)
        again = submission != state.submission
        # Any later attempt meets the request; it stands only after the attempt it names.
        open_request = attempt.number == request["after"]
        trial.attempt_reason = next_attempt_reason(
            attempt.end, again=again, by=request["by"] if open_request else None
        )
        trial.finished = bool(attempt.end["final"]) and not again and not open_request
    if record.cancel_requested or sweep_cancelled:
        trial.finished = True
    return trial


def orphaned(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the trials whose last attempt has no end.json.

    Their controller is dead if the caller holds the lock of these trials; their ranks may live.
    """
    return [record for record in records if record.attempts and record.last_end is None]
