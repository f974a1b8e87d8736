"""Cluster state: nodes, allocations with predicted ends, and what is free.

The state knows no order among trials; that is the policy's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from orchestrator.scheduling.demand import UNIT, Demand, Node
from orchestrator.scheduling.free_resources import (
    Allocation,
    ClusterCapacity,
    FreeResources,
    NodeAllocation,
)
from orchestrator.scheduling.node_requirements import NodeRequirements, requirements_of

NEVER = math.inf
AT_ONCE = -math.inf


@dataclass(frozen=True)
class HeldResources:
    """Units of GPUs, and cores, that trials hold."""

    units: int = 0
    cpus: int = 0

    def __add__(self, other: "HeldResources") -> "HeldResources":
        return HeldResources(self.units + other.units, self.cpus + other.cpus)

    def __sub__(self, other: "HeldResources") -> "HeldResources":
        return HeldResources(self.units - other.units, self.cpus - other.cpus)

    @classmethod
    def of(cls, allocation: Allocation) -> "HeldResources":
        """Return what an allocation holds."""
        units = sum(part.units * len(part.gpus) for part in allocation)
        return cls(units, sum(part.cpus for part in allocation))


@dataclass(frozen=True, kw_only=True)
class BackfillReservation:
    """Where a trial will start that does not fit now."""

    start: float
    """Seconds of the caller's clock, by the predicted ends."""
    left_over: Mapping[int, FreeResources]
    """For each of its nodes, as row 0: what it leaves to others then."""


@dataclass(frozen=True, kw_only=True)
class _Held:
    allocation: Allocation
    sweep: str


@dataclass(frozen=True, kw_only=True)
class _HeldOnNode:
    part: NodeAllocation
    predicted_end: float


