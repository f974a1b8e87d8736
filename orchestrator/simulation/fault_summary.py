"""Summary of simulated faults: their cost, and the best checkpoint interval."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.records import units
from orchestrator.records.trial_spec import Outcome
from orchestrator.simulation.checkpointing import (
    CheckpointedWork,
    best_interval,
    expected_goodput,
)
from orchestrator.simulation.faults import Faults, Job
from orchestrator.simulation.simulate import Simulation


@dataclass(frozen=True, kw_only=True)
class FaultSummary:
    """What faults cost; hours are of GPUs, or of cores where no trial that ran holds a GPU."""

    node_lost: int
    """Attempts that ended with their node."""
    preempted: int
    given_up: int
    """Trials that the retry policy gave up."""
    goodput: float
    held_hours: float
    repeated_hours: float
    """Training after the last checkpoint, done again."""
    overhead_hours: float
    """Restarts and checkpoints."""
    checkpoint_every_s: tuple[float, float]
    """Shortest and longest pause of all trials, as configured."""
    checkpoint_write_s: float
    """The longest that a trial stands still for one."""
    expected_goodput: float
    """With these pauses, under failures alone."""
    best_every_s: float | None
    """Pause with the highest expected goodput; None if no node fails."""
    best_goodput: float | None


def fault_summary(simulation: Simulation, jobs: Sequence[Job], faults: Faults) -> FaultSummary:
    """Return what faults cost the trials that ran, and what another checkpoint interval would."""
    by_gpu = simulation.by_gpu
    held = repeated = kept = 0.0
    nodes: dict[str, int] = {}
    for run in simulation.runs:
        size = run.gpus if by_gpu else run.trial.demand.cpus
        held += size * run.seconds
        repeated += size * run.repeated_s
        kept += size * (run.kept_s or 0.0)
        nodes[run.trial.trial_id] = len(run.allocation)
    outcomes = Counter(run.outcome for run in simulation.runs)
    ran = [job for job in jobs if job.trial.trial_id in nodes]
    work = [
        CheckpointedWork(
            job.trial.predicted_s,
            job.checkpointing,
            faults.node_mtbf_s / nodes[job.trial.trial_id],
            job.trial.demand.gpus if by_gpu else job.trial.demand.cpus,
        )
        for job in ran
    ]
    best = best_interval(work)
    pauses = [job.checkpointing.pause_s for job in ran] or [0.0]
    return FaultSummary(
        node_lost=outcomes[Outcome.NODE_LOST],
        preempted=outcomes[Outcome.PREEMPTED],
        given_up=len(simulation.given_up),
        goodput=simulation.goodput,
        held_hours=held / 3600,
        repeated_hours=repeated / 3600,
        overhead_hours=(held - kept - repeated) / 3600,
        checkpoint_every_s=(min(pauses), max(pauses)),
        checkpoint_write_s=max((job.checkpointing.write_s for job in ran), default=0.0),
        expected_goodput=expected_goodput(work),
        best_every_s=best,
        best_goodput=None if best is None else expected_goodput(work, best),
    )


def summary_rows(found: FaultSummary, faults: Faults, *, what: str) -> list[tuple[str, str]]:
    """Return rows for the terminal: a word and a sentence each.

    Args:
        found: What faults cost.
        faults: How often they come.
        what: `GPU` or `core`.
    """
    duration = units.short_duration
    shortest, longest = found.checkpoint_every_s
    every = duration(shortest) + ("" if longest == shortest else f" to {duration(longest)}")
    checkpoints = f"every {every}, up to {duration(found.checkpoint_write_s)} each"
    if found.best_every_s is not None and found.best_goodput is not None:
        checkpoints += (
            f": {found.expected_goodput:.1%} goodput expected under failures; best every "
            f"{duration(found.best_every_s)}: {found.best_goodput:.1%} (Daly 2006)"
        )
    else:
        checkpoints += "; a preempted node leaves time for one, so longer pauses cost nothing"
    given_up = f"; {units.plural(found.given_up, 'trial')} given up" if found.given_up else ""
    return [
        (
            "faults",
            f"{units.plural(found.node_lost, 'attempt')} lost with a node, {found.preempted:,} "
            f"preempted{given_up} ({_rates(faults)}, seed {faults.seed})",
        ),
        (
            "goodput",
            f"{found.goodput:.1%} of {units.hours(found.held_hours)} {what}-hours held; "
            f"{units.hours(found.repeated_hours)} were trained again, "
            f"{units.hours(found.overhead_hours)} went into restarts and checkpoints",
        ),
        ("checkpoints", checkpoints),
    ]


def _rates(faults: Faults) -> str:
    parts = []
    if math.isfinite(faults.node_mtbf_s):
        parts.append(f"a node fails every {units.duration(faults.node_mtbf_s)}")
    if math.isfinite(faults.preemption_every_s):
        parts.append(f"is preempted every {units.duration(faults.preemption_every_s)}")
    return ", ".join(parts) or "no faults"
