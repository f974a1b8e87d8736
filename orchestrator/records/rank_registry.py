"""Registry of ranks: requests to them, and their process ids after a crash."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.processes import ProcessId
from orchestrator.records.trial_dir import TrialDir

LOG = logging.getLogger(__name__)
TRAIN = "orchestrator.node.worker:train"
"""The job function that trains."""


@dataclass(frozen=True, kw_only=True)
class RankRequest:
    """Request to one rank. Plain values: it travels as JSON."""

    trial_path: str
    attempt: int
    rank: int
    ranks: int
    cpus: int
    """Cores, and torch threads, of this rank."""
    gpus: tuple[str, ...]
    """Ids of the GPUs this rank may use; () is the CPU."""
    cache: str
    """Folder of prepared data, shared by all trials."""
    micro_batch_tokens: int | None = None
    memory_halvings: int = 0
    """How often the memory of a whole GPU was too small for the trial."""
    gpu_memory_share: float | None = None
    """Part of its GPU's memory that this rank may take; None: all of it."""
    job: str = TRAIN
    address: str | None = None
    """Of this rank's node as the trial's other nodes reach it; None where all ranks are on one."""

    @property
    def trial(self) -> TrialDir:
        """The trial's folder."""
        return TrialDir(Path(self.trial_path))

    @property
    def attempt_dir(self) -> AttemptDir:
        """The attempt's folder."""
        return self.trial.attempt(self.attempt)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON form."""
        return {**asdict(self), "gpus": list(self.gpus)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "RankRequest":
        """Read what `to_json` wrote."""
        return cls(**{**record, "gpus": tuple(record["gpus"])})


def register(request: RankRequest) -> None:
    """Append this process to ranks.jsonl, so that a later controller can end it after a crash."""
    line = json.dumps({"rank": request.rank, **ProcessId.own().to_json()}).encode() + b"\n"
    # Buffered: what the disk does not take of the line at once is written after it, or raises.
    with (request.attempt_dir.path / "ranks.jsonl").open("ab") as file:
        file.write(line)


def registered(attempt: AttemptDir) -> list[ProcessId]:
    """Return the processes that ran an attempt.

    A torn last line belongs to a process that was killed while it wrote. A bad line before it is
    passed over with a warning: lines of two nodes may run into each other on a network file system.
    """
    path, found = attempt.path / "ranks.jsonl", []
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            continue
        try:
            found.append(ProcessId.from_json(json.loads(line)))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            LOG.warning(
                "%s: line %d names no process (%r) and is passed over; if a rank of this attempt "
                "still runs, end it yourself",
                path,
                number,
                error,
            )
    return found
