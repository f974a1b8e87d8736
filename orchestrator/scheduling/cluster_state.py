"""What a cluster has, who holds what of it, and what is free. Knows no order among trials; that is the policy's.

Nodes and their GPUs are rows and columns of small arrays, so that looking for a place costs microseconds whatever
the number of trials. Everything is exact: cores are whole, shares of a GPU are whole units.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from orchestrator.scheduling.demand import UNIT, Demand, Node, nodes_needed, share_units

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NEVER = math.inf
AT_ONCE = -math.inf
_FAR = np.iinfo(np.int64).max


@dataclass(frozen=True)
class NodeAllocation:
    """What is taken of one node."""

    node: int
    """Row of the node."""
    cpus: int
    units: int
    """Of each of the GPUs below."""
    gpus: tuple[int, ...]
    """Columns of the GPUs."""


Allocation = tuple[NodeAllocation, ...]
"""Where a trial lies: one piece, or one per whole node of a gang."""


@dataclass(frozen=True)
class NodeRequirements:
    """What one demand takes of each node, were it put there."""

    cpus: int
    whole: int
    """GPUs that nobody shares; 0 for fractions and for the CPU."""
    shared: bool
    """A fraction of one GPU."""
    share: Ints
    """Units of one GPU, per node: nodes with less memory give a larger share."""
    fits: NDArray[np.bool_]
    """Nodes that hold it when empty."""
    gangs: tuple[tuple[int, Ints], ...]
    """If none does: how many whole nodes out of which, the fewest first."""
    least_share: int
    """Units of one GPU, at least, whatever the node."""

    @cached_property
    def alike(self) -> tuple[object, ...]:
        """Equal for demands that find room at the same time: those that differ only in memory that fits, for example."""
        share = self.share.tobytes() if self.shared else b""
        gangs = tuple((count, nodes.tobytes()) for count, nodes in self.gangs)
        return self.cpus, self.whole, share, self.fits.tobytes(), gangs

    @cached_property
    def possible(self) -> bool:
        """Whether the empty cluster holds it."""
        return bool(self.gangs) or bool(self.fits.any())


@dataclass(frozen=True)
class MaxFree:
    """The most that is free in one place, of each kind: what asks for more fits nowhere, and need not be looked for."""

    cpus: int
    whole: int
    units: int

    def may_hold(self, needs: NodeRequirements) -> bool:
        """Return False if there is certainly no place."""
        if needs.gangs:
            return True
        return (
            needs.cpus <= self.cpus
            and needs.whole <= self.whole
            and needs.least_share <= self.units
        )


class FreeResources:
    """What is free, per node and GPU. Small and quick to copy."""

    def __init__(self, cpus: Ints, units: Ints) -> None:
        """Take free cores per node, and free units per node and GPU (0 where there is no GPU)."""
        self.cpus = cpus
        self.units = units
        self.whole: Ints = (units == UNIT).sum(axis=1)
        self.total: Ints = units.sum(axis=1)

    def copy(self) -> "FreeResources":
        """Return one that can be changed on its own."""
        other = object.__new__(FreeResources)
        other.cpus, other.units = self.cpus.copy(), self.units.copy()
        other.whole, other.total = self.whole.copy(), self.total.copy()
        return other

    def take(self, piece: NodeAllocation, *, times: int = 1) -> None:
        """Take a piece, or give it back with `times=-1`."""
        node, units = piece.node, times * piece.units
        self.cpus[node] -= times * piece.cpus
        row = self.units[node]
        for gpu in piece.gpus:
            before = int(row[gpu])
            row[gpu] = before - units
            self.whole[node] += (before - units == UNIT) - (before == UNIT)
        self.total[node] -= units * len(piece.gpus)

    def set_row(self, node: int, cpus: int, units: Ints) -> None:
        """Say what is free on one node."""
        self.cpus[node] = cpus
        self.units[node] = units
        self.whole[node] = np.count_nonzero(units == UNIT)
        self.total[node] = units.sum()

    def most(self) -> "MaxFree":
        """Return the most that any place has free."""
        return MaxFree(
            cpus=int(self.cpus.max(initial=0)),
            whole=int(self.whole.max(initial=0)),
            units=int(self.units.max(initial=0)),
        )

    def find(self, needs: NodeRequirements, room: "ClusterState") -> Allocation | None:
        """Return the tightest place where it fits, None if there is none.

        One node before several. A fraction goes to the GPU that it leaves with the least room; all else to the node
        with the fewest free GPUs, then cores. Between equals the first in the list of nodes wins.
        """
        if needs.gangs:
            return self._find_gang(needs, room)
        fitting = needs.fits & (self.cpus >= needs.cpus)
        if needs.shared:
            return self._find_share(needs, fitting)
        if needs.whole:
            fitting &= self.whole >= needs.whole
        rest = np.where(fitting, self.total * 1_000_000 + self.cpus, _FAR)
        node = int(rest.argmin())
        if rest[node] == _FAR:
            return None
        return (self.pick(node, needs, preferred=self.units[node]),)

    def _find_share(self, needs: NodeRequirements, fitting: NDArray[np.bool_]) -> Allocation | None:
        left = self.units - needs.share[:, None]
        # One number per GPU that sorts by the room it is left with, then by its node's free units, then cores. Only
        # nodes that fit are worked out.
        rows = np.flatnonzero(fitting & (left.max(axis=1, initial=-1) >= 0))
        if not len(rows):
            return None
        left = left[rows]
        tightness = left * 10**12 + (self.total[rows] * 1_000_000 + self.cpus[rows])[:, None]
        best = int(np.where(left >= 0, tightness, _FAR).argmin())
        row, gpu = divmod(best, left.shape[1])
        node = int(rows[row])
        return (NodeAllocation(node, needs.cpus, int(needs.share[node]), (gpu,)),)

    def _find_gang(self, needs: NodeRequirements, room: "ClusterState") -> Allocation | None:
        empty = (self.cpus == room.cpus) & (self.whole == room.n_gpus)
        for count, alike in needs.gangs:
            nodes = alike[empty[alike]]
            if len(nodes) >= count:
                return tuple(room.all_of(int(node)) for node in nodes[:count])
        return None

    def pick(self, node: int, needs: NodeRequirements, *, preferred: Ints) -> NodeAllocation:
        """Return the GPUs to take on a node that has room: of several, those with the least of `preferred`."""
        if needs.shared:
            candidates = np.flatnonzero(self.units[node] >= needs.share[node])
            count = 1
        else:
            candidates = np.flatnonzero(self.units[node] == UNIT)
            count = needs.whole
        chosen = candidates[np.argsort(preferred[candidates], kind="stable")][:count]
        units = int(needs.share[node]) if needs.shared else UNIT
        return NodeAllocation(node, needs.cpus, units, tuple(sorted(int(gpu) for gpu in chosen)))


@dataclass(frozen=True)
class _Held:
    allocation: Allocation
    end: float
    sweep: str


class ClusterState:
    """A cluster and who holds what of it until when."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Start with everything free. Nodes are told apart by their ids and ranked by them."""
        self.nodes = tuple(sorted(nodes, key=lambda node: node.node_id))
        self.row = {node.node_id: i for i, node in enumerate(self.nodes)}
        self.cpus: Ints = np.array([node.cpus for node in self.nodes], dtype=np.int64)
        self.n_gpus: Ints = np.array([len(node.gpus) for node in self.nodes], dtype=np.int64)
        widest = int(self.n_gpus.max(initial=0))
        there = np.arange(widest)[None, :] < self.n_gpus[:, None]
        self.free = FreeResources(self.cpus.copy(), np.where(there, UNIT, 0).astype(np.int64))
        self._held: dict[str, _Held] = {}
        self._on: list[dict[str, tuple[float, NodeAllocation]]] = [{} for _ in self.nodes]
        self._used: dict[str, tuple[int, int]] = {}
        self._needs: dict[Demand, NodeRequirements] = {}
        self._alike: dict[tuple[object, ...], Demand] = {}
        self._ready: tuple[tuple[object, ...], Floats] = (), np.zeros(0)
        self._stale: set[int] = set()
        self._all_units = int(self.n_gpus.sum()) * UNIT
        self._all_cpus = int(self.cpus.sum())

    # -- who holds what ----------------------------------------------------------------------------------------

    def hold(self, trial_id: str, place: Allocation, *, end: float, sweep: str = "") -> None:
        """Note that a trial lies there until the predicted `end`."""
        self._held[trial_id] = _Held(place, end, sweep)
        for piece in place:
            self.free.take(piece)
            self._on[piece.node][trial_id] = (end, piece)
            self._stale.add(piece.node)
        self._use(sweep, place, 1)

    def release(self, trial_id: str) -> None:
        """Give back what a trial holds."""
        held = self._held.pop(trial_id)
        for piece in held.allocation:
            self.free.take(piece, times=-1)
            del self._on[piece.node][trial_id]
            self._stale.add(piece.node)
        self._use(held.sweep, held.allocation, -1)

    def _use(self, sweep: str, place: Allocation, times: int) -> None:
        units, cpus = self._used.get(sweep, (0, 0))
        units += times * sum(piece.units * len(piece.gpus) for piece in place)
        cpus += times * sum(piece.cpus for piece in place)
        self._used[sweep] = units, cpus

    def used(self) -> dict[str, tuple[int, int]]:
        """Return the units and cores that each sweep holds."""
        return dict(self._used)

    def share_of(self, units: int, cpus: int) -> float:
        """Return the dominant share of the cluster: of its GPUs or of its cores, whichever is more (Ghodsi et al. 2011)."""
        return max(units / max(1, self._all_units), cpus / max(1, self._all_cpus))

    def all_of(self, node: int) -> NodeAllocation:
        """Return the piece that is a whole node."""
        return NodeAllocation(
            node, int(self.cpus[node]), UNIT, tuple(range(int(self.n_gpus[node])))
        )

    # -- what a demand needs -----------------------------------------------------------------------------------

    def needs(self, demand: Demand) -> NodeRequirements:
        """Return what the demand takes of each node."""
        known = self._needs.get(demand)
        if known is None:
            known = self._needs[demand] = self._work_out(demand)
        return known

    def alike(self, demand: Demand) -> Demand:
        """Return the first demand seen that takes the same of every node: most memory needs make no difference to a place."""
        return self._alike.setdefault((demand.order, *self.needs(demand).alike), demand)

    def _work_out(self, demand: Demand) -> NodeRequirements:
        kinds: dict[tuple[int, int, float | None], list[int]] = {}
        for i, node in enumerate(self.nodes):
            kinds.setdefault((node.cpus, len(node.gpus), node.gpu_memory_bytes), []).append(i)
        fits = np.zeros(len(self.nodes), dtype=bool)
        share = np.full(len(self.nodes), demand.units, dtype=np.int64)
        gangs = []
        for alike in kinds.values():
            node = self.nodes[alike[0]]
            count = nodes_needed(demand, node, len(alike))
            fits[alike] = count == 1
            share[alike] = min(share_units(demand, node.gpu_memory_bytes), 2 * UNIT)
            if count is not None and count > 1:
                gangs.append((count, np.array(alike)))
        shared = 0 < demand.units < UNIT
        return NodeRequirements(
            least_share=int(share[fits].min(initial=2 * UNIT)) if shared else 0,
            cpus=demand.cpus,
            whole=0 if shared else demand.units // UNIT,
            shared=shared,
            share=share,
            fits=fits,
            # A gang spans nodes only where no single one could ever hold it.
            gangs=() if fits.any() else tuple(sorted(gangs, key=lambda gang: gang[0])),
        )

    # -- when there will be room -------------------------------------------------------------------------------

    def reserve(self, demand: Demand, now: float) -> "Reservation":
        """Return where and when a possible demand fits first, going by the predicted ends.

        Who has outstayed its prediction counts as ending now.
        """
        needs = self.needs(demand)
        ready = self._ready_at(needs)
        if needs.gangs:
            return self._reserve_gang(needs, ready, now)
        node = int(np.maximum(ready, now).argmin())
        at = max(now, float(ready[node]))
        cpus, units = self._free_at(node, at)
        then = FreeResources(np.array([cpus]), units[None, :])
        # Of the GPUs that are free then, those that are not free now: what is free now stays open to others.
        mine = then.pick(0, _only(needs, node), preferred=self.free.units[node])
        then.take(mine)
        return Reservation(at=at, spare={node: (int(then.cpus[0]), then.units[0])})

    def _reserve_gang(self, needs: NodeRequirements, ready: Floats, now: float) -> "Reservation":
        best: tuple[float, Ints] | None = None
        for count, alike in needs.gangs:
            order = alike[np.argsort(np.maximum(ready[alike], now), kind="stable")][:count]
            at = max(now, float(ready[order[-1]]))
            if best is None or at < best[0]:
                best = at, order
        assert best is not None, "the demand is possible"
        nothing = np.zeros(self.free.units.shape[1], dtype=np.int64)
        return Reservation(at=best[0], spare={int(node): (0, nothing) for node in best[1]})

    def _ready_at(self, needs: NodeRequirements) -> Floats:
        """Return when each node alone can hold the demand (its piece of a gang: when it is empty); kept between calls."""
        known, ready = self._ready
        if known != needs.alike:
            ready = np.full(len(self.nodes), NEVER)
            self._stale = set(range(len(self.nodes)))
        for node in self._stale:
            ready[node] = self._ready_on(node, needs)
        self._stale.clear()
        self._ready = needs.alike, ready
        return ready

    def _ready_on(self, node: int, needs: NodeRequirements) -> float:
        on = self._on[node]
        if needs.gangs:
            return max((end for end, _ in on.values()), default=AT_ONCE)
        if not needs.fits[node]:
            return NEVER
        cpus = int(self.free.cpus[node])
        units: list[int] = self.free.units[node].tolist()
        share = int(needs.share[node])
        # Of one GPU's units or of whole GPUs, whichever it needs: how much is free in the best place.
        most = max(units, default=0) if needs.shared else units.count(UNIT)
        least = share if needs.shared else needs.whole
        at = AT_ONCE
        for end, piece in sorted(on.values(), key=_by_end):
            if cpus >= needs.cpus and most >= least:
                return at
            at = end
            cpus += piece.cpus
            for gpu in piece.gpus:
                units[gpu] += piece.units
                if needs.shared:
                    most = max(most, units[gpu])
                else:
                    most += units[gpu] == UNIT
        return at

    def _free_at(self, node: int, at: float) -> tuple[int, Ints]:
        """Return the cores and units that are free on a node when all have ended that are predicted to by then."""
        cpus, units = int(self.free.cpus[node]), self.free.units[node].copy()
        for end, piece in self._on[node].values():
            if end <= at:
                cpus += piece.cpus
                units[list(piece.gpus)] += piece.units
        return cpus, units


@dataclass(frozen=True)
class Reservation:
    """Where a trial will start that does not fit now."""

    at: float
    spare: Mapping[int, tuple[int, Ints]]
    """On each of its nodes: the cores, and units per GPU, that it leaves to others then."""


def _by_end(held: tuple[float, NodeAllocation]) -> float:
    return held[0]


def _only(needs: NodeRequirements, node: int) -> NodeRequirements:
    """Return the needs on one node, as row 0."""
    row = slice(node, node + 1)
    return replace(needs, share=needs.share[row], fits=needs.fits[row], gangs=())
