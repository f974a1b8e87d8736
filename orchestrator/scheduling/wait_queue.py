"""Who waits, longest predicted first within each class of trials that the policy cannot tell apart otherwise.

A decision looks at the heads of classes only, so it costs no more with ten thousand trials than with ten.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from orchestrator.scheduling.demand import Demand

QueueEntry = tuple[float, int, str]
"""Predicted seconds with a minus, place in the sweep file, trial id: sorts longest first."""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A trial that could start."""

    trial_id: str
    demand: Demand
    predicted_s: float
    not_before: float = 0.0
    """Seconds since 1970."""
    delay_reason: str = ""
    order: int = 0
    """Decides between equals: the place in the sweep file."""
    sweep: str = ""
    """Sweeps of one priority share the cluster evenly."""
    priority: int = 0
    """Higher ones go first."""
    prediction_group: str = ""
    """Trials whose predictions are corrected alike: architecture and size."""


class DemandClass:
    """Trials of one priority, sweep and demand, longest first."""

    def __init__(self, priority: int, sweep: str, demand: Demand) -> None:
        """Start empty."""
        self.priority = priority
        self.sweep = sweep
        self.demand = demand
        self.entries: list[QueueEntry] = []

    @property
    def rank(self) -> tuple[int, int, int]:
        """Sorts higher priorities first, then larger demands."""
        units, cpus = self.demand.order
        return -self.priority, -units, -cpus

    def first_within(self, seconds: float) -> int:
        """Return the position of the longest entry that is predicted to take `seconds` at most."""
        return bisect_left(self.entries, -seconds, key=lambda entry: entry[0])


class WaitQueue:
    """Waiting trials."""

    def __init__(
        self, waiting: Iterable[Waiting] = (), *, alike: Callable[[Demand], Demand] = lambda d: d
    ) -> None:
        """Take trials in any order.

        Args:
            waiting: The trials.
            alike: Returns one demand for all that find room in the same places (`ClusterState.alike`): the fewer, the quicker.
        """
        self._alike = alike
        self._trials = {trial.trial_id: trial for trial in waiting}
        self._ratios: dict[str, float] = {}
        self._classes: dict[tuple[int, str, Demand], DemandClass] = {}
        self._ranked: list[DemandClass] = []
        self._sort()

    def __len__(self) -> int:
        return len(self._trials)

    def __contains__(self, trial_id: str) -> bool:
        return trial_id in self._trials

    def __iter__(self) -> Iterator[DemandClass]:
        """Go through the classes that have trials, those of higher priority and larger demand first."""
        return (kind for kind in self._ranked if kind.entries)

    def remove(self, trial_id: str) -> None:
        """Take a trial out."""
        trial = self._trials.pop(trial_id)
        entries = self._classes[self._key(trial)].entries
        del entries[bisect_left(entries, self._entry(trial))]

    def prediction_groups(self) -> set[str]:
        """Return the paces of those that wait."""
        return {trial.prediction_group for trial in self._trials.values()}

    def correct(self, ratios: Mapping[str, float]) -> None:
        """Multiply predictions by a ratio for each pace, in the place of earlier ones."""
        if ratios != self._ratios:
            self._ratios = dict(ratios)
            self._sort()

    def _sort(self) -> None:
        self._classes.clear()
        for trial in self._trials.values():
            key = self._key(trial)
            kind = self._classes.get(key)
            if kind is None:
                kind = self._classes[key] = DemandClass(*key)
            kind.entries.append(self._entry(trial))
        for kind in self._classes.values():
            kind.entries.sort()
        self._ranked = sorted(self._classes.values(), key=lambda kind: kind.rank)

    def _entry(self, trial: Waiting) -> QueueEntry:
        seconds = trial.predicted_s * self._ratios.get(trial.prediction_group, 1.0)
        return -seconds, trial.order, trial.trial_id

    def _key(self, trial: Waiting) -> tuple[int, str, Demand]:
        return trial.priority, trial.sweep, self._alike(trial.demand)
