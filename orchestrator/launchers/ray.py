"""The Ray launcher: reservations by placement groups, ranks by our own supervisors. Ray is imported here and in `ray_connect.py` only.

Ray's part is small on purpose: it knows the nodes, reserves each trial's resources in a placement group (so that
other users of a cluster are kept out), and carries calls to one supervisor actor per node, which holds no
resources. Ranks are children of that actor's fork server, not Ray workers. What runs when is the scheduler's
decision; a group is asked for only when it fits, because Ray's pending groups are no queue.

Without an address a cluster of this machine is started for this controller alone and ends with it. A cluster that was
there before is shared: what is really free on its nodes is looked up, and the sweeps on it tell each other how they
stand (`cluster_registry.py`). A gang that fills several nodes has one group with a bundle per node; each node's supervisor
starts its share of the ranks, and the attempt ends as one.
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # in Cython
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from orchestrator.control.failure_classifier import AttemptExit
from orchestrator.control.launcher_port import Launch, NotPlaced, SharedUsage
from orchestrator.launchers.cluster_registry import ClusterRegistry
from orchestrator.launchers.foreign_load import NodeUse, foreign_load
from orchestrator.launchers.local import rank_environment
from orchestrator.launchers.ray_connect import (
    NAMESPACE,
    RayKeyValueStore,
    first_line,
    join,
    ping,
    reason_of,
)
from orchestrator.launchers.ray_embedded import LOOPBACK, SET_BY_RAY, RayEnvironment, own_ray
from orchestrator.node.hardware import usable_cores
from orchestrator.node.supervisor import START_TIMEOUT_S, NodeSupervisor
from orchestrator.records.code_snapshot import disagreement, pinned
from orchestrator.records.errors import ExperimentError
from orchestrator.records.processes import ProcessId
from orchestrator.records.rank_registry import TRAIN, registered
from orchestrator.records.trial_dir import SweepDir
from orchestrator.scheduling.demand import Demand, Node
from orchestrator.scheduling.fair_share import SweepUsage, grant

LOG = logging.getLogger(__name__)
PLACE_TIMEOUT_S = 10.0
"""How long a group that should fit may stay pending."""
KEEP_RESERVATION_S = 2.0
"""How long resources stay reserved after a trial, for the next one like it: a group asked for right after another
was removed waits up to a second for Ray to notice."""
SHARED_PLACE_TIMEOUT_S = 3.0
"""The same where somebody else may have been quicker."""
SETTLE_S = 2.0
"""How long Ray may still count as used what was given back: it tells its nodes' free resources about once a second."""
STARTS = 3
"""How often to start a cluster of our own: each of Ray's processes must come up in 30 s, which a busy machine may not
give it."""
TRIES_PER_NODE = 3
"""Supervisors that may fail to come up before a node is left out: one may have been killed, or out of memory."""
NODES_WAIT_S = 300.0
"""How long after its nodes last changed an existing cluster is expected to change again: a lost node is often replaced."""
REPLACE_TIMEOUT_S = 30.0
"""How long the controller waits for the supervisor that replaces a dead one. A later one joins like a new node."""
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
class _Joining:
    """A node whose supervisor is starting."""

    node: Node
    actor: Any
    introduced: tuple[Any, ...]
    """What it says of itself once it is ready; the last to come makes it so."""


@dataclass(kw_only=True)
class _Reservation:
    """Resources that Ray keeps for us: of one node, or several whole ones."""

    group: PlacementGroup
    uses: tuple[NodeUse, ...]
    """Per node, in the order of the parts."""
    demand: Demand
    idle_since: float = 0.0

    @property
    def node_ids(self) -> tuple[str, ...]:
        return tuple(use.node_id for use in self.uses)


@dataclass(kw_only=True)
class _Held:
    """An attempt that runs, and what it holds."""

    launch: Launch
    reservation: _Reservation
    open: set[str] = field(default_factory=set)
    """Nodes where ranks of it still run."""
    endings: list[AttemptExit] = field(default_factory=list)
    """Of the other nodes."""


@dataclass(kw_only=True)
class _Death:
    """Of a node's supervisor, which is not told yet."""

    node: Node
    host: str
    """As the supervisor called it."""
    gone: list[_Held]
    """What had ranks there."""
    node_lives: bool = False
    waits: bool = False
    """For the storage to say which ranks there were."""


