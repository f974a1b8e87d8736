"""Launcher of a head pilot: Ray in its allocation, and further pilots on demand."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.control import node_exclusion
from orchestrator.control.failure_classifier import AttemptExit
from orchestrator.control.launcher_port import Launch, SharedUsage
from orchestrator.control.status import SweepStatus
from orchestrator.launchers.slurm import autoscaler, commands
from orchestrator.launchers.slurm.commands import SlurmError
from orchestrator.launchers.slurm.head_address import HeadAddress, HeadAddressFile
from orchestrator.launchers.slurm.ray_bootstrap import RayNode, mark
from orchestrator.records.processes import ProcessId
from orchestrator.records.rank_registry import TRAIN
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialState
from orchestrator.scheduling.demand import Demand, Node
from orchestrator.scheduling.fair_share import SweepUsage

if TYPE_CHECKING:
    from orchestrator.launchers.ray import RayLauncher

LOG = logging.getLogger(__name__)
ADAPT_EVERY_S = 10.0
"""How often Slurm is asked about further pilots."""
MARK = mark("")
FREE = "free"
"""Content of the mark of a leaving node once nothing of ours uses it any more."""


class PilotLauncher:
    """Runs attempts on the nodes of pilots, through the Ray launcher."""

    def __init__(
        self,
        sweep: SweepDir,
        *,
        head: RayNode,
        token: str,
        head_address: HeadAddressFile,
        own: str,
        capacity: Demand,
        max_nodes: int,
        ask: Callable[[int, Sequence[str]], Sequence[str]],
        job: str = TRAIN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            sweep: Whose trials run.
            head: Of the private cluster, on this node.
            token: Of the cluster.
            head_address: Through which other nodes find it.
            own: Id of the job that this runs in; its nodes are not given back one by one.
            capacity: Cores and GPUs of the node of a further pilot.
            max_nodes: Nodes to have at the same time at most.
            ask: Submits so many further pilots, on none of these nodes of Slurm, and returns their
                jobs.
            job: What ranks run.
            clock: Monotonic seconds.
        """
        self._sweep = sweep
        self._head = head
        self._token = token
        self._head_address = head_address
        self._own = own
        self._capacity = capacity
        self._max_nodes = max_nodes
        self._ask = ask
        self._job = job
        self._clock = clock
        self._ray: "RayLauncher | None" = None
        self._running: dict[str, tuple[str, ...]] = {}
        """Attempt to the nodes it runs on."""
        self._asked: set[str] = set()
        """Jobs of further pilots that may still come or be there."""
        self._idle_since: dict[str, float] = {}
        self._slurm_names: dict[str, str] = {}
        """Of nodes that were excluded at some time: their names in the sweep to those in Slurm."""
        self._n_nodes = 0
        self._waiting: Sequence[str] = ()
        self._demands: dict[str, Demand] = {}
        """Of trials that have waited at some time."""
        self._adapted_at = clock()

    def start(self) -> None:
        """Start Ray on this node, tell the others where it is, and connect to it."""
        address = self._head.start_head()
        self._head_address.publish(HeadAddress(address=address, token=self._token))
        # Ray reads its settings, the token too, when it is imported.
        from orchestrator.launchers.ray import RayLauncher

        self._ray = RayLauncher(self._sweep, address=address, job=self._job)
        self._ray.start()

    def nodes(self) -> Sequence[Node]:
        """Return the nodes on which something may start; idle ones that leave are drained."""
        ray = self._connected()
        busy = {node_id for node_ids in self._running.values() for node_id in node_ids}
        leaving = self._leaving()
        stay: dict[str, Node] = {}
        for node in ray.nodes():
            label = self._label(node)
            if label not in leaving:
                stay[label] = node
            elif node.node_id not in busy:
                ray.drain_node(node.node_id)
                leaving[label].write_text(FREE, encoding="utf-8")
        self._note_idle(stay, busy)
        if self._clock() - self._adapted_at >= ADAPT_EVERY_S:
            self._adapted_at = self._clock()
            try:
                for label in self._adapt(stay, busy):
                    del stay[label]
            except SlurmError as error:
                LOG.warning("further pilots: %s", error)
        self._n_nodes = len(stay)
        return tuple(stay.values())

    def exchange_usage(self, usage: SweepUsage) -> SharedUsage:
        """Return no foreign load: the cluster is private.

        It may grow while something waits that more nodes would hold.
        """
        return SharedUsage(
            may_grow=self._n_nodes < self._max_nodes
            and any(
                autoscaler.nodes_needed_for(self._demand(one), self._capacity, most=self._max_nodes)
                for one in self._waiting
            )
        )

    def tell(self, status: SweepStatus) -> None:
        """Take note of what waits."""
        waiting = (trial for trial in status.trials if trial.state is TrialState.WAITING)
        self._waiting = () if status.stopping else tuple(trial.trial_id for trial in waiting)

    def launch(self, launch: Launch) -> tuple[str, ...]:
        """Have Ray's launcher start the ranks."""
        gpus = self._connected().launch(launch)
        self._running[launch.key] = tuple(part.node_id for part in launch.all_nodes)
        return gpus

    def poll(self) -> list[AttemptExit]:
        """Return what ended."""
        ended = self._connected().poll()
        for one in ended:
            self._running.pop(f"{one.trial_id}/{one.attempt}", None)
        return ended

    def stop(self, trial_id: str, attempt: int, *, hard: bool) -> None:
        """Signal the ranks."""
        self._connected().stop(trial_id, attempt, hard=hard)

    def end_orphans(self, processes: Sequence[ProcessId]) -> list[ProcessId]:
        """Kill ranks of an earlier controller; Slurm ended those of earlier allocations."""
        return self._connected().end_orphans(processes)

    def close(self) -> None:
        """End the ranks, tell all nodes to leave, end Ray here, cancel pending pilots."""
        try:
            if self._ray is not None:
                self._ray.close()
        finally:
            self._head_address.withdraw()
            self._head.close()
            try:
                pending = [
                    job_id
                    for job_id, job in commands.queued(_jobs(self._asked)).items()
                    if job_id in self._asked and job.state == "PENDING"
                ]
                commands.cancel(pending)
            except SlurmError as error:
                LOG.warning("further pilots could not be taken back: %s", error)

    def _adapt(self, stay: dict[str, Node], busy: set[str]) -> tuple[str, ...]:
        """Ask for pilots, or give some back; return the labels of those that leave."""
        coming = self._coming(stay)
        if self._max_nodes <= self._own_nodes(stay) and not coming:
            return ()
        excluded = self._excluded(stay)
        useless = tuple(label for label in excluded if label in self._idle_since)
        step = autoscaler.decide(
            autoscaler.PilotPool(
                nodes=len(stay) - len(useless),
                empty=sum(
                    node.node_id not in busy
                    for label, node in stay.items()
                    if label not in excluded
                ),
                idle_since={k: v for k, v in self._idle_since.items() if k not in useless},
                coming=tuple(coming),
                waiting=[self._demand(trial_id) for trial_id in self._waiting],
                capacity=self._capacity,
            ),
            max_nodes=self._max_nodes,
            now=self._clock(),
        )
        # One that runs already joins, is idle and is given back: killed while it starts it would
        # leave things behind.
        commands.cancel([job_id for job_id in step.withdraw if coming[job_id] == "PENDING"])
        for label in (*useless, *step.release):
            why = "is excluded" if label in useless else "stands idle"
            LOG.info("node %s %s: it is given back", label, why)
            self._head_address.draining.mkdir(exist_ok=True)
            (self._head_address.draining / label).touch()
        if step.ask:  # last: sbatch may refuse until those that leave have left
            jobs = self._ask(step.ask, self._nodes_to_avoid())
            self._asked.update(jobs)
            LOG.info("%d trials wait: asked for pilots %s", len(self._waiting), ", ".join(jobs))
        return (*useless, *step.release)

    def _excluded(self, stay: dict[str, Node]) -> tuple[str, ...]:
        """Return the labels of excluded nodes, and note how Slurm calls these."""
        files = self._sweep.excluded_nodes()
        if not files:
            return ()
        nodes = tuple(stay.values())
        usable = node_exclusion.usable_nodes(nodes, list(node_exclusion.excluded(files)))
        labels = tuple(label for label, node in stay.items() if node not in usable)
        names = node_exclusion.node_names(nodes)
        new = {label.rpartition("-")[0]: names[stay[label].node_id] for label in labels}
        new = {job_id: name for job_id, name in new.items() if name not in self._slurm_names}
        for job_id, job in commands.queued(_jobs(set(new))).items():
            if job_id in new and "[" not in job.nodes:  # n[1-2] does not say which of them
                self._slurm_names[new[job_id]] = job.nodes
        return labels

    def _nodes_to_avoid(self) -> Sequence[str]:
        """Return the nodes of Slurm that are excluded now."""
        excluded = node_exclusion.excluded(self._sweep.excluded_nodes())
        return sorted(
            {node for name, node in self._slurm_names.items() if name in excluded and node}
        )

    def _demand(self, trial_id: str) -> Demand:
        """Return what a trial asked for."""
        if trial_id not in self._demands:
            asked = self._sweep.trial(trial_id).spec().resources
            self._demands[trial_id] = autoscaler.demand_of(asked, self._capacity)
        return self._demands[trial_id]

    def _coming(self, stay: dict[str, Node]) -> dict[str, str]:
        """Return the states of the jobs that were submitted and whose node has not joined yet."""
        there = {label.rpartition("-")[0] for label in (*stay, *self._leaving())}
        queue = commands.queued(_jobs(self._asked))
        self._asked.intersection_update(queue)
        return {job_id: queue[job_id].state for job_id in sorted(self._asked - there)}

    def _note_idle(self, stay: dict[str, Node], busy: set[str]) -> None:
        now = self._clock()
        self._idle_since = {
            label: self._idle_since.get(label, now)
            for label, node in stay.items()
            if node.node_id not in busy and not self._is_own(label)
        }

    def _own_nodes(self, stay: dict[str, Node]) -> int:
        return sum(self._is_own(label) for label in stay)

    def _is_own(self, label: str) -> bool:
        return label.rpartition("-")[0] == self._own

    def _label(self, node: Node) -> str:
        names = self._connected().resources(node.node_id)
        return next((n.removeprefix(MARK) for n in names if n.startswith(MARK)), node.node_id)

    def _leaving(self) -> dict[str, Path]:
        folder = self._head_address.draining
        return {path.name: path for path in folder.iterdir()} if folder.is_dir() else {}

    def _connected(self) -> "RayLauncher":
        assert self._ray is not None, "start() comes first"
        return self._ray


def _jobs(job_ids: set[str]) -> set[str]:
    """Return the ids without the numbers of tasks."""
    return {job_id.partition("_")[0] for job_id in job_ids}
