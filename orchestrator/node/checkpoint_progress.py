"""Progress of a checkpoint: whether a rank that was asked to stop still writes it."""

from pathlib import Path

from orchestrator.node.progress_board import ProgressReader


class CheckpointProgress:
    """Watches one rank of this machine.

    A large checkpoint takes minutes on a slow disk. What tells it from a rank that is stuck is that
    the rank goes on writing or reading, or waits for the disk, as in fsync.
    """

    def __init__(self, pid: int, reader: ProgressReader) -> None:
        """Watch the process `pid`, whose board `reader` reads."""
        self._pid, self._reader = pid, reader
        self._moved = -1

    def goes_on(self) -> bool:
        """Whether the rank is at a checkpoint and has moved bytes since the last call."""
        progress = self._reader.progress()
        if progress is None or progress.phase != "checkpoint":
            return False
        before, self._moved = self._moved, bytes_moved(self._pid)
        return self._moved > before or self._reader.waits_for_disk()


def bytes_moved(pid: int) -> int:
    """Return the bytes that a process has written and read; -1 if that is not to be had."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return -1
    return sum(int(line.split()[1]) for line in lines if line.startswith(("wchar:", "rchar:")))
