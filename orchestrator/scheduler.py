"""Which waiting trial starts where, and a sentence for each one that does not. Pure: (snapshot, now) -> schedule.

Rules, in this order:

1. The trial with the largest demand (GPUs, then cores) is *next in line*. It starts as soon as it fits. Until
   then the place where it will fit first is reserved: nothing may start that would move its start back, going by
   the predicted ends. So a stream of small trials cannot starve a large one, even when predictions are wrong:
   a trial that has outstayed its prediction counts as ending now, and then nothing new gets in front.
2. All others, longest predicted first, wherever they fit, under that condition.
3. Among nodes the one that is left with the fewest free GPUs, then cores; a fraction goes to the GPU with the
   least room that still holds it.

A trial runs on one node. Shares of a GPU are counted in units of 1/10,000, as Ray does, so that sums are exact.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

UNIT = 10_000
"""Units of one GPU."""


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a trial needs, over all its ranks."""

    cpus: int
    gpus: float = 0.0
    """A fraction of one GPU, or a whole number of GPUs."""

    @property
    def units(self) -> int:
        """GPUs in units of 1/UNIT."""
        return round(self.gpus * UNIT)

    def __str__(self) -> str:
        cores = f"{self.cpus} core{'s' * (self.cpus != 1)}"
        if not self.units:
            return cores
        return f"{_gpus(self.units)} and {cores}"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine of the cluster: what it has in all."""

    node_id: str
    host: str
    cpus: int
    gpus: tuple[str, ...] = ()
    """Ids as CUDA_VISIBLE_DEVICES takes them."""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A trial that could start."""

    trial_id: str
    demand: Demand
    predicted_s: float
    not_before: float = 0.0
    """Seconds since 1970."""
    why_not_before: str = ""
    order: int = 0
    """Decides between equals: the place in the sweep file."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """A trial that holds resources."""

    trial_id: str
    node_id: str
    demand: Demand
    gpus: tuple[str, ...] = ()
    """Ids of the GPUs it holds, wholly or in part."""
    predicted_end: float = 0.0
    """Seconds since 1970."""


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


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The decision."""

    placements: tuple[Placement, ...] = ()
    waits: Mapping[str, str] = field(default_factory=dict)
    """Why each other waiting trial waits."""
    impossible: frozenset[str] = frozenset()
    """Those of them that no node could hold even when empty."""


@dataclass(frozen=True)
class _Free:
    """What is free on a node."""

    cpus: int
    gpus: tuple[int, ...]
    """Units per GPU."""

    def pick(self, demand: Demand) -> tuple[int, ...] | None:
        """Return positions of the GPUs to use, () for none, None if the demand does not fit."""
        if demand.cpus > self.cpus:
            return None
        if demand.units < UNIT:
            if not demand.units:
                return ()
            fitting = [(units, i) for i, units in enumerate(self.gpus) if units >= demand.units]
            return (min(fitting)[1],) if fitting else None
        whole = [i for i, units in enumerate(self.gpus) if units == UNIT]
        count = demand.units // UNIT
        return tuple(whole[:count]) if len(whole) >= count else None

    def take(self, demand: Demand, positions: Iterable[int]) -> "_Free":
        gpus = list(self.gpus)
        for position in positions:
            gpus[position] -= min(demand.units, UNIT)
        return _Free(self.cpus - demand.cpus, tuple(gpus))


def schedule(snapshot: Snapshot, now: float) -> Schedule:
    """Return who starts now and why the others wait. The same snapshot gives the same schedule."""
    nodes = {node.node_id: node for node in snapshot.nodes}
    running = [r for r in snapshot.running if r.node_id in nodes]
    waits: dict[str, str] = {}
    ready: list[Waiting] = []
    impossible: set[str] = set()
    for trial in snapshot.waiting:
        if not any(_empty(node).pick(trial.demand) is not None for node in nodes.values()):
            waits[trial.trial_id] = _impossible(trial.demand, snapshot.nodes)
            impossible.add(trial.trial_id)
        elif trial.not_before > now:
            waits[trial.trial_id] = (
                f"starts again in {trial.not_before - now:.0f} s: {trial.why_not_before}"
            )
        else:
            ready.append(trial)
    # The id decides last, so that the order of the snapshot's list does not.
    ready.sort(key=lambda t: (-t.predicted_s, t.order, t.trial_id))
    first = min(
        ready,
        key=lambda t: (-t.demand.units, -t.demand.cpus, -t.predicted_s, t.order, t.trial_id),
        default=None,
    )
    placements: list[Placement] = []

    def start(trial: Waiting, node_id: str, positions: tuple[int, ...]) -> None:
        gpus = tuple(nodes[node_id].gpus[i] for i in positions)
        placements.append(Placement(trial_id=trial.trial_id, node_id=node_id, gpus=gpus))
        running.append(_as_running(trial, node_id, gpus, now))

    reserved: tuple[Waiting, float] | None = None
    if first is not None:
        place = _best(first.demand, nodes, running)
        if place is not None:
            start(first, *place)
        else:
            reserved = first, _earliest_start(first.demand, nodes, running, now)
    for trial in ready:
        if trial is first:
            continue
        place = _best(trial.demand, nodes, running)
        if place is None:
            waits[trial.trial_id] = _short_of(trial.demand, nodes, running)
            continue
        if reserved is not None:
            place = _harmless(trial, nodes, running, now, reserved)
        if place is not None:
            start(trial, *place)
        elif reserved is not None:
            line, at = reserved
            waits[trial.trial_id] = (
                f"needs {trial.demand}, which is free but reserved for {line.trial_id} "
                f"(needs {line.demand}, starts in about {_duration(at - now)})"
            )
    if reserved is not None and first is not None:
        waits[first.trial_id] = (
            f"{_short_of(first.demand, nodes, running)}; next in line, starts in about {_duration(reserved[1] - now)}"
        )
    return Schedule(placements=tuple(placements), waits=waits, impossible=frozenset(impossible))


