"""A sweep run in simulated time: the policy that runs it for real, and a clock that jumps from one ending to the next."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.scheduling import wait_reasons
from orchestrator.scheduling.cluster_state import Allocation, ClusterState
from orchestrator.scheduling.demand import UNIT, Node
from orchestrator.scheduling.policy import SHORTEST_S, decide
from orchestrator.scheduling.runtime_prediction import RuntimeCorrections
from orchestrator.scheduling.wait_queue import Waiting, WaitQueue


@dataclass(frozen=True)
class SimulatedRun:
    """One trial, from start to end."""

    trial: Waiting
    allocation: Allocation
    """Rows and columns of `Simulation.nodes` and their GPUs."""
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_s - self.start_s

    @property
    def gpus(self) -> float:
        """GPUs that it computes with: for a fraction the share it got, for a gang those asked for, not the whole nodes."""
        units = self.trial.demand.units
        return (self.allocation[0].units if 0 < units < UNIT else units) / UNIT


@dataclass(frozen=True)
class Simulation:
    """What became of every trial."""

    nodes: tuple[Node, ...]
    ran: tuple[SimulatedRun, ...]
    """In the order of their starts."""
    impossible: Mapping[str, str]
    """Trials that the cluster cannot hold, and why."""

    @property
    def gpus(self) -> int:
        """GPUs of the cluster."""
        return sum(len(node.gpus) for node in self.nodes)

    @property
    def cores(self) -> int:
        """Cores of the cluster."""
        return sum(node.cpus for node in self.nodes)

    @property
    def makespan_s(self) -> float:
        """Seconds from the first start to the last end."""
        return max((run.end_s for run in self.ran), default=0.0)

    @property
    def gpu_seconds(self) -> float:
        """Work in GPU-seconds."""
        return sum(run.seconds * run.gpus for run in self.ran)

    @property
    def core_seconds(self) -> float:
        """Work in core-seconds."""
        return sum(run.seconds * run.trial.demand.cpus for run in self.ran)

    @property
    def longest_s(self) -> float:
        """Seconds of the longest trial."""
        return max((run.seconds for run in self.ran), default=0.0)

    @property
    def bound_s(self) -> float:
        """What no schedule can beat: the longest trial, or all the work spread evenly over what is scarcest."""
        spread = self.core_seconds / max(1, self.cores)
        if self.gpus:
            spread = max(spread, self.gpu_seconds / self.gpus)
        return max(self.longest_s, spread)

    @property
    def utilisation(self) -> float:
        """Share of the cluster's GPU-seconds until the last end that trials compute in; of its core-seconds without GPUs."""
        there = (self.gpus or self.cores) * self.makespan_s
        return (self.gpu_seconds if self.gpus else self.core_seconds) / there if there else 0.0

    def waited_s(self) -> list[float]:
        """Return how long each trial waited, shortest first."""
        return sorted(run.start_s for run in self.ran)


def simulate(
    nodes: Sequence[Node],
    trials: Sequence[Waiting],
    *,
    actual_s: Mapping[str, float] | None = None,
) -> Simulation:
    """Run trials that all wait at time 0 on an empty cluster until the last has ended.

    Args:
        nodes: The cluster.
        trials: Who waits; `predicted_s` is what the policy believes.
        actual_s: How long trials really take, where that differs. Predictions of those that still wait are then
            corrected by what the ended ones took, as the controller does.
    """
    room = ClusterState(nodes)
    by_id = {trial.trial_id: trial for trial in trials}
    impossible = {
        trial.trial_id: wait_reasons.impossible(trial.demand, room.nodes)
        for trial in trials
        if not room.needs(trial.demand).possible
    }
    possible = [trial for trial in trials if trial.trial_id not in impossible]
    queue = WaitQueue(possible, alike=room.alike)
    corrections = RuntimeCorrections()
    running: list[tuple[float, int, str]] = []
    ran: list[SimulatedRun] = []
    now = 0.0
    while True:
        for start in decide(room, queue, now).starts:
            trial = by_id[start.trial_id]
            seconds = _seconds(trial, actual_s)
            queue.remove(start.trial_id)
            room.hold(start.trial_id, start.allocation, end=start.end, sweep=start.sweep)
            heapq.heappush(running, (now + seconds, len(ran), start.trial_id))
            ran.append(SimulatedRun(trial, start.allocation, now, now + seconds))
        if not running:
            break
        now = running[0][0]
        while running and running[0][0] <= now:
            _, _, trial_id = heapq.heappop(running)
            room.release(trial_id)
            if actual_s is not None:
                trial = by_id[trial_id]
                ratio = _seconds(trial, actual_s) / max(SHORTEST_S, trial.predicted_s)
                corrections.observe(trial.prediction_group, ratio)
        if actual_s is not None:
            queue.correct({pace: corrections.ratio(pace) for pace in queue.prediction_groups()})
    return Simulation(nodes=room.nodes, ran=tuple(ran), impossible=impossible)


def _seconds(trial: Waiting, actual_s: Mapping[str, float] | None) -> float:
    return (actual_s or {}).get(trial.trial_id, trial.predicted_s)


def hours_by(
    ran: Sequence[SimulatedRun], label: Mapping[str, str]
) -> dict[str, tuple[int, float, float]]:
    """Return trials, GPU-hours and core-hours per label, in order of first start.

    Args:
        ran: What ran.
        label: Of each trial id, for example its architecture.
    """
    found: dict[str, tuple[int, float, float]] = {}
    for run in ran:
        name = label[run.trial.trial_id]
        trials, gpu_hours, core_hours = found.get(name, (0, 0.0, 0.0))
        found[name] = (
            trials + 1,
            gpu_hours + run.seconds * run.gpus / 3600,
            core_hours + run.seconds * run.trial.demand.cpus / 3600,
        )
    return found
