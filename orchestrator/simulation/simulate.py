"""Simulation of a sweep: the scheduling policy with a simulated clock.

The clock jumps from one end of a trial to the next.
"""

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from orchestrator.records.trial_spec import Outcome
from orchestrator.scheduling import wait_reasons
from orchestrator.scheduling.cluster_state import ClusterState
from orchestrator.scheduling.demand import UNIT, Node
from orchestrator.scheduling.free_resources import Allocation
from orchestrator.scheduling.policy import SHORTEST_S, decide
from orchestrator.scheduling.runtime_prediction import RuntimeCorrections
from orchestrator.scheduling.wait_queue import Waiting, WaitQueue


@dataclass(frozen=True)
class SimulatedRun:
    """One attempt of a trial, from start to end; without faults a trial has one."""

    trial: Waiting
    allocation: Allocation
    """Rows and columns of `Simulation.nodes` and their GPUs."""
    start_s: float
    end_s: float
    attempt: int = 1
    outcome: Outcome = Outcome.DONE
    retried: bool = False
    """Whether another attempt follows."""
    kept_s: float | None = None
    """Seconds of training that later attempts need not repeat; None: all."""
    repeated_s: float = 0.0
    """Seconds of training after the last checkpoint, which are lost."""

    @property
    def seconds(self) -> float:
        """Run time."""
        return self.end_s - self.start_s

    @property
    def gpus(self) -> float:
        """GPUs that it computes with.

        For a fraction the share it got; for a gang those asked for, not the whole nodes.
        """
        units = self.trial.demand.units
        return (self.allocation[0].units if 0 < units < UNIT else units) / UNIT


@dataclass(frozen=True)
class Simulation:
    """Result of a simulation."""

    nodes: tuple[Node, ...]
    runs: tuple[SimulatedRun, ...]
    """In the order of their starts."""
    impossible: Mapping[str, str]
    """Trials that the cluster cannot hold, and why."""

    @cached_property
    def gpus(self) -> int:
        """GPUs of the cluster."""
        return sum(len(node.gpus) for node in self.nodes)

    @cached_property
    def cores(self) -> int:
        """Cores of the cluster."""
        return sum(node.cpus for node in self.nodes)

    @cached_property
    def by_gpu(self) -> bool:
        """Whether hours and shares are of GPUs; of cores where no trial that ran holds a GPU."""
        return any(run.gpus for run in self.runs)

    @cached_property
    def makespan_s(self) -> float:
        """Seconds from the first start to the last end."""
        return max((run.end_s for run in self.runs), default=0.0)

    @cached_property
    def gpu_seconds(self) -> float:
        """Work in GPU-seconds."""
        return sum(run.seconds * run.gpus for run in self.runs)

    @cached_property
    def core_seconds(self) -> float:
        """Work in core-seconds."""
        return sum(run.seconds * run.trial.demand.cpus for run in self.runs)

    @cached_property
    def longest_s(self) -> float:
        """Seconds of the longest trial, all its attempts together."""
        seconds: defaultdict[str, float] = defaultdict(float)
        for run in self.runs:
            seconds[run.trial.trial_id] += run.seconds
        return max(seconds.values(), default=0.0)

    @cached_property
    def n_trials(self) -> int:
        """Trials that have run."""
        return sum(run.attempt == 1 for run in self.runs)

    @cached_property
    def given_up(self) -> frozenset[str]:
        """Trials that the retry policy gave up."""
        return frozenset(
            run.trial.trial_id
            for run in self.runs
            if not run.retried and run.outcome is not Outcome.DONE
        )

    @cached_property
    def goodput(self) -> float:
        """Share of the GPU-seconds held (or core-seconds: `by_gpu`) that trains what is kept.

        Restarts, checkpoints, repeated steps and trials that were given up are the rest.
        """
        given_up = self.given_up
        held = useful = 0.0
        for run in self.runs:
            size = run.gpus if self.by_gpu else run.trial.demand.cpus
            held += size * run.seconds
            if run.trial.trial_id not in given_up:
                useful += size * (run.seconds if run.kept_s is None else run.kept_s)
        return useful / held if held else 0.0

    @cached_property
    def bound_s(self) -> float:
        """Lower bound on the makespan of any schedule.

        The longest trial, or all work spread evenly over the scarcest resource if that is more.
        """
        spread = self.core_seconds / max(1, self.cores)
        if self.gpus:
            spread = max(spread, self.gpu_seconds / self.gpus)
        return max(self.longest_s, spread)

    @cached_property
    def utilisation(self) -> float:
        """Share of the GPU-seconds (or core-seconds: `by_gpu`) used until the last end."""
        available = (self.gpus if self.by_gpu else self.cores) * self.makespan_s
        used = self.gpu_seconds if self.by_gpu else self.core_seconds
        return used / available if available else 0.0

    def waited_s(self) -> list[float]:
        """Return how long each trial waited for its first attempt, shortest first."""
        return sorted(run.start_s for run in self.runs if run.attempt == 1)


