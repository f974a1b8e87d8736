"""The exporter: a process that sends a sweep to the tracker until it is told that the sweep has ended.

    python -m orchestrator.tracking.exporter RUNS/SWEEP          (tracking URI in MLFLOW_TRACKING_URI)

Its parent holds its standard input. `drain SECONDS` there means: send what is left, then exit 0; or exit 4 when
that took longer, or the tracker refused something. The end of that input without a word, or another parent, means
that the parent was killed: the exporter ends at once, and the next one goes on.
"""

import argparse
import fcntl
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from orchestrator.records import storage_errors
from orchestrator.records.errors import StoreError
from orchestrator.records.trial_dir import SweepDir, remove_temporary
from orchestrator.tracking import sync_state
from orchestrator.tracking.mlflow_client import TrackingClient
from orchestrator.tracking.sync_sweep import SweepSync
from orchestrator.tracking.tracking_uri import default_tracking_uri

LOG = logging.getLogger("exporter")
ROUND_S = 1.0
"""Between two rounds."""
REQUESTS_ROUND_S = 5.0
"""Between two looks for tags that ask to cancel or to retry: each is a search in the tracker."""
FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0
OUTAGE_S = 10.0
"""How long the end of a sweep waits for a tracker that does not answer at all."""
LAST_WORDS_S = 1.0
"""What a call to the tracker may still take once the parent is gone."""
INCOMPLETE = 4
"""Exit code: something was not sent."""
NICENESS = 5
"""Training comes first."""


class ExporterCommands:
    """What the parent wants, as a thread hears it."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing was said yet."""
        self._clock = clock
        self._news = threading.Event()
        self.orphaned = False
        self.drain_by: float | None = None
        """Time of the clock by which to have ended; None while the sweep runs."""

    def drain(self, seconds: float) -> None:
        """Take the request to end, with everything sent if that is possible in this time."""
        self.drain_by = self._clock() + seconds
        self._news.set()

    def orphan(self) -> None:
        """Take it that the parent is gone."""
        self.orphaned = True
        self._news.set()

    def wait(self, seconds: float) -> None:
        """Wait, but not past a first instruction or the deadline."""
        if self.orphaned:
            return
        if self.drain_by is None:
            self._news.wait(seconds)
            return
        self._news.clear()
        self._news.wait(max(0.0, min(seconds, self.drain_by - self._clock())))

    @property
    def time_is_up(self) -> bool:
        """Whether the deadline has passed."""
        return self.drain_by is not None and self._clock() >= self.drain_by


def export_rounds(
    sender: SweepSync,
    instructions: ExporterCommands,
    *,
    clock: Callable[[], float] = time.monotonic,
    tell: Callable[[str | None], None] = lambda problem: None,
) -> bool:
    """Send rounds until told to end; return whether everything was sent. Never raises for an outage.

    Args:
        sender: Of the sweep.
        instructions: Whether to go on.
        clock: Monotonic seconds.
        tell: Called with the reason whenever a round failed, and with None after one that did not.
    """
    backoff_s = FIRST_BACKOFF_S
    failing_since: float | None = None
    """Since the drain began: before, an outage may last."""
    problem: str | None = None
    refused = 0
    looked_at = clock()
    asked_last = False
    """Whether the page was looked at since the drain began: a tag must not wait for the next submission."""
    while not instructions.orphaned:
        draining = instructions.drain_by is not None
        try:
            complete = sender.round()
            changed = False
            if clock() - looked_at >= REQUESTS_ROUND_S if not draining else not asked_last:
                looked_at = clock()
                changed = _take_requests(sender)
                asked_last = draining
        except (StoreError, OSError) as error:
            # The sweep's own storage may fail for a while, as the tracker may.
            if not isinstance(error, StoreError) and not storage_errors.is_transient(error):
                raise
            if str(error) != problem:
                LOG.warning("%s; trying again", error)
            problem = str(error)
            tell(problem)
            failing_since = clock() if failing_since is None or not draining else failing_since
            if instructions.time_is_up or clock() - failing_since >= OUTAGE_S:
                return False
            instructions.wait(min(backoff_s, OUTAGE_S / 4) if draining else backoff_s)
            backoff_s = min(LONGEST_BACKOFF_S, 2 * backoff_s)
            continue
        if problem is not None:
            LOG.info("the tracker takes things again")
        problem = None
        tell(None if complete else "something was refused; see tracking.log beside the sweep")
        backoff_s, failing_since = FIRST_BACKOFF_S, None
        refused = 0 if complete else refused + 1
        if draining and ((complete and not changed) or refused > 1):
            return complete
        if instructions.time_is_up:
            return False
        instructions.wait(FIRST_BACKOFF_S if draining else ROUND_S)
    return False


