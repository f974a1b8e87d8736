"""A launcher without processes.

Fake nodes that come and go, trials that end when their time is over.
"""

import heapq
import time
from collections.abc import Callable, Sequence

from orchestrator.control.failure_classifier import AttemptExit
from orchestrator.control.launcher_port import Launch, NotPlaced
from orchestrator.records.json_files import write_json
from orchestrator.records.processes import ProcessId
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Resources, TrialSpec
from orchestrator.scheduling.demand import Node


def add_trials(sweep: SweepDir, n: int, *, steps: int = 1) -> list[str]:
    """Write `n` specs of one core each that differ in their seed; return their ids."""
    specs = [
        TrialSpec(
            sweep=sweep.name,
            data={"source": "biographies", "n_people": 1000, "style": "compact"},
            model={"architecture": "dense", "d_model": 256, "n_layers": 4, "n_heads": 4},
            train={"tokens": 10 * steps, "batch_tokens": 10, "seq_len": 10, "lr": 3.0e-3},
            seed=seed,
            resources=Resources(gpus=0),
        )
        for seed in range(n)
    ]
    sweep.add_trials(specs)
    return [spec.trial_id for spec in specs]


class StubLauncher:
    """Holds attempts on nodes for as long as it is told.

    One whose node has left is lost with it.
    """

    def __init__(
        self,
        nodes: Callable[[], Sequence[Node]],
        *,
        seconds: Callable[[Launch], float] = lambda launch: 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes, self._seconds, self._clock = nodes, seconds, clock
        self._held: dict[str, Launch] = {}
        self._due: list[tuple[float, str]] = []
        self.lost = 0
        """Attempts that went with a node."""
        self.own_s = 0.0
        """Seconds spent here, which are no controller's."""
        self.gaps: list[float] = []
        """Seconds between two polls: how long the controller was busy with itself."""
        self._polled_at: float | None = None

    def start(self) -> None:
        """Nothing to start."""

    def nodes(self) -> Sequence[Node]:
        return tuple(self._nodes())

    def launch(self, launch: Launch) -> tuple[str, ...]:
        if launch.node_id not in {node.node_id for node in self._nodes()}:
            raise NotPlaced(f"node {launch.node_id} has left")
        self._held[launch.key] = launch
        heapq.heappush(self._due, (self._clock() + self._seconds(launch), launch.key))
        return launch.gpu_ids

    def poll(self) -> list[AttemptExit]:
        start = time.perf_counter()
        if self._polled_at is not None:
            self.gaps.append(start - self._polled_at)
        there = {node.node_id for node in self._nodes()}
        ended = []
        for key in [k for k, launch in self._held.items() if launch.node_id not in there]:
            launch = self._held.pop(key)
            self.lost += 1
            ended.append(
                AttemptExit(trial_id=launch.trial_id, attempt=launch.attempt, node_lost="it left")
            )
        while self._due and self._due[0][0] <= self._clock():
            _, key = heapq.heappop(self._due)
            if key in self._held:
                ended.append(_finish(self._held.pop(key)))
        self._polled_at = time.perf_counter()
        self.own_s += self._polled_at - start
        return ended

    def stop(self, trial_id: str, attempt: int, *, hard: bool) -> None:
        """Nobody asks."""

    def end_orphans(self, processes: Sequence[ProcessId]) -> list[ProcessId]:
        return []

    def close(self) -> None:
        self._held.clear()


def _finish(launch: Launch) -> AttemptExit:
    """Leave what rank 0 leaves."""
    (request,) = launch.rank_requests(launch.gpu_ids)
    metrics = {"train/loss": 1.0}
    line = f'{{"t":1,"step":1,"metrics":{{"train/loss":{metrics["train/loss"]}}}}}\n'
    request.attempt_dir.journal.write_text(line)
    write_json(
        request.trial.path / "result.json",
        {
            "trial_id": launch.trial_id,
            "attempt": launch.attempt,
            "finished_at": time.time(),
            "steps": 1,
            "tokens": 10,
            "device": "cpu",
            "ranks": 1,
            "metrics": metrics,
        },
        durable=False,
    )
    return AttemptExit(trial_id=launch.trial_id, attempt=launch.attempt, exit_codes={0: 0})
