"""Failure classifier: from exit codes and error.json to one outcome and reason.

When one rank of several dies, the others fail too, mostly with network errors. The outcome is that
of the cause. All functions are pure.
"""

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.records import storage_errors
from orchestrator.records.trial_spec import Outcome

EXIT_CODES = {
    Outcome.DONE: 0,
    Outcome.INTERRUPTED: 81,
    Outcome.USER_ERROR: 82,
    Outcome.GPU_OOM: 83,
    Outcome.HOST_OOM: 84,
    Outcome.DIVERGED: 85,
    Outcome.COMMUNICATION: 86,
    Outcome.PREEMPTED: 87,
    Outcome.DISK_FULL: 88,
    Outcome.NODE_LOST: 89,
    Outcome.STORAGE: 90,
    Outcome.GPU_FAULT: 91,
}
"""Exit codes of ranks, away from the small numbers that Python, shells and signals use."""
_BY_CODE = {code: outcome for outcome, code in EXIT_CODES.items()}

CAUSE_FIRST = (
    Outcome.KILLED,
    Outcome.NODE_LOST,
    Outcome.DISK_FULL,
    Outcome.STORAGE,
    Outcome.USER_ERROR,
    Outcome.DIVERGED,
    Outcome.GPU_OOM,
    Outcome.GPU_FAULT,
    Outcome.HOST_OOM,
    Outcome.INTERRUPTED,
    Outcome.PREEMPTED,
    Outcome.COMMUNICATION,
)
"""Of the outcomes of several ranks, the first in this order is the cause.

A rank that was killed, or met an error of its own, leaves the others with communication errors.
"""


@dataclass(frozen=True, kw_only=True)
class AttemptExit:
    """What the launcher saw of an attempt whose ranks are all gone."""

    trial_id: str
    attempt: int
    exit_codes: Mapping[int, int] = field(default_factory=dict)
    """Per rank; minus the signal's number when a signal ended it. Unknown ones are missing."""
    killed_by_launcher: frozenset[int] = frozenset()
    """Ranks killed because another rank had failed or because a stop took too long."""
    node_lost: str | None = None
    """What was lost, when the ranks went with their node or its supervisor."""
    hang: str | None = None
    """How long they made no progress, when the launcher ended them for that."""
    last_positions: Mapping[int, str] = field(default_factory=dict)
    """Per rank that the launcher killed: how far it was and where in its code."""
    out_of_memory: frozenset[int] = frozenset()
    """Ranks that the kernel killed when memory ran out."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Outcome of one attempt, and the reason in one sentence."""

    outcome: Outcome
    reason: str


def classify(
    attempt_exit: AttemptExit,
    *,
    stop_outcome: Outcome | None,
    error: Mapping[str, Any] | None,
    has_result: bool,
    folder: Path,
) -> Verdict:
    """Return the outcome of an attempt.

    Args:
        attempt_exit: What the launcher saw.
        stop_outcome: What the controller had asked its ranks to stop for: INTERRUPTED, CANCELLED,
            PREEMPTED, YIELDED, TIME_LIMIT or None.
        error: error.json, if a rank wrote one.
        has_result: Whether result.json exists. Then the trial is done, whatever happened to the
            processes.
        folder: The trial's, for sentences about its storage.
    """
    codes = attempt_exit.exit_codes
    if has_result:
        return Verdict(outcome=Outcome.DONE, reason="every step and evaluation is done")
    if stop_outcome is not None:
        return Verdict(outcome=stop_outcome, reason=_stop_reason(stop_outcome, attempt_exit))
    if attempt_exit.node_lost is not None:
        return Verdict(outcome=Outcome.NODE_LOST, reason=attempt_exit.node_lost)
    if attempt_exit.hang is not None:
        reason = f"{attempt_exit.hang}{_positions_text(attempt_exit)}"
        return Verdict(outcome=Outcome.HANG, reason=reason)
    # Ranks that the launcher killed say nothing about the cause.
    outcomes = {
        rank: code_outcome(code)
        for rank, code in codes.items()
        if rank not in attempt_exit.killed_by_launcher and code != 0
    }
    cause = next((outcome for outcome in CAUSE_FIRST if outcome in outcomes.values()), None)
    if cause is Outcome.KILLED and attempt_exit.out_of_memory:
        reason = _out_of_memory_reason(attempt_exit.out_of_memory)
        return Verdict(outcome=Outcome.HOST_OOM, reason=reason)
    if cause is Outcome.KILLED:
        ranks = [rank for rank, outcome in outcomes.items() if outcome is Outcome.KILLED]
        return Verdict(
            outcome=cause, reason=_signals_reason({rank: -codes[rank] for rank in ranks})
        )
    if cause is Outcome.INTERRUPTED:
        reason = "asked to leave by a signal from outside; no step is lost"
        return Verdict(outcome=Outcome.PREEMPTED, reason=reason)
    if cause is None and error is not None:
        cause = Outcome(error["kind"])
    if cause is not None:
        return Verdict(outcome=cause, reason=_error_reason(error, cause, folder))
    if not codes:
        return Verdict(outcome=Outcome.NODE_LOST, reason="its controller ended without a word")
    return Verdict(
        outcome=Outcome.USER_ERROR,
        reason=(
            "the ranks ended without an error and without result.json; see log.txt of the attempt"
        ),
    )


