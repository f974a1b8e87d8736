"""Storage errors: full disks and failing file systems, recognised and explained."""

import errno
import os
import pwd
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestrator.records import units
from orchestrator.records.errors import UsageError

LIMITS = frozenset({errno.EDQUOT, errno.EFBIG})
"""The user's quota is used up; a file is as large as `ulimit -f` or its file system allows."""
FULL = frozenset({errno.ENOSPC}) | LIMITS
"""No space left: on the device, or below a limit."""
FAILING = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.EROFS,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.ESHUTDOWN,
        errno.EHOSTDOWN,
        errno.EREMOTEIO,
    }
)
"""Errors of file systems, of networks above all, whose server or device does not work: a soft mount
that timed out, a handle of before its server's restart, an evicted client, a mount that became
read-only. Sockets raise some of them too; a retry is as right there."""
UNUSABLE = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP})
"""Errors of a path that cannot be used: a folder below a file, a name that is too long."""
UNUSABLE_IF_GIVEN = frozenset({errno.ENOENT, errno.EEXIST})
"""The same of a path that the user gave; of any other path they may be a fault of ours."""
EXIT_CODE = 75
"""Exit code of a command that failing storage stopped: EX_TEMPFAIL of sysexits.h."""
MARGIN = 1.1
"""Free space wanted over the space that the next checkpoint is known to take."""
LEAST_BYTES = 2**20
"""The least that is wanted: for journals, logs and records beside checkpoints."""


def is_full(error: BaseException) -> bool:
    """Whether this error, or a cause of it, is a full disk: libraries wrap such errors."""
    return any(isinstance(cause, OSError) and cause.errno in FULL for cause in _causes(error))


def is_limited(error: BaseException) -> bool:
    """Whether this error, or a cause of it, is one of LIMITS: the disk itself may be empty."""
    return any(isinstance(cause, OSError) and cause.errno in LIMITS for cause in _causes(error))


def is_failing(error: BaseException) -> bool:
    """Whether this error, or a cause of it, is failing storage; a wrong path is not."""
    return any(isinstance(cause, OSError) and cause.errno in FAILING for cause in _causes(error))


def is_transient(error: BaseException) -> bool:
    """Whether the same may work later, with nothing changed but the storage."""
    return is_full(error) or is_failing(error)


def is_unusable(error: OSError, given: Iterable[Path] = ()) -> bool:
    """Whether the path that this error names cannot be used.

    Args:
        error: Of the system.
        given: Paths that the user gave. One of them, a folder above it or what lies right in it may
            be missing even while it is made: /proc, say, takes no folders.
    """
    if error.filename is None:
        return False
    if error.errno not in UNUSABLE_IF_GIVEN or not isinstance(error.filename, str | bytes):
        return error.errno in UNUSABLE
    place = Path(os.fsdecode(error.filename)).absolute()
    paths = [path.absolute() for path in given]
    if error.errno == errno.EEXIST:
        return place in paths
    # A scratch file beside its final name, too.
    return any(place in (path, *path.parents) or place.parent == path for path in paths)


def unwritable(folder: Path) -> str:
    """Return why nothing can be written in a folder, or it cannot be made; empty if it can.

    It makes nothing.

    Raises:
        OSError: If the storage fails.
    """
    try:
        # os.access is no answer: to root it allows all.
        with tempfile.TemporaryFile(dir=nearest_existing(folder)):
            return ""
    except OSError as error:
        if error.errno in FAILING - {errno.EROFS}:
            raise
        return f"cannot be written ({os.strerror(error.errno or 0).lower()})"


def require_writable(folder: Path, *, option: str) -> None:
    """Refuse a folder in which nothing can be written, or that cannot be made; make nothing.

    Args:
        folder: Where something will be written, later.
        option: That names another.

    Raises:
        UsageError: If the system refuses a file there.
        OSError: If the storage fails.
    """
    why = unwritable(folder)
    if why:
        raise UsageError(f"{folder}: {why}; name another place with {option}")


