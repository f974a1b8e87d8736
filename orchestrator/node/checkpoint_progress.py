"""Progress of a checkpoint: whether a rank that was asked to stop still writes it."""

from pathlib import Path

from orchestrator.node.progress_board import ProgressReader

LEAST_BYTES = 2**24
"""Moved since the last sign of progress. Heartbeats and measurements of a rank that is stuck move
some kilobytes a second, which are none."""


class CheckpointProgress:
    """Watches one rank of this machine.

    A large checkpoint takes minutes on a slow disk. What tells it from a rank that is stuck is that
    the rank goes on writing or reading, or waits for the disk, as in fsync.
    """

    def __init__(self, pid: int, reader: ProgressReader) -> None:
        """Watch the process `pid`, whose board `reader` reads."""
        self._pid, self._reader = pid, reader
        self._moved = -LEAST_BYTES

    def goes_on(self) -> bool:
        """Whether the rank is at a checkpoint that has made progress since it last did."""
        progress = self._reader.progress()
        if progress is None or progress.phase != "checkpoint":
            return False
        moved = bytes_moved(self._pid)
        if moved - self._moved < LEAST_BYTES:
            return self._reader.waits_for_disk()
        self._moved = moved
        return True


def bytes_moved(pid: int) -> int:
    """Return the bytes that a process has written and read; 0 if that is not to be had."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("wchar:", "rchar:")))
