"""List of the sweeps of a runs folder: counts of their trials, age, state."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.control.status import QueueReasons, SweepStatus, status_from_disk
from orchestrator.control.terminal_text import printable
from orchestrator.records.errors import StoreError
from orchestrator.records.sweep_dir import (
    RESERVED_NAMES,
    SWEEP_NAME,
    SweepDir,
    dangling_link,
)
from orchestrator.records.trial_spec import TrialState


@dataclass(frozen=True, kw_only=True)
class SweepSummary:
    """One sweep in a list."""

    name: str
    state: str
    """running, done, failed, cancelled, stopped or unreadable."""
    trials: int
    counts: Mapping[str, int]
    """Trials per state, as far as they are known."""
    submitted_at: float | None
    """Last submission, seconds since 1970; None when it is not known."""
    problem: str = ""
    """Why it cannot be read, in one sentence."""

    def __post_init__(self) -> None:
        for name in ("name", "problem"):
            object.__setattr__(self, name, printable(getattr(self, name)))


def list_sweeps(
    runs: Path, *, ask_queue: Callable[[SweepDir], QueueReasons | None] = lambda sweep: None
) -> list[SweepSummary]:
    """Return the sweeps that were submitted into a folder, the last submitted first.

    A link to nothing, as where a disk is not mounted, is an unreadable sweep. `ask_queue` is that
    of `status_from_disk`.
    """
    found = [_summary(SweepDir(trials.parent), ask_queue) for trials in runs.glob("*/trials")]
    found += [_unreadable(SweepDir(path), why) for path in runs.glob("*") if (why := _lost(path))]
    return sort_by_age(found)


def sort_by_age(sweeps: Sequence[SweepSummary]) -> list[SweepSummary]:
    """Return the last submitted first, and those of unknown age last, by name."""
    return sorted(sweeps, key=lambda sweep: (-(sweep.submitted_at or 0.0), sweep.name))


def _summary(sweep: SweepDir, ask_queue: Callable[[SweepDir], QueueReasons | None]) -> SweepSummary:
    try:
        status = status_from_disk(sweep, ask_queue=ask_queue)
        submissions = sweep.submissions()
    except StoreError as error:
        return _unreadable(sweep, str(error))
    return SweepSummary(
        name=sweep.name,
        state=_state(status),
        trials=len(status.trials) + len(status.unreadable),
        counts={state.value: n for state, n in status.totals.items()},
        submitted_at=submissions[-1].get("submitted_at") if submissions else None,
        problem="; ".join(status.unreadable[:1]),
    )


def _lost(path: Path) -> str:
    """Return what is wrong if the folder of a sweep is a link to nothing; else ""."""
    if not SWEEP_NAME.fullmatch(path.name) or RESERVED_NAMES.fullmatch(path.name):
        return ""
    return f"{path}: {why}" if (why := dangling_link(path)) else ""


def _unreadable(sweep: SweepDir, why: str) -> SweepSummary:
    return SweepSummary(
        name=sweep.name,
        state="unreadable",
        trials=len(sweep.trials()),
        counts={},
        submitted_at=None,
        problem=why,
    )


def _state(status: SweepStatus) -> str:
    """Return the one word that says whether the sweep needs somebody."""
    if status.controller_alive:
        return "running"
    if status.complete:
        return "done"
    if status.totals[TrialState.FAILED] or status.unreadable:
        return "failed"
    return "stopped" if status.totals[TrialState.WAITING] else "cancelled"
