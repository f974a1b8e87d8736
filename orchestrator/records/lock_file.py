"""Lock file: opened by those alone who may write beside it."""

import os
from contextlib import suppress
from pathlib import Path


def open_lock(path: Path) -> int:
    """Return the open file to flock, made if missing; `os.close` lets go of its lock.

    flock needs no right to write: whoever can open the file for reading could hold its lock for
    ever. So only those may read it who may write it, also where an earlier version made it.

    Raises:
        PermissionError: If this user may not write it.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    mode = os.fstat(lock).st_mode & 0o777
    writers = mode & 0o222
    if mode != writers | writers << 1:
        with suppress(OSError):  # another user's, whose next lock does it
            os.fchmod(lock, writers | writers << 1)
    return lock
