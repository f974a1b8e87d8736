"""Supervisor actors on the nodes of a Ray cluster, replaced when they die."""

import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.launchers.local import rank_environment, shares_gpus
from orchestrator.launchers.ray_connect import death_reason, first_line
from orchestrator.launchers.ray_embedded import SET_BY_RAY
from orchestrator.node.fork_server_process import START_TIMEOUT_S
from orchestrator.node.supervisor import NodeSupervisor
from orchestrator.records.code_snapshot import disagreement, pinned
from orchestrator.records.errors import ExperimentError
from orchestrator.records.processes import ProcessId
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.scheduling.demand import Node

LOG = logging.getLogger(__name__)
TRIES_PER_NODE = 3
"""Supervisors that may fail to start before a node is left out: one may have been killed, or out of
memory."""
LIST_EVERY_S = 1.0
"""How often Ray is asked for its nodes at most."""
REPLACE_TIMEOUT_S = 30.0
"""How long the controller waits for the supervisor that replaces a dead one. A later one joins like
that of a new node."""


@dataclass(kw_only=True)
class Supervisor:
    """The supervisor of one node, and what was asked of it."""

    actor: Any
    node: Node
    process: ProcessId
    polling: Any = None
    """The poll that was sent and not yet answered."""
    silent_s: float = 0.0
    """How long that has been unanswered, as far as somebody looked."""


@dataclass(kw_only=True)
class _Starting:
    """A supervisor that is not ready yet."""

    node: Node
    actor: Any
    introduction: tuple[Any, ...]
    """What it reports once it is ready. Answers come in order, so the last one makes it ready."""


class _UnsuitableNodeError(ExperimentError):
    """A node that cannot be used, however often it is tried."""


