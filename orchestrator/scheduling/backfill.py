"""Backfill: what is free before and after the start of a reservation."""

import math
from dataclasses import replace

from orchestrator.scheduling.cluster_state import BackfillReservation, ClusterState
from orchestrator.scheduling.free_resources import Allocation, FreeResources, MaxFree
from orchestrator.scheduling.node_requirements import NodeRequirements


class BackfillCapacity:
    """Copies of what a cluster has free, from which one decision takes.

    A trial that ends before the reserved start may take all that is free. One that outlasts it may
    take, on the reserved nodes, only what is free now and also left over then.
    """

    def __init__(self, cluster: ClusterState, reservation: BackfillReservation | None) -> None:
        """Start with what is free in the cluster, which is not changed."""
        self._capacity = cluster.capacity
        self.free = cluster.free.copy()
        """All that is free: for trials that end before the reserved start."""
        self._start = math.inf if reservation is None else reservation.start
        self._left_over: dict[int, FreeResources] = {}
        self._free_after = self.free
        if reservation is not None:
            self._free_after = self.free.copy()
            for node, left_over in reservation.left_over.items():
                self._left_over[node] = left_over.copy()
                self._limit(node)
        self._max_free: dict[bool, MaxFree] = {}

    def outlasts(self, predicted_end: float) -> bool:
        """Return whether a trial that ends then would run past the reserved start."""
        return predicted_end > self._start

    def seconds_to_start(self, now: float) -> float:
        """Return how long it is until the reserved start; infinite without a reservation."""
        return self._start - now

    def find(self, needs: NodeRequirements, *, outlasts: bool) -> Allocation | None:
        """Return the tightest place for a trial, which `outlasts` the reserved start or not."""
        return (self._free_after if outlasts else self.free).find(needs, self._capacity)

    def max_free(self, *, outlasts: bool) -> MaxFree:
        """Return the most that is free in one place; computed again only after a take."""
        if outlasts not in self._max_free:
            free = self._free_after if outlasts else self.free
            self._max_free[outlasts] = free.max_free()
        return self._max_free[outlasts]

    def take(self, allocation: Allocation, *, outlasts: bool) -> None:
        """Take a place that was found."""
        self._max_free.clear()
        for part in allocation:
            self.free.take(part)
            if self._free_after is self.free:
                continue  # without a reservation both are one
            if part.node not in self._left_over:
                self._free_after.take(part)
                continue
            if outlasts:
                self._left_over[part.node].take(replace(part, node=0))
            self._limit(part.node)

    def _limit(self, node: int) -> None:
        """Set what is free after the start, on a reserved node, to the less of now and then."""
        then = self._left_over[node]
        cpus = min(int(self.free.cpus[node]), int(then.cpus[0]))
        self._free_after.set_node(node, cpus, self.free.units[node].clip(max=then.units[0]))
