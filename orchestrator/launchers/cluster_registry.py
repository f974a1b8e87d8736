"""Registry of the sweeps of one cluster: entries in its key-value store.

Every controller replaces its own entry about once a second and reads the others'. Nobody deletes
another's. An entry that has not changed for a while, by the reader's own clock, counts as left
behind by a controller that was killed.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Protocol

from orchestrator.scheduling.fair_share import SweepUsage

SILENT_S = 30.0
"""How long an entry may stay unchanged. A controller may be busy starting a trial for seconds."""


class KeyValueStore(Protocol):
    """Named values that all nodes of a cluster see."""

    def put(self, name: str, value: bytes) -> None:
        """Set or replace the value of a name."""

    def get_all(self) -> dict[str, bytes]:
        """Return all values by name."""

    def delete(self, name: str) -> None:
        """Delete a name, if it is there."""


class ClusterRegistry:
    """One sweep's entry, and what it reads of the others'."""

    def __init__(
        self, store: KeyValueStore, sweep: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Write nothing yet.

        Args:
            store: Of the cluster.
            sweep: Name of the entry: the sweep's folder.
            clock: Seconds.
        """
        self._store = store
        self._sweep = sweep
        self._clock = clock
        self._seen: dict[str, tuple[bytes, float]] = {}
        """Entries of all sweeps, and since when each has not changed."""
        self._beat = 0
        """Number of the last exchange: so an entry changes even where the usage does not."""
        self._started = 0
        """Trials that this sweep had started at the last exchange."""
        self._turn = 0
        """As in `SweepUsage`."""

    def exchange(self, usage: SweepUsage) -> tuple[SweepUsage, list[SweepUsage]]:
        """Write this sweep's entry; return it, with name and turn, and the other live sweeps'."""
        others = self._others()
        if usage.started > self._started:
            self._started = usage.started
            self._turn = 1 + max(self._turn, *(other.turn for other in others), 0)
        own = replace(usage, sweep=self._sweep, turn=self._turn)
        self._beat += 1
        self._store.put(self._sweep, json.dumps({"beat": self._beat, **asdict(own)}).encode())
        return own, others

    def leave(self) -> None:
        """Delete this sweep's entry."""
        self._store.delete(self._sweep)

    def _others(self) -> list[SweepUsage]:
        now = self._clock()
        found: list[SweepUsage] = []
        entries = self._store.get_all()
        for name, entry in entries.items():
            before, since = self._seen.get(name, (None, now))
            since = since if before == entry else now
            self._seen[name] = entry, since
            if name != self._sweep and now - since <= SILENT_S:
                found += _read(entry)
        self._seen = {name: seen for name, seen in self._seen.items() if name in entries}
        return found


def _read(entry: bytes) -> Sequence[SweepUsage]:
    """Return the usage in an entry, nothing for an entry of another version."""
    try:
        record = json.loads(entry)
        del record["beat"]
        return [SweepUsage.from_json(record)]
    except (ValueError, TypeError, KeyError):
        return []
