"""Specs of trials not yet started: a line each in the sweep's specs.jsonl.

A folder and a file for each of ten thousand trials take seconds, on a network minutes. A trial gets
them with its first attempt; from then on its spec.json counts, and its line no more.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from orchestrator.records.errors import StoreError
from orchestrator.records.trial_spec import TrialSpec

FILE = "specs.jsonl"
_START = b'{"trial_id": "'
_encode = json.JSONEncoder(ensure_ascii=False).encode


def text(specs: Iterable[TrialSpec], *, sweep: Path, started: Collection[str]) -> bytes:
    """Return the new content of the file: these specs, and earlier ones of other trials.

    Args:
        specs: Of trials that have not started.
        sweep: Folder of the sweep.
        started: Trials that have a spec.json, whose lines are left out.
    """
    lines = {i: line for i, line in read(sweep).items() if i not in started}
    lines |= {spec.trial_id: _encode(spec.to_json()).encode() for spec in specs}
    return b"".join(line + b"\n" for line in lines.values())


def read(sweep: Path) -> Mapping[str, bytes]:
    """Return the line of each trial by its id. While the file stays as it is, it is read once."""
    try:
        there = (sweep / FILE).stat()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return _read(sweep / FILE, there.st_ino, there.st_size, there.st_mtime_ns)


@lru_cache(maxsize=1)
def _read(file: Path, *version: int) -> Mapping[str, bytes]:
    # A damaged line names no trial: that one has no spec until it is submitted again.
    found = {}
    for line in file.read_bytes().split(b"\n"):
        trial_id, quote, _ = line.removeprefix(_START).partition(b'"')
        if line.startswith(_START) and quote:
            found[trial_id.decode(errors="replace")] = line
    return found


def find(sweep: Path, trial_id: str) -> dict[str, Any] | None:
    """Return the content of a trial's spec, None if it has no line.

    Raises:
        StoreError: If the line is damaged.
    """
    line = read(sweep).get(trial_id)
    if line is None:
        return None
    try:
        record: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise StoreError(
            f"{sweep / FILE}: the line of {trial_id} is not valid JSON ({error}); delete it and "
            "submit again"
        ) from error
    return record
