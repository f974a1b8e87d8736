"""Several sweeps on one cluster, each with a controller of its own: how much each may hold, and who comes first. Pure.

Every controller tells the others how it stands (`Standing`) and works out for itself what that leaves to it (`Grant`);
no process decides for all. Rules, in this order:

1. Sweeps of a higher priority take what they want; those below share what is left.
2. Of one priority each gets its weight's share of whatever resource it uses most of, and what one does not want the
   others have (dominant resource fairness, Ghodsi et al. 2011, section 4.1, with weights of section 4.3).
3. A sweep that holds less than its share may start a trial, however large; so it holds one trial too much at most.
4. A sweep's next in line that finds no room keeps the nodes where it will. They are closed to sweeps that come after it:
   those of lower priority, then those that hold more of their share, then those that started something more recently.
   So a stream of small trials of one sweep cannot starve a large one of another.

What runs is never taken away.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.scheduling.demand import Demand

NOTHING = 1e-9
"""Less of a resource than this is none: shares are sums of fractions."""


@dataclass(frozen=True, kw_only=True)
class SweepUsage:
    """How a sweep stands, as it tells the others."""

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
    """Nodes where room is kept for its next in line."""
    started: int = 0
    """Trials that it has started so far."""
    turn: int = 0
    """Grows with every start past all the others' turns: who has the smallest was served longest ago. A clock of the
    cluster's own, since those of its machines differ."""

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


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What a sweep may do now."""

    gpus: float = math.inf
    """It may start a trial that takes GPUs while it holds fewer."""
    cpus: float = math.inf
    """It may start any trial while it holds fewer cores."""
    closed: frozenset[str] = frozenset()
    """Nodes on which it may start nothing."""
    why: str = ""
    """One clause for people; empty when nobody else is there."""

    def allows(self, standing: SweepUsage, *, gpus: float) -> bool:
        """Return whether a trial of so many GPUs may start while the sweep stands like this."""
        if gpus and standing.holds_gpus >= self.gpus - NOTHING:
            return False
        return standing.holds_cpus < self.cpus - NOTHING


def grant(own: SweepUsage, others: Sequence[SweepUsage], *, gpus: float, cpus: float) -> Grant:
    """Return what one sweep may do beside the others on a cluster of so many GPUs and cores."""
    if not others:
        return Grant()
    fair = fair_shares([own, *others], gpus=gpus, cpus=cpus)[0]
    size = (gpus, cpus)
    ahead = [other for other in others if _order(other, size) < _order(own, size)]
    return Grant(
        gpus=fair[0],
        cpus=fair[1],
        closed=frozenset(node for other in ahead for node in other.keeps),
        why=_why(fair, others),
    )


def fair_shares(
    standings: Sequence[SweepUsage], *, gpus: float, cpus: float
) -> list[tuple[float, float]]:
    """Return the GPUs and cores that each sweep may hold.

    Within a priority all shares grow together, each by its weight, until a sweep has all it wants or a resource that it
    uses is used up.
    """
    size = (gpus, cpus)
    free = [1.0 if gpus else 0.0, 1.0 if cpus else 0.0]
    shares = [0.0] * len(standings)
    for priority in sorted({s.priority for s in standings}, reverse=True):
        growing = [
            i for i, s in enumerate(standings) if s.priority == priority and _wanted(s, size) > 0
        ]
        while growing:
            rates = {i: _rates(standings[i], size) for i in growing}
            step = min(
                (_wanted(standings[i], size) - shares[i]) / standings[i].weight for i in growing
            )
            for r in (0, 1):
                speed = sum(rates[i][r] for i in growing)
                if speed > 0:
                    step = min(step, free[r] / speed)
            for i in growing:
                shares[i] += step * standings[i].weight
                for r in (0, 1):
                    free[r] -= step * rates[i][r]
            growing = [
                i
                for i in growing
                if shares[i] < _wanted(standings[i], size) - NOTHING
                and all(free[r] > NOTHING for r in (0, 1) if rates[i][r] > 0)
            ]
    return [_amounts(s, share, size) for s, share in zip(standings, shares, strict=True)]


def _wanted(standing: SweepUsage, size: tuple[float, float]) -> float:
    """Return the dominant share of all that a sweep wants."""
    return _dominant(standing.wants_gpus, standing.wants_cpus, size)


def _rates(standing: SweepUsage, size: tuple[float, float]) -> tuple[float, float]:
    """Return how quickly each resource goes as this sweep's dominant share grows by its weight."""
    wanted = _wanted(standing, size)
    return tuple(  # type: ignore[return-value]
        standing.weight * amount / whole / wanted if whole else 0.0
        for amount, whole in zip((standing.wants_gpus, standing.wants_cpus), size, strict=True)
    )


def _amounts(standing: SweepUsage, share: float, size: tuple[float, float]) -> tuple[float, float]:
    wanted = _wanted(standing, size)
    part = share / wanted if wanted else 0.0
    return standing.wants_gpus * part * bool(size[0]), standing.wants_cpus * part * bool(size[1])


def _dominant(gpus: float, cpus: float, size: tuple[float, float]) -> float:
    """Return the larger of two shares of the cluster; of what is only wanted it may be more than all."""
    return max(a / whole if whole else 0.0 for a, whole in zip((gpus, cpus), size, strict=True))


def _order(standing: SweepUsage, size: tuple[float, float]) -> tuple[float, float, int, str]:
    """Return what sorts sweeps: who comes first is the smallest."""
    share = _dominant(standing.holds_gpus, standing.holds_cpus, size) / standing.weight
    return -standing.priority, round(share, 9), standing.turn, standing.sweep


def _why(fair: tuple[float, float], others: Sequence[SweepUsage]) -> str:
    sweeps = f"{len(others)} other sweep{'s' * (len(others) > 1)}"
    gpus = f"{fair[0]:.3g} GPUs and " if fair[0] > NOTHING else ""
    return f"shares the cluster with {sweeps}; its share is {gpus}{fair[1]:.3g} cores"
