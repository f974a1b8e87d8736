"""Launcher interface of the controller: starts attempts, tells when they end.

Ray, plain processes and the debugger implement it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from orchestrator.control.failure_classifier import AttemptExit
from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.processes import ProcessId
from orchestrator.records.rank_registry import TRAIN, RankRequest
from orchestrator.records.trial_dir import TrialDir
from orchestrator.scheduling.demand import Demand, Node, NodeGpus
from orchestrator.scheduling.fair_share import Grant, SweepUsage
from orchestrator.scheduling.interface import Running


class NotPlaced(Exception):
    """The resources were not free after all: nothing was started, try again later.

    The message says what was short.
    """


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One attempt to start: on one node, or as a gang on several whole ones.

    Ranks go to the nodes of a gang in order, as evenly as can be, so rank 0 is on the first.
    `on_node` returns the launch as one of these nodes sees it.
    """

    trial_id: str
    trial_path: str
    attempt: int
    node_id: str
    ranks: int
    """On all nodes."""
    cpus: int
    """Cores per rank."""
    gpus: float
    """Over all ranks."""
    gpu_ids: tuple[str, ...]
    """Which ones, as the scheduler suggests."""
    cache: str
    micro_batch_tokens: int | None = None
    memory_halvings: int = 0
    """How often the memory of a whole GPU was too small. Ranks halve a micro-batch that they choose
    as often, and gather sharded parameters twice."""
    gpu_memory_share: float | None = None
    """Fraction of a GPU's memory that each rank may take; None: all of it."""
    mps: bool = False
    """Whether ranks that share a GPU compute at once, as clients of CUDA's MPS."""
    hang_after_s: float | None = None
    """Seconds without progress that count as a hang; None: as `hang_detection.py` says."""
    job: str = TRAIN
    alike: str | None = None
    """Attempts that share this and their resources may run in one process, one after another; None:
    in a process of its own. For a single rank."""
    other_nodes: tuple[NodeGpus, ...] = ()
    """The further nodes of a gang."""
    node_index: int = 0
    """Which of the nodes this is about: 0 is `node_id`."""
    address: str | None = None
    """Of that node, as the others reach it; None where all ranks are on one."""

    @property
    def key(self) -> str:
        """Unique name of the attempt among those that run."""
        return f"{self.trial_id}/{self.attempt}"

    @property
    def folder(self) -> AttemptDir:
        """The attempt's folder."""
        return TrialDir(Path(self.trial_path)).attempt(self.attempt)

    @property
    def demand(self) -> Demand:
        """Over all ranks."""
        return Demand(cpus=self.ranks * self.cpus, gpus=self.gpus)

    @property
    def all_nodes(self) -> tuple[NodeGpus, ...]:
        """Its nodes, with the GPUs that the scheduler suggests."""
        return (NodeGpus(node_id=self.node_id, gpus=self.gpu_ids), *self.other_nodes)

    @property
    def local_ranks(self) -> range:
        """The ranks on this node."""
        n = len(self.all_nodes)
        first, end = (i * self.ranks // n for i in (self.node_index, self.node_index + 1))
        return range(first, end)

    @property
    def local_gpus(self) -> float:
        """GPUs on this node: those of a gang are where its ranks are."""
        return self.gpus * len(self.local_ranks) / self.ranks if self.other_nodes else self.gpus

    def on_node(self, node_index: int, *, address: str | None = None) -> "Launch":
        """Return the launch as one node sees it, which the others reach at that address."""
        return replace(self, node_index=node_index, address=address)

    def rank_requests(self, gpu_ids: Sequence[str]) -> list[RankRequest]:
        """Return one request per rank on this node.

        The node's GPUs are dealt out evenly. Ranks share one only if there are fewer GPUs than
        ranks.
        """
        n, ranks = len(gpu_ids), len(self.local_ranks)
        first = [i * n // ranks for i in range(ranks + 1)]
        return [
            RankRequest(
                trial_path=self.trial_path,
                attempt=self.attempt,
                rank=rank,
                ranks=self.ranks,
                cpus=self.cpus,
                gpus=tuple(gpu_ids[first[i] : max(first[i] + 1, first[i + 1])]),
                cache=self.cache,
                micro_batch_tokens=self.micro_batch_tokens,
                memory_halvings=self.memory_halvings,
                gpu_memory_share=self.gpu_memory_share,
                job=self.job,
                address=self.address,
            )
            for i, rank in enumerate(self.local_ranks)
        ]


class Launcher(Protocol):
    """Starts attempts on nodes. Used by one thread, the one that called `start`."""

    def start(self) -> None:
        """Make ready: all that `launch` needs is there when this returns.

        Raises:
            ExperimentError: If that fails; says what to do.
        """

    def nodes(self) -> Sequence[Node]:
        """Return the nodes of the cluster, with all that they have."""

    def launch(self, launch: Launch) -> tuple[str, ...]:
        """Start the ranks of an attempt; return the ids of the GPUs that it got.

        Raises:
            NotPlaced: If it cannot be started now.
        """

    def poll(self) -> list[AttemptExit]:
        """Return the attempts that ended since the last call; all their ranks are gone.

        The rank of one that is done may wait some seconds for the next (`Launch.alike`). Returns at
        once.
        """

    def stop(self, trial_id: str, attempt: int, *, hard: bool) -> None:
        """Ask an attempt to checkpoint and leave (SIGTERM), or end it now (SIGKILL).

        Returns at once; `poll` tells when it has ended.
        """

    def end_orphans(self, processes: Sequence[ProcessId]) -> list[ProcessId]:
        """End ranks of a dead controller; return those that remain or cannot be reached."""

    def close(self) -> None:
        """End all that was started. May be called twice."""


@dataclass(frozen=True, kw_only=True)
class SharedUsage:
    """What other users of a cluster hold, and what they leave to this sweep."""

    foreign_load: Sequence[Running] = ()
    """Placeholder trials for all that is taken on nodes and not held by this controller."""
    grant: Grant = field(default_factory=Grant)
    """What this sweep may start."""
    may_grow: bool = False
    """Whether more nodes may come soon: then what fits nowhere waits for them."""


@runtime_checkable
class SharedLauncher(Protocol):
    """A launcher on a cluster that others may use too."""

    def exchange_usage(self, usage: SweepUsage) -> SharedUsage:
        """Tell the other sweeps what this one holds and wants; return what is left to it.

        Args:
            usage: Of this sweep; its name, priority and weight are the launcher's to fill in.
        """
