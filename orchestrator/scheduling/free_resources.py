"""Free resources of a cluster, and the search for the tightest place.

Nodes and their GPUs are rows and columns of small arrays, so a search costs microseconds whatever
the number of trials. Everything is exact: cores are whole, shares of a GPU are whole units.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.scheduling.demand import UNIT
from orchestrator.scheduling.node_requirements import Ints, NodeRequirements

_NOT_THERE = np.iinfo(np.int64).max


@dataclass(frozen=True)
class NodeAllocation:
    """Cores and GPUs of one node that a trial holds."""

    node: int
    """Row of the node."""
    cpus: int
    units: int
    """Of each of the GPUs below."""
    gpus: tuple[int, ...]
    """Columns of the GPUs."""


Allocation = tuple[NodeAllocation, ...]
"""Where a trial runs: on one node, or on several whole ones as a gang."""


@dataclass(frozen=True)
class ClusterCapacity:
    """Cores and GPUs of each node."""

    cpus: Ints
    n_gpus: Ints

    def whole_node(self, node: int) -> NodeAllocation:
        """Return the allocation of all that a node has."""
        gpus = tuple(range(int(self.n_gpus[node])))
        return NodeAllocation(node, int(self.cpus[node]), UNIT, gpus)


@dataclass(frozen=True)
class MaxFree:
    """The most that is free in one place, of each kind."""

    cpus: int
    whole_gpus: int
    units: int
    """Of one GPU."""

    def may_hold(self, needs: NodeRequirements) -> bool:
        """Return False if there is certainly no place, so that no search is needed."""
        if needs.gangs:
            return True
        return (
            needs.cpus <= self.cpus
            and needs.whole_gpus <= self.whole_gpus
            and needs.least_share <= self.units
        )


class FreeResources:
    """Free cores and GPU units per node. Small and quick to copy."""

    def __init__(self, cpus: Ints, units: Ints) -> None:
        """Take free cores per node, and free units per node and GPU (0 where there is no GPU)."""
        self.cpus = cpus
        self.units = units
        self.whole_gpus: Ints = (units == UNIT).sum(axis=1)
        self.total_units: Ints = units.sum(axis=1)

    def copy(self) -> "FreeResources":
        """Return a copy that can be changed on its own."""
        other = object.__new__(FreeResources)
        other.cpus, other.units = self.cpus.copy(), self.units.copy()
        other.whole_gpus, other.total_units = self.whole_gpus.copy(), self.total_units.copy()
        return other

    def take(self, part: NodeAllocation) -> None:
        """Take cores and GPUs of one node."""
        self._change(part, -1)

    def give_back(self, part: NodeAllocation) -> None:
        """Give back cores and GPUs of one node."""
        self._change(part, 1)

    def _change(self, part: NodeAllocation, times: int) -> None:
        node, change = part.node, times * part.units
        self.cpus[node] += times * part.cpus
        row = self.units[node]
        for gpu in part.gpus:
            before = int(row[gpu])
            row[gpu] = before + change
            self.whole_gpus[node] += (before + change == UNIT) - (before == UNIT)
        self.total_units[node] += change * len(part.gpus)

    def set_node(self, node: int, cpus: int, units: Ints) -> None:
        """Replace what is free on one node."""
        self.cpus[node] = cpus
        self.units[node] = units
        self.whole_gpus[node] = np.count_nonzero(units == UNIT)
        self.total_units[node] = units.sum()

    def max_free(self) -> MaxFree:
        """Return the most that is free in any place."""
        return MaxFree(
            cpus=int(self.cpus.max(initial=0)),
            whole_gpus=int(self.whole_gpus.max(initial=0)),
            units=int(self.units.max(initial=0)),
        )

    def find(self, needs: NodeRequirements, capacity: ClusterCapacity) -> Allocation | None:
        """Return the tightest place where a demand fits, None if there is none.

        One node comes before several. A fraction goes to the GPU that it leaves with the fewest
        units; all else to the node with the fewest free GPUs, then cores. Between equals the
        first in the list of nodes wins.
        """
        if needs.gangs:
            return self._find_gang(needs, capacity)
        if needs.is_share:
            return self._find_share(needs)
        fitting = needs.fits & (self.cpus >= needs.cpus)
        if needs.whole_gpus:
            fitting &= self.whole_gpus >= needs.whole_gpus
        tightness = np.where(fitting, self._tightness(), _NOT_THERE)
        node = int(tightness.argmin())
        if tightness[node] == _NOT_THERE:
            return None
        return (self.pick(node, needs, prefer_few=self.units[node]),)

    def _tightness(self) -> Ints:
        """Return a number per node that sorts by free units, then by free cores."""
        return self.total_units * 1_000_000 + self.cpus

    def _find_share(self, needs: NodeRequirements) -> Allocation | None:
        left = self.units - needs.share[:, None]
        fitting = needs.fits & (self.cpus >= needs.cpus) & (left.max(axis=1, initial=-1) >= 0)
        rows = np.flatnonzero(fitting)
        if not len(rows):
            return None
        # One number per GPU that sorts by the units it is left with, then by its node. It is
        # computed for fitting nodes only, to save time.
        left = left[rows]
        tightness = left * 10**12 + self._tightness()[rows][:, None]
        best = int(np.where(left >= 0, tightness, _NOT_THERE).argmin())
        row, gpu = divmod(best, left.shape[1])
        node = int(rows[row])
        return (NodeAllocation(node, needs.cpus, int(needs.share[node]), (gpu,)),)

    def _find_gang(self, needs: NodeRequirements, capacity: ClusterCapacity) -> Allocation | None:
        empty = self.empty_nodes(capacity)
        for gang in needs.gangs:
            nodes = gang.nodes[empty[gang.nodes]]
            if len(nodes) >= gang.n_nodes:
                return tuple(capacity.whole_node(int(node)) for node in nodes[: gang.n_nodes])
        return None

    def empty_nodes(self, capacity: ClusterCapacity) -> NDArray[np.bool_]:
        """Return for each node whether nothing of it is taken."""
        no_core_taken: NDArray[np.bool_] = self.cpus == capacity.cpus
        no_gpu_taken: NDArray[np.bool_] = self.whole_gpus == capacity.n_gpus
        return np.logical_and(no_core_taken, no_gpu_taken)

    def pick(self, node: int, needs: NodeRequirements, *, prefer_few: Ints) -> NodeAllocation:
        """Return the GPUs to take on a node that has room.

        Args:
            node: Its row.
            needs: What is taken.
            prefer_few: Of several GPUs that would do, those with the lowest values are taken.
        """
        units = int(needs.share[node]) if needs.is_share else UNIT
        count = 1 if needs.is_share else needs.whole_gpus
        # A whole GPU has exactly UNIT free units, so one comparison serves both.
        # Lists: so few numbers take an array five times as long.
        free: list[int] = self.units[node].tolist()
        candidates = [gpu for gpu, left in enumerate(free) if left >= units]
        chosen = sorted(candidates, key=prefer_few.tolist().__getitem__)[:count]
        return NodeAllocation(node, needs.cpus, units, tuple(sorted(chosen)))
