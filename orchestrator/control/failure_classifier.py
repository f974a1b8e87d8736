"""How an attempt ended: exit codes of its ranks and error.json, turned into one outcome and one sentence. Pure.

When one rank of several dies, the others fail too, mostly with network errors. The outcome is that of the cause.
"""

import signal
from collections.abc import Mapping, Sequence
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
}
"""What a rank's process exits with. Away from the small numbers that Python, shells and signals use."""
_BY_CODE = {code: outcome for outcome, code in EXIT_CODES.items()}

CAUSE_FIRST = (
    Outcome.KILLED,
    Outcome.NODE_LOST,
    Outcome.DISK_FULL,
    Outcome.STORAGE,
    Outcome.USER_ERROR,
    Outcome.DIVERGED,
    Outcome.GPU_OOM,
    Outcome.HOST_OOM,
    Outcome.INTERRUPTED,
    Outcome.PREEMPTED,
    Outcome.COMMUNICATION,
)
"""Of the outcomes of several ranks, the first in this order is the cause: a rank that was killed, or ran into an
error of its own, leaves the others with communication errors."""


@dataclass(frozen=True, kw_only=True)
class AttemptExit:
    """The ranks of an attempt are all gone."""

    trial_id: str
    attempt: int
    exit_codes: Mapping[int, int] = field(default_factory=dict)
    """Per rank; minus the signal's number when a signal ended it. Unknown ones are missing."""
    killed_by_launcher: frozenset[int] = frozenset()
    """Ranks that the launcher killed, because another rank had failed or because a stop took too long."""
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
    """The verdict on one attempt."""

    outcome: Outcome
    reason: str
    """One sentence for people."""


def classify(
    ended: AttemptExit,
    *,
    asked: Outcome | None,
    error: Mapping[str, Any] | None,
    has_result: bool,
    folder: Path,
) -> Verdict:
    """Return how an attempt ended.

    Args:
        ended: What the launcher saw.
        asked: What the controller had asked for: INTERRUPTED, CANCELLED, PREEMPTED, TIME_LIMIT or None.
        error: error.json, if a rank wrote one.
        has_result: Whether result.json exists. Then the trial is done, whatever happened to the processes.
        folder: The trial's, for sentences about its storage.
    """
    if has_result:
        return Verdict(outcome=Outcome.DONE, reason="every step and evaluation is done")
    own = {
        rank: code_outcome(code)
        for rank, code in ended.exit_codes.items()
        if rank not in ended.killed_by_launcher and code != 0
    }
    if asked is not None:
        return Verdict(outcome=asked, reason=_asked_reason(asked, ended))
    if ended.node_lost is not None:
        return Verdict(outcome=Outcome.NODE_LOST, reason=ended.node_lost)
    if ended.hang is not None:
        return Verdict(outcome=Outcome.HANG, reason=f"{ended.hang}{_stood(ended)}")
    cause = next((o for o in CAUSE_FIRST if o in own.values()), None)
    if cause is Outcome.KILLED and ended.out_of_memory:
        return Verdict(outcome=Outcome.HOST_OOM, reason=_out_of_memory(sorted(ended.out_of_memory)))
    if cause is Outcome.KILLED:
        ranks = [rank for rank, outcome in own.items() if outcome is Outcome.KILLED]
        return Verdict(outcome=Outcome.KILLED, reason=_signals(ranks, ended.exit_codes))
    if cause is Outcome.INTERRUPTED:
        return Verdict(
            outcome=Outcome.PREEMPTED,
            reason="asked to leave by a signal from outside; it checkpointed first",
        )
    if cause is not None:
        return Verdict(outcome=cause, reason=_message(error, cause, folder))
    if error is not None:
        kind = Outcome(error["kind"])
        return Verdict(outcome=kind, reason=_message(error, kind, folder))
    if not ended.exit_codes:
        return Verdict(outcome=Outcome.NODE_LOST, reason="its controller ended without a word")
    return Verdict(
        outcome=Outcome.USER_ERROR,
        reason="the ranks ended without an error and without result.json; see log.txt of the attempt",
    )


def code_outcome(code: int) -> Outcome:
    """Return what one rank's exit code says."""
    if code < 0:
        return Outcome.KILLED
    return _BY_CODE.get(code, Outcome.USER_ERROR)


def _asked_reason(asked: Outcome, ended: AttemptExit) -> str:
    what = {
        Outcome.INTERRUPTED: "stopped on request",
        Outcome.CANCELLED: "cancelled on request",
        Outcome.PREEMPTED: "its allocation ends (preemption, or the time limit of the job)",
        Outcome.TIME_LIMIT: "reached its time limit",
    }[asked]
    codes = ended.exit_codes.values()
    if EXIT_CODES[Outcome.INTERRUPTED] in codes:
        return f"{what}; it checkpointed first"
    return (
        f"{what}; it was ended before it could checkpoint and goes back to the checkpoint before"
        f"{_stood(ended)}"
    )


def _stood(ended: AttemptExit) -> str:
    """Return where the ranks were, with those that agree together; the stacks are in the log."""
    together: dict[str, list[int]] = {}
    for rank, stood in sorted(ended.last_positions.items()):
        together.setdefault(stood, []).append(rank)
    told = [
        f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} stood {stood}"
        for stood, ranks in together.items()
    ]
    return "".join(f"; {one}" for one in told) + ("; all stacks are in its log" if told else "")


def _out_of_memory(ranks: Sequence[int]) -> str:
    names = ", ".join(map(str, ranks))
    return (
        f"the kernel ran out of memory and killed rank{'s' * (len(ranks) > 1)} {names}; lower "
        "resources.micro_batch_tokens, or run fewer trials at a time (--cpus)"
    )


def _signals(ranks: list[int], codes: Mapping[int, int]) -> str:
    names = ", ".join(f"rank {rank} died of {signal_name(-codes[rank])}" for rank in ranks)
    hint = (
        "; nobody here sent it (out of memory? see `dmesg`)"
        if any(codes[r] == -signal.SIGKILL for r in ranks)
        else ""
    )
    return f"{names}{hint}"


def signal_name(number: int) -> str:
    """Return SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _message(error: Mapping[str, Any] | None, outcome: Outcome, folder: Path) -> str:
    if error is None and outcome is Outcome.STORAGE:
        return f"{storage_errors.failing_summary(folder)}, and took no record of it; {storage_errors.failing_advice(folder)}"
    if error is None and outcome is Outcome.DISK_FULL:
        return "the disk took no more, not even the record of what did not fit"
    if error is None:
        return f"{outcome.value}: no error.json was written; see log.txt of the attempt"
    return str(error["message"])
