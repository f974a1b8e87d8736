"""Times the orchestrator itself.

Trivial trials beside Ray Tune and Ray Train, a thousand stubs, ten thousand trials' status.

    python benchmarks/orchestration.py                                     # all of it; half an hour and more: 200 Ray Train runs
    python benchmarks/orchestration.py --trials 20 --many 1000             # a look, some minutes
    python benchmarks/orchestration.py --only stub,many,nodes              # without Ray
    python benchmarks/orchestration.py --only trials --train-trials 20 --markdown

trials  The same report of one number, as a memscale trial (controller, Ray, supervisor, a forked
process each, its
        records on disk; and once with MLflow), as a Ray Tune trial (function trainable), and as a
        Ray Train run (TorchTrainer, one worker). Two cores each, two at a time. Seconds per trial
        are those after start-up, which stands beside them. Asked for: at most 0.5 of Ray Tune's,
        0.2 of Ray Train's.
stub    1,000 trials of one core on 64 fake nodes of 8; no process is started, so what is left is the controller's.
many    10,000 of those: memory of the controller from its first look to its last, then `status` of them all, by
        folders alone, with statuses.jsonl, and as the command (asked for: under one second).
nodes   64 fake nodes join one by one and leave again while trials run: each is done once, those lost were retried.
joining The same with real Ray nodes on this machine (--real-nodes), which leave without a word.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from stub_cluster import StubLauncher, add_trials

from orchestrator.control.loop import Controller
from orchestrator.control.status import SweepStatus, status_from_disk
from orchestrator.launchers.ray_embedded import SETTINGS
from orchestrator.records import status_cache
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.scheduling.demand import Node

JOB = f"{Path(__file__).with_name('trivial_job.py')}:run"
PARTS = ("trials", "stub", "many", "nodes", "joining")
AT_ONCE = 2
FOREIGN = {**SETTINGS, "RAY_AUTH_MODE": "disabled"}
"""For clusters that memscale does not start: set up as it does, but for the token. Ray reads this
when it is imported."""
NODES = [Node(node_id=f"n{i}", host=f"h{i}", cpus=8, gpus=()) for i in range(64)]


def main() -> None:
    """Print a table for each part."""
    arguments = _arguments()
    if arguments.arm:
        root = Path(arguments.folder)
        if not arguments.arm.startswith("memscale"):
            os.environ.update(FOREIGN)
        print(json.dumps(ARMS[arguments.arm](root, arguments.trials)), flush=True)
        return
    packages = ", ".join(f"{name} {version(name)}" for name in ("ray", "mlflow"))
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {packages}; load {_load()}\n")
    for part in arguments.only.split(","):
        with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="ms-bench-") as folder:
            rows = PART_OF[part](Path(folder), arguments)
        _print_table(rows, markdown=arguments.markdown)


def _print_table(rows: list[dict[str, str]], *, markdown: bool) -> None:
    cells = [list(rows[0]), *(list(row.values()) for row in rows)]
    if markdown:
        cells.insert(1, ["---"] * len(rows[0]))
        print("\n".join(f"| {' | '.join(row)} |" for row in cells), "\n", flush=True)
        return
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
    print(flush=True)


# -- trials: side by side
# --------------------------------------------------------------------------------------


def trials(folder: Path, arguments: argparse.Namespace) -> list[dict[str, str]]:
    """Run every arm in a process of its own, memscale first and last.

    The machine may be busier at one end.
    """
    results = []
    for arm in ("memscale", "tune", "train", "memscale", "memscale_mlflow"):
        n = arguments.train_trials or arguments.trials if arm == "train" else arguments.trials
        load = _load()
        command = [sys.executable, __file__, "--arm", arm, "--trials", str(n)]
        own = tempfile.mkdtemp(dir=folder)
        done = subprocess.run([*command, "--folder", own], stdout=subprocess.PIPE, check=True)
        measured = json.loads(done.stdout.splitlines()[-1])
        results.append((arm, n, load, measured))
        # An hour of others' trials is a long time to say nothing.
        print(f"{TITLES[arm]}: {n} trials, {measured}, load {load}", file=sys.stderr, flush=True)
    each = {arm: [m["seconds"] / n for a, n, _, m in results if a == arm] for arm, *_ in results}
    ours = sum(each["memscale"]) / len(each["memscale"])
    return [
        {
            "trials through": TITLES[arm],
            "trials": str(n),
            "start-up s": f"{measured['start_s']:.1f}",
            "s per trial": f"{measured['seconds'] / n:.3f}",
            "memscale / it": "" if arm.startswith("memscale") else f"{ours / each[arm][0]:.3f}",
            "load before": load,
        }
        for arm, n, load, measured in results
    ]


def _memscale(root: Path, n: int, *, track: bool = False) -> dict[str, float]:
    from orchestrator.launchers.ray import RayLauncher
    from orchestrator.tracking.exporter_process import exporting
    from orchestrator.tracking.mlflow_client import TrackingClient
    from orchestrator.tracking.tracking_uri import default_tracking_uri

    sweep = SweepDir(root / "trivial")
    ids = add_trials(sweep, n)
    launcher = RayLauncher(sweep, cpus=AT_ONCE, job=JOB)
    started = launcher.start
    ready: list[float] = []

    def start() -> None:
        started()
        ready.append(time.monotonic())

    launcher.start = start  # type: ignore[method-assign]
    controller = Controller(
        sweep, submission=1, trial_ids=ids, launcher=launcher, cache=root / "cache", job=JOB
    )
    if track:
        # The first submission's affair: ten seconds, once.
        TrackingClient(default_tracking_uri(root)).open()
    ended: list[float] = []

    def tell(status: SweepStatus) -> None:
        if status.complete and not ended:
            ended.append(time.monotonic())

    begin = time.monotonic()
    if track:
        sweep.add_submission({"submitted_at": time.time(), "trial_ids": ids, "new": {}})
        with exporting(sweep) as exporter:
            assert controller.run(tell).complete
        assert exporter.drained is not None
        assert exporter.drained.complete, exporter.drained
        ended = [time.monotonic()]
    else:
        assert controller.run(tell).complete
    return {"start_s": ready[0] - begin, "seconds": ended[0] - ready[0]}


def _memscale_mlflow(root: Path, n: int) -> dict[str, float]:
    return _memscale(root, n, track=True)


@contextlib.contextmanager
def _ray(root: Path) -> Iterator[float]:
    """A local Ray of as many cores, without dashboard, as memscale's.

    Yields when it was asked for.
    """
    import ray

    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rb-") as short:
        ray.init(
            address="local",
            include_dashboard=False,
            num_cpus=AT_ONCE,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=short,
        )
        try:
            yield begin
        finally:
            ray.shutdown()


def _tune(root: Path, n: int) -> dict[str, float]:
    from ray import tune

    def report(config: dict[str, Any]) -> None:
        tune.report({"loss": 1.0})

    with _ray(root) as begin:
        tuner = tune.Tuner(
            tune.with_resources(report, {"cpu": 1}),
            param_space={"seed": tune.grid_search(list(range(n)))},
            run_config=tune.RunConfig(storage_path=str(root), verbose=0),
        )
        ready = time.monotonic()
        results = tuner.fit()
        ended = time.monotonic()
    assert len(results) == n
    assert results.num_errors == 0
    return {"start_s": ready - begin, "seconds": ended - ready}


def _train(root: Path, n: int) -> dict[str, float]:
    import ray

    def one(i: int, storage: str) -> None:
        from ray import train
        from ray.train.torch import TorchTrainer

        TorchTrainer(
            lambda: train.report({"loss": 1.0}),
            scaling_config=train.ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1}),
            run_config=train.RunConfig(name=f"run-{i}", storage_path=storage),
        ).fit()

    with _ray(root) as begin:
        # Each run's driver is a task that waits, so that two run at a time, as in the other rows.
        driver = ray.remote(num_cpus=0)(one)
        ready = time.monotonic()
        waiting = [driver.remote(i, str(root)) for i in range(min(n, AT_ONCE))]
        given = len(waiting)
        while waiting:
            done, waiting = ray.wait(waiting)
            ray.get(done)
            if given < n:
                waiting.append(driver.remote(given, str(root)))
                given += 1
        ended = time.monotonic()
    return {"start_s": ready - begin, "seconds": ended - ready}


ARMS = {"memscale": _memscale, "memscale_mlflow": _memscale_mlflow, "tune": _tune, "train": _train}
TITLES = {
    "memscale": "memscale",
    "memscale_mlflow": "memscale, and MLflow",
    "tune": "Ray Tune",
    "train": "Ray Train",
}

# -- stubs
# -----------------------------------------------------------------------------------------------------


def stub(folder: Path, arguments: argparse.Namespace) -> list[dict[str, str]]:
    """Bring stub trials to their end on 64 nodes."""
    sweep, launcher, _, measured = _stub_sweep(folder, arguments.stubs, lambda: NODES)
    del sweep
    return [
        {
            "stub trials": f"{arguments.stubs:,}",
            "fake nodes": str(len(NODES)),
            "s": f"{measured['wall_s']:.1f}",
            "CPU ms per trial": f"{1e3 * measured['cpu_s'] / arguments.stubs:.2f}",
            "longest between two looks s": f"{max(launcher.gaps):.2f}",
        }
    ]


def many(folder: Path, arguments: argparse.Namespace) -> list[dict[str, str]]:
    """Run many stub trials, watch the controller's memory, then ask for their status."""
    n = arguments.many
    sweep, launcher, memory, measured = _stub_sweep(folder, n, lambda: NODES)
    with_file = min(_seconds(lambda: status_from_disk(sweep)) for _ in range(3))
    command = min(_seconds(lambda: _status_command(folder)) for _ in range(3))
    (sweep.path / status_cache.FILE).unlink()
    without = min(_seconds(lambda: status_from_disk(sweep)) for _ in range(2))
    middle = [mib for done, mib in memory if done < n / 2]
    return [
        {
            "stub trials": f"{n:,}",
            "s": f"{measured['wall_s']:.0f}",
            "CPU ms per trial": f"{1e3 * measured['cpu_s'] / n:.2f}",
            "longest between two looks s": f"{max(launcher.gaps):.2f}",
            "MiB at first, half, last": f"{memory[0][1]:.0f}, {middle[-1]:.0f}, {memory[-1][1]:.0f}",
            "status s": f"{with_file:.2f}",
            "from folders alone s": f"{without:.2f}",
            "`memscale status` s": f"{command:.2f}",
        }
    ]


