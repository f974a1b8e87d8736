"""Exporter as a child process: started beside a sweep, drained at its end."""

import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.records.code_snapshot import with_code
from orchestrator.records.locks import locked
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.units import plural
from orchestrator.tracking import sync_state
from orchestrator.tracking.tracking_uri import default_tracking_uri

DRAIN_S = 120.0
"""How long the end of a sweep may wait for a slow tracker. For one that is down:
`exporter.OUTAGE_S`."""
RESTART_S = 30.0
"""Between two starts while a sweep runs: one that dies at once would only slow training."""


@dataclass(frozen=True, kw_only=True)
class DrainResult:
    """Result of a drain."""

    points_waiting: int
    """Points the tracker lacks; the journals have them, the next `submit` or `sync` sends them."""
    problem: str | None
    """Why, in one sentence; None if everything was sent."""

    @property
    def complete(self) -> bool:
        """Whether the tracker has everything."""
        return self.points_waiting == 0 and self.problem is None

    @property
    def missing(self) -> str:
        """What the tracker lacks: points, or only tags, files or params."""
        return plural(self.points_waiting, "point") if self.points_waiting else "part of the sweep"


class ExporterProcess:
    """The exporter of a sweep. Ends when this process does, however that happens."""

    drained: DrainResult | None = None
    """None until the end."""

    def __init__(
        self,
        sweep: SweepDir,
        tracking_uri: str | None = None,
        *,
        code: Path | None = None,
        environment: Mapping[str, str] | None = None,
        at_once: bool = True,
    ) -> None:
        """Start it; returns at once. It logs to RUNS/SWEEP/tracking.log.

        Args:
            sweep: Its folder exists.
            tracking_uri: Default: the SQLite store beside the sweeps.
            code: Folder that it imports from; None: where this program is.
            environment: Its variables; None: those of this process.
            at_once: False: `begin` starts it, or `keep_alive`.
        """
        self.sweep = SweepDir(sweep.path.absolute())
        self.tracking_uri = tracking_uri or default_tracking_uri(self.sweep.path.parent)
        # Not an argument: a URI may hold a password, and all users of a machine see arguments.
        uri = {"MLFLOW_TRACKING_URI": self.tracking_uri}
        self._environment = with_code(
            code, {**(os.environ if environment is None else environment), **uri}
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = time.monotonic()
        if at_once:
            self._start()

    def _start(self) -> None:
        self._started_at = time.monotonic()
        with (self.sweep.path / "tracking.log").open("ab") as log:
            self._process = subprocess.Popen(
                # -P: what lies in the current folder must not shadow what it imports.
                [sys.executable, "-P", "-m", "orchestrator.tracking.exporter", self.sweep.path],
                stdin=subprocess.PIPE,
                bufsize=0,
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None, "it was started"
        return self._process.pid

    def alive(self) -> bool:
        """Return whether it runs. One that ended by itself is replaced; training goes on."""
        return self._process is not None and self._process.poll() is None

    def begin(self) -> None:
        """Start it, unless it was started before."""
        if self._process is None:
            self._start()

    def keep_alive(self, *, wait_s: float = RESTART_S) -> None:
        """Start it if it does not run, but not in the `wait_s` seconds after it was last started.

        One that is to begin later does so after as many.
        """
        if not self.alive() and time.monotonic() - self._started_at >= wait_s:
            self.stop()
            self._start()

    @property
    def unsynced_points(self) -> int:
        """Points that the tracker does not have; reads the trial directories until the end."""
        if self.drained is not None:
            return self.drained.points_waiting
        return sync_state.points_waiting(self.sweep, self.tracking_uri)

    @property
    def problem(self) -> str | None:
        """Why the tracker does not have everything; None if it has, or as far as is known."""
        if self.drained is not None:
            return self.drained.problem
        return sync_state.problem(self.sweep, self.tracking_uri)

    def drain(self, timeout_s: float = DRAIN_S) -> DrainResult:
        """Make it send what is left and end, within `timeout_s` seconds and a moment."""
        reason, asked_at = None, time.monotonic()
        if self._end(f"drain {timeout_s}\n", timeout_s) != 0:
            if time.monotonic() - asked_at < timeout_s:
                ended = "the exporter failed; see tracking.log beside the sweep"
            else:
                ended = f"the exporter did not finish in {timeout_s:.0f} s"
            reason = self.problem or ended
        self.drained = DrainResult(points_waiting=self.unsynced_points, problem=reason)
        return self.drained

    def forget_unused(self, *, but: Collection[str]) -> None:
        """Drop trackers that never took anything, after the end; not if another exporter runs.

        Args:
            but: Addresses that are kept in any case.
        """
        lock = locked(self.sweep.path / sync_state.LOCK)
        if lock is not None:
            with suppress(OSError):  # a full disk, say: the next one does it
                sync_state.forget_unused(self.sweep, but=but)
            os.close(lock)

    def stop(self) -> None:
        """End it now. Whatever is left is sent by the next one."""
        self._end("drain 0\n", 0.0)

    def _end(self, words: str, timeout_s: float) -> int | None:
        if self._process is None:
            return 0
        assert self._process.stdin is not None, "it was opened as a pipe"
        if not self._process.stdin.closed:
            # A broken pipe: it has ended.
            with self._process.stdin as stdin, suppress(BrokenPipeError):
                stdin.write(words.encode())
        try:
            return self._process.wait(timeout_s + 2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return None


@contextmanager
def exporting(
    sweep: SweepDir,
    tracking_uri: str | None = None,
    *,
    drain_s: float = DRAIN_S,
    code: Path | None = None,
    environment: Mapping[str, str] | None = None,
    at_once: bool = True,
) -> Iterator[ExporterProcess]:
    """Export a sweep while the body runs, and what is left at its end.

    With an empty body it sends what a tracker lacks.

    Args:
        sweep: Its folder exists.
        tracking_uri: Default: the SQLite store beside the sweeps.
        drain_s: What the end may take. A body that raised is not kept waiting.
        code: Folder that it imports from; None: where this program is.
        environment: Its variables; None: those of this process.
        at_once: False: the body says when it begins.
    """
    exporter = ExporterProcess(
        sweep, tracking_uri, code=code, environment=environment, at_once=at_once
    )
    try:
        yield exporter
    except BaseException:
        exporter.stop()
        raise
    # Killed, or out of memory, while the sweep ran: nothing is lost, the journals have it.
    exporter.keep_alive(wait_s=0.0)
    exporter.drain(drain_s)
