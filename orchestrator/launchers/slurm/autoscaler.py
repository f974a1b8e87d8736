"""Autoscaler of pilots: more while trials wait, fewer while nodes are idle. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.records.trial_spec import Resources
from orchestrator.scheduling.demand import UNIT, Demand, Node, nodes_needed

IDLE_S = 60.0
"""How long a node may be idle before it is given back: the next trial may be about to retry, and
queueing takes longer."""


@dataclass(frozen=True, kw_only=True)
class PilotPool:
    """State of a sweep's pilots, and what waits for them."""

    nodes: int
    """That take trials, those of the first pilot too."""
    empty: int = 0
    """Of these, on which nothing runs: a gang that waits for more whole nodes takes them too."""
    idle_since: Mapping[str, float]
    """Nodes of further pilots on which nothing runs, by label; seconds of the clock."""
    coming: Sequence[str]
    """Jobs of pilots that were asked for and have not joined yet."""
    waiting: Sequence[Demand]
    capacity: Demand
    """Cores and GPUs of one node of a further pilot."""


@dataclass(frozen=True, kw_only=True)
class ScalingDecision:
    """What to do now."""

    ask: int = 0
    """Pilots of one node."""
    release: tuple[str, ...] = ()
    """Nodes to give back."""
    withdraw: tuple[str, ...] = ()
    """Jobs to take out of the queue again."""


def decide(pool: PilotPool, *, max_nodes: int, now: float) -> ScalingDecision:
    """Return what to do now; the same state gives the same decision.

    Nothing is given back while anything waits that a node could take: it may be about to start.
    """
    needed = first_fit_nodes(pool.waiting, pool.capacity, most=max_nodes)
    if needed:
        gangs = [
            demand
            for demand in pool.waiting
            if (nodes_needed_for(demand, pool.capacity, most=max_nodes) or 1) > 1
        ]
        there = min(pool.empty, first_fit_nodes(gangs, pool.capacity, most=max_nodes))
        room = max_nodes - pool.nodes - len(pool.coming)
        return ScalingDecision(ask=max(0, min(room, needed - there - len(pool.coming))))
    idle = [label for label, since in pool.idle_since.items() if now - since >= IDLE_S]
    return ScalingDecision(release=tuple(sorted(idle)), withdraw=tuple(pool.coming))


def demand_of(asked: Resources, capacity: Demand) -> Demand:
    """Return the demand of a trial on nodes of that capacity.

    `auto` is a GPU for each rank, as far as a node has them.
    """
    gpus = min(asked.ranks, capacity.gpus) if asked.gpus == "auto" else float(asked.gpus)
    return Demand(
        cpus=asked.cpus * asked.ranks,
        gpus=float(gpus),
        gang_size=1 if 0 < gpus < 1 else asked.ranks,
    )


def nodes_needed_for(demand: Demand, capacity: Demand, *, most: int) -> int | None:
    """Return how many empty nodes of that capacity hold a demand; None if `most` do not."""
    gpus = ("",) * (capacity.units // UNIT)
    return nodes_needed(demand, Node(node_id="", host="", cpus=capacity.cpus, gpus=gpus), most)


def first_fit_nodes(waiting: Sequence[Demand], capacity: Demand, *, most: int) -> int:
    """Return how many empty nodes, `most` at most, hold these demands at once.

    First fit, largest first. A gang that no single node holds takes whole nodes. What `most` nodes
    do not hold is left out. Fractions of a GPU are counted by their sum.
    """
    free: list[tuple[int, int]] = []
    for demand in sorted(waiting, key=lambda one: one.size, reverse=True):
        needed = nodes_needed_for(demand, capacity, most=most)
        if needed is None:
            continue
        if needed > 1:
            free += [(0, 0)] * needed
            continue
        for i, (cpus, units) in enumerate(free):
            if demand.cpus <= cpus and demand.units <= units:
                free[i] = cpus - demand.cpus, units - demand.units
                break
        else:
            free.append((capacity.cpus - demand.cpus, capacity.units - demand.units))
        if len(free) >= most:
            break
    return min(most, len(free))
