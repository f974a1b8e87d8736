"""The record by which the sweeps of one cluster know of each other: a line each, in a store that the cluster has anyway.

Every controller replaces its own line about once a second and reads the others'. Nobody deletes another's; a line that
has not changed for a while, by the reader's own clock, counts as left behind by a controller that was killed.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from orchestrator.scheduling.fair_share import SweepUsage

SILENT_S = 30.0
"""After which a line that does not change is nobody's. A controller may be busy starting a trial for some seconds."""


class KeyValueStore(Protocol):
    """Named values that all machines of a cluster see."""

    def put(self, name: str, value: bytes) -> None:
        """Set a value."""

    def get_all(self) -> dict[str, bytes]:
        """Return all values by name."""

    def delete(self, name: str) -> None:
        """Remove a value; fine if there is none."""


@dataclass
class _Seen:
    line: bytes
    since: float


class ClusterRegistry:
    """One sweep's line, and what it reads of the others'."""

    def __init__(
        self, store: KeyValueStore, sweep: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Write nothing yet.

        Args:
            store: Of the cluster.
            sweep: What names the line: the sweep's folder.
            clock: Seconds.
        """
        self._store = store
        self._sweep = sweep
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        self._beat = 0
        self._started = 0
        self._turn = 0

    def exchange(self, standing: SweepUsage) -> tuple[SweepUsage, list[SweepUsage]]:
        """Write one's own line and return it, with name and turn, and those of the others who are there."""
        others = self._others()
        if standing.started > self._started:
            self._started = standing.started
            self._turn = 1 + max(self._turn, *(other.turn for other in others), 0)
        own = replace(standing, sweep=self._sweep, turn=self._turn)
        self._beat += 1
        self._store.put(self._sweep, json.dumps({"beat": self._beat, **asdict(own)}).encode())
        return own, others

    def leave(self) -> None:
        """Take one's own line away."""
        self._store.delete(self._sweep)

    def _others(self) -> list[SweepUsage]:
        now = self._clock()
        found: list[SweepUsage] = []
        lines = self._store.get_all()
        for name, line in lines.items():
            seen = self._seen.get(name)
            if seen is None or seen.line != line:
                seen = self._seen[name] = _Seen(line=line, since=now)
            if name != self._sweep and now - seen.since <= SILENT_S:
                found += _read(line)
        self._seen = {name: seen for name, seen in self._seen.items() if name in lines}
        return found


def _read(line: bytes) -> Sequence[SweepUsage]:
    """Return the standing in a line, nothing for a line of another version."""
    try:
        record = json.loads(line)
        del record["beat"]
        return [SweepUsage.from_json(record)]
    except (ValueError, TypeError, KeyError):
        return []
