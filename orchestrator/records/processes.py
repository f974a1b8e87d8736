"""Identity of Linux processes that survives the reuse of pids (/proc, prctl)."""

import ctypes
import os
import signal
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
"""<linux/prctl.h>"""


@dataclass(frozen=True, kw_only=True)
class ProcessId:
    """A process, for as long as the machine is up."""

    host: str
    pid: int
    start_ticks: int
    """Clock ticks from boot to its start: tells it from a later process with the same pid."""

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """Return the name of a running process of this machine, None if there is none."""
        stat = _stat(pid)
        return (
            None if stat is None else cls(host=socket.gethostname(), pid=pid, start_ticks=stat[1])
        )

    @classmethod
    def own(cls) -> "ProcessId":
        """Return the name of this process."""
        own = cls.of(os.getpid())
        assert own is not None, "/proc has this very process"
        return own

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "ProcessId":
        """Read what `to_json` wrote."""
        return cls(
            host=record["host"], pid=int(record["pid"]), start_ticks=int(record["start_ticks"])
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON form."""
        return {"host": self.host, "pid": self.pid, "start_ticks": self.start_ticks}

    @property
    def here(self) -> bool:
        """Whether it lives on this machine, so that it can be looked at."""
        return self.host == socket.gethostname()

    def alive(self) -> bool:
        """Whether it runs. A zombie does not: it holds neither files nor a GPU.

        Raises:
            ValueError: If it belongs to another machine.
        """
        if not self.here:
            raise ValueError(f"process {self.pid} belongs to {self.host}; ask there")
        stat = _stat(self.pid)
        return stat is not None and stat[1] == self.start_ticks and stat[0] not in "ZX"


def _stat(pid: int) -> tuple[str, int] | None:
    """Return (state letter, start time in ticks): fields 3 and 22 of /proc/PID/stat."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command in parentheses and may hold anything, parentheses too.
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[19])


def kill_and_wait(processes: Iterable[ProcessId], *, timeout_s: float = 10.0) -> list[ProcessId]:
    """SIGKILL processes of this machine, wait for their end, return those that still live."""
    left = [process for process in processes if process.alive()]
    deadline = time.monotonic() + timeout_s
    for process in left:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    while left and time.monotonic() < deadline:
        left = [process for process in left if process.alive()]
        if left:
            time.sleep(0.01)
    return left


def die_with_parent(parent: int) -> None:
    """Have the kernel SIGKILL this process when the *thread* that made it ends.

    Args:
        parent: Pid that the parent should have. If it is gone already, this process ends here.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)


def pids_with_environment(name: str, value: str) -> list[int]:
    """Return the pids of other living processes that were started with this environment variable.

    A process that changes its title (`setproctitle`, as Ray's do) may overwrite what is read here.
    """
    wanted = f"{name}={value}".encode()
    return [pid for pid in _others() if wanted in _environment(pid) and _runs(pid)]


def pids_writing_below(folder: Path) -> list[int]:
    """Return the pids of other living processes with a file below this folder open for writing."""
    return [
        pid
        for pid in _others()
        if any(path.is_relative_to(folder) for path in _written(pid)) and _runs(pid)
    ]


def _others() -> list[int]:
    found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return sorted(pid for pid in found if pid != os.getpid())


def _runs(pid: int) -> bool:
    stat = _stat(pid)
    return stat is not None and stat[0] not in "ZX"


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def _written(pid: int) -> list[Path]:
    """Return the files that a process has open for writing, deleted ones under their old names."""
    found = []
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            # The mode of the link says how the file was opened.
            if link.lstat().st_mode & 0o200:
                found.append(link.readlink())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return found
    return found
