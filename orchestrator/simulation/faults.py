"""Faults in simulated time: nodes that fail and nodes that are preempted.

Attempts end as they do in real runs, and the real retry policy decides what follows.

* A node that fails takes its attempts with it: they resume from their last checkpoint.
* A node that is preempted gives notice: its attempts write a checkpoint and lose no step.
* Either way another node is there at once, so the cluster keeps its size.
"""

import heapq
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from orchestrator.control.retry_policy import Action, PastAttempt, RetryDecision, decide_retry
from orchestrator.records.trial_spec import Outcome, Retries
from orchestrator.scheduling import wait_reasons
from orchestrator.scheduling.cluster_state import ClusterState
from orchestrator.scheduling.demand import Node
from orchestrator.scheduling.policy import Start, decide
from orchestrator.scheduling.wait_queue import Waiting, WaitQueue
from orchestrator.simulation.checkpointing import Checkpointing
from orchestrator.simulation.simulate import SimulatedRun, Simulation

_RATE = re.compile(r"(\d+(?:\.\d*)?(?:e-?\d+)?)/h(?:our)?")


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How often nodes fail and are preempted, each a Poisson process per node."""

    node_mtbf_s: float = math.inf
    """Mean seconds between failures of a node."""
    preemption_every_s: float = math.inf
    """Mean seconds between preemptions of a node."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Job:
    """A trial to simulate; `trial.predicted_s` is its training, without restarts and faults."""

    trial: Waiting
    checkpointing: Checkpointing
    retries: Retries = field(default_factory=Retries)


def preemption_every_s(text: str) -> float:
    """Return the mean seconds between preemptions of a node, from `0.02/h`.

    Raises:
        ValueError: If it is something else.
    """
    match = _RATE.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"must be preemptions per node and hour, as 0.02/h, got {text!r}")
    rate = float(match[1])
    return 3600.0 / rate if rate else math.inf


def simulate_faults(nodes: Sequence[Node], jobs: Sequence[Job], faults: Faults) -> Simulation:
    """Run trials that all wait at time 0 until each is done or given up."""
    return _FaultSimulation(nodes, jobs, faults).run()


@dataclass(kw_only=True)
class _JobState:
    """What is left of a trial, and its attempts."""

    job: Job
    left_s: float
    furthest_s: float = 0.0
    """Training that any attempt has reached."""
    n_attempts: int = 0
    """That have ended."""
    n_stuck: int = 0
    """Of them the last, one after the other, that got no further than those before."""

    def waiting(self, not_before: float) -> Waiting:
        """Return the trial as the policy sees it."""
        predicted_s = self.job.checkpointing.attempt_s(self.left_s)
        begun = self.job.trial.begun or self.left_s < self.job.trial.predicted_s
        return replace(self.job.trial, predicted_s=predicted_s, begun=begun, not_before=not_before)


@cache
def _decision(outcome: Outcome, n_attempts: int, n_stuck: int, retries: Retries) -> RetryDecision:
    """Return what the retry policy makes of so many attempts, the last `n_stuck` in vain.

    All but the last ended from outside, so nothing else tells their histories apart.
    """
    past = [
        PastAttempt(outcome=outcome, progressed=i < n_attempts - n_stuck, submission=1)
        for i in range(n_attempts)
    ]
    return decide_retry(past, retries)


@dataclass(kw_only=True)
class _Attempt:
    """A running attempt."""

    start: Start
    trial: Waiting
    start_s: float
    end_s: float
    number: int
    outcome: Outcome = Outcome.DONE
    """How it will end if nothing else comes."""