def _take_requests(sender: SweepSync) -> bool:
    """Act on the tags that people set on the page; return whether there were any."""
    cancelled, retried = sender.take_cancel_requests(), sender.take_retry_requests()
    for name in cancelled:
        LOG.info("cancelled from the page: %s", name)
    for sentence in retried:
        LOG.info("retry asked for on the page: %s", sentence)
    return bool(cancelled or retried)


def listen(instructions: ExporterCommands, source: IO[str], *, parent: int) -> None:
    """Hear the parent's words, and its end, in threads of their own."""

    def hear() -> None:
        for line in source:
            verb, _, argument = line.strip().partition(" ")
            if verb == "drain":
                instructions.drain(float(argument))
        if instructions.drain_by is None:
            instructions.orphan()

    def watch() -> None:
        # A forked sibling may hold the other end of the pipe open after the parent was killed.
        while os.getppid() == parent and not instructions.orphaned:
            time.sleep(0.2)
        instructions.orphan()
        # Whatever is being sent may block for long, and may be cut short: it is sent again.
        time.sleep(LAST_WORDS_S)
        os._exit(INCOMPLETE)

    threading.Thread(target=hear, daemon=True, name="hear").start()
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
    # Ctrl-C in a terminal reaches every process of the group; when to end is the parent's word.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    instructions = ExporterCommands()
    listen(instructions, sys.stdin, parent=os.getppid())

    lock = take_lock(sweep, instructions)
    if lock is None:
        return INCOMPLETE
    remove_leftovers(sweep)
    store = TrackingClient(uri or default_tracking_uri(sweep.path.parent))
    untold = False

    def tell(problem: str | None) -> None:
        nonlocal untold
        try:
            sync_state.save_problem(sweep, store.uri, problem)
            if untold:
                remove_leftovers(sweep)
            untold = False
        except OSError as error:
            if not storage_errors.is_transient(error):
                raise
            untold = True

    complete = export_rounds(SweepSync(sweep, store), instructions, tell=tell)
    os.close(lock)
    return 0 if complete else INCOMPLETE


def remove_leftovers(sweep: SweepDir) -> None:
    """Delete what exporters that were killed, or storage that failed, left: the lock says that nobody else writes it."""
    for folder in (sweep.path, *(trial.path for trial in sweep.trials())):
        remove_temporary(folder, of=sync_state.FILE)


def take_lock(sweep: SweepDir, instructions: ExporterCommands) -> int | None:
    """Return the lock that makes this the sweep's only exporter, None if told to end before it was free.

    The one before, whose parent was killed, needs a moment to notice.
    """
    lock = os.open(sweep.path / "tracking.lock", os.O_RDWR | os.O_CREAT, 0o644)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if instructions.orphaned or instructions.time_is_up:
                LOG.warning("another exporter of this sweep is at work; this one sends nothing")
                os.close(lock)
                return None
            instructions.wait(0.1)
        else:
            return lock


if __name__ == "__main__":
    # The interpreter's own end waits for threads and pools of the HTTP and database layers; nothing is left to do.
    code = main()
    logging.shutdown()
    os._exit(code)
