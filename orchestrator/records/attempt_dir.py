"""Folder of one attempt at a trial; `sweep_dir` says what its files hold."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.records.journal import JournalLine, read_lines
from orchestrator.records.json_files import read_json, read_record
from orchestrator.records.usable_gpus import of_attempt


@dataclass(frozen=True)
class AttemptDir:
    """One try at running a trial."""

    path: Path

    @property
    def number(self) -> int:
        """1 for the first attempt."""
        return int(self.path.name)

    @property
    def journal(self) -> Path:
        """Append-only measurements of rank 0."""
        return self.path / "journal.jsonl"

    @property
    def log(self) -> Path:
        """What the ranks printed."""
        return self.path / "log.txt"

    def launch(self) -> dict[str, Any] | None:
        """Return launch.json."""
        return read_record(self.path / "launch.json")

    def end(self) -> dict[str, Any] | None:
        """Return end.json: None while the attempt runs, or if its controller died."""
        return read_record(self.path / "end.json")

    def is_closed(self) -> bool:
        """Whether the controller has closed it; False where the storage does not say.

        The folder is listed, since a network file system remembers that a file was not there.
        """
        try:
            return "end.json" in os.listdir(self.path)  # noqa: PTH208 -- names, no paths
        except OSError:
            return False

    def error(self) -> dict[str, Any] | None:
        """Return error.json."""
        return read_record(self.path / "error.json")

    def environment(self) -> dict[str, Any] | None:
        """Return environment.json, with the GPUs that the attempt could use."""
        record = read_json(self.path / "environment.json")
        return None if record is None else of_attempt(record, self.launch() or {})

    def lines(self, offset: int = 0) -> Iterator[JournalLine]:
        """Yield the complete lines of the journal from byte `offset` on (`journal.read_lines`)."""
        return read_lines(self.journal, offset)
