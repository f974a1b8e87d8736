"""What a rank tells while it works: measurements to the journal, progress to heartbeat.json; and whether to stop.

`RankReporter` is the runner's side of `workloads.ports.Reporter`.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrator.journal import Journal
from orchestrator.processes import ProcessId
from orchestrator.rank import RankRequest
from orchestrator.trial_dir import write_json

HEARTBEAT_S = 1.0
"""How often heartbeat.json is replaced at most."""


class Stop:
    """Whether somebody asked this process to checkpoint and leave."""

    def __init__(self) -> None:
        """Nobody did yet."""
        self.requested = False

    def request(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self.requested = True


@contextmanager
def stops_on_signal(stop: Stop) -> Iterator[None]:
    """Turn SIGTERM and SIGINT into a request to checkpoint and leave."""
    before = {
        number: signal.signal(number, stop.request) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class RankReporter:
    """Sends what a rank measures to the trial directory. Ranks other than 0 only listen for a stop."""

    def __init__(
        self,
        request: RankRequest,
        stop: Stop | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the journal (rank 0)."""
        self._request = request
        self._stop = stop or Stop()
        self._clock = clock
        self._journal = (
            Journal(request.attempt_dir.journal, clock=clock) if request.rank == 0 else None
        )
        self._values: dict[str, float] = {}
        self._beat_at = -HEARTBEAT_S
        self._beat_phase: str | None = None
        self.step = 0
        self.steps = 0

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Append measurements to the journal."""
        if self._journal is not None:
            self._journal.metrics(step, values)

    def checkpoint(self, step: int, path: Path) -> None:
        """Put everything up to this checkpoint on the disk: a resume must find no gap before it."""
        if self._journal is not None:
            self._journal.event("checkpoint", step=step, path=path.name)
            self._journal.sync()

    def progress(self, step: int, steps: int, phase: str, values: Mapping[str, float]) -> None:
        """Replace heartbeat.json, about once a second and at every change of phase."""
        self.step, self.steps = step, steps
        self._values.update(values)
        now = self._clock()
        if now - self._beat_at >= HEARTBEAT_S or phase != self._beat_phase:
            self._beat_at, self._beat_phase = now, phase
            self._beat(phase)

    def should_stop(self) -> bool:
        """Whether SIGTERM or SIGINT came."""
        return self._stop.requested

    def event(self, name: str, **fields: Any) -> None:
        """Append an event to the journal (rank 0)."""
        if self._journal is not None:
            self._journal.event(name, **fields)

    def close(self) -> None:
        """Put the journal on the disk, and leave the last step in heartbeat.json."""
        if self._journal is not None:
            self._journal.close()
        if self._beat_phase is not None:
            self._beat(self._beat_phase)

    def _beat(self, phase: str) -> None:
        if self._request.rank != 0:
            return
        write_json(
            self._request.trial.path / "heartbeat.json",
            {
                "attempt": self._request.attempt,
                "pid": os.getpid(),
                "host": ProcessId.own().host,
                "step": self.step,
                "steps": self.steps,
                "phase": phase,
                "loss": _number(self._values, "loss", "train/loss"),
                "tokens_per_s": _number(self._values, "tokens_per_s", "train/tokens_per_s"),
                "updated_at": self._clock(),
            },
            durable=False,
        )


def _number(values: Mapping[str, float], *names: str) -> float | None:
    return next((float(values[name]) for name in names if name in values), None)
