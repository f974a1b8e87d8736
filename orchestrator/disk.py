"""A full disk: how it is recognised, and what is said about it."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from orchestrator import units

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""No space left on the device; the user's quota is used up."""
MARGIN = 1.1
"""Free space wanted over the space that the next checkpoint is known to take."""
LEAST_BYTES = 2**20
"""The least that is wanted: for journals, logs and records beside checkpoints."""


def is_full(error: BaseException) -> bool:
    """Whether this, or what led to it, is a disk that takes no more: libraries raise errors of their own over it."""
    return any(isinstance(cause, OSError) and cause.errno in FULL for cause in _causes(error))


def what_is_full(error: BaseException, *places: Path) -> str:
    """Return a sentence for people: where, how much is free, what to do.

    Args:
        error: For which `is_full` holds.
        places: Where a trial writes, if the error names no file; the one with the least room is told.
    """
    named = [
        Path(os.fsdecode(cause.filename))
        for cause in _causes(error)
        if isinstance(cause, OSError) and cause.errno in FULL and cause.filename
    ]
    quota = any(isinstance(c, OSError) and c.errno == errno.EDQUOT for c in _causes(error))
    place = min(named or places, key=free_bytes)
    what = "the disk quota is used up" if quota else "no space left on the disk"
    return f"{what} at {place}: {room(place)}; {what_to_do(place)}"


def what_to_do(place: Path) -> str:
    """Return what makes a full disk work again."""
    return (
        f"free some there (`du -sh {existing(place)}`; checkpoints of trials that are done are in their "
        "checkpoints/final): training then goes on from its last checkpoint"
    )


def free_bytes(place: Path) -> int:
    """Return the bytes that this user may still write where `place` is or will be."""
    return shutil.disk_usage(existing(place)).free


def room(place: Path) -> str:
    """Return `1.2 MB of 4 MB free`."""
    usage = shutil.disk_usage(existing(place))
    return f"{units.size(usage.free)} of {units.size(usage.total)} free"


def existing(place: Path) -> Path:
    """Return `place`, or the nearest folder above it that exists."""
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def size_bytes(folder: Path) -> int:
    """Return the bytes of the files below a folder; what vanishes meanwhile counts nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except OSError:
            continue
    return total


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
