"""Who runs a sweep and who trains a trial: locks that vanish with their holder.

A lock is a flock on a file, so that a SIGKILL releases it. Beside the sweep's lock, controller.json says who
holds it, for people and for `memscale status`; it alone never decides.
"""

import fcntl
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator import disk
from orchestrator.errors import BusyError
from orchestrator.processes import ProcessId
from orchestrator.trial_dir import SweepDir, TrialDir, write_json

HEARTBEAT_S = 1.0
"""How often controller.json is replaced."""
STALE_S = 60.0
"""Silence after which a controller on another machine counts as dead. Generous: clocks of two machines differ."""


class LeaseHeld(Exception):
    """Another process trains this trial."""


def is_alive(record: Mapping[str, Any] | None, *, now: float | None = None) -> bool:
    """Whether the controller that wrote this controller.json still runs the sweep.

    On this machine the process is looked up; on another one its heartbeat must be younger than STALE_S.
    """
    if record is None or record.get("ended_at") is not None:
        return False
    process = ProcessId.from_json(record)
    if process.here:
        return process.alive()
    return (time.time() if now is None else now) - float(record["updated_at"]) < STALE_S


class ControllerLease:
    """The right to run a sweep. One process at a time holds it."""

    def __init__(
        self, sweep: SweepDir, *, submission: int, clock: Callable[[], float] = time.time
    ) -> None:
        """Prepare; nothing is taken yet."""
        self._sweep = sweep
        self._clock = clock
        self._lock: int | None = None
        self._record: dict[str, Any] = {**ProcessId.own().to_json(), "submission": submission}

    def acquire(self) -> None:
        """Take the lock and write controller.json.

        Raises:
            BusyError: If another live controller holds it; says which and what to do.
        """
        self._sweep.path.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._sweep.path / "controller.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            other = self._sweep.controller() or {}
            raise BusyError(
                f"sweep {self._sweep.name}: process {other.get('pid', '?')} on {other.get('host', '?')} runs it already; "
                f"watch it with `memscale status {self._sweep.name}`, or end it and submit again"
            ) from None
        self._lock = lock
        self._record["started_at"] = self._clock()
        self.beat({})

    def beat(self, fields: Mapping[str, Any]) -> None:
        """Replace controller.json: still here, and this is what status readers need beyond the trial directories.

        It never decides anything, so a full disk is no reason to stop: the next beat tries again.
        """
        self._record = {**self._record, **fields, "updated_at": self._clock()}
        try:
            write_json(self._sweep.path / "controller.json", self._record)
        except OSError as error:
            if not disk.is_full(error):
                raise

    def release(self) -> None:
        """Say that the controller ended and let go of the lock."""
        if self._lock is None:
            return
        self.beat({"ended_at": self._clock()})
        os.close(self._lock)
        self._lock = None


class TrialLease:
    """The right to train a trial: held by its rank 0, released by its death."""

    def __init__(self, trial: TrialDir) -> None:
        """Prepare; nothing is taken yet."""
        self._path: Path = trial.path / "lease.lock"
        self._lock: int | None = None

    def acquire(
        self,
        *,
        wait_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take the lock, waiting for a predecessor that is about to die.

        Raises:
            LeaseHeld: If it is still held after `wait_s` seconds.
        """
        lock = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        deadline = clock() + wait_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if clock() >= deadline:
                    os.close(lock)
                    raise LeaseHeld(
                        f"{self._path}: another process still trains this trial after {wait_s:.0f} s; "
                        "end it (its pid is in heartbeat.json) and submit again"
                    ) from None
                sleep(0.1)
            else:
                self._lock = lock
                return

    def release(self) -> None:
        """Let go of the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
