"""What each part of the orchestrator costs as sweeps grow, and where that leads at 100,000 trials.

    python benchmarks/scale.py                          # a few minutes on two cores
    python benchmarks/scale.py --sizes 500,1000 --only specs,decision --markdown

Each part is measured at three sizes in core seconds (wall time of a shared machine says little); a
power law through them, cost = a n^b, is followed to `--to`. The further that is from the largest
size, the less it says: each row tells by which factor it was carried on, and b.

specs     ids and prices of n trials, a tenth of them configurations
records   the specs of n trials written; and what a trial that waits takes in files and bytes
restart   the folder of n trials read by a controller that starts
cache     `status` of n trials from the status cache
heartbeat controller.json with a reason for each of n waiting trials, rewritten once a second
decision  one decision with n trials waiting and 1,250 full nodes of 8 GPUs
nodes     the same with n / 80 nodes, so 1,250 at 100,000
mlflow    n / 20 runs made with their params in SQLite; points of journals beside
actors    n / 20 answers of an actor on this machine's Ray, as a supervisor gives ten a second
"""

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import psutil
from stub_cluster import add_trials

from orchestrator.control.status import status_from_disk
from orchestrator.control.status_publisher import spec_fields
from orchestrator.planning.pricing import make_plan
from orchestrator.records import status_cache
from orchestrator.records.json_files import write_json
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.scheduling.demand import Demand, Node
from orchestrator.scheduling.interface import Running, Snapshot, schedule
from orchestrator.scheduling.wait_queue import Waiting
from orchestrator.sweep.load import load_sweep
from orchestrator.tracking.journal_reader import Point
from orchestrator.tracking.mlflow_client import TrackingClient

GPUS = 8
FULL_NODES = 1250
SWEEP = """
name: s
data: {{source: biographies, n_people: 100, style: compact}}
train: {{tokens: 8192, batch_tokens: 1024, seq_len: 64}}
model: {{architecture: dense, preset: d16}}
trials: [grid: {{train.lr: [{rates}]}}]
seeds: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
"""


def core_seconds(call: Callable[[], object]) -> float:
    """Return what a call takes of this process's cores."""
    before = time.process_time()
    call()
    return time.process_time() - before


