"""Scheduler interface of the controller: from a snapshot to a schedule.

A schedule has a reason for each trial that waits. The decision itself is `policy.py`, which the
simulator of `memscale plan --simulate` runs too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.scheduling import wait_reasons
from orchestrator.scheduling.cluster_state import ClusterState
from orchestrator.scheduling.demand import UNIT, Demand, Node, NodeGpus
from orchestrator.scheduling.free_resources import Allocation, NodeAllocation
from orchestrator.scheduling.policy import decide
from orchestrator.scheduling.wait_queue import Waiting, WaitQueue


@dataclass(frozen=True, kw_only=True)
class Running:
    """A trial that holds resources."""

    trial_id: str
    node_id: str
    demand: Demand
    """As placed: of a fraction, the share that it got."""
    gpus: tuple[str, ...] = ()
    """Ids of the GPUs it holds, wholly or in part."""
    predicted_end: float = 0.0
    """Seconds of the caller's clock."""
    sweep: str = ""
    other_nodes: tuple[str, ...] = ()
    """Further nodes of a gang; it holds them, and the first, whole."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything the decision depends on."""

    nodes: Sequence[Node]
    running: Sequence[Running] = ()
    waiting: Sequence[Waiting] = ()


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A trial that starts now."""

    trial_id: str
    node_id: str
    gpus: tuple[str, ...] = ()
    """Suggested GPUs; a launcher with bookkeeping of its own may choose others of the node."""
    share: float = 1.0
    """Of each of these GPUs: below 1 for a fraction, at least what the trial's memory needs."""
    other_nodes: tuple[NodeGpus, ...] = ()
    """Further nodes of a gang, each taken whole, as the first is then."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Which trials start, and why the others wait."""

    placements: tuple[Placement, ...] = ()
    waits: Mapping[str, str] = field(default_factory=dict)
    """Trial id -> why it waits."""
    impossible: frozenset[str] = frozenset()
    """Waiting trials that the cluster could not hold even when empty."""
    reserved_nodes: tuple[str, ...] = ()
    """Nodes on which room is kept for the trial that is next in line."""


def schedule(snapshot: Snapshot, now: float) -> Schedule:
    """Return which trials start now and why the others wait. Pure."""
    cluster = ClusterState(snapshot.nodes)
    for running in snapshot.running:
        if allocation := _allocation(cluster, running):
            cluster.allocate(
                running.trial_id,
                allocation,
                predicted_end=running.predicted_end,
                sweep=running.sweep,
            )
    waits: dict[str, str] = {}
    impossible: set[str] = set()
    ready: list[Waiting] = []
    for trial in snapshot.waiting:
        if not cluster.requirements(trial.demand).possible:
            waits[trial.trial_id] = wait_reasons.impossible(trial.demand, snapshot.nodes)
            impossible.add(trial.trial_id)
        elif trial.not_before > now:
            waits[trial.trial_id] = wait_reasons.not_yet(trial, now)
        else:
            ready.append(trial)
    decision = decide(cluster, WaitQueue(ready, representative=cluster.representative), now)
    started = {start.trial_id for start in decision.starts}
    reasons = wait_reasons.WaitReasons(cluster, decision, now)
    waits |= {t.trial_id: reasons.reason(t) for t in ready if t.trial_id not in started}
    reserved = decision.next_in_line.nodes if decision.next_in_line else ()
    return Schedule(
        placements=tuple(_placement(cluster, s.trial_id, s.allocation) for s in decision.starts),
        waits=waits,
        impossible=frozenset(impossible),
        reserved_nodes=tuple(cluster.nodes[row].node_id for row in reserved),
    )


def _allocation(cluster: ClusterState, running: Running) -> Allocation:
    """Return the rows and columns that a running trial holds, without nodes that are gone."""
    node_ids = (running.node_id, *running.other_nodes)
    rows = [cluster.row[node_id] for node_id in node_ids if node_id in cluster.row]
    if running.other_nodes:
        return tuple(cluster.capacity.whole_node(row) for row in rows)
    demand = running.demand
    return tuple(
        NodeAllocation(
            node=row,
            cpus=demand.cpus,
            units=min(demand.units, UNIT),
            gpus=tuple(cluster.nodes[row].gpus.index(gpu) for gpu in running.gpus),
        )
        for row in rows
    )


def _placement(cluster: ClusterState, trial_id: str, allocation: Allocation) -> Placement:
    """Return an allocation with the ids of its nodes and GPUs."""
    first, *others = (
        NodeGpus(node_id=node.node_id, gpus=tuple(node.gpus[i] for i in part.gpus))
        for part in allocation
        for node in (cluster.nodes[part.node],)
    )
    return Placement(
        trial_id=trial_id,
        node_id=first.node_id,
        gpus=first.gpus,
        share=allocation[0].units / UNIT,
        other_nodes=tuple(others),
    )
