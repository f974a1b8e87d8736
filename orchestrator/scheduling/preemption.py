"""Preemption by priority: trials that yield to sweeps of higher priority. Pure.

Fair shares say how much a sweep may hold beside those of higher priority
(`fair_share.fair_shares`). Where one of these has less than its share, and this sweep holds more
than its own, trials of this sweep checkpoint and wait: as few as make up for what is lacking.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from orchestrator.scheduling.demand import Demand
from orchestrator.scheduling.fair_share import NOTHING, Amounts, Grant


@dataclass(frozen=True, kw_only=True)
class PreemptionCandidate:
    """A running trial of this sweep."""

    trial_id: str
    demand: Demand
    node_ids: Collection[str]
    started_at: float
    """Monotonic seconds."""
    stopping: bool = False
    """Whether it was asked to leave, so that what it holds is free soon."""


def trials_to_preempt(running: Sequence[PreemptionCandidate], grant: Grant) -> list[str]:
    """Return the trials that are to checkpoint and wait now.

    Those on nodes that a sweep of higher priority keeps for its next in line come first, then those
    that started last: they have the least to repeat if they cannot checkpoint.
    """
    staying = [one for one in running if not one.stopping]
    lacking, excess = grant.lacking, _held(staying) - Amounts(grant.gpus, grant.cpus)
    lacking -= _held([one for one in running if one.stopping])
    chosen: list[str] = []
    for one in sorted(
        staying, key=lambda one: (grant.closed.isdisjoint(one.node_ids), -one.started_at)
    ):
        needed = (
            one.demand.gpus > 0 and lacking.gpus > NOTHING and excess.gpus > NOTHING,
            one.demand.cpus > 0 and lacking.cpus > NOTHING and excess.cpus > NOTHING,
        )
        if any(needed):
            chosen.append(one.trial_id)
            lacking, excess = lacking - _held([one]), excess - _held([one])
    return chosen


def _held(trials: Sequence[PreemptionCandidate]) -> Amounts:
    return Amounts(sum(one.demand.gpus for one in trials), sum(one.demand.cpus for one in trials))
