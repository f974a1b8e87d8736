"""Fair share: how much each of several sweeps on one cluster may hold.

All functions are pure. Every controller tells the others its usage (`SweepUsage`) and computes for
itself what that leaves to it (`Grant`); no process decides for all. Rules, in this order:

1. Sweeps of a higher priority take what they want; those below share what is left.
2. Of one priority each gets its weight's share of whatever resource it uses most of, and what one
   does not want the others have (dominant resource fairness, Ghodsi et al. 2011, section 4.1, with
   weights of section 4.3).
3. A sweep that holds less than its share may start a trial, however large; so it holds at most one
   trial too many.
4. A sweep's next in line that does not fit keeps the nodes where it will. They are closed to sweeps
   that come after it: those of lower priority, then those that hold more of their share, then those
   that started something more recently. So a stream of small trials of one sweep cannot starve a
   large one of another.

What runs is taken away for sweeps of higher priority alone (`preemption.py`), not for a share or a
large trial.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from orchestrator.records.units import plural
from orchestrator.scheduling.demand import Demand

NOTHING = 1e-9
"""Less of a resource than this is none: shares are sums of fractions."""


@dataclass(frozen=True, kw_only=True)
class SweepUsage:
    """What a sweep holds and wants, as it tells the others."""

    sweep: str = ""
    """What names it on the cluster."""
    priority: int = 0
    """Higher ones go first."""
    weight: float = 1.0
    holds_gpus: float = 0.0
    holds_cpus: float = 0.0
    wants_gpus: float = 0.0
    """What it holds and what could run beside that."""
    wants_cpus: float = 0.0
    keeps: tuple[str, ...] = ()
    """Nodes reserved for its next in line."""
    started: int = 0
    """Trials that it has started so far."""
    turn: int = 0
    """Logical clock: grows with every start past the turns of all others.

    The sweep with the smallest was served longest ago. Clocks of machines differ, so none is read.
    """

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "SweepUsage":
        """Read what `dataclasses.asdict` and JSON made of one."""
        return cls(**{**record, "keeps": tuple(record["keeps"])})

    def holding(self, demand: Demand, *, wanted: bool = False) -> "SweepUsage":
        """Return the usage with one more running trial.

        Args:
            demand: Its demand.
            wanted: Whether it is not among the wants yet.
        """
        return replace(
            self,
            holds_gpus=self.holds_gpus + demand.gpus,
            holds_cpus=self.holds_cpus + demand.cpus,
            wants_gpus=self.wants_gpus + demand.gpus * wanted,
            wants_cpus=self.wants_cpus + demand.cpus * wanted,
        )


class Amounts(NamedTuple):
    """Amounts of each resource, or shares of the cluster."""

    gpus: float
    cpus: float

    def dominant_share(self, cluster: "Amounts") -> float:
        """Return the larger share of the cluster; of wants it may be more than all."""
        return max(a / whole if whole else 0.0 for a, whole in zip(self, cluster, strict=True))

    def __sub__(self, other: "Amounts") -> "Amounts":
        return Amounts(self.gpus - other.gpus, self.cpus - other.cpus)


NONE = Amounts(0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What a sweep may do now."""

    gpus: float = math.inf
    """It may start a trial that takes GPUs while it holds fewer."""
    cpus: float = math.inf
    """It may start any trial while it holds fewer cores."""
    closed: frozenset[str] = frozenset()
    """Nodes on which it may start nothing."""
    lacking: Amounts = NONE
    """What sweeps of higher priority have less than their shares."""
    why: str = ""
    """One clause for people; empty when nobody else is there."""

    def allows(self, usage: SweepUsage, demand: Demand) -> bool:
        """Return whether a trial may start: within the share while others lack their own."""
        if max(self.lacking) > NOTHING:
            then = usage.holding(demand)
            gpus_fit = not demand.gpus or then.holds_gpus <= self.gpus + NOTHING
            return gpus_fit and then.holds_cpus <= self.cpus + NOTHING
        if demand.gpus and usage.holds_gpus >= self.gpus - NOTHING:
            return False
        return usage.holds_cpus < self.cpus - NOTHING


