"""Wait queue: classes of equal priority, sweep and demand, each in order.

Trials that have begun go before fresh ones, and of each the longest first.

A decision looks at the heads of classes only, so it costs no more with ten thousand trials than
with ten.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.scheduling.demand import Demand


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A trial that could start."""

    trial_id: str
    demand: Demand
    predicted_s: float
    begun: bool = False
    """Whether it goes on from a checkpoint."""
    not_before: float = 0.0
    """Seconds of the caller's clock."""
    delay_reason: str = ""
    """Why it may not start before that."""
    order: int = 0
    """Decides between equals: the place in the sweep file."""
    sweep: str = ""
    """Sweeps of one priority share the cluster evenly."""
    priority: int = 0
    """Higher ones go first."""
    prediction_group: str = ""
    """The group whose measured run times correct the prediction."""


class QueueEntry(NamedTuple):
    """A waiting trial with its corrected prediction."""

    trial: Waiting
    predicted_s: float


def begun_first(entry: QueueEntry) -> tuple[bool, float, int, str]:
    """Return the sort key of entries: begun first, then the longest, then by place in the file."""
    trial = entry.trial
    return not trial.begun, -entry.predicted_s, trial.order, trial.trial_id


class DemandClass:
    """Trials of one priority, sweep and demand, in the order of `begun_first`."""

    def __init__(self, priority: int, sweep: str, demand: Demand) -> None:
        """Start empty."""
        self.priority = priority
        self.sweep = sweep
        self.demand = demand
        self.entries: list[QueueEntry] = []

    @property
    def rank(self) -> tuple[int, int, int]:
        """Sort key: higher priorities first, then larger demands."""
        units, cpus = self.demand.size
        return -self.priority, -units, -cpus

    def first_within(self, seconds: float, *, start: int) -> int:
        """Return the first position from `start` on that is predicted to take at most `seconds`."""
        first_fresh = bisect_left(self.entries, True, key=lambda entry: not entry.trial.begun)
        # Of the begun, and of the fresh ones, the longest stand first.
        for end in (first_fresh, len(self.entries)):
            if start < end:
                start = bisect_left(
                    self.entries, -seconds, start, end, key=lambda entry: -entry.predicted_s
                )
            if start < end:
                break
        return start


class WaitQueue:
    """Waiting trials."""

    def __init__(
        self,
        waiting: Iterable[Waiting] = (),
        *,
        representative: Callable[[Demand], Demand] = lambda demand: demand,
    ) -> None:
        """Take trials in any order.

        Args:
            waiting: The trials.
            representative: Returns one demand for all that fit in the same places
                (`ClusterState.representative`): the fewer classes, the quicker.
        """
        self._representative = representative
        self._trials = {trial.trial_id: trial for trial in waiting}
        self._ratios: dict[str, float] = {}
        self._classes: dict[tuple[int, str, Demand], DemandClass] = {}
        for trial in self._trials.values():
            key = self._key(trial)
            if key not in self._classes:
                self._classes[key] = DemandClass(*key)
            self._classes[key].entries.append(self._entry(trial))
        for one in self._classes.values():
            one.entries.sort(key=begun_first)
        self._ranked = sorted(self._classes.values(), key=lambda one: one.rank)

    def __iter__(self) -> Iterator[DemandClass]:
        """Iterate over the classes that have trials, in the order of their ranks."""
        return (one for one in self._ranked if one.entries)

    def remove(self, trial_id: str) -> None:
        """Take a trial out."""
        trial = self._trials.pop(trial_id)
        entries = self._classes[self._key(trial)].entries
        position = bisect_left(entries, begun_first(self._entry(trial)), key=begun_first)
        del entries[position]

    def add(self, trial: Waiting) -> None:
        """Put a trial in that is not there."""
        self._trials[trial.trial_id] = trial
        key = self._key(trial)
        if key not in self._classes:
            self._classes[key] = DemandClass(*key)
            self._ranked = sorted(self._classes.values(), key=lambda one: one.rank)
        insort(self._classes[key].entries, self._entry(trial), key=begun_first)

    def prediction_groups(self) -> set[str]:
        """Return the prediction groups of those that wait."""
        return {trial.prediction_group for trial in self._trials.values()}

    def correct(self, ratios: Mapping[str, float]) -> None:
        """Multiply first predictions by a ratio per prediction group, instead of earlier ratios."""
        if ratios == self._ratios:
            return
        self._ratios = dict(ratios)
        for one in self._ranked:
            one.entries = sorted((self._entry(e.trial) for e in one.entries), key=begun_first)

    def _entry(self, trial: Waiting) -> QueueEntry:
        predicted_s = trial.predicted_s * self._ratios.get(trial.prediction_group, 1.0)
        return QueueEntry(trial, predicted_s)

    def _key(self, trial: Waiting) -> tuple[int, str, Demand]:
        return trial.priority, trial.sweep, self._representative(trial.demand)
