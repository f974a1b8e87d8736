"""Liveness of controllers: which of those that wrote a controller.json still run.

On this machine the process is looked up. On another its heartbeat is watched, a count that grows:
clocks of machines differ and are set, so they are never compared.
"""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.records.json_files import read_json
from orchestrator.records.locks import STALE_S
from orchestrator.records.processes import ProcessId

FIRST_LOOK_S = 5.0
"""How long a first look at another machine's controller waits for its next heartbeat."""


def is_alive(place: Path, record: Mapping[str, Any] | None) -> bool:
    """Whether the controller that wrote a folder's controller.json still runs the sweep."""
    return place in living({place: record})


def living(records: Mapping[Path, Mapping[str, Any] | None]) -> frozenset[Path]:
    """Return the folders whose controller still runs, given the controller.json of each.

    On this machine the process is looked up, on another its heartbeat is watched.
    """
    found, elsewhere = set(), {}
    for place, record in records.items():
        if record is None or record.get("ended_at") is not None:
            continue
        process = ProcessId.from_json(record)
        if not process.here:
            elsewhere[place] = record
        elif process.alive():
            found.add(place)
    return frozenset(found | _WATCH.beating(elsewhere))


class HeartbeatWatch:
    """Tells which controllers of other machines live: those whose heartbeat changes."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Start without having seen any.

        Args:
            clock: Monotonic seconds of this process.
            sleep: Waits between two looks.
        """
        self._clock = clock
        self._sleep = sleep
        self._seen: dict[Path, tuple[Mapping[str, Any], float]] = {}
        """controller.json of a folder as last read, and when it was seen to change; -inf: never."""

    def beating(self, records: Mapping[Path, Mapping[str, Any]]) -> set[Path]:
        """Return the folders whose heartbeat has changed in the last STALE_S.

        Waits at most FIRST_LOOK_S for folders that were never looked at before.

        Args:
            records: controller.json of each folder as just read.
        """
        new = [place for place in records if place not in self._seen]
        for place, record in records.items():
            self._look(place, record)
        deadline = self._clock() + FIRST_LOOK_S
        while new and self._clock() < deadline:
            self._sleep(0.1)
            for place in new:
                self._look(place, read_json(place / "controller.json") or records[place])
            new = [place for place in new if self._seen[place][1] == -math.inf]
        now = self._clock()
        return {place for place in records if now - self._seen[place][1] < STALE_S}

    def _look(self, place: Path, record: Mapping[str, Any]) -> None:
        before, _ = self._seen.setdefault(place, (record, -math.inf))
        if _beat(record) != _beat(before):
            ended = record.get("ended_at") is not None
            self._seen[place] = record, -math.inf if ended else self._clock()


def _beat(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what changes with every heartbeat; records of earlier versions have no count."""
    return tuple(record.get(name) for name in ("host", "pid", "beat", "updated_at"))


_WATCH = HeartbeatWatch()
"""What this process has seen of controllers elsewhere, so that only a first look waits."""