def full_message(error: BaseException, *places: Path, of_command: bool = False) -> str:
    """Return a sentence for people: where, how much is free, what to do.

    Args:
        error: For which `is_full` holds.
        places: Where it may be, if the error names no file; that with the least room is named.
        of_command: Whether a command that trains nothing ended by it.
    """
    causes = [c for c in _causes(error) if isinstance(c, OSError) and c.errno in FULL]
    named = [Path(os.fsdecode(cause.filename)) for cause in causes if cause.filename]
    place = min(named or places, key=free_bytes)
    if of_command:
        what = "no space left" if not is_limited(error) else "a limit of this user is reached"
        return (
            f"{what} at {place} ({os.strerror(causes[0].errno or 0)}): {free_space_text(place)}; "
            "make room, or name another folder (--runs, --out), and run this command again"
        )
    if any(cause.errno == errno.EFBIG for cause in causes):
        return (
            f"a file at {place} is as large as this process may make one: `ulimit -f` shows the "
            "limit, unless it is the file system's; raise it and submit again: training then goes "
            "on from its last checkpoint"
        )
    if is_limited(error):
        # What the disk has free says nothing about it.
        return (
            f"your disk quota is used up at {place} (`quota -s` shows it); get a larger one, or "
            f"{full_advice(place)}"
        )
    return f"no space left on the disk at {place}: {free_space_text(place)}; {full_advice(place)}"


def full_disk(place: Path, *, since: float) -> str:
    """Return a sentence for people if the disk of a folder is full, else an empty one.

    Args:
        place: The folder.
        since: When it was first full, as far as is known, in seconds since 1970.
    """
    if free_bytes(place) >= LEAST_BYTES:
        return ""
    when = time.strftime("%F %T", time.localtime(since))
    return (
        f"the disk of {place} is full since about {when}: {free_space_text(place)}; "
        f"{full_advice(place)}"
    )


def failing_message(error: BaseException, place: Path, *, of_command: bool = False) -> str:
    """Return a sentence for people: which folder, what the system said, what to do.

    It does not touch the storage.

    Args:
        error: For which `is_failing` holds.
        place: The folder that matters; named unless the error names a file elsewhere.
        of_command: Whether a command ended by it, so that nothing goes on by itself.
    """
    cause = next(c for c in _causes(error) if isinstance(c, OSError) and c.errno in FAILING)
    file = Path(os.fsdecode(cause.filename)) if cause.filename else place
    where = place if file.is_relative_to(place) else file
    advice = failing_advice(place)
    if of_command:
        advice = f"{_look_at(place)}, then run this command again"
    return f"{failing_summary(where)} ({os.strerror(cause.errno or 0)}); {advice}"


def denied_message(error: PermissionError) -> str:
    """Return a sentence for people: what this user may not do, whose it is, who can change it."""
    file = Path(os.fsdecode(error.filename or os.curdir))
    place = next(place for place in (file, *file.parents) if os.access(place, os.F_OK))
    said = (
        f"{file}: {error.strerror} for user {_user(os.geteuid())}; {place} belongs to "
        f"{_user(place.stat().st_uid)}"
    )
    if os.access(place, os.R_OK | (os.X_OK if place.is_dir() else 0)):
        return (
            f"{said}, and you may read it but not write: use a folder of your own (--runs, --out), "
            "or ask them to share it with a group: `chmod -R g+rwX`, and before further "
            "submissions `umask 002`"
        )
    return (
        f"{said}, who can let others read it: `chmod -R o+rX`, and before further submissions "
        "`umask 022`"
    )


def unusable_message(error: OSError) -> str:
    """Return which path cannot be used, and why; `is_unusable` holds for `error`."""
    return (
        f"{os.fsdecode(error.filename)}: {os.strerror(error.errno or 0).lower()}; name another "
        "place (--runs, --out, --to), or change what lies there"
    )


def failing_summary(place: Path) -> str:
    """Return what is wrong, and where."""
    return f"the storage of {place} fails"


def failing_advice(place: Path) -> str:
    """Return what makes failing storage work again."""
    return f"{_look_at(place)}: once it answers again, training goes on from its last checkpoint"


def _look_at(place: Path) -> str:
    return f"see to its server or disk (`df {place}`, `dmesg`)"


def full_advice(place: Path) -> str:
    """Return what makes a full disk work again."""
    return (
        f"free some there (`du -sh {nearest_existing(place)}`; checkpoints of trials that are done "
        "are in their checkpoints/final): training then goes on from its last checkpoint"
    )


def free_bytes(place: Path) -> int:
    """Return the bytes that this user may still write where `place` is or will be."""
    return shutil.disk_usage(nearest_existing(place)).free


def free_space_text(place: Path) -> str:
    """Return `1.2 MB of 4 MB free`."""
    usage = shutil.disk_usage(nearest_existing(place))
    return f"{units.size(usage.free)} of {units.size(usage.total)} free"


def nearest_existing(place: Path) -> Path:
    """Return `place`, or the nearest folder above it that exists."""
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def folder_bytes(folder: Path) -> int:
    """Return the bytes of the files below a folder; what vanishes meanwhile counts nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except OSError:
            continue
    return total


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
