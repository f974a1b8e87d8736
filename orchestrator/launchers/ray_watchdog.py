"""Watchdog that ends the embedded Ray cluster of a controller that is gone.

    python -m orchestrator.launchers.ray_watchdog OWNER FOLDER

The kernel ends most of Ray when its driver is killed, but two of its agents now and then stay for
minutes. The watchdog reads from a pipe that only the controller holds open. When that ends, it
kills every process that carries the controller's mark in its environment or writes into the
cluster's own folder, and deletes the folder. (Agents overwrite their environment with their title,
and all of Ray logs into that folder.) It kills nothing else.
"""

import shutil
import signal
import sys
import time
from pathlib import Path

from orchestrator.records.processes import (
    ProcessId,
    kill_and_wait,
    pids_with_environment,
    pids_writing_below,
)

OWNER = "MEMSCALE_RAY_OWNER"
"""Variable that marks the processes of one embedded cluster; its value names the controller."""
GIVE_UP_S = 60.0
PAUSE_S = 0.1


def clean_up(owner: str, folder: Path) -> None:
    """End the marked processes until two searches in a row find none; then delete the folder.

    Args:
        owner: `<pid>-<start ticks>` of the controller. It is left alone: one that closed its
            cluster lives on, and Ray keeps a log of its own open in it.
        folder: The cluster's own.
    """
    controller = int(owner.partition("-")[0])
    deadline, quiet = time.monotonic() + GIVE_UP_S, 0
    while quiet < 2 and time.monotonic() < deadline:
        marked = {*pids_with_environment(OWNER, owner), *pids_writing_below(folder)} - {controller}
        kill_and_wait(process for pid in marked if (process := ProcessId.of(pid)) is not None)
        quiet = 0 if marked else quiet + 1
        time.sleep(PAUSE_S)
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Wait for the end of stdin, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Whoever ends the controller's terminal or process group still wants Ray gone.
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    clean_up(sys.argv[1], Path(sys.argv[2]))


if __name__ == "__main__":
    main()
