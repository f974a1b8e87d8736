"""Asking for another attempt of trials that failed or were cancelled: `memscale retry`, and the tag on the MLflow page.

The request is a small file beside the trial (`TrialDir.request_retry`). Whoever runs the sweep takes it up, with its budgets
anew; where nobody does, it stands until the sweep is submitted again. It is met by the next attempt, and by nothing else.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.records.locks import is_alive
from orchestrator.records.trial_dir import SweepDir, TrialDir
from orchestrator.records.trial_spec import TrialState

WITH_ALL = "cancelled with the whole sweep: ask for all of it"


@dataclass(frozen=True, kw_only=True)
class RetryRequest:
    """What asking again comes to."""

    after: Mapping[str, int]
    """Id of each trial that gets another attempt, to the number of its last one."""
    refused: tuple[str, ...] = ()
    """Why the others do not: how each stands, in a word or two."""


def plan_retry(
    sweep: SweepDir, trials: Sequence[TrialDir], *, worked_on: frozenset[str], whole_sweep: bool
) -> RetryRequest:
    """Return which of these trials can be asked for again: those that failed or were cancelled.

    Args:
        sweep: Their sweep.
        trials: Any of it.
        worked_on: Ids of the trials that a live controller works on.
        whole_sweep: Whether this takes back a request to cancel the whole sweep, too.
    """
    cancelled = sweep.cancel_requested()
    after, refused = {}, []
    for trial in trials:
        state = trial.state()
        alive = trial.trial_id in worked_on or is_alive(trial.controller())
        if state is TrialState.RUNNING and not alive:
            state = TrialState.WAITING  # of a controller that is dead; submitting again resumes it
        if cancelled and state is TrialState.WAITING:
            state = TrialState.CANCELLED
        if state not in (TrialState.FAILED, TrialState.CANCELLED):
            refused.append(state.value)
        elif cancelled and not whole_sweep:
            refused.append(WITH_ALL)
        else:
            after[trial.trial_id] = trial.last_attempt()
    return RetryRequest(after=after, refused=tuple(refused))


def write_requests(
    sweep: SweepDir, after: Mapping[str, int], *, by: str, at: float, whole_sweep: bool
) -> None:
    """Write the requests. Doing it again changes nothing, not even when they were met in between."""
    for trial_id, number in after.items():
        sweep.trial(trial_id).request_retry(by, after=number, at=at)
    if whole_sweep and after:
        (sweep.path / "cancel.json").unlink(missing_ok=True)


def describe_result(asked: RetryRequest, *, worked_on: frozenset[str]) -> str:
    """Return it in one sentence.

    Args:
        asked: What was written.
        worked_on: Ids of the trials that a live controller works on.
    """
    n = len(asked.after)
    counts = Counter(asked.refused)
    others = ", ".join(f"{m:,} {how}" for how, m in counts.items())
    if not n:
        return f"nothing to retry: {others or 'no trials'}"
    what = f"{n:,} trial{'s' * (n != 1)}"
    if worked_on.issuperset(asked.after):
        what += " back in the queue"
    else:
        what += " noted; no controller is at work on that, so submit the sweep again"
    return f"{what} (not the others: {others})" if others else what


def controlled_trial_ids(
    sweep: SweepDir, submissions: Iterable[Mapping[str, Any]]
) -> frozenset[str]:
    """Return the ids of the trials that the sweep's live controller works on; `submissions`: those of the sweep."""
    controller = sweep.controller()
    if controller is None or not is_alive(controller):
        return frozenset()
    number = int(controller["submission"])
    theirs = (one.get("trial_ids", ()) for one in submissions if int(one["number"]) == number)
    return frozenset(str(trial_id) for trial_ids in theirs for trial_id in trial_ids)
