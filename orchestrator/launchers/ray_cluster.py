"""The Ray launcher: reservations by placement groups, ranks by our own supervisors. The only file that imports ray.

Ray's part is small on purpose: it knows the nodes, reserves each trial's resources in a placement group (so that
other users of a cluster are kept out), and carries calls to one supervisor actor per node, which holds no
resources. Ranks are children of that actor's template, not Ray workers. What runs when is the scheduler's
decision; a group is asked for only when it fits, because Ray's pending groups are no queue.

Without an address a cluster of this machine is started for this controller alone and ends with it.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # in Cython
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from orchestrator.ending import Ended
from orchestrator.errors import ExperimentError
from orchestrator.launchers.embedded import SET_BY_RAY, Surroundings
from orchestrator.launchers.local import rank_environment
from orchestrator.launchers.machine import usable_cores
from orchestrator.launchers.protocol import Launch, NotPlaced
from orchestrator.launchers.supervisor import START_TIMEOUT_S, NodeSupervisor
from orchestrator.processes import ProcessId
from orchestrator.rank import TRAIN, registered
from orchestrator.scheduler import Demand, Node
from orchestrator.trial_dir import SweepDir

LOG = logging.getLogger(__name__)
PLACE_TIMEOUT_S = 10.0
"""How long a group that should fit may stay pending."""
KEEP_RESERVATION_S = 2.0
"""How long resources stay reserved after a trial, for the next one like it: a group asked for right after another
was removed waits up to a second for Ray to notice."""
CALL_TIMEOUT_S = 60.0
"""How long a supervisor may take to answer a call that does no waiting of its own."""
OBJECT_STORE_BYTES = 80 * 2**20
"""Ray's minimum is 75 MiB; we pass nothing through it."""


@dataclass(kw_only=True)
class _Supervised:
    """A node's supervisor and what we wait for from it."""

    actor: Any
    node: Node
    process: ProcessId
    polling: Any = None
    """The poll that was sent and not yet answered."""


@dataclass(kw_only=True)
class _Reservation:
    """Resources on a node that Ray keeps for us."""

    group: PlacementGroup
    node_id: str
    demand: Demand
    gpu_ids: tuple[str, ...]
    idle_since: float = 0.0


@dataclass(kw_only=True)
class _Held:
    """An attempt that runs, and what it holds."""

    launch: Launch
    reservation: _Reservation