class SupervisorPool:
    """The supervisors of a cluster, one for each node that can have one."""

    def __init__(self, sweep: SweepDir, *, job: str, code: Path | None) -> None:
        """Prepare; nothing is started yet. The arguments are those of `RayLauncher`."""
        self._sweep = sweep
        self._job = job
        self._code = code
        self.ready: dict[str, Supervisor] = {}
        """By node."""
        self.changed_at = time.monotonic()
        """When a supervisor was last started or lost."""
        self.addresses: dict[str, str] = {}
        """Of each node, as the others reach it."""
        self.resources: dict[str, Mapping[str, float]] = {}
        """What Ray last listed of each node by name, its custom resources included."""
        self.early: bytes | None = None
        """Address of a fork server that waits for the first supervisor."""
        self._starting: dict[str, _Starting] = {}
        self._failures: Counter[str] = Counter()
        """Supervisors per node that did not start."""
        self._unusable: set[str] = set()
        """Nodes that could not run a supervisor, or are about to leave."""
        self._listed_at = 0.0

    @property
    def starting(self) -> bool:
        """Whether a node's supervisor is about to be ready."""
        return bool(self._starting)

    def start(self) -> list[ExperimentError]:
        """Start a supervisor on every node and wait for all; return what was wrong."""
        self._start_missing()
        return self._wait(START_TIMEOUT_S)

    def refresh(self) -> None:
        """Start supervisors on new nodes and take in those that are ready, without waiting."""
        if time.monotonic() - self._listed_at > LIST_EVERY_S:
            self._start_missing()
            self._warn(self._wait(0.0))

    def remove(self, node_id: str) -> None:
        """End a node's supervisor and use the node no more."""
        self._unusable.add(node_id)
        supervisor = self.ready.pop(node_id, None)
        if supervisor is not None:
            ray.kill(supervisor.actor)

    def replace_dead(self, node_id: str, *, wait: bool = True) -> bool:
        """Start another supervisor in the place of a dead one; return whether the node lives.

        Without `wait` it joins when it is ready, like that of a new node.
        """
        del self.ready[node_id]
        self.changed_at = time.monotonic()
        living = [node for node in self._list_nodes() if node.node_id == node_id]
        if living:
            self._start_on(living[0])
            self._warn(self._wait(REPLACE_TIMEOUT_S if wait else 0.0, only=[node_id]))
        return bool(living)

    def close(self, timeout_s: float) -> None:
        """End all supervisors and with them their ranks."""
        for starting in self._starting.values():
            ray.kill(starting.actor)
        calls = [supervisor.actor.close.remote() for supervisor in self.ready.values()]
        if calls:
            ray.wait(calls, num_returns=len(calls), timeout=timeout_s)

    def of(self, node_ids: Iterable[str]) -> list[Supervisor]:
        """Return the supervisors of those of the nodes that have one."""
        return [self.ready[n] for n in node_ids if n in self.ready]

    def _warn(self, problems: Sequence[ExperimentError]) -> None:
        for problem in problems:
            LOG.warning("%s; this node runs nothing for now", problem)

    def _list_nodes(self) -> list[Node]:
        """Return the living nodes that have a core.

        Their GPUs are only counted: the supervisor there knows the ids.
        """
        self._listed_at = time.monotonic()
        records: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        self.addresses = {record["NodeID"]: record["NodeManagerAddress"] for record in records}
        self.resources = {record["NodeID"]: record["Resources"] for record in records}
        return [
            Node(
                node_id=record["NodeID"],
                host=record["NodeManagerHostname"],
                cpus=int(record["Resources"].get("CPU", 0)),
                gpus=tuple(str(i) for i in range(int(record["Resources"].get("GPU", 0)))),
            )
            for record in records
            # A head that offers nothing is left alone: a supervisor there would only take memory.
            if record["Alive"] and record["Resources"].get("CPU", 0) >= 1
        ]

    def _start_missing(self) -> None:
        """Start a supervisor on each node that has none; returns at once."""
        known = self.ready.keys() | self._starting.keys() | self._unusable
        for node in self._list_nodes():
            if node.node_id not in known:
                self._start_on(node)

    def _start_on(self, node: Node) -> None:
        self.changed_at = time.monotonic()
        actor_class: Any = ray.remote(num_cpus=0, num_gpus=0, max_restarts=0)(NodeSupervisor)
        actor = actor_class.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node.node_id, soft=False)
        ).remote(
            log=str(self._sweep.path.absolute() / "nodes" / f"{node.host}.log"),
            environment={
                **rank_environment(self._sweep, self._code),
                **{name: os.environ.get(name, "") for name in SET_BY_RAY},
            },
            job=self._job,
            early=self.early,
            shares_gpus=shares_gpus(self._sweep),
        )
        self.early = None
        introduction = (
            actor.wait_until_ready.remote(),
            actor.describe.remote(),
            actor.gpu_memory_bytes.remote(),
            actor.installed.remote(),
        )
        self._starting[node.node_id] = _Starting(node=node, actor=actor, introduction=introduction)

    def _wait(self, timeout_s: float, only: Iterable[str] | None = None) -> list[ExperimentError]:
        """Take in supervisors that are ready within `timeout_s`; return what was wrong."""
        waited = [self._starting[n] for n in (self._starting if only is None else only)]
        if not waited:
            return []
        last = {starting.introduction[-1]: starting for starting in waited}
        ready, late = ray.wait(list(last), num_returns=len(last), timeout=timeout_s)
        problems = []
        for starting in (last[reference] for reference in ready):
            node_id = starting.node.node_id
            del self._starting[node_id]
            try:
                self.ready[node_id] = self._introduced(starting)
            except ExperimentError as problem:
                self._failures[node_id] += 1
                unsuitable = isinstance(problem, _UnsuitableNodeError)
                if unsuitable or self._failures[node_id] >= TRIES_PER_NODE:
                    self._unusable.add(node_id)
                problems.append(problem)
        if timeout_s >= START_TIMEOUT_S:
            problems += [
                ExperimentError(
                    f"node {last[reference].node.host}: its supervisor did not start in "
                    f"{timeout_s:.0f} s"
                )
                for reference in late
            ]
        return problems

    def _introduced(self, starting: _Starting) -> Supervisor:
        """Return a supervisor that is ready, with what it says of its node.

        Raises:
            ExperimentError: If the node cannot be used; says why.
        """
        node, host = starting.node, starting.node.host
        try:
            _, (process, chosen), memory, versions = ray.get(list(starting.introduction))
        except RayTaskError as error:
            ray.kill(starting.actor)
            raise ExperimentError(f"node {host}: {error.cause}") from error
        except RayActorError as error:
            raise ExperimentError(
                f"node {host}: its supervisor died at once ({death_reason(error)}); the node must "
                f"see {self._sweep.path.absolute()} and have memscale's dependencies installed"
            ) from error
        except RayError as error:
            raise ExperimentError(f"node {host}: no supervisor ({first_line(error)})") from error
        if self._code is not None and (wrong := disagreement(pinned(self._code), versions)):
            ray.kill(starting.actor)
            raise _UnsuitableNodeError(
                f"node {host}: has {wrong}, so its numbers would not compare; install the same "
                "versions there, or submit from an environment like its own"
            )
        if chosen is not None:
            # Ray names GPUs as CUDA_VISIBLE_DEVICES of its own start does: not always 0, 1, 2 …
            # It also counts what is none there, as in "2,3," and "-1": others' GPUs are not ours.
            node = replace(node, gpus=tuple(chosen[: len(node.gpus)]))
        node = replace(node, gpu_memory_bytes=memory if node.gpus else None)
        return Supervisor(actor=starting.actor, node=node, process=ProcessId.from_json(process))
