"""Scheduling policy: a pure function shared by controller and simulator.

It decides which waiting trial starts where. Rules, in this order:

1. Higher priorities go before lower ones.
2. The trial with the largest demand (GPUs, then cores) of the highest priority is *next in line*.
   It starts as soon as it fits. Until then the place where it will fit first is reserved: nothing
   may start that would move its start back, by the predicted ends. So a stream of small trials
   cannot starve a large one, even when predictions are wrong: an overdue trial is assumed to end
   now, and then nothing new gets in front.
3. Of all others the sweep that holds the least of the cluster goes first. Of one sweep those go
   first that have begun, then the longest predicted. All start wherever they fit under that
   condition (backfill).
4. A trial runs on one node if any node could hold it, else on the fewest whole nodes that do. It
   gets the node that is left with the fewest free GPUs, then cores; a fraction gets the GPU that is
   left with the least.

A decision looks at the heads of classes (`DemandClass`), never at all trials, and at each demand
only until it does not fit. Its cost grows with the number of different demands and of nodes, not
with the number of trials.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from orchestrator.scheduling.backfill import BackfillCapacity
from orchestrator.scheduling.cluster_state import ClusterState, HeldResources
from orchestrator.scheduling.demand import Demand
from orchestrator.scheduling.free_resources import Allocation, FreeResources
from orchestrator.scheduling.wait_queue import DemandClass, QueueEntry, WaitQueue, begun_first

SHORTEST_S = 1.0
"""Least predicted run time: a prediction of 0 must not let a trial slip past the reservation."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A trial that starts now."""

    trial_id: str
    allocation: Allocation
    predicted_end: float
    """Seconds of the caller's clock."""
    sweep: str


@dataclass(frozen=True, kw_only=True)
class NextInLine:
    """The trial that a place is reserved for."""

    trial_id: str
    demand: Demand
    start: float
    """Predicted, seconds of the caller's clock."""
    nodes: tuple[int, ...]
    """Rows of the reserved nodes."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Which trials start, and for which one a place is reserved."""

    starts: tuple[Start, ...]
    next_in_line: NextInLine | None
    free: FreeResources
    """What is left free once they have started."""


def decide(cluster: ClusterState, queue: WaitQueue, now: float) -> Decision:
    """Return which trials start now. Changes nothing.

    Args:
        cluster: The nodes and what runs on them.
        queue: Who waits; trials that the empty cluster could not hold are passed over.
        now: Seconds of the caller's clock.
    """
    classes = [one for one in queue if cluster.requirements(one.demand).possible]
    if not classes:
        return Decision(starts=(), next_in_line=None, free=cluster.free)
    # Next in line starts now if it fits, without any backfill limit; else its place is reserved.
    largest = _class_next_in_line(classes)
    first = largest.entries[0]
    needs = cluster.requirements(largest.demand)
    allocation = cluster.free.find(needs, cluster.capacity)
    reservation = None if allocation is not None else cluster.reserve(largest.demand, now)
    draft = _DecisionDraft(cluster, BackfillCapacity(cluster, reservation), classes, now)
    if allocation is not None:
        draft.start(largest, first, allocation, outlasts=True)
    draft.backfill(classes, without=first)
    next_in_line = None
    if reservation is not None:
        next_in_line = NextInLine(
            trial_id=first.trial.trial_id,
            demand=largest.demand,
            start=reservation.start,
            nodes=tuple(reservation.left_over),
        )
    return Decision(starts=tuple(draft.starts), next_in_line=next_in_line, free=draft.capacity.free)


def _class_next_in_line(classes: Sequence[DemandClass]) -> DemandClass:
    """Return the class whose first trial is next in line: of the largest demands the first."""
    largest = takewhile(lambda one: one.rank == classes[0].rank, classes)
    return min(largest, key=lambda one: begun_first(one.entries[0]))


class _Candidate(NamedTuple):
    """A trial of a class that may start; the one of the smallest rank is tried first."""

    rank: tuple[int, float, tuple[bool, float, int, str]]
    """Priority, share of its sweep, `begun_first`; unique, so that nothing else is compared."""
    share: float
    """Dominant share of its sweep when it became a candidate."""
    waiting: DemandClass
    position: int
    """In the entries of the class."""


class _DecisionDraft:
    """The starts of one decision, and what they leave free."""

    def __init__(
        self,
        cluster: ClusterState,
        capacity: BackfillCapacity,
        classes: Sequence[DemandClass],
        now: float,
    ) -> None:
        self._cluster = cluster
        self._now = now
        self._usage = {sweep: cluster.usage(sweep) for sweep in {one.sweep for one in classes}}
        self._share = {sweep: cluster.dominant_share(usage) for sweep, usage in self._usage.items()}
        self.capacity = capacity
        self.starts: list[Start] = []

    def start(
        self, waiting: DemandClass, entry: QueueEntry, allocation: Allocation, *, outlasts: bool
    ) -> None:
        """Start a trial of a class; `outlasts`: its predicted end is after the reserved start."""
        self.capacity.take(allocation, outlasts=outlasts)
        sweep = waiting.sweep
        self._usage[sweep] += HeldResources.of(allocation)
        self._share[sweep] = self._cluster.dominant_share(self._usage[sweep])
        self.starts.append(
            Start(
                trial_id=entry.trial.trial_id,
                allocation=allocation,
                predicted_end=self._predicted_end(entry),
                sweep=sweep,
            )
        )

    def backfill(self, classes: Sequence[DemandClass], *, without: QueueEntry) -> None:
        """Start all that fits without delaying the reserved start, `without` next in line."""
        candidates: list[_Candidate] = []

        def push(waiting: DemandClass, position: int) -> None:
            if position < len(waiting.entries) and waiting.entries[position] is without:
                position += 1
            if position < len(waiting.entries):
                share = self._share[waiting.sweep]
                rank = -waiting.priority, share, begun_first(waiting.entries[position])
                heapq.heappush(candidates, _Candidate(rank, share, waiting, position))

        # On a full cluster most classes are ruled out by one comparison each.
        max_free = self.capacity.max_free(outlasts=False)
        for one in classes:
            if max_free.may_hold(self._cluster.requirements(one.demand)):
                push(one, 0)
        # Demands that did not fit once do not fit later in this decision: it only takes.
        full: set[tuple[Demand, bool]] = set()
        while candidates:
            _, share, waiting, position = heapq.heappop(candidates)
            if share < self._share[waiting.sweep]:
                # Its sweep has started a trial meanwhile, and may not be the next any more.
                push(waiting, position)
                continue
            entry = waiting.entries[position]
            outlasts = self.capacity.outlasts(self._predicted_end(entry))
            allocation = None
            if (waiting.demand, outlasts) not in full:
                allocation = self._find(waiting.demand, outlasts=outlasts)
            if allocation is not None:
                self.start(waiting, entry, allocation, outlasts=outlasts)
                push(waiting, position + 1)
                continue
            full.add((waiting.demand, outlasts))
            if outlasts and (left_s := self.capacity.seconds_to_start(self._now)) >= SHORTEST_S:
                # Shorter ones of the class may still end before the reserved start.
                push(waiting, waiting.first_within(left_s, start=position + 1))

    def _find(self, demand: Demand, *, outlasts: bool) -> Allocation | None:
        needs = self._cluster.requirements(demand)
        if not self.capacity.max_free(outlasts=outlasts).may_hold(needs):
            return None
        return self.capacity.find(needs, outlasts=outlasts)

    def _predicted_end(self, entry: QueueEntry) -> float:
        return self._now + max(SHORTEST_S, entry.predicted_s)