def nodes(folder: Path, arguments: argparse.Namespace) -> list[dict[str, str]]:
    """Let 64 nodes join one by one and leave again, the first stays."""
    there, steps = [NODES[0]], [*NODES[1:], *reversed(NODES[1:])]
    taken = 0
    chance = random.Random(0)

    def look() -> list[Node]:
        return there

    def change(status: SweepStatus) -> None:
        nonlocal taken
        done = arguments.stubs - _left(status)
        # The last node has left when nine tenths are done.
        due = min(len(steps), 1 + int(done / (0.9 * arguments.stubs) * len(steps)))
        for node in steps[taken:due]:
            there.remove(node) if node in there else there.append(node)
        taken = max(taken, due)

    sweep, launcher, _, measured = _stub_sweep(
        folder,
        arguments.stubs,
        look,
        seconds=lambda launch: chance.uniform(0.0, 3.0),
        on_update=change,
    )
    done = [
        [end["outcome"] for attempt in trial.attempts() if (end := attempt.end())].count("done")
        for trial in sweep.trials()
    ]
    assert done == [1] * arguments.stubs, "a trial was not done exactly once"
    assert taken == len(steps), "the sweep ended before every node had come and left"
    return [
        {
            "stub trials": f"{arguments.stubs:,}",
            "nodes that joined and left": str(len(NODES) - 1),
            "attempts lost with them, and retried": str(launcher.lost),
            "trials done once": str(sum(done)),
            "s": f"{measured['wall_s']:.1f}",
        }
    ]