def grant(own: SweepUsage, others: Sequence[SweepUsage], *, gpus: float, cpus: float) -> Grant:
    """Return what one sweep may do beside the others on a cluster of so many GPUs and cores."""
    if not others:
        return Grant()
    fair, *theirs = fair_shares([own, *others], gpus=gpus, cpus=cpus)
    short = [
        share - Amounts(other.holds_gpus, other.holds_cpus)
        for other, share in zip(others, theirs, strict=True)
        if other.priority > own.priority
    ]
    cluster = Amounts(gpus, cpus)
    ahead = [other for other in others if _order(other, cluster) < _order(own, cluster)]
    sweeps = plural(len(others), "other sweep")
    share_gpus = f"{fair.gpus:.3g} GPUs and " if fair.gpus > NOTHING else ""
    return Grant(
        gpus=fair.gpus,
        cpus=fair.cpus,
        closed=frozenset(node for other in ahead for node in other.keeps),
        lacking=Amounts(
            sum(max(0.0, one.gpus) for one in short), sum(max(0.0, one.cpus) for one in short)
        ),
        why=f"shares the cluster with {sweeps}; its share is {share_gpus}{fair.cpus:.3g} cores",
    )


@dataclass
class _Growth:
    """A sweep whose share grows until it has all that it wants."""

    usage: SweepUsage
    wants: Amounts
    wanted: float
    """Dominant share of all that it wants."""
    rates: Amounts
    """How fast each resource goes, as a share of the cluster, while its share grows by weight."""
    share: float = 0.0
    """Dominant share so far."""

    @classmethod
    def of(cls, usage: SweepUsage, cluster: Amounts) -> "_Growth":
        wants = Amounts(usage.wants_gpus, usage.wants_cpus)
        wanted = wants.dominant_share(cluster)
        rates = (
            usage.weight * amount / whole / wanted if whole and wanted else 0.0
            for amount, whole in zip(wants, cluster, strict=True)
        )
        return cls(usage=usage, wants=wants, wanted=wanted, rates=Amounts(*rates))

    def amounts(self, cluster: Amounts) -> Amounts:
        part = self.share / self.wanted if self.wanted else 0.0
        return Amounts(
            self.wants.gpus * part * bool(cluster.gpus), self.wants.cpus * part * bool(cluster.cpus)
        )


def fair_shares(usages: Sequence[SweepUsage], *, gpus: float, cpus: float) -> list[Amounts]:
    """Return the GPUs and cores that each sweep may hold.

    Within a priority all shares grow together, each by its weight, until a sweep has all it wants
    or a resource that it uses is used up (progressive filling).
    """
    cluster = Amounts(gpus, cpus)
    free = [1.0 if whole else 0.0 for whole in cluster]
    sweeps = [_Growth.of(usage, cluster) for usage in usages]
    for priority in sorted({usage.priority for usage in usages}, reverse=True):
        growing = [s for s in sweeps if s.usage.priority == priority and s.wanted > 0]
        while growing:
            # Grow until the first sweep is satisfied, or the first resource is used up.
            step = min((s.wanted - s.share) / s.usage.weight for s in growing)
            for r, left in enumerate(free):
                speed = sum(s.rates[r] for s in growing)
                if speed > 0:
                    step = min(step, left / speed)
            for s in growing:
                s.share += step * s.usage.weight
                for r, rate in enumerate(s.rates):
                    free[r] -= step * rate
            growing = [
                s
                for s in growing
                if s.share < s.wanted - NOTHING
                and all(free[r] > NOTHING for r, rate in enumerate(s.rates) if rate > 0)
            ]
    return [s.amounts(cluster) for s in sweeps]


def _order(usage: SweepUsage, cluster: Amounts) -> tuple[float, float, int, str]:
    """Return the sort key of sweeps: the first is served first."""
    held = Amounts(usage.holds_gpus, usage.holds_cpus)
    share = held.dominant_share(cluster) / usage.weight
    return -usage.priority, round(share, 9), usage.turn, usage.sweep
