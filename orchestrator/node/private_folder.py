"""Private temporary folder of one process: closed to other users, locked in use.

Ray makes every folder that it is given, and all below, writable for everybody (mode 0777 without
the sticky bit). So it only gets folders within one that other users can neither enter nor replace.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.records.errors import ExperimentError

PREFIX = "ms-"
LOCK = "lock"
LONGEST_ROOT = 24
"""Characters of the folder for temporary files: what Ray puts below takes about 80 of the 107 that
a socket's path may have."""
FALLBACK = Path("/tmp")


@dataclass(frozen=True, kw_only=True)
class PrivateFolder:
    """A folder of mode 0700 whose lock is held."""

    path: Path
    lock: int
    """Open file of the lock; whoever inherits it holds the lock too."""

    def release(self) -> None:
        """Close this process's hold of the lock."""
        os.close(self.lock)


def create(root: Path | None = None) -> PrivateFolder:
    """Make a private folder in `root`, by default where temporary files go.

    Raises:
        ExperimentError: If other users could replace folders there.
    """
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root or safe_root()))
    lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    # A search for leftovers may have it for a moment. It deletes no folder without an identity.
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.write(lock, _identity() + f"pid {os.getpid()}\n".encode())
    if not _is_ours(path):
        raise ExperimentError(
            f"{path}: was replaced while it was made; set TMPDIR to a folder of your own"
        )
    return PrivateFolder(path=path, lock=lock)


def remove_leftovers(root: Path) -> None:
    """Delete the private folders of this user whose owners were killed.

    A folder is deleted only if this user owns it, it was made since this machine started and in
    this PID namespace, and nobody holds its lock.
    """
    for path in root.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if _is_ours(path):
                _remove_if_unused(path)


def safe_root() -> Path:
    """Return the folder for temporary files, or /tmp where it is too long or others may replace it.

    Raises:
        ExperimentError: If other users could replace folders in /tmp, too.
    """
    root = Path(tempfile.gettempdir()).resolve()
    if len(str(root)) > LONGEST_ROOT or _replaceable(root) is not None:
        root = FALLBACK.resolve()
    if (folder := _replaceable(root)) is not None:
        raise ExperimentError(
            f"{folder}: other users may rename folders in it (no sticky bit), and so read and "
            f"write what Ray does; `chmod +t {folder}`, or set TMPDIR to a short folder of your own"
        )
    return root


def _replaceable(folder: Path) -> Path | None:
    """Return the first of a folder and those above in which others may rename folders."""
    for place in (folder, *folder.parents):
        mode = place.stat().st_mode
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
            return place
    return None


def _is_ours(path: Path) -> bool:
    """Whether this is a folder, not a link, of this user and closed to others."""
    found = path.lstat()
    private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
    return private and found.st_uid == os.geteuid()


def _remove_if_unused(path: Path) -> None:
    lock = os.open(path / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.read(lock, 200).startswith(_identity()):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _identity() -> bytes:
    """Return this boot of this machine, and this PID namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}\n".encode()  # noqa: PTH115 -- no path