def _stub_sweep(
    folder: Path,
    n: int,
    look: Callable[[], list[Node]],
    *,
    seconds: Callable[[Any], float] = lambda launch: 0.0,
    on_update: Callable[[SweepStatus], None] = lambda status: None,
) -> tuple[SweepDir, StubLauncher, list[tuple[int, float]], dict[str, float]]:
    sweep = SweepDir(folder / "stubs")
    ids = add_trials(sweep, n)
    sweep.add_submission({"submitted_at": time.time(), "trial_ids": ids, "new": {}})
    launcher = StubLauncher(look, seconds=seconds)
    process, memory = psutil.Process(), []

    def tell(status: SweepStatus) -> None:
        memory.append((len(status.trials) - _left(status), process.memory_info().rss / 2**20))
        on_update(status)

    controller = Controller(
        sweep, submission=1, trial_ids=ids, launcher=launcher, cache=folder / "cache"
    )
    wall, cpu = time.perf_counter(), time.process_time()
    assert controller.run(tell).complete
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return sweep, launcher, memory, {"wall_s": wall, "cpu_s": cpu - launcher.own_s}


def _left(status: SweepStatus) -> int:
    return sum(count for state, count in status.totals.items() if state.value != "done")


def _status_command(runs: Path) -> None:
    command = [sys.executable, "-m", "orchestrator.cli", "status", "stubs", "--runs", str(runs)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


# -- real nodes
# ------------------------------------------------------------------------------------------------


def joining(folder: Path, arguments: argparse.Namespace) -> list[dict[str, str]]:
    """Let Ray nodes of this machine join a running sweep and leave it, killed."""
    os.environ.update(FOREIGN)
    import ray
    from ray.cluster_utils import Cluster

    from orchestrator.launchers.ray import RayLauncher

    n = 40 * arguments.real_nodes
    sweep = SweepDir(folder / "joining")
    ids = add_trials(sweep, n)
    with tempfile.TemporaryDirectory(prefix="rb-") as short:
        cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "include_dashboard": False, "temp_dir": short},
        )
        joined: list[Any] = []
        came = left = 0

        def tell(status: SweepStatus) -> None:
            nonlocal came, left
            done = n - _left(status)
            if came < arguments.real_nodes and done >= came * n // (2 * arguments.real_nodes):
                joined.append(cluster.add_node(num_cpus=1))
                came += 1
            elif joined and done >= n // 2 + left * n // (3 * arguments.real_nodes):
                cluster.remove_node(joined.pop(0), allow_graceful=False)
                left += 1

        launcher = RayLauncher(sweep, address=cluster.address, job=JOB)
        controller = Controller(
            sweep, submission=1, trial_ids=ids, launcher=launcher, cache=folder / "c", job=JOB
        )
        begin = time.perf_counter()
        try:
            complete = controller.run(tell).complete
        finally:
            ray.shutdown()
            cluster.shutdown()
    ends = [a.end() or {} for trial in sweep.trials() for a in trial.attempts()]
    return [
        {
            "trials": str(n),
            "Ray nodes that joined": str(came),
            "killed": str(left),
            "attempts lost": str(sum(end.get("outcome") == "node_lost" for end in ends)),
            "all done": str(complete),
            "s": f"{time.perf_counter() - begin:.0f}",
        }
    ]


PART_OF = dict(zip(PARTS, (trials, stub, many, nodes, joining), strict=True))


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--train-trials", type=int, help="fewer Ray Train runs; each takes long")
    parser.add_argument("--stubs", type=int, default=1000)
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--real-nodes", type=int, default=4)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where sweeps are written")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--arm", choices=sorted(ARMS), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