def simulate(
    nodes: Sequence[Node], trials: Sequence[Waiting], *, actual_s: Mapping[str, float] | None = None
) -> Simulation:
    """Run trials that all wait at time 0 on an empty cluster until the last has ended.

    Args:
        nodes: The cluster.
        trials: Who waits; `predicted_s` is what the policy believes.
        actual_s: How long trials really take, where that differs. Predictions of those that still
            wait are then corrected by what the ended ones took, as the controller does.
    """
    cluster = ClusterState(nodes)
    by_id = {trial.trial_id: trial for trial in trials}
    impossible = {
        trial.trial_id: wait_reasons.impossible(trial.demand, cluster.nodes)
        for trial in trials
        if not cluster.requirements(trial.demand).possible
    }
    possible = [trial for trial in trials if trial.trial_id not in impossible]
    queue = WaitQueue(possible, representative=cluster.representative)
    corrections = RuntimeCorrections()
    run_s = {trial.trial_id: trial.predicted_s for trial in trials} | dict(actual_s or {})
    ends: list[tuple[float, int, str]] = []
    """Heap of end, number of the run, trial id."""
    runs: list[SimulatedRun] = []
    now = 0.0
    while True:
        for start in decide(cluster, queue, now).starts:
            queue.remove(start.trial_id)
            cluster.allocate(
                start.trial_id,
                start.allocation,
                predicted_end=start.predicted_end,
                sweep=start.sweep,
            )
            end = now + run_s[start.trial_id]
            heapq.heappush(ends, (end, len(runs), start.trial_id))
            runs.append(SimulatedRun(by_id[start.trial_id], start.allocation, now, end))
        if not ends:
            break
        # Nothing can change before the next end; all that end at the same moment count at once.
        now = ends[0][0]
        while ends and ends[0][0] <= now:
            _, _, trial_id = heapq.heappop(ends)
            cluster.release(trial_id)
            if actual_s is not None:
                trial = by_id[trial_id]
                ratio = run_s[trial_id] / max(SHORTEST_S, trial.predicted_s)
                corrections.observe(trial.prediction_group, ratio)
        if actual_s is not None:
            queue.correct({group: corrections.ratio(group) for group in queue.prediction_groups()})
    return Simulation(nodes=cluster.nodes, runs=tuple(runs), impossible=impossible)


@dataclass
class LabelTotals:
    """Trials and hours of one label."""

    trials: int = 0
    gpu_hours: float = 0.0
    core_hours: float = 0.0


def hours_by(runs: Sequence[SimulatedRun], label: Mapping[str, str]) -> dict[str, LabelTotals]:
    """Return the totals per label, in order of first start.

    Args:
        runs: What ran.
        label: Of each trial id, for example its architecture.
    """
    totals: dict[str, LabelTotals] = {}
    for run in runs:
        total = totals.setdefault(label[run.trial.trial_id], LabelTotals())
        total.trials += run.attempt == 1
        total.gpu_hours += run.seconds * run.gpus / 3600
        total.core_hours += run.seconds * run.trial.demand.cpus / 3600
    return totals
