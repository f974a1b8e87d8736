"""Recovery of a controller's state from the folders of its trials."""

from collections.abc import Iterable

from orchestrator.control.controller_state import ControllerState
from orchestrator.control.trial_state import ManagedTrial, next_attempt_reason, submission_of
from orchestrator.records.trial_dir import AttemptDir, TrialDir
from orchestrator.records.trial_spec import Outcome


def read_trial(state: ControllerState, trial_id: str) -> ManagedTrial:
    """Return the state of a trial as its folder tells it."""
    folder = state.sweep.trial(trial_id)
    request = folder.retry_request() or {"after": 0, "by": None}
    trial = ManagedTrial(folder=folder, spec=folder.spec(), budgets_reset_after=request["after"])
    if folder.result() is not None:
        trial.finished = True
        state.estimator.observe_memory(trial)
        return trial
    for attempt in folder.attempts():
        end = attempt.end()
        if end is None:
            continue
        trial.record_exit(attempt, Outcome(end["outcome"]))
        again = submission_of(attempt) != state.submission
        # Any later attempt meets the request; it stands only after the attempt it names.
        open_request = attempt.number == request["after"]
        trial.attempt_reason = next_attempt_reason(
            end, again=again, by=request["by"] if open_request else None
        )
        trial.finished = bool(end["final"]) and not again and not open_request
    if state.cancel_requested(trial):
        trial.finished = True
    return trial


def unclosed_attempts(trials: Iterable[TrialDir]) -> list[tuple[TrialDir, AttemptDir]]:
    """Return the last attempts that have no end.json.

    Their controller is dead if the caller holds the lock of these trials.
    """
    last = [(trial, attempt) for trial in trials for attempt in trial.attempts()[-1:]]
    return [(trial, attempt) for trial, attempt in last if attempt.end() is None]
