"""Cache of final trial statuses: `status` reads one file instead of ten thousand.

It is never the record. The controller writes statuses.jsonl; a line counts only while the trial's
folder agrees with it, and without a line, or with a torn one, the folder is read. The lines:

    {"trial_id", "architecture", "preset", "seed", "steps", "varied", "spec_ns"}  of every trial
    {…, "result_ns", "attempt", "step", "loss", "outcome", "reason"}  of one that is done

result_ns is the st_mtime_ns of its result.json, spec_ns that of its spec.json, or of the sweep's
specs.jsonl before it starts.
"""

import contextlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.records import unstarted_specs
from orchestrator.records.json_files import write_text
from orchestrator.records.sweep_dir import SweepDir

LOG = logging.getLogger(__name__)
FILE = "statuses.jsonl"


def result_ns(trial_path: str | Path) -> int | None:
    """Return when a trial's result was written, st_mtime_ns; None if there is none."""
    return _written_ns(f"{trial_path}/result.json")


def spec_ns(trial_path: str | Path) -> int | None:
    """Return the same of a trial's spec: another time means that somebody changed it."""
    return _written_ns(f"{trial_path}/spec.json")


class SpecTimes:
    """When the specs of a sweep were written, those in the file of unstarted trials too."""

    def __init__(self, sweep: SweepDir) -> None:
        """Read which trials have a folder."""
        self.folders = sweep.trial_folders()
        self._trials = f"{sweep.path}/trials"
        self._unstarted_ns = _written_ns(f"{sweep.path}/{unstarted_specs.FILE}")

    def ns(self, trial_id: str) -> int | None:
        """Return st_mtime_ns of a trial's spec."""
        own = spec_ns(f"{self._trials}/{trial_id}") if trial_id in self.folders else None
        return self._unstarted_ns if own is None else own


def _written_ns(path: str) -> int | None:
    try:
        # A tenth of Path's time, which matters for ten thousand trials.
        return os.stat(path).st_mtime_ns  # noqa: PTH116
    except FileNotFoundError:
        return None


def read(sweep: SweepDir) -> dict[str, dict[str, Any]]:
    """Return the last line of each trial, by its id. Lines that cannot be read are passed over."""
    known: dict[str, dict[str, Any]] = {}
    try:
        lines = (sweep.path / FILE).read_bytes().split(b"\n")
    except OSError:
        return known
    try:
        records = json.loads(b"[" + b",".join(filter(None, lines)) + b"]")
    except ValueError:
        records = _readable(lines)
    for record in records:
        if isinstance(record, dict) and "trial_id" in record:
            known[record["trial_id"]] = record
    return known


def _readable(lines: Iterable[bytes]) -> list[Any]:
    records = []
    for line in lines:
        with contextlib.suppress(ValueError):
            records.append(json.loads(line))
    return records


class StatusCache:
    """The writer of the file: one process, the sweep's controller."""

    def __init__(self, sweep: SweepDir) -> None:
        """Prepare; nothing is read or written yet."""
        self._sweep = sweep
        self._new: list[Mapping[str, Any]] = []
        self._results: dict[str, Any] = {}
        """When the results were written that the file holds, by trial id."""

    def reset(self, trials: Iterable[Mapping[str, Any]]) -> None:
        """Replace the file by one line for each trial: the old one if it agrees with the given."""
        before = read(self._sweep)
        lines = {**before}
        for facts in trials:
            known = before.get(facts["trial_id"], {})
            if {key: known.get(key) for key in facts} != dict(facts):
                lines[facts["trial_id"]] = dict(facts)
        self._results = {i: line["result_ns"] for i, line in lines.items() if "result_ns" in line}
        text = "".join(map(_line, lines.values()))
        with self._quietly():
            write_text(self._sweep.path / FILE, text, durable=False)

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the line of a trial that is done, unless the file has it; `flush` writes it."""
        if self._results.get(record["trial_id"]) != record["result_ns"]:
            self._results[record["trial_id"]] = record["result_ns"]
            self._new.append(record)

    def flush(self) -> None:
        """Append what was added."""
        if not self._new:
            return
        text, self._new = "".join(map(_line, self._new)), []
        with self._quietly(), (self._sweep.path / FILE).open("a", encoding="utf-8") as file:
            file.write(text)

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        """A full disk makes `status` slower, nothing else."""
        try:
            yield
        except OSError as error:
            LOG.warning(
                "%s: not written (%s); `memscale status` reads every trial's folder", FILE, error
            )


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _line(record: Mapping[str, Any]) -> str:
    return _encode(record) + "\n"
