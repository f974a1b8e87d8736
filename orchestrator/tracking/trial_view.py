"""View of a trial for the tracker: state, attempts and reasons."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import Outcome, TrialState

STATUSES = {
    TrialState.DONE: "FINISHED",
    TrialState.FAILED: "FAILED",
    TrialState.CANCELLED: "KILLED",
    TrialState.RUNNING: "RUNNING",
}
ENDED = frozenset({"FINISHED", "FAILED", "KILLED"})
FINAL = {Outcome.DONE: TrialState.DONE, Outcome.CANCELLED: TrialState.CANCELLED}
"""What a trial's last end.json makes of it; every other outcome is a failure."""


@dataclass(frozen=True, kw_only=True)
class TrialView:
    """State of a trial as a tracker shows it."""

    state: TrialState
    attempt: int
    """0 when none was started."""
    outcome: str
    """Of the last ended attempt; empty when there is none."""
    reason: str
    """Why it is in this state, in one sentence."""
    ended_at_s: float | None
    """When it last stopped running, seconds since 1970; None when it runs or never did."""

    @property
    def status(self) -> str:
        """MLflow's word for the state.

        A trial that was stopped and may go on later is KILLED until it does.
        """
        if self.state is TrialState.WAITING:
            return "SCHEDULED" if self.ended_at_s is None else "KILLED"
        return STATUSES[self.state]


@dataclass(frozen=True, kw_only=True)
class TrialSnapshot:
    """A trial at the start of a round."""

    view: TrialView
    attempts: tuple[AttemptDir, ...]
    n_ended: int

    @property
    def never_started(self) -> bool:
        """Whether it waits for its first attempt, or was cancelled before it."""
        return not self.attempts and self.view.state in {TrialState.WAITING, TrialState.CANCELLED}

    @property
    def over(self) -> bool:
        """Whether nothing of it will change unless it is submitted again."""
        ended = self.n_ended == len(self.attempts)
        return ended and self.view.state not in {TrialState.RUNNING, TrialState.WAITING}


def snapshot(trial: TrialDir, *, controlled: bool, why_new: str) -> TrialSnapshot:
    """Read a trial's directory.

    Args:
        trial: Its folder.
        controlled: Whether a live controller works on it. Without one it does not run, whatever
            the files say.
        why_new: Why the submission asked for it; the reason until it starts.
    """
    attempts = tuple(trial.attempts())
    state = trial.state()
    last = attempts[-1] if attempts else None
    end = last.end() if last else None
    launch = (last.launch() if last else None) or {}
    ended_at = None if end is None else float(end["ended_at"])
    outcome = "" if end is None else str(end["outcome"])
    reason = str(end["reason"]) if end else str(launch.get("why", why_new))
    if state is TrialState.DONE:
        result = trial.result() or {}
        ended_at, outcome = float(result["finished_at"]), Outcome.DONE.value
    elif state is TrialState.RUNNING and not controlled:
        state = TrialState.CANCELLED if trial.cancel_requested() else TrialState.WAITING
        outcome = Outcome.NODE_LOST.value
        reason = "the process that ran the sweep is gone; submit again to go on"
        ended_at = float((trial.heartbeat() or {}).get("updated_at", launch.get("started_at", 0.0)))
    elif state is TrialState.WAITING and controlled:
        ended_at = None
    view = TrialView(
        state=state,
        attempt=last.number if last else 0,
        outcome=outcome,
        reason=reason,
        ended_at_s=ended_at,
    )
    n_ended = sum(attempt.end() is not None for attempt in attempts)
    return TrialSnapshot(view=view, attempts=attempts, n_ended=n_ended)


def terminal_states(
    trial: TrialDir, attempts: Sequence[AttemptDir], *, submitted_at_s: float
) -> list[tuple[float, TrialState]]:
    """Return when, in seconds since 1970, and how a trial ended for good, oldest first.

    Once at most, unless somebody asked for another attempt. A done trial counts from its end.json,
    or, if that is missing, once the sweep was submitted again; `submitted_at_s` is the last time.
    """
    ends = [end for attempt in attempts if (end := attempt.end()) is not None and end["final"]]
    found = [(float(end["ended_at"]), FINAL.get(end["outcome"], TrialState.FAILED)) for end in ends]
    result = trial.result()
    if not found and result is not None and float(result["finished_at"]) <= submitted_at_s:
        found.append((float(result["finished_at"]), TrialState.DONE))
    return found
