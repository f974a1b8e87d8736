"""What is free while a place is reserved: for trials that end before the reserved start, and for all others."""

from dataclasses import dataclass, field, replace

import numpy as np

from orchestrator.scheduling.cluster_state import (
    Allocation,
    ClusterState,
    FreeResources,
    MaxFree,
    NodeRequirements,
    Reservation,
)


@dataclass
class BackfillCapacity:
    """Copies of what a room has free, from which a decision takes."""

    room: ClusterState
    now: FreeResources
    """For trials that end before the reserved start: all that is free."""
    beyond: FreeResources
    """For longer ones: on the reserved nodes only what is free now and left over then."""
    spare: dict[int, FreeResources]
    """What is left over then, one row per reserved node."""
    at: float | None
    """The reserved start; None without a reservation, and then both views are one."""
    _most: dict[bool, MaxFree] = field(default_factory=dict)

    @classmethod
    def of(cls, room: ClusterState, reservation: Reservation | None) -> "BackfillCapacity":
        """Return the views of a room before anything is taken."""
        now = room.free.copy()
        if reservation is None:
            return cls(room, now, now, {}, None)
        spare = {
            node: FreeResources(np.array([cpus]), units[None, :].copy())
            for node, (cpus, units) in reservation.spare.items()
        }
        views = cls(room, now, now.copy(), spare, reservation.at)
        for node in spare:
            views._limit(node)
        return views

    def find(self, needs: NodeRequirements, *, long: bool) -> Allocation | None:
        """Return the tightest place for a trial that ends before the reserved start, or is `long`."""
        return (self.beyond if long else self.now).find(needs, self.room)

    def most(self, *, long: bool) -> MaxFree:
        """Return the most that is free in one place, worked out again only after something was taken."""
        if long not in self._most:
            self._most[long] = (self.beyond if long else self.now).most()
        return self._most[long]

    def take(self, place: Allocation, *, long: bool) -> None:
        """Take a place that was found."""
        self._most.clear()
        for piece in place:
            self.now.take(piece)
            if self.at is None:
                continue
            if piece.node not in self.spare:
                self.beyond.take(piece)
                continue
            if long:
                self.spare[piece.node].take(replace(piece, node=0))
            self._limit(piece.node)

    def _limit(self, node: int) -> None:
        spare = self.spare[node]
        cpus = min(int(self.now.cpus[node]), int(spare.cpus[0]))
        self.beyond.set_row(node, cpus, self.now.units[node].clip(max=spare.units[0]))
