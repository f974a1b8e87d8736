"""Ray launcher: attempts on the nodes of a cluster, private or shared.

Ray's part is small on purpose. It knows the nodes, reserves each trial's resources in a placement
group, so that other users of a cluster are kept out, and carries calls to one supervisor actor per
node. Ranks are children of that actor's fork server, not Ray workers. What runs when is the
scheduler's decision.

    ray_connect.py        starts or joins the cluster
    ray_supervisors.py    one supervisor per node
    ray_reservations.py   placement groups
    ray_embedded.py       settings and clean-up of a cluster of this machine alone

Without an address a cluster of this machine is started for this controller and ends with it. An
existing cluster is shared: what is really free on its nodes is looked up (`foreign_load.py`), and
its sweeps exchange what they use (`cluster_registry.py`).
"""

import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import ray
from ray._private.state import available_resources_per_node
from ray.exceptions import RayError

from orchestrator.control.failure_classifier import AttemptExit
from orchestrator.control.launcher_port import Launch, NotPlaced, SharedUsage
from orchestrator.launchers.cluster_registry import ClusterRegistry
from orchestrator.launchers.foreign_load import foreign_load
from orchestrator.launchers.local import rank_environment
from orchestrator.launchers.ray_connect import (
    RayKeyValueStore,
    ended_process,
    first_line,
    join,
    log_errors,
    ping,
    reread_settings,
    start_cluster,
)
from orchestrator.launchers.ray_embedded import RayEnvironment
from orchestrator.launchers.ray_reservations import RayReservation, ReservationPool
from orchestrator.launchers.ray_supervisors import Supervisor, SupervisorPool
from orchestrator.node.early_fork_server import EarlyForkServer
from orchestrator.node.fork_server_process import START_TIMEOUT_S
from orchestrator.node.hardware import chosen_gpus, usable_cores
from orchestrator.node.warm_interpreter import WarmInterpreter
from orchestrator.records.errors import ExperimentError
from orchestrator.records.processes import ProcessId
from orchestrator.records.rank_registry import TRAIN, registered
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.scheduling.demand import Node
from orchestrator.scheduling.fair_share import SweepUsage, grant

LOG = logging.getLogger(__name__)
NODES_WAIT_S = 300.0
"""How long after its nodes last changed an existing cluster is expected to change again: a lost
node is often replaced."""
SILENT_S = 60.0
"""How long a supervisor may leave a poll unanswered, which takes milliseconds, until it is replaced
and what ran there is lost: it hangs, or its node stands still."""
LONGEST_LOOK_S = 1.0
"""What counts of the time between two looks: this process may have stood still itself."""
RESTARTS = 3
"""How often in a row the cluster of this machine is started again that ended by itself."""
RESTART_PAUSE_S = 10.0
"""Before the second of them; twice as long before the third."""
LIVED_S = 600.0
"""After so long its end counts as the first in a row."""
CALL_TIMEOUT_S = 60.0
"""How long a supervisor may take to answer a call that does no waiting of its own."""


_GOES_ON = "what was recorded is right: submit again, and training goes on from its checkpoints"


@dataclass(kw_only=True)
class _RunningAttempt:
    """An attempt whose ranks run, and what it holds."""

    launch: Launch
    reservation: RayReservation
    running_on: set[str] = field(default_factory=set)
    """Nodes where ranks of it still run."""
    exits: list[AttemptExit] = field(default_factory=list)
    """Of the other nodes."""