def code_outcome(code: int) -> Outcome:
    """Return what one rank's exit code says."""
    return Outcome.KILLED if code < 0 else _BY_CODE.get(code, Outcome.USER_ERROR)


def _stop_reason(stop_outcome: Outcome, attempt_exit: AttemptExit) -> str:
    what = {
        Outcome.INTERRUPTED: "stopped on request",
        Outcome.CANCELLED: "cancelled on request",
        Outcome.PREEMPTED: "its allocation ends (preemption, or the time limit of the job)",
        Outcome.YIELDED: "made way for a sweep of higher priority",
        Outcome.TIME_LIMIT: "reached its time limit",
    }[stop_outcome]
    if EXIT_CODES[Outcome.INTERRUPTED] in attempt_exit.exit_codes.values():
        return f"{what}; no step is lost"
    return (
        f"{what}; it was ended before it could checkpoint and goes back to the checkpoint before"
        f"{_positions_text(attempt_exit)}"
    )


def _positions_text(attempt_exit: AttemptExit) -> str:
    """Return where the killed ranks were, grouped by position; their stacks are in the log."""
    ranks_at: dict[str, list[int]] = {}
    for rank, position in sorted(attempt_exit.last_positions.items()):
        ranks_at.setdefault(position, []).append(rank)
    positions = [f"; {_ranks_text(ranks)} stood {at}" for at, ranks in ranks_at.items()]
    return "".join(positions) + ("; all stacks are in its log" if positions else "")


def _ranks_text(ranks: Iterable[int]) -> str:
    numbers = [str(rank) for rank in sorted(ranks)]
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(numbers)}"


def _out_of_memory_reason(ranks: Iterable[int]) -> str:
    return (
        f"the kernel ran out of memory and killed {_ranks_text(ranks)}; lower "
        "resources.micro_batch_tokens, or run fewer trials at a time (--cpus)"
    )


def _signals_reason(signals: Mapping[int, int]) -> str:
    """Return which rank died of which signal."""
    deaths = [f"rank {rank} died of {signal_name(number)}" for rank, number in signals.items()]
    hint = "; nobody here sent it: `dmesg` says whether memory ran out"
    return ", ".join(deaths) + hint * (signal.SIGKILL in signals.values())


def signal_name(number: int) -> str:
    """Return SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _error_reason(error: Mapping[str, Any] | None, outcome: Outcome, folder: Path) -> str:
    if error is not None:
        return str(error["message"])
    if outcome is Outcome.STORAGE:
        return (
            f"{storage_errors.failing_summary(folder)}, and took no record of it; "
            f"{storage_errors.failing_advice(folder)}"
        )
    if outcome is Outcome.DISK_FULL:
        return "the disk took no more, not even the record of what did not fit"
    return f"{outcome.value}: no error.json was written; see log.txt of the attempt"
