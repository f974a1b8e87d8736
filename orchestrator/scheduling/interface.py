"""What the controller asks of the scheduling policy: (snapshot, now) -> schedule, with a sentence for each trial that waits.

The decision itself is `scheduling/policy.py`, which the simulator of `memscale plan --simulate` runs too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.scheduling import wait_reasons
from orchestrator.scheduling.cluster_state import Allocation, ClusterState, NodeAllocation
from orchestrator.scheduling.demand import UNIT, Demand, Node, NodeGpus
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
    """Seconds since 1970."""
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
    """Suggested GPUs; a launcher that has its own bookkeeping may choose others of the same node."""
    share: float = 1.0
    """Of each of these GPUs: below 1 for a fraction, and then at least what the trial's memory needs."""
    other_nodes: tuple[NodeGpus, ...] = ()
    """Further nodes of a gang, each taken whole, as the first is then."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The decision."""

    placements: tuple[Placement, ...] = ()
    waits: Mapping[str, str] = field(default_factory=dict)
    """Why each other waiting trial waits."""
    impossible: frozenset[str] = frozenset()
    """Those of them that the cluster could not hold even when empty."""
    reserved_nodes: tuple[str, ...] = ()
    """Nodes on which room is kept for the one that is next in line."""


def schedule(snapshot: Snapshot, now: float) -> Schedule:
    """Return who starts now and why the others wait. The same snapshot gives the same schedule."""
    room = ClusterState(snapshot.nodes)
    for running in snapshot.running:
        place = _place(room, running)
        if place:
            room.hold(running.trial_id, place, end=running.predicted_end, sweep=running.sweep)
    waits: dict[str, str] = {}
    impossible: set[str] = set()
    ready: list[Waiting] = []
    for trial in snapshot.waiting:
        if not room.needs(trial.demand).possible:
            waits[trial.trial_id] = wait_reasons.impossible(trial.demand, snapshot.nodes)
            impossible.add(trial.trial_id)
        elif trial.not_before > now:
            waits[trial.trial_id] = wait_reasons.not_yet(trial, now)
        else:
            ready.append(trial)
    decision = decide(room, WaitQueue(ready, alike=room.alike), now)
    placed = {start.trial_id for start in decision.starts}
    told = wait_reasons.WaitReasons(room, decision, now)
    for trial in ready:
        if trial.trial_id not in placed:
            waits[trial.trial_id] = told.why(trial)
    return Schedule(
        placements=tuple(_placement(room, s.trial_id, s.allocation) for s in decision.starts),
        waits=waits,
        impossible=frozenset(impossible),
        reserved_nodes=tuple(
            room.nodes[row].node_id
            for row in (decision.next_in_line.nodes if decision.next_in_line else ())
        ),
    )


def _place(room: ClusterState, running: Running) -> Allocation:
    """Return where a running trial lies; nodes that are gone are left out."""
    if running.other_nodes:
        there = [n for n in (running.node_id, *running.other_nodes) if n in room.row]
        return tuple(room.all_of(room.row[node_id]) for node_id in there)
    if running.node_id not in room.row:
        return ()
    row = room.row[running.node_id]
    columns = tuple(room.nodes[row].gpus.index(gpu) for gpu in running.gpus)
    return (NodeAllocation(row, running.demand.cpus, min(running.demand.units, UNIT), columns),)


def _placement(room: ClusterState, trial_id: str, place: Allocation) -> Placement:
    first, *other_nodes = (
        NodeGpus(
            node_id=room.nodes[piece.node].node_id,
            gpus=tuple(room.nodes[piece.node].gpus[i] for i in piece.gpus),
        )
        for piece in place
    )
    return Placement(
        trial_id=trial_id,
        node_id=first.node_id,
        gpus=first.gpus,
        share=place[0].units / UNIT,
        other_nodes=tuple(other_nodes),
    )