class ClusterState:
    """A cluster and the allocations of its trials."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Start with everything free. Nodes are ranked by their ids, which are unique."""
        self.nodes = tuple(sorted(nodes, key=lambda node: node.node_id))
        self.row = {node.node_id: i for i, node in enumerate(self.nodes)}
        self.capacity = ClusterCapacity(
            cpus=np.array([node.cpus for node in self.nodes], dtype=np.int64),
            n_gpus=np.array([len(node.gpus) for node in self.nodes], dtype=np.int64),
        )
        columns = np.arange(int(self.capacity.n_gpus.max(initial=0)))
        units = np.where(columns[None, :] < self.capacity.n_gpus[:, None], UNIT, 0)
        self.free = FreeResources(self.capacity.cpus.copy(), units.astype(np.int64))
        self._held: dict[str, _Held] = {}
        self._held_on: list[dict[str, _HeldOnNode]] = [{} for _ in self.nodes]
        self._usage: dict[str, HeldResources] = {}
        self._total = HeldResources(
            int(self.capacity.n_gpus.sum()) * UNIT, int(self.capacity.cpus.sum())
        )
        self._requirements: dict[Demand, NodeRequirements] = {}
        self._representative: dict[tuple[object, ...], Demand] = {}
        self._ready_for: tuple[object, ...] = ()
        """Equivalence of the requirements that `_ready` is about."""
        self._ready: NDArray[np.float64] = np.zeros(0)
        self._stale: set[int] = set()
        """Rows of `_ready` that have changed since."""

    def allocate(
        self, trial_id: str, allocation: Allocation, *, predicted_end: float, sweep: str = ""
    ) -> None:
        """Note that a trial holds an allocation until its predicted end."""
        self._held[trial_id] = _Held(allocation=allocation, sweep=sweep)
        for part in allocation:
            self.free.take(part)
            held = _HeldOnNode(part=part, predicted_end=predicted_end)
            self._held_on[part.node][trial_id] = held
            self._stale.add(part.node)
        self._usage[sweep] = self.usage(sweep) + HeldResources.of(allocation)

    def release(self, trial_id: str) -> None:
        """Give back what a trial holds."""
        held = self._held.pop(trial_id)
        for part in held.allocation:
            self.free.give_back(part)
            del self._held_on[part.node][trial_id]
            self._stale.add(part.node)
        self._usage[held.sweep] = self.usage(held.sweep) - HeldResources.of(held.allocation)

    def usage(self, sweep: str) -> HeldResources:
        """Return what the trials of a sweep hold."""
        return self._usage.get(sweep, HeldResources())

    def dominant_share(self, usage: HeldResources) -> float:
        """Return the share of the cluster's GPUs or of its cores, whichever is more.

        Source: Ghodsi et al. 2011, dominant resource fairness.
        """
        return max(usage.units / max(1, self._total.units), usage.cpus / max(1, self._total.cpus))

    def requirements(self, demand: Demand) -> NodeRequirements:
        """Return what the demand takes of each node; computed once."""
        known = self._requirements.get(demand)
        if known is None:
            known = self._requirements[demand] = requirements_of(demand, self.nodes)
        return known

    def representative(self, demand: Demand) -> Demand:
        """Return the first demand seen that takes the same of every node.

        Most differences in memory make none to a place.
        """
        key = (demand.size, *self.requirements(demand).equivalence)
        return self._representative.setdefault(key, demand)

    def reserve(self, demand: Demand, now: float) -> BackfillReservation:
        """Return where and when a possible demand fits first, by the predicted ends.

        An overdue trial is assumed to end now.
        """
        needs = self.requirements(demand)
        ready = self._ready_at(needs)
        if needs.gangs:
            return self._reserve_gang(needs, ready, now)
        node = int(np.maximum(ready, now).argmin())
        start = max(now, float(ready[node]))
        then = self._free_on(node, start)
        # Of the GPUs that are free then, those that are busy now: free ones stay open to others.
        part = then.pick(0, _on_node(needs, node), prefer_few=self.free.units[node])
        then.take(part)
        return BackfillReservation(start=start, left_over={node: then})

    def _reserve_gang(
        self, needs: NodeRequirements, ready: NDArray[np.float64], now: float
    ) -> BackfillReservation:
        start, nodes = math.inf, np.zeros(0, dtype=np.int64)
        for gang in needs.gangs:
            order = np.argsort(np.maximum(ready[gang.nodes], now), kind="stable")
            first = gang.nodes[order][: gang.n_nodes]
            all_ready = max(now, float(ready[first[-1]]))
            if not len(nodes) or all_ready < start:
                start, nodes = all_ready, first
        assert len(nodes), "the demand is possible"
        width = self.free.units.shape[1]
        nothing = {
            int(node): FreeResources(np.zeros(1, np.int64), np.zeros((1, width), np.int64))
            for node in nodes
        }
        return BackfillReservation(start=start, left_over=nothing)

    def _ready_at(self, needs: NodeRequirements) -> NDArray[np.float64]:
        """Return when each node alone can hold the demand; for a gang, when it is empty.

        Kept between calls: the next in line seldom changes, and few nodes do.
        """
        if self._ready_for != needs.equivalence:
            self._ready_for = needs.equivalence
            self._ready = np.full(len(self.nodes), NEVER)
            self._stale = set(range(len(self.nodes)))
        for node in self._stale:
            self._ready[node] = self._ready_on(node, needs)
        self._stale.clear()
        return self._ready

    def _ready_on(self, node: int, needs: NodeRequirements) -> float:
        """Return when one node can hold the demand, by playing its trials' ends in order."""
        held = self._held_on[node].values()
        if needs.gangs:
            return max((one.predicted_end for one in held), default=AT_ONCE)
        if not needs.fits[node]:
            return NEVER
        cpus = int(self.free.cpus[node])
        units: list[int] = self.free.units[node].tolist()
        # What counts is the free units of the best GPU for a share, else the number of free GPUs.
        wanted = int(needs.share[node]) if needs.is_share else needs.whole_gpus
        free = max(units, default=0) if needs.is_share else units.count(UNIT)
        # The node is ready at the first end after which enough is free; at once if it is now.
        at = AT_ONCE
        for one in sorted(held, key=lambda one: one.predicted_end):
            if cpus >= needs.cpus and free >= wanted:
                return at
            at = one.predicted_end
            cpus += one.part.cpus
            for gpu in one.part.gpus:
                units[gpu] += one.part.units
                free = max(free, units[gpu]) if needs.is_share else free + (units[gpu] == UNIT)
        return at

    def _free_on(self, node: int, at: float) -> FreeResources:
        """Return what is free on a node, as row 0, when all predicted to end by `at` have ended."""
        cpus, units = int(self.free.cpus[node]), self.free.units[node].copy()
        for one in self._held_on[node].values():
            if one.predicted_end <= at:
                cpus += one.part.cpus
                units[list(one.part.gpus)] += one.part.units
        return FreeResources(np.array([cpus]), units[None, :])


def _on_node(needs: NodeRequirements, node: int) -> NodeRequirements:
    """Return the requirements on one node, as row 0."""
    row = slice(node, node + 1)
    return replace(needs, share=needs.share[row], fits=needs.fits[row], gangs=())
