"""Retry requests: another attempt for trials that failed or were cancelled.

They come from `memscale retry` and from the tag on the MLflow page. A request is a small file
beside the trial (`TrialDir.request_retry`). The sweep's controller takes it up and renews the
budgets; without one it stands until the sweep is submitted again. Only the next attempt meets it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.records.errors import StoreError
from orchestrator.records.liveness import is_alive, living
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import TrialState
from orchestrator.records.units import plural

WITH_ALL = "cancelled with the whole sweep: ask for all of it"
"""Why a single trial of a sweep that was cancelled as a whole is not retried."""


@dataclass(frozen=True, kw_only=True)
class RetryRequest:
    """The trials that a request retries, and why it does not retry the others."""

    after: Mapping[str, int]
    """Trial id -> number of its last attempt, of trials that get another one."""
    refused: tuple[str, ...] = ()
    """For each of the others, its state in a word or two."""


def plan_retry(
    sweep: SweepDir, trials: Sequence[TrialDir], *, controlled: frozenset[str], whole_sweep: bool
) -> RetryRequest:
    """Return which of these trials can be retried: those that failed or were cancelled.

    Args:
        sweep: Their sweep.
        trials: Any of it.
        controlled: Ids of trials that a live controller runs.
        whole_sweep: Whether this takes back a request to cancel the whole sweep, too.
    """
    cancelled = sweep.cancel_requested()
    alone = living({trial.path: trial.controller() for trial in trials})
    after, refused = {}, []
    for trial in trials:
        try:
            state = trial.state()
        except StoreError as error:
            refused.append(f"unreadable ({error})")
            continue
        alive = trial.trial_id in controlled or trial.path in alone
        if state is TrialState.RUNNING and not alive:
            state = TrialState.WAITING  # its controller is dead; submitting again resumes it
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
    """Write the requests. Idempotent, even if they were met in between.

    Args:
        sweep: Their sweep.
        after: As in RetryRequest.
        by: Who asks, for people.
        at: Seconds since 1970.
        whole_sweep: Whether to take back a request to cancel the whole sweep.
    """
    for trial_id, number in after.items():
        sweep.trial(trial_id).request_retry(by, after=number, at=at)
    if whole_sweep and after:
        (sweep.path / "cancel.json").unlink(missing_ok=True)


def describe_result(request: RetryRequest, *, controlled: frozenset[str]) -> str:
    """Return in one sentence what became of a request.

    Args:
        request: What was written.
        controlled: Ids of trials that a live controller runs.
    """
    n = len(request.after)
    others = ", ".join(f"{m:,} {state}" for state, m in Counter(request.refused).items())
    if not n:
        return f"nothing to retry: {others or 'no trials'}"
    what = plural(n, "trial")
    if controlled.issuperset(request.after):
        what += " back in the queue"
    else:
        what += " noted; no controller is at work on that, so submit the sweep again"
    return f"{what} (not the others: {others})" if others else what


def controlled_trial_ids(
    sweep: SweepDir, submissions: Iterable[Mapping[str, Any]]
) -> frozenset[str]:
    """Return the ids of the trials that the sweep's live controller runs.

    Args:
        sweep: Whose controller.
        submissions: Records of all its submissions.
    """
    controller = sweep.controller()
    if controller is None or not is_alive(sweep.path, controller):
        return frozenset()
    number = int(controller["submission"])
    theirs = (one.get("trial_ids", ()) for one in submissions if int(one["number"]) == number)
    return frozenset(str(trial_id) for trial_ids in theirs for trial_id in trial_ids)