@dataclass(kw_only=True)
class _LostSupervisor:
    """A supervisor that died with its ranks, which is not reported yet."""

    node_id: str
    host: str
    """As the supervisor called it."""
    attempts: list[_RunningAttempt]
    """What had ranks there."""
    silent_s: float | None = None
    """How long it had not answered; None: it died."""
    node_lives: bool = False
    waits_for_storage: bool = False
    """Whether it could not be read which ranks there were."""


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
        warm: WarmInterpreter | None = None,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            sweep: Whose trials run; its folder takes the fork servers' logs.
            address: Of an existing cluster: `HOST:PORT`, or `auto`; this machine is one of its
                nodes. None starts one on this machine.
            cpus: Cores of the embedded cluster; None is all this process may use.
            gpus: GPUs of the embedded cluster; None is those of CUDA_VISIBLE_DEVICES, or what Ray
                finds where that is not set. Tests may say more than there are.
            job: The job function that will be launched; decides what the fork servers import.
            code: Folder that supervisors and ranks import from; None: where this program is.
            priority: Among the sweeps of an existing cluster.
            weight: Share among those of one priority.
            grows: More nodes may come at any time, so what fits nowhere is waited for. Without it,
                only for a while.
            warm: What may become the fork server of this machine; whoever made it closes it.
        """
        self._sweep = sweep
        self._address = address
        self._cpus = usable_cores() if cpus is None else cpus
        self._gpus = gpus
        self._job, self._code = job, code
        self._priority = priority
        self._weight = weight
        self._grows = grows
        self._ray_environment = RayEnvironment()
        self._supervisors = SupervisorPool(sweep, job=job, code=code)
        self._reservations = ReservationPool(shared=address is not None)
        self._early: EarlyForkServer | None = None
        self._warm = warm
        self._registry: ClusterRegistry | None = None
        self._foreign_since: dict[str, float] = {}
        self._running: dict[str, _RunningAttempt] = {}
        self._lost: list[_LostSupervisor] = []
        self._looked_at = -math.inf
        """When the supervisors' answers were last looked for."""
        self._exits: list[AttemptExit] = []
        self._started_at = -math.inf
        self._ends = 0
        """How often in a row the cluster of this machine ended by itself."""
        self._restart_at: float | None = None
        """When it is started again that ended; None: it runs."""

    def start(self) -> None:
        """Start or join the cluster and have a supervisor on every node that can have one."""
        self._started_at = time.monotonic()
        environment = rank_environment(self._sweep, self._code)
        try:
            if self._address is None:
                self._start_early(environment)
            self._ray_environment.save()
            log_errors(self._sweep.path.absolute() / "nodes" / "ray.log")
            if self._address is None:
                chosen = chosen_gpus()
                # Ray's own count takes "-1" for a GPU, and two parts (MIG) of one GPU for one.
                gpus = len(chosen) if self._gpus is None and chosen is not None else self._gpus
                start_cluster(self._ray_environment, environment, cpus=self._cpus, gpus=gpus)
            else:
                ping(self._address)
                join(self._address, self._code)
                sweep = str(self._sweep.path.absolute())
                self._registry = ClusterRegistry(RayKeyValueStore(), sweep)
            self._ray_environment.restore_environment()
            problems = self._supervisors.start()
            # On an existing cluster a node that is only slow joins later.
            may_join = self._registry is not None and self._supervisors.starting
            if problems and not self._supervisors.ready and not may_join:
                raise problems[0]
            for problem in problems:
                LOG.warning("%s; this node runs nothing for now", problem)
        except BaseException:
            self.close()
            raise

    def _start_early(self, environment: Mapping[str, str]) -> None:
        """Start the fork server of this machine, which imports while Ray starts."""
        log = self._sweep.path.absolute() / "nodes" / f"{os.uname().nodename}.log"
        try:
            self._early = EarlyForkServer(
                log, environment=environment, job=self._job, warm=self._warm
            )
        except OSError as error:
            LOG.warning("the supervisor starts the fork server itself (%s)", error)
        else:
            self._supervisors.early = self._early.address

    def nodes(self) -> Sequence[Node]:
        """Return the nodes that have a supervisor.

        Looks for new ones once a second at most, and waits for none; but a cluster of this machine
        that ended is started again.

        Raises:
            ExperimentError: If that fails.
        """
        if self._restart_at is not None:
            if time.monotonic() < self._restart_at:
                return ()
            try:
                self.start()
            except ExperimentError as error:
                raise ExperimentError(f"{error}; {_GOES_ON}") from error
            self._restart_at = None
        self._supervisors.refresh()
        return tuple(supervisor.node for supervisor in self._supervisors.ready.values())

    def exchange_usage(self, usage: SweepUsage) -> SharedUsage:
        """Exchange usage with the other sweeps of the cluster, and look up what is really free."""
        starting = self._supervisors.starting
        if self._registry is None:
            return SharedUsage(may_grow=starting or self._restart_at is not None)
        changed_s = time.monotonic() - self._supervisors.changed_at
        nodes = [supervisor.node for supervisor in self._supervisors.ready.values()]
        own, others = self._registry.exchange(
            replace(usage, priority=self._priority, weight=self._weight)
        )
        granted = grant(
            own,
            others,
            gpus=sum(len(node.gpus) for node in nodes),
            cpus=sum(node.cpus for node in nodes),
        )
        running = [use for one in self._running.values() for use in one.reservation.uses]
        return SharedUsage(
            foreign_load=foreign_load(
                nodes,
                available=available_resources_per_node(),  # type: ignore[no-untyped-call]
                own=running + self._reservations.idle_uses,
                given_back=self._reservations.recently_released(),
                closed=granted.closed,
                since=self._foreign_since,
                now=time.monotonic(),
            ),
            grant=granted,
            may_grow=self._grows or starting or changed_s < NODES_WAIT_S,
        )

    def resources(self, node_id: str) -> Mapping[str, float]:
        """Return what Ray last listed of a node: resources by name, custom ones included."""
        return self._supervisors.resources.get(node_id, {})

    def drain_node(self, node_id: str) -> None:
        """Stop using a node on which nothing runs: it is about to leave the cluster."""
        self._reservations.release_node(node_id)
        self._supervisors.remove(node_id)

    def launch(self, launch: Launch) -> tuple[str, ...]:
        """Reserve the resources, learn which GPUs they are, and have the ranks forked."""
        node_ids = [part.node_id for part in launch.all_nodes]
        supervisors = self._supervisors.of(node_ids)
        if len(supervisors) < len(node_ids):
            raise NotPlaced(f"a node of {node_ids} is gone")
        reservation = self._reservations.reserve(launch, [one.node for one in supervisors])
        self._running[launch.key] = _RunningAttempt(
            launch=launch, reservation=reservation, running_on=set(reservation.node_ids)
        )
        gang = len(supervisors) > 1
        calls = []
        for index, (one, use) in enumerate(zip(supervisors, reservation.uses, strict=True)):
            address = self._supervisors.addresses[use.node_id] if gang else None
            part = launch.on_node(index, address=address)
            gpu_ids = use.gpu_ids[: round(part.local_gpus)] if gang else use.gpu_ids
            calls.append((one, one.actor.launch.remote(part, gpu_ids)))
        for one, call in calls:
            try:
                ray.get(call, timeout=CALL_TIMEOUT_S + START_TIMEOUT_S)
            except RayError as error:
                # It may have started ranks before it died or hung. They end with it, and `poll`
                # reports the attempt.
                LOG.warning(
                    "node %s: its supervisor does not answer (%s)", one.node.host, first_line(error)
                )
                ray.kill(one.actor)
        return reservation.uses[0].gpu_ids

    def poll(self) -> list[AttemptExit]:
        """Return what ended; replaces supervisors that died.

        Answers that are not there yet are left for the next call. So is what ended with a
        supervisor while the storage does not say which ranks there were.

        Raises:
            ExperimentError: If the cluster of this machine ended once too often.
        """
        if self._address is None and self._restart_at is None:
            ended = ended_process()
            if ended is not None:
                self._cluster_ended(ended)
        if self._restart_at is not None:
            exits, self._exits = self._exits, []
            return exits
        ready = self._supervisors.ready
        for supervisor in ready.values():
            if supervisor.polling is None:
                supervisor.polling = supervisor.actor.poll.remote()
        polls = {supervisor.polling: supervisor for supervisor in ready.values()}
        if polls:
            answered, late = ray.wait(list(polls), num_returns=len(polls), timeout=0.05)
            for poll in answered:
                supervisor = polls[poll]
                supervisor.polling, supervisor.silent_s = None, 0.0
                try:
                    for part in ray.get(poll):
                        self._part_ended(supervisor.node.node_id, part)
                except RayError as error:
                    self._supervisor_died(supervisor, first_line(error))
            self._replace_silent([polls[poll] for poll in late])
        for lost in list(self._lost):
            try:
                self._report(lost)
            except OSError as error:
                if not lost.waits_for_storage:
                    LOG.warning("node %s: what ran there is not known yet (%s)", lost.host, error)
                lost.waits_for_storage = True
            else:
                self._lost.remove(lost)
        exits, self._exits = self._exits, []
        self._reservations.release_expired(ready.keys())
        return exits

    def stop(self, trial_id: str, attempt: int, *, hard: bool) -> None:
        """Signal the ranks."""
        running = self._running.get(f"{trial_id}/{attempt}")
        if running is not None:
            for supervisor in self._supervisors.of(running.running_on):
                supervisor.actor.stop.remote(running.launch.key, hard=hard)

    def end_orphans(self, processes: Sequence[ProcessId]) -> list[ProcessId]:
        """Have the supervisors kill ranks of an earlier controller on their nodes."""
        left: list[ProcessId] = []
        for host in {process.host for process in processes}:
            there = [process for process in processes if process.host == host]
            ready = self._supervisors.ready.values()
            actor = next((one.actor for one in ready if one.process.host == host), None)
            if actor is not None:
                with suppress(RayError):  # it dies itself
                    there = ray.get(actor.end_orphans.remote(there), timeout=CALL_TIMEOUT_S)
            left += there
        return left

    def close(self) -> None:
        """End supervisors, ranks and, if it is ours, the cluster; nothing is left afterwards."""
        if ray.is_initialized():
            self._supervisors.close(CALL_TIMEOUT_S)
            for running in self._running.values():
                self._reservations.keep(running.reservation)
            self._reservations.release_all()
            if self._registry is not None:
                self._registry.leave()
            ray.shutdown()
        self._let_go()

    def _cluster_ended(self, name: str) -> None:
        """Take in that a process of this machine's cluster ended, and end what is left of it.

        Raises:
            ExperimentError: If that happened once too often.
        """
        long_ago = time.monotonic() - self._started_at > LIVED_S
        self._ends = 1 if long_ago else self._ends + 1
        running = [one.launch for one in self._running.values()]
        # Not by calls to it, which nobody answers. The fork servers and ranks end as the watchdog
        # kills them; only then another attempt may begin.
        ray.shutdown()
        self._let_go()
        self._lost.clear()
        what = f"Ray of this machine ended: its {name} died"
        if self._ends > RESTARTS:
            raise ExperimentError(
                f"{what}, {self._ends} times in a row (`dmesg` or {self._sweep.path}/nodes/ray.log "
                f"may say why; `--launcher process` does without Ray); {_GOES_ON}"
            )
        pause_s = RESTART_PAUSE_S * (2 ** (self._ends - 2) if self._ends > 1 else 0)
        self._restart_at = time.monotonic() + pause_s
        LOG.warning("%s; it is started again (%d of %d)", what, self._ends, RESTARTS)
        self._exits += [
            AttemptExit(
                trial_id=launch.trial_id,
                attempt=launch.attempt,
                node_lost=f"{what}, and its ranks with it",
            )
            for launch in running
        ]

    def _let_go(self) -> None:
        """End what of the cluster and of its environment is this process's own."""
        if self._early is not None:
            self._early.close()
            self._early = None
        self._supervisors = SupervisorPool(self._sweep, job=self._job, code=self._code)
        self._reservations = ReservationPool(shared=self._address is not None)
        self._running.clear()
        self._ray_environment.close()
        if self._address is None:
            reread_settings()

    def _part_ended(self, node_id: str, part: AttemptExit) -> None:
        """Take in that the ranks of an attempt on one node are gone.

        Those on other nodes must follow; then the attempt has ended.
        """
        key = f"{part.trial_id}/{part.attempt}"
        running = self._running.get(key)
        if running is None or node_id not in running.running_on:
            return
        running.running_on.remove(node_id)
        running.exits.append(part)
        if not running.running_on:
            del self._running[key]
            self._reservations.keep(running.reservation)
            self._exits.append(_merged(running.exits))
            return
        for other in self._supervisors.of(running.running_on):
            if part.node_lost is not None:
                other.actor.stop.remote(key, hard=True)
            else:
                other.actor.end_with.remote(key, failed=any(part.exit_codes.values()))

    def _replace_silent(self, late: Sequence[Supervisor]) -> None:
        """Replace supervisors that have not answered for long; these are late once more."""
        now = time.monotonic()
        looked_s, self._looked_at = min(now - self._looked_at, LONGEST_LOOK_S), now
        for supervisor in late:
            supervisor.silent_s += looked_s
            if supervisor.silent_s > SILENT_S:
                ray.kill(supervisor.actor)
                self._supervisor_died(
                    supervisor, f"no answer for {SILENT_S:.0f} s", silent_s=SILENT_S
                )

    def _supervisor_died(
        self, supervisor: Supervisor, why: str, *, silent_s: float | None = None
    ) -> None:
        """Note what died with a supervisor, and put another one in its place.

        One that was silent is not waited for: its node may stand still, and joins later.
        """
        node = supervisor.node
        LOG.warning("node %s: its supervisor is gone (%s)", node.host, why)
        self._reservations.release_node(node.node_id)
        attempts = [one for one in self._running.values() if node.node_id in one.running_on]
        lost = _LostSupervisor(
            node_id=node.node_id,
            host=supervisor.process.host,
            attempts=attempts,
            silent_s=silent_s,
        )
        self._lost.append(lost)
        lost.node_lives = self._supervisors.replace_dead(node.node_id, wait=silent_s is None)

    def _report(self, lost: _LostSupervisor) -> None:
        """Make sure that the ranks of a dead supervisor are gone, and say so."""
        # Ray cannot tell a node that died from one that stands still. The ranks of one that wakes
        # find their attempts closed and end (`records/locks.py`).
        what = f"the node {lost.host} died or stands still"
        if lost.node_lives:
            what = f"the supervisor of {lost.host} died"
            if lost.silent_s is not None:
                what = f"the supervisor of {lost.host} did not answer for {lost.silent_s:.0f} s"
            ranks = [rank for one in lost.attempts for rank in registered(one.launch.folder)]
            for process in self.end_orphans([rank for rank in ranks if rank.host == lost.host]):
                LOG.warning("node %s: rank %d could not be ended", lost.host, process.pid)
        for one in lost.attempts:
            self._part_ended(
                lost.node_id,
                AttemptExit(
                    trial_id=one.launch.trial_id,
                    attempt=one.launch.attempt,
                    node_lost=f"{what}, and its ranks with it",
                ),
            )


def _merged(parts: Sequence[AttemptExit]) -> AttemptExit:
    """Return how an attempt ended whose ranks were on several nodes."""
    codes = {rank: code for part in parts for rank, code in part.exit_codes.items()}
    positions = {rank: where for part in parts for rank, where in part.last_positions.items()}
    return AttemptExit(
        trial_id=parts[0].trial_id,
        attempt=parts[0].attempt,
        exit_codes=dict(sorted(codes.items())),
        killed_by_launcher=frozenset().union(*(part.killed_by_launcher for part in parts)),
        node_lost=next((part.node_lost for part in parts if part.node_lost is not None), None),
        hang=next((part.hang for part in parts if part.hang is not None), None),
        last_positions=dict(sorted(positions.items())),
        out_of_memory=frozenset().union(*(part.out_of_memory for part in parts)),
    )
