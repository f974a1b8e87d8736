"""Journal of an attempt: whole lines, in order, nothing lost to a SIGKILL."""

import errno
import json
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.records.errors import StoreError


class Journal:
    """Appends records, one line each.

    A line goes to the kernel in one `write` before the call returns, so killing the process loses
    nothing; a crash of the machine loses what came after the last `sync`. If the disk is full, the
    part of the line that did fit is taken back: a torn line in the middle would make the journal
    unreadable.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Open for appending; the file is made if missing."""
        self._path = path
        self._clock = clock
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Append measurements taken after `step` optimizer steps."""
        self._append(
            {"step": step, "metrics": {key: float(value) for key, value in values.items()}}
        )

    def event(self, name: str, **fields: Any) -> None:
        """Append that something happened: start, checkpoint, interrupted, done."""
        self._append({"event": name, **fields})

    def sync(self) -> None:
        """Return when everything so far is on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Sync and close."""
        self.sync()
        os.close(self._file)

    def _append(self, record: Mapping[str, Any]) -> None:
        line = (
            json.dumps({"t": round(self._clock() * 1000), **record}, separators=(",", ":")).encode()
            + b"\n"
        )
        before = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise OSError(
                error.errno,
                f"{self._path}: cannot write ({os.strerror(error.errno or 0)})",
            ) from error
        if written != len(line):
            os.ftruncate(self._file, before)
            limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
            full = limit == resource.RLIM_INFINITY or before + written < limit
            raise OSError(
                errno.ENOSPC if full else errno.EFBIG,
                f"{self._path}: the disk took {written} of {len(line)} bytes; "
                f"{'free some space' if full else 'see `ulimit -f`'}",
            )


@dataclass(frozen=True)
class JournalLine:
    """One complete line of a journal."""

    t: int
    """Milliseconds since 1970, when it was measured."""
    step: int | None
    metrics: Mapping[str, float]
    event: Mapping[str, Any] | None
    end_offset: int
    """Byte offset just after this line."""


def read_lines(path: Path, offset: int = 0) -> Iterator[JournalLine]:
    """Yield the complete lines from byte `offset` on, without a torn last one.

    Raises:
        StoreError: If a complete line is not valid.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(offset)
        for raw in file:
            if not raw.endswith(b"\n"):
                return
            offset += len(raw)
            try:
                line = _line(json.loads(raw), end_offset=offset)
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                raise StoreError(
                    f"{path}: bad line before byte {offset} ({error}); delete that line"
                ) from error
            yield line


def _line(record: Any, *, end_offset: int) -> JournalLine:
    """Return the line of a record.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: If a field is missing or of another kind.
    """
    t, step, metrics = int(record["t"]), record.get("step"), record.get("metrics", {})
    if step is not None and type(step) is not int:
        raise TypeError(f"step: expected a whole number, got {str(step)[:60]!r}")
    if not isinstance(metrics, dict):
        raise TypeError(f"metrics: expected an object, got {str(metrics)[:60]!r}")
    for name, value in metrics.items():
        if type(value) not in (float, int):
            raise TypeError(f"metrics.{name}: expected a number, got {str(value)[:60]!r}")
    return JournalLine(
        t=t,
        step=step,
        metrics=metrics,
        event=record if "event" in record else None,
        end_offset=end_offset,
    )
