"""Exporter: a process that sends a sweep to the tracker until the sweep has ended.

    python -m orchestrator.tracking.exporter RUNS/SWEEP

The tracking URI is in MLFLOW_TRACKING_URI. Its parent holds its standard input. `drain SECONDS`
there means: send what is left, then exit 0; or exit 4 when that took longer, or the tracker refused
something. The end of that input without a command, or another parent, means that the parent was
killed: the exporter ends at once, and the next one goes on.
"""

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from orchestrator.records import storage_errors
from orchestrator.records.errors import StoreError
from orchestrator.records.json_files import remove_temporary
from orchestrator.records.locks import locked
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.tracking import sync_state
from orchestrator.tracking.mlflow_client import TrackingClient
from orchestrator.tracking.sync_sweep import SweepSync
from orchestrator.tracking.tracking_uri import default_tracking_uri

LOG = logging.getLogger("exporter")
ROUND_S = 1.0
"""Between two rounds."""
REQUESTS_ROUND_S = 5.0
"""Between two searches for tags that request to cancel or to retry."""
FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0
OUTAGE_S = 10.0
"""How long the end of a sweep waits for a tracker that does not answer at all."""
LAST_CALL_S = 1.0
"""How long a call to the tracker may still take once the parent is gone."""
INCOMPLETE = 4
"""Exit code: something was not sent."""
NICENESS = 5
"""Training comes first."""


class ExporterCommands:
    """Commands of the parent, as a thread receives them."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing was received yet."""
        self._clock = clock
        self._received = threading.Event()
        self.orphaned = False
        self.drain_by: float | None = None
        """Time of the clock by which to have ended; None while the sweep runs."""

    def drain(self, seconds: float) -> None:
        """End within this time, with everything sent if possible."""
        self.drain_by = self._clock() + seconds
        self._received.set()

    def orphan(self) -> None:
        """Note that the parent is gone."""
        self.orphaned = True
        self._received.set()

    def wait(self, seconds: float) -> None:
        """Wait, but not past a first command or the deadline."""
        if self.orphaned:
            return
        if self.drain_by is None:
            self._received.wait(seconds)
            return
        self._received.clear()
        self._received.wait(max(0.0, min(seconds, self.drain_by - self._clock())))

    @property
    def time_is_up(self) -> bool:
        """Whether the deadline has passed."""
        return self.drain_by is not None and self._clock() >= self.drain_by


def export_rounds(
    sync: SweepSync,
    commands: ExporterCommands,
    *,
    clock: Callable[[], float] = time.monotonic,
    report: Callable[[str | None], None] = lambda problem: None,
) -> bool:
    """Send rounds until a command to end; return whether everything was sent.

    Never raises for an outage.

    Args:
        sync: Of the sweep.
        commands: Of the parent.
        clock: Monotonic seconds.
        report: Called with the reason whenever a round failed, and with None after one that did
            not.
    """
    backoff_s = FIRST_BACKOFF_S
    failing_since: float | None = None
    """Since the drain began: before, an outage may last."""
    problem: str | None = None
    refused = 0
    looked_at = clock()
    asked_last = False
    """Whether tags were searched since the drain began: none must wait for the next submission."""
    while not commands.orphaned:
        draining = commands.drain_by is not None
        try:
            complete = sync.round()
            changed = False
            if clock() - looked_at >= REQUESTS_ROUND_S if not draining else not asked_last:
                looked_at = clock()
                changed = _take_requests(sync)
                asked_last = draining
        except (StoreError, OSError) as error:
            problem = _outage(error, known=problem)
            report(problem)
            failing_since = clock() if failing_since is None or not draining else failing_since
            if commands.time_is_up or clock() - failing_since >= OUTAGE_S:
                return False
            commands.wait(min(backoff_s, OUTAGE_S / 4) if draining else backoff_s)
            backoff_s = min(LONGEST_BACKOFF_S, 2 * backoff_s)
            continue
        if problem is not None:
            LOG.info("the tracker takes things again")
        problem = None
        report(None if complete else "something was refused; see tracking.log beside the sweep")
        backoff_s, failing_since = FIRST_BACKOFF_S, None
        refused = 0 if complete else refused + 1
        if draining and ((complete and not changed and not sync.in_doubt) or refused > 1):
            return complete
        if commands.time_is_up:
            return False
        commands.wait(FIRST_BACKOFF_S if draining else ROUND_S)
    return False