class RayLauncher:
    """Runs attempts on a Ray cluster."""

    def __init__(
        self,
        sweep: SweepDir,
        *,
        address: str | None = None,
        cpus: int | None = None,
        gpus: int | None = None,
        job: str = TRAIN,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            sweep: Whose trials run; its folder takes the templates' logs.
            address: Of an existing cluster, as `ray.init` takes it; None starts one on this machine.
            cpus: Cores of the embedded cluster; None is all this process may use.
            gpus: GPUs of the embedded cluster; None is what Ray finds. More than there are can be said for tests.
            job: The job function that will be launched; decides what the templates import.
        """
        self._sweep = sweep
        self._address = address
        self._cpus = cpus
        self._gpus = gpus
        self._job = job
        self._supervised: dict[str, _Supervised] = {}
        self._held: dict[str, _Held] = {}
        self._idle: list[_Reservation] = []
        self._ended: list[Ended] = []
        self._surroundings = Surroundings()
        self._gpu_ids = ray.remote(num_cpus=0, max_calls=0)(_gpu_ids)
        self._asked_at = 0.0
        self._unusable: set[str] = set()
        """Nodes that joined later and could not run a supervisor."""

    def start(self) -> None:
        """Start or join the cluster and have a supervisor ready on every node."""
        try:
            self._surroundings.remember()
            if self._address is None:
                self._start_cluster()
            else:
                ray.init(
                    address=self._address,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    namespace="memscale",
                )
            self._surroundings.undo_what_ray_did()
            self._supervise(self._ask_for_nodes())
        except BaseException:
            self.close()
            raise

    def nodes(self) -> Sequence[Node]:
        """Return the nodes that have a supervisor. Looks for new ones once a second at most."""
        if time.monotonic() - self._asked_at > 1.0:
            known = self._supervised.keys() | self._unusable
            new = [node for node in self._ask_for_nodes() if node.node_id not in known]
            try:
                self._supervise(new)
            except ExperimentError as error:
                LOG.warning("%s; this node is left out", error)
                self._unusable |= {node.node_id for node in new}
        return tuple(supervised.node for supervised in self._supervised.values())

    def launch(self, launch: Launch) -> tuple[str, ...]:
        """Reserve the resources, learn which GPUs they are, and have the node's supervisor fork the ranks."""
        supervised = self._supervised.get(launch.node_id)
        if supervised is None:
            raise NotPlaced(f"node {launch.node_id} is gone")
        reservation = self._reserve(launch, supervised.node)
        self._held[launch.key] = _Held(launch=launch, reservation=reservation)
        try:
            call = supervised.actor.launch.remote(launch, reservation.gpu_ids)
            ray.get(call, timeout=CALL_TIMEOUT_S + START_TIMEOUT_S)
        except RayError as error:
            # It may have started ranks before it died or hung. They end with it, and `poll` reports the attempt.
            LOG.warning(
                "node %s: its supervisor does not answer (%s)",
                supervised.node.host,
                _first_line(error),
            )
            ray.kill(supervised.actor)
        return reservation.gpu_ids

    def poll(self) -> list[Ended]:
        """Return what ended; replaces supervisors that died. Answers that are not there yet are left for next time."""
        for supervised in self._supervised.values():
            if supervised.polling is None:
                supervised.polling = supervised.actor.poll.remote()
        polls = {s.polling: s for s in self._supervised.values()}
        if polls:
            answered, _ = ray.wait(list(polls), num_returns=len(polls), timeout=0.05)
            for poll in answered:
                supervised = polls[poll]
                supervised.polling = None
                try:
                    self._ended += ray.get(poll)
                except RayError as error:
                    self._lost(supervised, _first_line(error))
        ended, self._ended = self._ended, []
        for one in ended:
            held = self._held.pop(f"{one.trial_id}/{one.attempt}", None)
            if held is not None:
                held.reservation.idle_since = time.monotonic()
                self._idle.append(held.reservation)
        oldest = time.monotonic() - KEEP_RESERVATION_S
        self._release(lambda idle: idle.idle_since < oldest or idle.node_id not in self._supervised)
        return ended

    def stop(self, trial_id: str, attempt: int, *, hard: bool) -> None:
        """Signal the ranks."""
        held = self._held.get(f"{trial_id}/{attempt}")
        supervised = None if held is None else self._supervised.get(held.launch.node_id)
        if held is not None and supervised is not None:
            supervised.actor.stop.remote(held.launch.key, hard=hard)

    def end_orphans(self, processes: Sequence[ProcessId]) -> list[ProcessId]:
        """Have the supervisors kill ranks of an earlier controller on their nodes."""
        left: list[ProcessId] = []
        for host in {process.host for process in processes}:
            there = [process for process in processes if process.host == host]
            actor = next(
                (s.actor for s in self._supervised.values() if s.process.host == host), None
            )
            left += (
                there
                if actor is None
                else ray.get(actor.end_orphans.remote(there), timeout=CALL_TIMEOUT_S)
            )
        return left

    def close(self) -> None:
        """End supervisors, ranks and, if it is ours, the cluster; nothing of it is left when this returns."""
        if ray.is_initialized():
            calls = [supervised.actor.close.remote() for supervised in self._supervised.values()]
            if calls:
                ray.wait(calls, num_returns=len(calls), timeout=CALL_TIMEOUT_S)
            self._idle += [held.reservation for held in self._held.values()]
            self._release(lambda idle: True)
            ray.shutdown()
        self._supervised.clear()
        self._held.clear()
        self._surroundings.close()
        if self._address is None:
            _read_settings()

    # -- the cluster -------------------------------------------------------------------------------------------

    def _start_cluster(self) -> None:
        """Start Ray on this machine, apart from any other Ray there."""
        folder = self._surroundings.make(rank_environment(self._sweep))
        _read_settings()
        try:
            ray.init(
                address="local",
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                num_cpus=usable_cores() if self._cpus is None else self._cpus,
                num_gpus=self._gpus,
                object_store_memory=OBJECT_STORE_BYTES,
                namespace="memscale",
                _temp_dir=str(folder),
            )
        except (RayError, RuntimeError, OSError, ValueError) as error:
            raise ExperimentError(
                f"Ray did not start on this machine: {_first_line(error)}; "
                "`memscale doctor` looks closer, `--launcher process` does without Ray"
            ) from error

    def _ask_for_nodes(self) -> list[Node]:
        """Return the living nodes; their GPUs are only counted, the supervisor there knows the ids."""
        self._asked_at = time.monotonic()
        records: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        return [
            Node(
                node_id=record["NodeID"],
                host=record["NodeManagerHostname"],
                cpus=int(record["Resources"].get("CPU", 0)),
                gpus=tuple(str(i) for i in range(int(record["Resources"].get("GPU", 0)))),
            )
            for record in records
            if record["Alive"]
        ]

    # -- reservations ------------------------------------------------------------------------------------------

    def _reserve(self, launch: Launch, node: Node) -> _Reservation:
        """Return a reservation for the launch: one that is idle and just like it, else a new one."""
        like = [r for r in self._idle if r.node_id == node.node_id and r.demand == launch.demand]
        if like:
            # The GPUs that the scheduler chose, if they are among them.
            chosen = min(like, key=lambda r: r.gpu_ids != launch.gpu_ids)
            self._idle.remove(chosen)
            return chosen
        self._release(lambda idle: idle.node_id == node.node_id)
        bundle: dict[str, float] = {"CPU": launch.demand.cpus}
        if launch.gpus:
            bundle["GPU"] = launch.gpus
        group = placement_group(
            [bundle],
            strategy="STRICT_PACK",
            name=launch.key,
            bundle_label_selector=[{"ray.io/node-id": node.node_id}],
        )
        try:
            if not group.wait(PLACE_TIMEOUT_S):
                raise NotPlaced(
                    f"needs {launch.demand}; Ray has less free on {node.host}: somebody else uses it"
                )
            gpu_ids = self._gpus_of(group, launch.gpus)
            if not set(gpu_ids) <= set(node.gpus):
                raise ExperimentError(
                    f"node {node.host}: Ray reserved GPU {gpu_ids}, expected some of {node.gpus}"
                )
        except RayError as error:
            remove_placement_group(group)
            raise NotPlaced(
                f"Ray did not say which GPUs it reserved: {_first_line(error)}"
            ) from error
        except BaseException:
            remove_placement_group(group)
            raise
        return _Reservation(
            group=group, node_id=node.node_id, demand=launch.demand, gpu_ids=gpu_ids
        )

    def _release(self, chosen: Callable[[_Reservation], bool]) -> None:
        """Give idle reservations back."""
        for reservation in [r for r in self._idle if chosen(r)]:
            self._idle.remove(reservation)
            remove_placement_group(reservation.group)

    def _gpus_of(self, group: PlacementGroup, gpus: float) -> tuple[str, ...]:
        """Return the GPUs that a group holds, by running a moment inside it."""
        if not gpus:
            return ()
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=0
        )
        call = self._gpu_ids.options(num_gpus=gpus, scheduling_strategy=strategy).remote()
        return tuple(str(gpu) for gpu in ray.get(call, timeout=CALL_TIMEOUT_S))

    # -- supervisors -------------------------------------------------------------------------------------------

    def _supervise(self, nodes: Sequence[Node]) -> None:
        """Start a supervisor on each of these nodes, all at once, and wait for them."""
        actors = {node.node_id: self._new_actor(node) for node in nodes}
        for node in nodes:
            actor = actors[node.node_id]
            try:
                ray.get(actor.wait_until_ready.remote(), timeout=START_TIMEOUT_S)
                process, visible = ray.get(actor.describe.remote(), timeout=CALL_TIMEOUT_S)
                memory = ray.get(actor.gpu_memory_bytes.remote(), timeout=CALL_TIMEOUT_S)
            except GetTimeoutError as error:
                raise ExperimentError(
                    f"node {node.host}: its supervisor did not start in {START_TIMEOUT_S:.0f} s"
                ) from error
            except RayTaskError as error:
                raise ExperimentError(str(error.cause)) from error
            except RayError as error:
                raise ExperimentError(
                    f"node {node.host}: its supervisor died at once ({_first_line(error)})"
                ) from error
            if len(visible) >= len(node.gpus):
                # Ray names GPUs as CUDA_VISIBLE_DEVICES of its own start does, which need not be 0, 1, 2 …
                node = replace(node, gpus=tuple(visible[: len(node.gpus)]))
            node = replace(node, gpu_memory_bytes=memory if node.gpus else None)
            self._supervised[node.node_id] = _Supervised(
                actor=actor, node=node, process=ProcessId.from_json(process)
            )

    def _new_actor(self, node: Node) -> Any:
        actor_class: Any = ray.remote(num_cpus=0, num_gpus=0, max_restarts=0)(NodeSupervisor)
        return actor_class.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node.node_id, soft=False)
        ).remote(
            log=str(self._sweep.path.absolute() / "nodes" / f"{node.host}.log"),
            environment={
                **rank_environment(self._sweep),
                **{name: os.environ.get(name, "") for name in SET_BY_RAY},
            },
            job=self._job,
        )

    def _lost(self, supervised: _Supervised, why: str) -> None:
        """A supervisor died. Its ranks died with it; make sure, say so, and put another one in its place."""
        node = supervised.node
        LOG.warning("node %s: its supervisor is gone (%s)", node.host, why)
        del self._supervised[node.node_id]
        self._release(lambda idle: idle.node_id == node.node_id)
        gone = [held for held in self._held.values() if held.launch.node_id == node.node_id]
        there = [other for other in self._ask_for_nodes() if other.node_id == node.node_id]
        if there:
            self._supervise(there)
            ranks = [process for held in gone for process in registered(held.launch.folder)]
            for process in self.end_orphans(ranks):
                LOG.warning("node %s: rank %d could not be ended", node.host, process.pid)
            what = f"the supervisor of {node.host} died"
        else:
            what = f"the node {node.host} died"
        for held in gone:
            self._ended.append(
                Ended(
                    trial_id=held.launch.trial_id,
                    attempt=held.launch.attempt,
                    node_lost=f"{what}, and its ranks with it",
                )
            )


def _read_settings() -> None:
    """Have Ray take its settings and its token from the environment as it is now; it read them when it was imported."""
    # In this order: a thread of Ray's that still runs must not look for a token that is gone.
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _gpu_ids() -> list[str]:
    """Return the GPUs of the bundle that this runs in."""
    return [str(gpu) for gpu in ray.get_gpu_ids()]


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
