"""Fault injection, on the import path of processes that tests disturb; chosen by the environment.

    CHAOS_AHEAD_S=3600           Python's time of day is an hour ahead
    CHAOS_STORAGE=FLAG:FOLDER    while the file FLAG exists, FOLDER's storage fails: opening,
                                 looking up, writing, flushing, renaming, listing and deleting
                                 there raise the error that FLAG names (EIO, ESTALE)

A file that is open stays so, as on a real mount; a buffered write into it fails at its `fsync`.
"""

import builtins
import errno
import functools
import io
import os
import time

BY_PATH = (
    *("open", "stat", "lstat", "listdir", "scandir", "mkdir", "rmdir", "unlink", "remove"),
    *("rename", "replace", "link", "utime", "truncate"),
)
BY_DESCRIPTOR = ("write", "fsync", "fdatasync", "ftruncate")


def be_ahead(seconds):
    """Move the clock."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + int(seconds * 1e9)


def fail(flag, folder):
    """Let the storage of a folder fail while the flag is there."""
    read, close, look_up, really_open = os.read, os.close, os.readlink, os.open
    folder = os.path.abspath(folder)  # noqa: PTH100

    def refuse(path):
        try:
            file = really_open(flag, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            name = read(file, 32).decode().strip()
        finally:
            close(file)
        if isinstance(path, int):
            path = look_up(f"/proc/self/fd/{path}")
        path = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
        if name and (path == folder or path.startswith(f"{folder}/")):
            code = getattr(errno, name)
            raise OSError(code, os.strerror(code), path)

    def failing(function):
        @functools.wraps(function)
        def wrapped(path=".", *args, **kwargs):
            refuse(path)
            return function(path, *args, **kwargs)

        return wrapped

    for name in (*BY_PATH, *BY_DESCRIPTOR):
        setattr(os, name, failing(getattr(os, name)))
    io.open = builtins.open = failing(io.open)


if "CHAOS_AHEAD_S" in os.environ:
    be_ahead(float(os.environ["CHAOS_AHEAD_S"]))
if "CHAOS_STORAGE" in os.environ:
    fail(*os.environ["CHAOS_STORAGE"].split(":", 1))