def _outage(error: StoreError | OSError, *, known: str | None) -> str:
    """Return the reason of an outage, logged if it is not the known one; raise what is none."""
    # The sweep's own storage may fail for a while, as the tracker may.
    if not isinstance(error, StoreError) and not storage_errors.is_transient(error):
        raise error
    problem = str(error)
    if problem != known:
        LOG.warning("%s; trying again", problem)
    return problem


def _take_requests(sync: SweepSync) -> bool:
    """Act on the tags that people set on the page; return whether there were any."""
    cancelled, retried = sync.take_cancel_requests(), sync.take_retry_requests()
    for name in cancelled:
        LOG.info("cancelled from the page: %s", name)
    for sentence in retried:
        LOG.info("retry asked for on the page: %s", sentence)
    return bool(cancelled or retried)


def listen(commands: ExporterCommands, source: IO[str], *, parent: int) -> None:
    """Receive the parent's commands, and notice its end, in threads of their own."""

    def receive() -> None:
        for line in source:
            verb, _, argument = line.strip().partition(" ")
            if verb == "drain":
                commands.drain(float(argument))
        if commands.drain_by is None:
            commands.orphan()

    def watch() -> None:
        # A forked sibling may hold the other end of the pipe open after the parent was killed.
        while os.getppid() == parent and not commands.orphaned:
            time.sleep(0.2)
        commands.orphan()
        # Whatever is being sent may block for long, and may be cut short: it is sent again.
        time.sleep(LAST_CALL_S)
        os._exit(INCOMPLETE)

    threading.Thread(target=receive, daemon=True, name="receive").start()
    threading.Thread(target=watch, daemon=True, name="watch").start()


def main(argv: list[str] | None = None) -> int:
    """Run the exporter; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.tracking.exporter", description=__doc__
    )
    parser.add_argument("sweep", type=Path, help="folder of the sweep")
    parser.add_argument("--tracking-uri", help="default: MLFLOW_TRACKING_URI, else RUNS/mlflow.db")
    arguments = parser.parse_args(argv)
    sweep = SweepDir(arguments.sweep.absolute())
    uri = arguments.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
    # Ctrl-C, and the end of a terminal, reach its processes; the parent decides when to end.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICENESS)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    commands = ExporterCommands()
    listen(commands, sys.stdin, parent=os.getppid())

    lock = take_lock(sweep, commands)
    if lock is None:
        return INCOMPLETE
    remove_leftovers(sweep)
    client = TrackingClient(uri or default_tracking_uri(sweep.path.parent))
    unreported = False

    def report(problem: str | None) -> None:
        nonlocal unreported
        try:
            sync_state.save_problem(sweep, client.uri, problem)
            if unreported:
                remove_leftovers(sweep)
            unreported = False
        except OSError as error:
            if not storage_errors.is_transient(error):
                raise
            unreported = True

    complete = export_rounds(SweepSync(sweep, client), commands, report=report)
    if complete:
        with suppress(OSError):  # the next one does it
            sync_state.forget_unused(sweep)
    os.close(lock)
    return 0 if complete else INCOMPLETE


def remove_leftovers(sweep: SweepDir) -> None:
    """Delete temporary files of killed exporters or failed storage; the lock keeps others away."""
    for folder in (sweep.path, *(trial.path for trial in sweep.trials())):
        remove_temporary(folder, of=sync_state.FILE)


def take_lock(sweep: SweepDir, commands: ExporterCommands) -> int | None:
    """Return the lock of the sweep's only exporter, None on a command to end before it is free.

    The one before, whose parent was killed, needs a moment to notice.
    """
    while (lock := locked(sweep.path / sync_state.LOCK)) is None:
        if commands.orphaned or commands.time_is_up:
            LOG.warning("another exporter of this sweep is at work; this one sends nothing")
            return None
        commands.wait(0.1)
    return lock


if __name__ == "__main__":
    # The interpreter's own end waits for threads and pools of the HTTP and database layers.
    code = main()
    logging.shutdown()
    os._exit(code)