class _Unfit(ExperimentError):
    """A node that will not do, however often it is tried."""


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
        code: Path | None = None,
        priority: int = 0,
        weight: float = 1.0,
        grows: bool = False,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            sweep: Whose trials run; its folder takes the fork servers' logs.
            address: Of an existing cluster: `HOST:PORT`, or `auto`; this machine is one of its nodes. None starts one on this machine.
            cpus: Cores of the embedded cluster; None is all this process may use.
            gpus: GPUs of the embedded cluster; None is what Ray finds. More than there are can be said for tests.
            job: The job function that will be launched; decides what the fork servers import.
            code: Folder that supervisors and ranks import from; None: where this very program lies.
            priority: Among the sweeps of an existing cluster.
            weight: Share among those of one priority.
            grows: More nodes may come at any time, so what fits nowhere is waited for. Without it, only for a while.
        """
        self._grows = grows
        self._changed_at = time.monotonic()
        self._sweep = sweep
        self._address = address
        self._cpus = cpus
        self._gpus = gpus
        self._job = job
        self._code = code
        self._priority = priority
        self._weight = weight
        self._supervised: dict[str, _Supervised] = {}
        self._joining: dict[str, _Joining] = {}
        self._held: dict[str, _Held] = {}
        self._idle: list[_Reservation] = []
        self._given_back: list[tuple[float, NodeUse]] = []
        self._ended: list[AttemptExit] = []
        self._deaths: list[_Death] = []
        self._ray_environment = RayEnvironment()
        self._gpu_ids = ray.remote(num_cpus=0, max_calls=0)(_gpu_ids)
        self._asked_at = 0.0
        self._failures: Counter[str] = Counter()
        """Supervisors per node that did not come up."""
        self._resources: dict[str, Mapping[str, float]] = {}
        self._unusable: set[str] = set()
        """Nodes that could not run a supervisor."""
        self._addresses: dict[str, str] = {}
        """Of each node, as the others reach it."""
        self._record: ClusterRegistry | None = None
        self._strangers_since: dict[str, float] = {}

    def start(self) -> None:
        """Start or join the cluster and have a supervisor ready on every node that can have one."""
        try:
            self._ray_environment.save()
            if self._address is None:
                self._start_cluster()
            else:
                ping(self._address)
                join(self._address, self._code)
                self._record = ClusterRegistry(RayKeyValueStore(), str(self._sweep.path.absolute()))
            self._ray_environment.restore_environment()
            self._look_for_nodes()
            problems = self._wait_for_nodes(START_TIMEOUT_S)
            # On an existing cluster a node that is only slow joins later.
            if problems and not self._supervised and (self._record is None or not self._joining):
                raise problems[0]
            for problem in problems:
                LOG.warning("%s; this node runs nothing for now", problem)
        except BaseException:
            self.close()
            raise

    def nodes(self) -> Sequence[Node]:
        """Return the nodes that have a supervisor. Looks for new ones once a second at most, and waits for none."""
        if time.monotonic() - self._asked_at > 1.0:
            self._look_for_nodes()
            for problem in self._wait_for_nodes(0.0):
                LOG.warning("%s; this node runs nothing for now", problem)
        return tuple(supervised.node for supervised in self._supervised.values())

    def exchange_usage(self, standing: SweepUsage) -> SharedUsage:
        """Exchange standings with the other sweeps of the cluster, and look up what is really free."""
        if self._record is None:
            return SharedUsage(may_grow=bool(self._joining))
        changed_s = time.monotonic() - self._changed_at
        growing = self._grows or bool(self._joining) or changed_s < NODES_WAIT_S
        nodes = [supervised.node for supervised in self._supervised.values()]
        own, others = self._record.exchange(
            replace(standing, priority=self._priority, weight=self._weight)
        )
        granted = grant(
            own,
            others,
            gpus=sum(len(node.gpus) for node in nodes),
            cpus=sum(node.cpus for node in nodes),
        )
        settled = time.monotonic() - SETTLE_S
        self._given_back = [(at, use) for at, use in self._given_back if at > settled]
        uses = [
            use
            for held in (*(h.reservation for h in self._held.values()), *self._idle)
            for use in held.uses
        ]
        return SharedUsage(
            foreign_load=foreign_load(
                nodes,
                available=available_resources_per_node(),  # type: ignore[no-untyped-call]
                own=uses,
                given_back=[use for _, use in self._given_back],
                closed=granted.closed,
                since=self._strangers_since,
                now=time.time(),
            ),
            grant=granted,
            may_grow=growing,
        )

    def resources(self, node_id: str) -> Mapping[str, float]:
        """Return what Ray said last about a node: its resources by name, those of its own choosing too."""
        return self._resources.get(node_id, {})

    def drain_node(self, node_id: str) -> None:
        """Use a node on which nothing runs no more: it is about to leave the cluster."""
        self._release(lambda idle: node_id in idle.node_ids)
        self._unusable.add(node_id)
        supervised = self._supervised.pop(node_id, None)
        if supervised is not None:
            ray.kill(supervised.actor)

    def launch(self, launch: Launch) -> tuple[str, ...]:
        """Reserve the resources, learn which GPUs they are, and have the nodes' supervisors fork the ranks."""
        there = [self._supervised.get(part.node_id) for part in launch.all_nodes]
        supervised = [one for one in there if one is not None]
        if len(supervised) < len(there):
            raise NotPlaced(f"a node of {[part.node_id for part in launch.all_nodes]} is gone")
        reservation = self._reserve(launch, [one.node for one in supervised])
        self._held[launch.key] = _Held(
            launch=launch, reservation=reservation, open=set(reservation.node_ids)
        )
        gang = len(supervised) > 1
        calls = []
        for part, (one, use) in enumerate(zip(supervised, reservation.uses, strict=True)):
            mine = launch.on_node(part, address=self._addresses[use.node_id] if gang else None)
            gpu_ids = use.gpu_ids[: round(mine.local_gpus)] if gang else use.gpu_ids
            calls.append((one, one.actor.launch.remote(mine, gpu_ids)))
        for one, call in calls:
            try:
                ray.get(call, timeout=CALL_TIMEOUT_S + START_TIMEOUT_S)
            except RayError as error:
                # It may have started ranks before it died or hung. They end with it, and `poll` reports the attempt.
                LOG.warning(
                    "node %s: its supervisor does not answer (%s)",
                    one.node.host,
                    first_line(error),
                )
                ray.kill(one.actor)
        return reservation.uses[0].gpu_ids

    def poll(self) -> list[AttemptExit]:
        """Return what ended; replaces supervisors that died. Answers that are not there yet are left for next time.

        So is what ended with a supervisor, where the storage does not say which ranks there were.
        """
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
                    for one in ray.get(poll):
                        self._part_ended(supervised.node.node_id, one)
                except RayError as error:
                    self._lost(supervised, first_line(error))
        for death in list(self._deaths):
            try:
                self._tell_of(death)
            except OSError as error:
                if not death.waits:
                    LOG.warning("node %s: what ran there is not known yet (%s)", death.host, error)
                death.waits = True
            else:
                self._deaths.remove(death)
        ended, self._ended = self._ended, []
        oldest = time.monotonic() - KEEP_RESERVATION_S
        self._release(
            lambda idle: (
                idle.idle_since < oldest
                or any(node_id not in self._supervised for node_id in idle.node_ids)
            )
        )
        return ended

    def stop(self, trial_id: str, attempt: int, *, hard: bool) -> None:
        """Signal the ranks."""
        held = self._held.get(f"{trial_id}/{attempt}")
        if held is not None:
            for supervised in self._of(held.open):
                supervised.actor.stop.remote(held.launch.key, hard=hard)

    def end_orphans(self, processes: Sequence[ProcessId]) -> list[ProcessId]:
        """Have the supervisors kill ranks of an earlier controller on their nodes."""
        left: list[ProcessId] = []
        for host in {process.host for process in processes}:
            there = [process for process in processes if process.host == host]
            actor = next(
                (s.actor for s in self._supervised.values() if s.process.host == host), None
            )
            try:
                left += (
                    there
                    if actor is None
                    else ray.get(actor.end_orphans.remote(there), timeout=CALL_TIMEOUT_S)
                )
            except RayError:  # it dies itself
                left += there
        return left

    def close(self) -> None:
        """End supervisors, ranks and, if it is ours, the cluster; nothing of it is left when this returns."""
        if ray.is_initialized():
            for joining in self._joining.values():
                ray.kill(joining.actor)
            calls = [supervised.actor.close.remote() for supervised in self._supervised.values()]
            if calls:
                ray.wait(calls, num_returns=len(calls), timeout=CALL_TIMEOUT_S)
            self._idle += [held.reservation for held in self._held.values()]
            self._release(lambda idle: True)
            if self._record is not None:
                self._record.leave()
            ray.shutdown()
        self._supervised.clear()
        self._joining.clear()
        self._held.clear()
        self._ray_environment.close()
        if self._address is None:
            _read_settings()

    # -- the cluster -------------------------------------------------------------------------------------------

    def _start_cluster(self) -> None:
        """Start Ray on this machine, apart from any other Ray there and out of reach of other machines."""
        for tries_left in reversed(range(STARTS)):
            folder = self._ray_environment.create(
                {**rank_environment(self._sweep, self._code), **LOOPBACK}
            )
            _read_settings()
            try:
                with own_ray():
                    ray.init(
                        address="local",
                        include_dashboard=False,
                        log_to_driver=False,
                        logging_level=logging.ERROR,
                        num_cpus=usable_cores() if self._cpus is None else self._cpus,
                        num_gpus=self._gpus,
                        object_store_memory=OBJECT_STORE_BYTES,
                        namespace=NAMESPACE,
                        _temp_dir=str(folder),
                    )
            except (RayError, RuntimeError, OSError, ValueError) as error:
                if tries_left and isinstance(error, RayError | RuntimeError):
                    LOG.warning("Ray did not start (%s); once more", first_line(error))
                    self._ray_environment.close()
                    self._ray_environment.save()
                    continue
                raise ExperimentError(
                    f"Ray did not start on this machine: {first_line(error)}; "
                    "`memscale doctor` looks closer, `--launcher process` does without Ray"
                ) from error
            return

    def _ask_for_nodes(self) -> list[Node]:
        """Return the living nodes that have a core; their GPUs are only counted, the supervisor there knows the ids."""
        self._asked_at = time.monotonic()
        records: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        self._addresses = {record["NodeID"]: record["NodeManagerAddress"] for record in records}
        self._resources = {record["NodeID"]: record["Resources"] for record in records}
        return [
            Node(
                node_id=record["NodeID"],
                host=record["NodeManagerHostname"],
                cpus=int(record["Resources"].get("CPU", 0)),
                gpus=tuple(str(i) for i in range(int(record["Resources"].get("GPU", 0)))),
            )
            for record in records
            # A head that offers nothing is left in peace: a supervisor there would only take its memory.
            if record["Alive"] and record["Resources"].get("CPU", 0) >= 1
        ]

    # -- reservations ------------------------------------------------------------------------------------------

    def _reserve(self, launch: Launch, nodes: Sequence[Node]) -> _Reservation:
        """Return a reservation for the launch: one that is idle and just like it, else a new one."""
        node_ids = tuple(node.node_id for node in nodes)
        like = [r for r in self._idle if r.node_ids == node_ids and r.demand == launch.demand]
        if like:
            # The GPUs that the scheduler chose, if they are among them.
            chosen = min(like, key=lambda r: r.uses[0].gpu_ids != launch.gpu_ids)
            self._idle.remove(chosen)
            return chosen
        self._release(lambda idle: bool({*idle.node_ids} & {*node_ids}))
        # A gang has its nodes to itself.
        wanted = (
            [(float(node.cpus), float(len(node.gpus))) for node in nodes]
            if len(nodes) > 1
            else [(float(launch.demand.cpus), launch.gpus)]
        )
        try:
            group = placement_group(
                [{"CPU": cpus, **({"GPU": gpus} if gpus else {})} for cpus, gpus in wanted],
                strategy="STRICT_PACK" if len(nodes) == 1 else "STRICT_SPREAD",
                # No name: Ray wants it to be the only one on the cluster, and two sweeps may hold the same trial.
                bundle_label_selector=[{"ray.io/node-id": node_id} for node_id in node_ids],
            )
        except RayError as error:
            raise NotPlaced(f"Ray made no reservation: {first_line(error)}") from error
        try:
            timeout_s = PLACE_TIMEOUT_S if self._record is None else SHARED_PLACE_TIMEOUT_S
            if not group.wait(timeout_s):
                hosts = " and ".join(node.host for node in nodes)
                raise NotPlaced(
                    f"needs {launch.demand}; Ray has less free on {hosts}: somebody else uses it"
                )
            uses = []
            for index, (node, (cpus, gpus)) in enumerate(zip(nodes, wanted, strict=True)):
                gpu_ids = self._gpus_of(group, gpus, index)
                if not set(gpu_ids) <= set(node.gpus):
                    raise ExperimentError(
                        f"node {node.host}: Ray reserved GPU {gpu_ids}, expected some of {node.gpus}"
                    )
                uses.append(NodeUse(node_id=node.node_id, cpus=cpus, gpus=gpus, gpu_ids=gpu_ids))
        except RayError as error:
            remove_placement_group(group)
            raise NotPlaced(
                f"Ray did not say which GPUs it reserved: {first_line(error)}"
            ) from error
        except BaseException:
            remove_placement_group(group)
            raise
        return _Reservation(group=group, uses=tuple(uses), demand=launch.demand)

    def _release(self, chosen: Callable[[_Reservation], bool]) -> None:
        """Give idle reservations back."""
        for reservation in [r for r in self._idle if chosen(r)]:
            self._idle.remove(reservation)
            remove_placement_group(reservation.group)
            self._given_back += [(time.monotonic(), use) for use in reservation.uses]

    def _gpus_of(self, group: PlacementGroup, gpus: float, bundle: int) -> tuple[str, ...]:
        """Return the GPUs that a bundle holds, by running a moment inside it."""
        if not gpus:
            return ()
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=bundle
        )
        call = self._gpu_ids.options(num_gpus=gpus, scheduling_strategy=strategy).remote()
        return tuple(str(gpu) for gpu in ray.get(call, timeout=CALL_TIMEOUT_S))

    # -- supervisors -------------------------------------------------------------------------------------------

    def _look_for_nodes(self) -> None:
        """Start a supervisor on each node that has none; returns at once."""
        known = self._supervised.keys() | self._joining.keys() | self._unusable
        for node in self._ask_for_nodes():
            if node.node_id not in known:
                self._begin(node)

    def _begin(self, node: Node) -> None:
        self._changed_at = time.monotonic()
        actor = self._new_actor(node)
        # Answered one after another.
        calls = (
            actor.wait_until_ready.remote(),
            actor.describe.remote(),
            actor.gpu_memory_bytes.remote(),
            actor.installed.remote(),
        )
        self._joining[node.node_id] = _Joining(node=node, actor=actor, introduced=calls)

    def _wait_for_nodes(
        self, timeout_s: float, only: Iterable[str] | None = None
    ) -> list[ExperimentError]:
        """Take in supervisors that are ready, waiting so long for them; return what was wrong with the others."""
        waited = [self._joining[n] for n in (self._joining if only is None else only)]
        if not waited:
            return []
        last = {joining.introduced[-1]: joining for joining in waited}
        ready, late = ray.wait(list(last), num_returns=len(last), timeout=timeout_s)
        problems = []
        for joining in [last[reference] for reference in ready]:
            del self._joining[joining.node.node_id]
            try:
                self._take_in(joining)
            except ExperimentError as problem:
                self._failures[joining.node.node_id] += 1
                if (
                    isinstance(problem, _Unfit)
                    or self._failures[joining.node.node_id] >= TRIES_PER_NODE
                ):
                    self._unusable.add(joining.node.node_id)
                problems.append(problem)
        if timeout_s >= START_TIMEOUT_S:
            for joining in [last[reference] for reference in late]:
                problems.append(
                    ExperimentError(
                        f"node {joining.node.host}: its supervisor did not start in {timeout_s:.0f} s"
                    )
                )
        return problems

    def _take_in(self, joining: _Joining) -> None:
        """Have a node's supervisor among those that work.

        Raises:
            ExperimentError: If the node cannot be used; says why.
        """
        node, host = joining.node, joining.node.host
        try:
            _, (process, visible), memory, versions = ray.get(list(joining.introduced))
        except RayTaskError as error:
            ray.kill(joining.actor)
            raise ExperimentError(f"node {host}: {error.cause}") from error
        except RayActorError as error:
            raise ExperimentError(
                f"node {host}: its supervisor died at once ({reason_of(error)}); the node must see {self._sweep.path.absolute()} "
                "and have memscale's dependencies installed"
            ) from error
        except RayError as error:
            raise ExperimentError(f"node {host}: no supervisor ({first_line(error)})") from error
        if self._code is not None and (wrong := disagreement(pinned(self._code), versions)):
            ray.kill(joining.actor)
            raise _Unfit(
                f"node {host}: has {wrong}, so its numbers would not compare; install the same versions there, "
                "or submit from an environment like its own"
            )
        if len(visible) >= len(node.gpus):
            # Ray names GPUs as CUDA_VISIBLE_DEVICES of its own start does, which need not be 0, 1, 2 …
            node = replace(node, gpus=tuple(visible[: len(node.gpus)]))
        node = replace(node, gpu_memory_bytes=memory if node.gpus else None)
        self._supervised[node.node_id] = _Supervised(
            actor=joining.actor, node=node, process=ProcessId.from_json(process)
        )

    def _new_actor(self, node: Node) -> Any:
        actor_class: Any = ray.remote(num_cpus=0, num_gpus=0, max_restarts=0)(NodeSupervisor)
        return actor_class.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node.node_id, soft=False)
        ).remote(
            log=str(self._sweep.path.absolute() / "nodes" / f"{node.host}.log"),
            environment={
                **rank_environment(self._sweep, self._code),
                **{name: os.environ.get(name, "") for name in SET_BY_RAY},
            },
            job=self._job,
        )

    def _of(self, node_ids: Iterable[str]) -> list[_Supervised]:
        return [self._supervised[n] for n in node_ids if n in self._supervised]

    def _part_ended(self, node_id: str, ended: AttemptExit) -> None:
        """The ranks of an attempt on one node are gone. Those on others must follow; then the attempt has ended."""
        key = f"{ended.trial_id}/{ended.attempt}"
        held = self._held.get(key)
        if held is None or node_id not in held.open:
            return
        held.open.remove(node_id)
        held.endings.append(ended)
        if not held.open:
            del self._held[key]
            held.reservation.idle_since = time.monotonic()
            self._idle.append(held.reservation)
            self._ended.append(_as_one(held.endings))
            return
        for other in self._of(held.open):
            if ended.node_lost is not None:
                other.actor.stop.remote(key, hard=True)
            else:
                other.actor.end_with.remote(key, failed=any(ended.exit_codes.values()))

    def _lost(self, supervised: _Supervised, why: str) -> None:
        """A supervisor died. Put another one in its place."""
        node = supervised.node
        LOG.warning("node %s: its supervisor is gone (%s)", node.host, why)
        del self._supervised[node.node_id]
        self._changed_at = time.monotonic()
        self._release(lambda idle: node.node_id in idle.node_ids)
        gone = [held for held in self._held.values() if node.node_id in held.open]
        death = _Death(node=node, host=supervised.process.host, gone=gone)
        self._deaths.append(death)
        there = [other for other in self._ask_for_nodes() if other.node_id == node.node_id]
        if there:
            death.node_lives = True
            self._begin(there[0])
            for problem in self._wait_for_nodes(REPLACE_TIMEOUT_S, only=[node.node_id]):
                LOG.warning("%s; this node runs nothing for now", problem)

    def _tell_of(self, death: _Death) -> None:
        """The ranks of a supervisor died with it: make sure, and say so."""
        what = f"the node {death.node.host} died"
        if death.node_lives:
            what = f"the supervisor of {death.node.host} died"
            ranks = [process for held in death.gone for process in registered(held.launch.folder)]
            for process in self.end_orphans([p for p in ranks if p.host == death.host]):
                LOG.warning("node %s: rank %d could not be ended", death.node.host, process.pid)
        for held in death.gone:
            self._part_ended(
                death.node.node_id,
                AttemptExit(
                    trial_id=held.launch.trial_id,
                    attempt=held.launch.attempt,
                    node_lost=f"{what}, and its ranks with it",
                ),
            )


def _read_settings() -> None:
    """Have Ray take its settings and its token from the environment as it is now; it read them when it was imported."""
    # In this order: a thread of Ray's that still runs must not look for a token that is gone.
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _as_one(endings: Sequence[AttemptExit]) -> AttemptExit:
    """Return how an attempt ended whose ranks were on several nodes."""
    return AttemptExit(
        trial_id=endings[0].trial_id,
        attempt=endings[0].attempt,
        exit_codes=dict(sorted((r, c) for ended in endings for r, c in ended.exit_codes.items())),
        killed_by_launcher=frozenset().union(*(ended.killed_by_launcher for ended in endings)),
        node_lost=next((e.node_lost for e in endings if e.node_lost is not None), None),
        hang=next((e.hang for e in endings if e.hang is not None), None),
        last_positions=dict(
            sorted((r, where) for ended in endings for r, where in ended.last_positions.items())
        ),
        out_of_memory=frozenset().union(*(ended.out_of_memory for ended in endings)),
    )


def _gpu_ids() -> list[str]:
    """Return the GPUs of the bundle that this runs in."""
    return [str(gpu) for gpu in ray.get_gpu_ids()]
