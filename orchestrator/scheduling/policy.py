"""Which waiting trial starts where. One pure function: (room, queue, now) -> decision; simulator and controller call it alike.

Rules, in this order:

1. Higher priorities go before lower ones.
2. The trial with the largest demand (GPUs, then cores) of the highest priority is *next in line*. It starts as soon
   as it fits. Until then the place where it will fit first is reserved: nothing may start that would move its start
   back, going by the predicted ends. So a stream of small trials cannot starve a large one, even when predictions are
   wrong: a trial that has outstayed its prediction counts as ending now, and then nothing new gets in front.
3. Of all others the sweep that holds the least of the cluster goes first, and of one sweep the longest predicted,
   wherever they fit, under that condition (backfill).
4. A trial lies on one node if any node could hold it, else on the fewest whole nodes that do. Among nodes the one that
   is left with the fewest free GPUs, then cores; a fraction goes to the GPU with the least room that still holds it.

A decision looks at the heads of classes (`DemandClass`), never at all trials, and at each demand only until it does
not fit: its cost grows with the number of different demands and of nodes, not with the number of trials.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from orchestrator.scheduling.backfill import BackfillCapacity
from orchestrator.scheduling.cluster_state import Allocation, ClusterState, FreeResources
from orchestrator.scheduling.demand import Demand
from orchestrator.scheduling.wait_queue import DemandClass, QueueEntry, WaitQueue

SHORTEST_S = 1.0
"""Nothing ends in no time: a prediction of 0 must not let a trial slip in front of the reservation."""


@dataclass(frozen=True)
class Start:
    """A trial that starts now."""

    trial_id: str
    allocation: Allocation
    end: float
    """Predicted, seconds since 1970."""
    sweep: str


@dataclass(frozen=True)
class NextInLine:
    """The trial that a place is kept for."""

    trial_id: str
    demand: Demand
    at: float
    """Predicted start, seconds since 1970."""
    nodes: tuple[int, ...] = ()
    """Rows of the nodes where room is kept."""


@dataclass(frozen=True)
class Decision:
    """Who starts, and for whom room is kept."""

    starts: tuple[Start, ...]
    next_in_line: NextInLine | None
    free: FreeResources
    """What is left free once they have started."""


def decide(room: ClusterState, queue: WaitQueue, now: float) -> Decision:
    """Return who starts now. Changes nothing; the same room and queue give the same decision.

    Args:
        room: The cluster and what runs.
        queue: Who waits; trials that no empty cluster of this kind holds are passed over.
        now: Seconds since 1970.
    """
    kinds = [(kind, needs) for kind in queue if (needs := room.needs(kind.demand)).possible]
    if not kinds:
        return Decision((), None, room.free)
    line = _next_in_line([kind for kind, _ in kinds])
    first = line.entries[0]
    place = room.free.find(room.needs(line.demand), room)
    reservation = None if place is not None else room.reserve(line.demand, now)
    views = BackfillCapacity.of(room, reservation)
    used = room.used()
    shares = {
        sweep: room.share_of(*used.get(sweep, (0, 0)))
        for sweep in {kind.sweep for kind, _ in kinds}
    }
    starts: list[Start] = []

    def start(kind: DemandClass, entry: QueueEntry, place: Allocation, *, long: bool) -> None:
        views.take(place, long=long)
        units, cpus = used.get(kind.sweep, (0, 0))
        units += sum(piece.units * len(piece.gpus) for piece in place)
        used[kind.sweep] = units, cpus + sum(piece.cpus for piece in place)
        shares[kind.sweep] = room.share_of(*used[kind.sweep])
        starts.append(Start(entry[2], place, _end(entry, now), kind.sweep))

    heads: list[tuple[int, float, QueueEntry, int, int]] = []

    def push(number: int, position: int) -> None:
        kind, _ = kinds[number]
        if position < len(kind.entries) and kind.entries[position] is first:
            position += 1
        if position < len(kind.entries):
            entry = kind.entries[position]
            heapq.heappush(heads, (-kind.priority, shares[kind.sweep], entry, number, position))

    if place is not None:
        start(line, first, place, long=True)
    most = views.most(long=False)
    for number, (_, needs) in enumerate(kinds):
        if most.may_hold(needs):
            push(number, 0)
    full: set[tuple[Demand, bool]] = set()
    while heads:
        _, share, entry, number, position = heapq.heappop(heads)
        kind, needs = kinds[number]
        if share < shares[kind.sweep]:  # its sweep has got more meanwhile
            push(number, position)
            continue
        long = views.at is not None and _end(entry, now) > views.at
        fits = None
        if (kind.demand, long) not in full and views.most(long=long).may_hold(needs):
            fits = views.find(needs, long=long)
        if fits is not None:
            start(kind, entry, fits, long=long)
            push(number, position + 1)
            continue
        full.add((kind.demand, long))
        if long and views.at is not None and views.at - now >= SHORTEST_S:
            push(number, max(position + 1, kind.first_within(views.at - now)))
    return Decision(
        starts=tuple(starts),
        next_in_line=NextInLine(first[2], line.demand, reservation.at, tuple(reservation.spare))
        if reservation
        else None,
        free=views.now,
    )


def _next_in_line(kinds: Sequence[DemandClass]) -> DemandClass:
    """Return whose first trial is next in line: of the largest demands the longest."""
    equals = takewhile(lambda kind: kind.rank == kinds[0].rank, kinds)
    return min(equals, key=lambda kind: kind.entries[0])


def _end(entry: QueueEntry, now: float) -> float:
    return now + max(SHORTEST_S, -entry[0])