class _FaultSimulation:
    """The clock jumps from one end, fault or delayed retry to the next."""

    def __init__(self, nodes: Sequence[Node], jobs: Sequence[Job], faults: Faults) -> None:
        self._cluster = ClusterState(nodes)
        self._random = np.random.default_rng(faults.seed)
        self._impossible = {
            job.trial.trial_id: wait_reasons.impossible(job.trial.demand, self._cluster.nodes)
            for job in jobs
            if not self._cluster.requirements(job.trial.demand).possible
        }
        self._jobs = {
            job.trial.trial_id: _JobState(job=job, left_s=job.trial.predicted_s)
            for job in jobs
            if job.trial.trial_id not in self._impossible
        }
        self._queue = WaitQueue(
            [state.waiting(0.0) for state in self._jobs.values()],
            representative=self._cluster.representative,
        )
        fails, preempts = 1 / faults.node_mtbf_s, 1 / faults.preemption_every_s
        self._rate = len(nodes) * (fails + preempts)
        self._share_failing = fails / (fails + preempts) if self._rate else 0.0
        self._running: dict[str, _Attempt] = {}
        self._on_node: defaultdict[int, set[str]] = defaultdict(set)
        self._ends: list[tuple[float, str]] = []
        """Heap; an end whose attempt ends at another time by now is passed over."""
        self._delayed: list[tuple[float, str]] = []
        """Heap of retries that wait for their time."""
        self._runs: dict[int, SimulatedRun] = {}
        """By the number of the start."""
        self._n_starts = 0

    def run(self) -> Simulation:
        """Return what became of all trials."""
        now, next_fault = 0.0, self._next_fault(0.0)
        while True:
            for start in decide(self._cluster, self._queue, now).starts:
                self._start(start, now)
            self._drop_stale_ends()
            times = [heap[0][0] for heap in (self._ends, self._delayed) if heap]
            if not times:
                break
            now = min(*times, next_fault)
            if now == next_fault:
                self._fault(now)
                next_fault = self._next_fault(now)
            while self._ends and self._ends[0][0] <= now:
                self._end(heapq.heappop(self._ends)[1], now)
                self._drop_stale_ends()
            while self._delayed and self._delayed[0][0] <= now:
                _, trial_id = heapq.heappop(self._delayed)
                self._queue.add(self._jobs[trial_id].waiting(now))
        runs = [self._runs[number] for number in range(self._n_starts)]
        return Simulation(nodes=self._cluster.nodes, runs=tuple(runs), impossible=self._impossible)

    def _next_fault(self, now: float) -> float:
        return now + self._random.exponential(1 / self._rate) if self._rate else math.inf

    def _start(self, start: Start, now: float) -> None:
        state = self._jobs[start.trial_id]
        self._queue.remove(start.trial_id)
        self._cluster.allocate(
            start.trial_id, start.allocation, predicted_end=start.predicted_end, sweep=start.sweep
        )
        end_s = now + state.job.checkpointing.attempt_s(state.left_s)
        self._running[start.trial_id] = _Attempt(
            start=start, trial=state.job.trial, start_s=now, end_s=end_s, number=self._n_starts
        )
        self._n_starts += 1
        for part in start.allocation:
            self._on_node[part.node].add(start.trial_id)
        heapq.heappush(self._ends, (end_s, start.trial_id))

    def _fault(self, now: float) -> None:
        """Let a node fail or be preempted, with all attempts that have ranks there."""
        fails = self._random.random() < self._share_failing
        node = int(self._random.integers(len(self._cluster.nodes)))
        for trial_id in sorted(self._on_node[node]):
            attempt = self._running[trial_id]
            if fails:
                attempt.outcome, attempt.end_s = Outcome.NODE_LOST, now
            elif attempt.outcome is Outcome.DONE:
                write_s = self._jobs[trial_id].job.checkpointing.write_s
                if now + write_s < attempt.end_s:
                    attempt.outcome, attempt.end_s = Outcome.PREEMPTED, now + write_s
            heapq.heappush(self._ends, (attempt.end_s, trial_id))

    def _drop_stale_ends(self) -> None:
        while self._ends:
            end_s, trial_id = self._ends[0]
            attempt = self._running.get(trial_id)
            if attempt is not None and attempt.end_s == end_s:
                return
            heapq.heappop(self._ends)

    def _end(self, trial_id: str, now: float) -> None:
        """Note how an attempt ended, and what the retry policy makes of it."""
        attempt, state = self._running.pop(trial_id), self._jobs[trial_id]
        self._cluster.release(trial_id)
        for part in attempt.start.allocation:
            self._on_node[part.node].discard(trial_id)
        kept_s, reached_s = self._progress(attempt, state)
        done_s = state.job.trial.predicted_s - state.left_s
        state.left_s -= kept_s
        progressed = done_s + reached_s > state.furthest_s
        state.furthest_s = max(state.furthest_s, done_s + reached_s)
        state.n_attempts += 1
        state.n_stuck = 0 if progressed else state.n_stuck + 1
        decision = _decision(attempt.outcome, state.n_attempts, state.n_stuck, state.job.retries)
        retried = decision.action is Action.RETRY
        self._runs[attempt.number] = SimulatedRun(
            attempt.trial,
            attempt.start.allocation,
            attempt.start_s,
            now,
            attempt=state.n_attempts,
            outcome=attempt.outcome,
            retried=retried,
            kept_s=kept_s,
            repeated_s=reached_s - kept_s,
        )
        if retried:
            heapq.heappush(self._delayed, (now + decision.delay_s, trial_id))

    def _progress(self, attempt: _Attempt, state: _JobState) -> tuple[float, float]:
        """Return the seconds of training that an attempt kept, and that it reached."""
        if attempt.outcome is Outcome.DONE:
            return state.left_s, state.left_s
        check, elapsed = state.job.checkpointing, attempt.end_s - attempt.start_s
        if attempt.outcome is Outcome.PREEMPTED:
            reached = check.progress(elapsed - check.write_s, state.left_s).reached_s
            return reached, reached
        saved, reached = check.progress(elapsed, state.left_s)
        return saved, reached
