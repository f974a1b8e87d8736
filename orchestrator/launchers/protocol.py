"""What the controller asks of whoever starts processes. Ray, plain processes and the debugger look alike to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestrator.ending import Ended
from orchestrator.processes import ProcessId
from orchestrator.rank import TRAIN, RankRequest
from orchestrator.scheduler import Demand, Node
from orchestrator.trial_dir import AttemptDir, TrialDir


class NotPlaced(Exception):
    """The resources were not there after all: nothing was started, try again later. The message says what was short."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One attempt to start on one node."""

    trial_id: str
    trial_path: str
    attempt: int
    node_id: str
    ranks: int
    cpus: int
    """Cores per rank."""
    gpus: float
    """Over all ranks."""
    gpu_ids: tuple[str, ...]
    """Which ones, as the scheduler suggests."""
    cache: str
    micro_batch_tokens: int | None = None
    gpu_memory_share: float | None = None
    """Part of a GPU's memory that each rank may take; None: all of it."""
    hang_after_s: float | None = None
    """Seconds without progress that count as a hang; None: what `orchestrator/hang.py` says."""
    job: str = TRAIN

    @property
    def key(self) -> str:
        """What names the attempt among those that run."""
        return f"{self.trial_id}/{self.attempt}"

    @property
    def folder(self) -> AttemptDir:
        """The attempt's folder."""
        return TrialDir(Path(self.trial_path)).attempt(self.attempt)

    @property
    def demand(self) -> Demand:
        """Over all ranks."""
        return Demand(cpus=self.ranks * self.cpus, gpus=self.gpus)

    def rank_requests(self, gpu_ids: Sequence[str]) -> list[RankRequest]:
        """Return one request per rank; the GPUs are dealt out evenly, several ranks may share one."""
        n = len(gpu_ids)
        return [
            RankRequest(
                trial_path=self.trial_path,
                attempt=self.attempt,
                rank=rank,
                ranks=self.ranks,
                cpus=self.cpus,
                gpus=tuple(gpu_ids[rank * n // self.ranks : -(-(rank + 1) * n // self.ranks)]),
                cache=self.cache,
                micro_batch_tokens=self.micro_batch_tokens,
                gpu_memory_share=self.gpu_memory_share,
                job=self.job,
            )
            for rank in range(self.ranks)
        ]


class Launcher(Protocol):
    """Starts attempts on nodes and tells when they end. Used by one thread, the one that called `start`."""

    def start(self) -> None:
        """Make ready: whatever `launch` needs is there when this returns.

        Raises:
            ExperimentError: If that fails; says what to do.
        """

    def nodes(self) -> Sequence[Node]:
        """Return the nodes there are now, with everything they have in all."""

    def launch(self, launch: Launch) -> tuple[str, ...]:
        """Start the ranks of an attempt; return the ids of the GPUs that it got.

        Raises:
            NotPlaced: If it cannot be started now.
        """

    def poll(self) -> list[Ended]:
        """Return the attempts that ended since the last call; all their ranks are gone. Returns at once."""

    def stop(self, trial_id: str, attempt: int, *, hard: bool) -> None:
        """Ask an attempt to checkpoint and leave (SIGTERM), or end it now (SIGKILL). `poll` tells when it has."""

    def end_orphans(self, processes: Sequence[ProcessId]) -> list[ProcessId]:
        """End ranks of an earlier controller; return those that could not be reached or would not die."""

    def close(self) -> None:
        """End everything that was started. May be called twice."""