def specs(n: int, root: Path) -> float:
    """Load and price a sweep."""
    file = root / "s.yaml"
    rates = ", ".join(f"{1e-3 * 1.0001**i:.8e}" for i in range(n // 10))
    file.write_text(SWEEP.format(rates=rates), encoding="utf-8")
    snapshot = SweepDir(root / "none").snapshot()
    return core_seconds(lambda: make_plan(load_sweep(file), snapshot, [], gpus_there=True))


def records(n: int, root: Path) -> float:
    """Write specs."""
    return core_seconds(lambda: _written(n, root))


def restart(n: int, root: Path) -> float:
    """Read a sweep's folder."""
    sweep = _written(n, root)
    return core_seconds(sweep.snapshot)


def cache(n: int, root: Path) -> float:
    """Read the statuses of trials that wait."""
    sweep = _written(n, root)
    ids = [trial.trial_id for trial in sweep.trials()]
    sweep.add_submission({"trial_ids": ids})
    times = status_cache.SpecTimes(sweep)
    lines = (
        {
            **spec_fields(trial.spec()),
            "varied": "",
            "spec_ns": times.ns(trial.trial_id),
        }
        for trial in sweep.trials()
    )
    status_cache.StatusCache(sweep).reset(lines)
    return core_seconds(lambda: status_from_disk(sweep))


def heartbeat(n: int, root: Path) -> float:
    """Write controller.json once."""
    reason = "needs 1 GPU; 0 of 10,000 GPUs free; about 3 h until it starts"
    ids = [f"memory_plus-{i:012x}" for i in range(n)]
    record = {"trial_ids": ids, "waits": dict.fromkeys(ids, reason)}
    return core_seconds(lambda: write_json(root / "controller.json", record))


def decision(n: int, root: Path, *, n_nodes: int = FULL_NODES) -> float:
    """Decide once on a full cluster."""
    nodes = [
        Node(node_id=f"n{i}", host=f"h{i}", cpus=96, gpus=tuple(map(str, range(GPUS))))
        for i in range(n_nodes)
    ]
    demand = Demand(cpus=8, gpus=1.0)
    running = [
        Running(
            trial_id=f"r{i}-{gpu}",
            node_id=f"n{i}",
            demand=demand,
            gpus=(str(gpu),),
            predicted_end=100.0 + i,
        )
        for i in range(n_nodes)
        for gpu in range(GPUS)
    ]
    waiting = [
        Waiting(trial_id=f"w{i}", demand=demand, predicted_s=60.0 + i, order=i) for i in range(n)
    ]
    snapshot = Snapshot(nodes=nodes, running=running, waiting=waiting)
    return core_seconds(lambda: schedule(snapshot, 0.0))


def nodes(n: int, root: Path) -> float:
    """Decide once with more nodes and as many trials on each."""
    return decision(1000, root, n_nodes=n // 80)


def mlflow(n: int, root: Path) -> float:
    """Make runs with params."""
    client = TrackingClient(f"sqlite:///{root}/mlflow.db")
    experiment = client.experiment("s", artifacts=None, tags={})
    params = {f"train.{i}": "1.0" for i in range(40)}

    def make() -> None:
        for i in range(n // 20):
            run = client.create_run(experiment, start_s=1.0, name=str(i), tags={"k": "v"})
            client.log_params(run, params)

    return core_seconds(make)


def actors(n: int, root: Path) -> float:
    """Ask an actor, as a controller asks each supervisor ten times a second."""
    import ray

    if not ray.is_initialized():
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)

    class Supervisor:
        def poll(self) -> list[int]:
            return []

    actor = ray.remote(num_cpus=0)(Supervisor).remote()
    ray.get(actor.poll.remote())

    def ask() -> None:
        for _ in range(n // 20):
            call = actor.poll.remote()
            ray.wait([call], timeout=10)
            ray.get(call)

    return core_seconds(ask)


PARTS = {
    part.__name__: part
    for part in (specs, records, restart, cache, heartbeat, decision, nodes, mlflow, actors)
}


def _written(n: int, root: Path) -> SweepDir:
    sweep = SweepDir(root / f"s{n}")
    if not sweep.path.is_dir():
        add_trials(sweep, n)
    return sweep


def power_law(sizes: list[int], costs: list[float]) -> tuple[float, float]:
    """Return a and b of cost = a n^b by least squares in logarithms."""
    slope, intercept = np.polyfit(np.log(sizes), np.log(costs), 1)
    return float(math.exp(intercept)), float(slope)


def disk_of_a_trial(root: Path) -> str:
    """Return what the folder of a waiting trial takes."""
    sweep = _written(100, root / "disk")
    files = [path for path in sweep.path.rglob("*") if path.is_file()]
    blocks = sum(path.stat().st_blocks * 512 for path in sweep.path.rglob("*"))
    return f"{len(files) / 100:g} files and {blocks / 100:,.0f} bytes on this file system"


def points_of_a_journal(root: Path) -> float:
    """Return core seconds of 1,000 points in SQLite."""
    client = TrackingClient(f"sqlite:///{root}/points.db")
    experiment = client.experiment("s", artifacts=None, tags={})
    run = client.create_run(experiment, start_s=1.0, name="0", tags={})
    points = [Point(f"train/{i % 10}", float(i), i, i // 10) for i in range(5000)]

    def send() -> None:
        for first in range(0, len(points), 1000):
            client.log_points(run, points[first : first + 1000])

    return core_seconds(send) / 5


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="1000,2000,4000")
    parser.add_argument("--to", type=int, default=100_000)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",")]
    print(f"load {psutil.getloadavg()[0]:.1f}, {psutil.cpu_count()} cores")
    for name in arguments.only.split(","):
        costs = []
        for size in sizes:
            with tempfile.TemporaryDirectory() as folder:
                warm = Path(folder) / "warm"
                warm.mkdir()
                PARTS[name](max(80, size // 10), warm)  # imports, first calls
                costs.append(PARTS[name](size, Path(folder)))
        a, b = power_law(sizes, costs)
        row = [name, *(f"{cost:.3g}" for cost in costs), f"{b:.2f}", f"{a * arguments.to**b:.3g}"]
        row.append(f"{arguments.to / max(sizes):.0f}x")
        print("| " + " | ".join(row) + " |" if arguments.markdown else json.dumps(row), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        print(f"a trial that waits: {disk_of_a_trial(Path(folder))}")
        print(f"1,000 points to SQLite: {points_of_a_journal(Path(folder)):.3g} core s")


if __name__ == "__main__":
    main()