def _as_running(trial: Waiting, node_id: str, gpus: tuple[str, ...], now: float) -> Running:
    return Running(
        trial_id=trial.trial_id,
        node_id=node_id,
        demand=trial.demand,
        gpus=gpus,
        # Nothing ends in no time: a prediction of 0 must not let it slip in front of the reservation.
        predicted_end=now + max(1.0, trial.predicted_s),
    )


def _empty(node: Node) -> _Free:
    return _Free(node.cpus, (UNIT,) * len(node.gpus))


def _free(node: Node, running: Iterable[Running]) -> _Free:
    free = _empty(node)
    for held in running:
        if held.node_id == node.node_id:
            free = free.take(held.demand, [node.gpus.index(gpu) for gpu in held.gpus])
    return free


def _best(
    demand: Demand, nodes: Mapping[str, Node], running: Sequence[Running]
) -> tuple[str, tuple[int, ...]] | None:
    """Return the fitting node that is left with the least room, and the GPUs to use there."""
    fitting = []
    for node_id in sorted(nodes):
        free = _free(nodes[node_id], running)
        positions = free.pick(demand)
        if positions is not None:
            rest = free.take(demand, positions)
            fitting.append((sum(rest.gpus), rest.cpus, node_id, positions))
    if not fitting:
        return None
    _, _, node_id, positions = min(fitting)
    return node_id, positions


def _earliest_start(
    demand: Demand, nodes: Mapping[str, Node], running: Sequence[Running], now: float
) -> float:
    """Return when the demand fits first on one node, going by the predicted ends."""
    for at in sorted({now, *(max(now, r.predicted_end) for r in running)}):
        left = [r for r in running if max(now, r.predicted_end) > at]
        if _best(demand, nodes, left) is not None:
            return at
    raise AssertionError("a demand that fits an empty node fits when everything has ended")


def _harmless(
    trial: Waiting,
    nodes: Mapping[str, Node],
    running: Sequence[Running],
    now: float,
    reserved: tuple[Waiting, float],
) -> tuple[str, tuple[int, ...]] | None:
    """Return a place for the trial that does not move the reserved start back."""
    line, at = reserved
    for node_id in sorted(nodes):
        positions = _free(nodes[node_id], running).pick(trial.demand)
        if positions is None:
            continue
        gpus = tuple(nodes[node_id].gpus[i] for i in positions)
        with_it = [*running, _as_running(trial, node_id, gpus, now)]
        if _earliest_start(line.demand, nodes, with_it, now) <= at:
            return node_id, positions
    return None


def _impossible(demand: Demand, nodes: Sequence[Node]) -> str:
    if not nodes:
        return f"needs {demand}; the cluster has no node"
    most = max(nodes, key=lambda node: (len(node.gpus), node.cpus))
    return (
        f"needs {demand} on one node; the largest has {_gpus(len(most.gpus) * UNIT)} and {most.cpus} "
        f"core{'s' * (most.cpus != 1)}: lower resources.cpus, ranks or gpus, or add a node"
    )


def _short_of(demand: Demand, nodes: Mapping[str, Node], running: Sequence[Running]) -> str:
    """Say what the demand lacks on the node that comes nearest."""
    nearest = max(
        (node for node in nodes.values() if _empty(node).pick(demand) is not None),
        key=lambda node: (sum(_free(node, running).gpus), _free(node, running).cpus, node.node_id),
    )
    free = _free(nearest, running)
    where = "" if len(nodes) == 1 else f" on {nearest.host}"
    cores = f"{free.cpus} of {nearest.cpus} core{'s' * (nearest.cpus != 1)} free"
    if not demand.units:
        return f"needs {demand}; {cores}{where}"
    if demand.units < UNIT:
        room = f"at most {max(free.gpus) / UNIT:g} of a GPU free"
    else:
        room = f"{sum(units == UNIT for units in free.gpus)} of {len(nearest.gpus)} GPUs free"
    return f"needs {demand}; {room}, {cores}{where}"


def _gpus(units: int) -> str:
    count = units / UNIT
    return f"{count:g} GPU{'s' * (count > 1 or count == 0)}"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return "a moment"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
