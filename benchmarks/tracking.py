"""What tracking costs a training.

The same trial without MLflow, with a server, and with one that is down for its middle third.

    python benchmarks/tracking.py --rounds 8
    python benchmarks/tracking.py --rounds 3 --steps 300 --markdown

Each arm is a submission of its own: controller, one rank of one core, and (but for the first arm)
exporter and server as processes beside it; the rank reports after every step, which is more than
anybody does. Arms take turns, in an order that changes from round to round, and the ratio is taken
within a round, because the machine is shared. Compared are the seconds from the trial's first
measurement to its last, and the core seconds of its rank, which other work on the machine disturbs
less. Asked for: within 2 %.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from statistics import median

import psutil
from orchestration import _load, _print_table

from orchestrator.control.loop import Controller
from orchestrator.control.status import SweepStatus
from orchestrator.launchers.local import ProcessLauncher
from orchestrator.planning.pricing import make_plan
from orchestrator.records.rank_registry import registered
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TrialDir
from orchestrator.sweep.load import load_sweep
from orchestrator.tracking.exporter_process import exporting
from orchestrator.tracking.mlflow_client import TrackingClient
from orchestrator.tracking.tracking_uri import default_tracking_uri

ARMS = ("none", "server", "down")
TITLES = {
    "none": "records on disk alone",
    "server": "MLflow server",
    "down": "MLflow server, killed for the middle third",
}
SWEEP = """
name: tracked
data: {{source: biographies, style: compact, n_people: 2000}}
train: {{tokens: {tokens}, batch_tokens: 1024, seq_len: 64, lr: 3.0e-3}}
model: {{architecture: dense, preset: d64}}
resources: {{gpus: 0, cpus: 1}}
logging: {{every_steps: 1, evaluations: 2}}
"""


def main() -> None:
    """Print a row for each arm."""
    arguments = _arguments()
    if arguments.arm:
        folder = Path(arguments.folder)
        print(json.dumps(_train(folder, arguments.arm, arguments.steps)), flush=True)
        return
    print(
        f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, torch {version('torch')}, mlflow {version('mlflow')}; "
        f"{arguments.steps} steps, {arguments.rounds} rounds; load {_load()}\n"
    )
    measured: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory(prefix="ms-tracking-", dir=arguments.folder) as root:
        for turn in range(arguments.rounds):
            for arm in (*ARMS[turn % len(ARMS) :], *ARMS[: turn % len(ARMS)]):
                folder = Path(root) / f"{turn}-{arm}"
                command = [sys.executable, __file__, "--arm", arm, "--folder", str(folder)]
                command += ["--steps", str(arguments.steps)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                measured[arm].append(json.loads(done.stdout.splitlines()[-1]))
    _print_table([_row(arm, measured) for arm in ARMS], markdown=arguments.markdown)


def _row(arm: str, measured: dict[str, list[dict[str, float]]]) -> dict[str, str]:
    row = {
        "tracking": TITLES[arm],
        "points sent": "0"
        if arm == ARMS[0]
        else f"{median(one['points'] for one in measured[arm]):,.0f}",
    }
    for name, title in (("seconds", "seconds"), ("cores", "core seconds of its rank")):
        own, plain = ([one[name] for one in measured[which]] for which in (arm, ARMS[0]))
        ratios = sorted(a / b for a, b in zip(own, plain, strict=True))
        row[f"{title}: median"] = f"{median(own):.2f}"
        row[f"{title}: ratio, lowest to highest"] = (
            f"{median(ratios):.3f}, {ratios[0]:.3f} to {ratios[-1]:.3f}"
        )
    return row


def _train(folder: Path, arm: str, steps: int) -> dict[str, float]:
    """Train the trial once; return its own account of the time."""
    folder.mkdir(parents=True)
    file = folder / "tracked.yaml"
    file.write_text(SWEEP.format(tokens=1024 * steps))
    sweep = SweepDir(folder / "tracked")
    (planned,) = make_plan(load_sweep([file]), sweep.snapshot(), {}, gpus_there=False).trials
    sweep.trial(planned.spec.trial_id).create(planned.spec)
    ids = [planned.spec.trial_id]
    sweep.add_submission({"submitted_at": time.time(), "trial_ids": ids, "new": {}})
    controller = Controller(
        sweep,
        submission=1,
        trial_ids=ids,
        launcher=ProcessLauncher(sweep, cpus=1),
        cache=folder.parent / "cache",
    )
    trial = sweep.trial(ids[0])
    watch = _Watch(trial)
    watch.start()
    if arm == "none":
        assert controller.run().complete
    else:
        TrackingClient(default_tracking_uri(folder)).open()
        with _server(folder) as server, exporting(sweep, server.url) as exporter:
            outage = threading.Thread(target=_interrupt, args=(server, trial, steps), daemon=True)
            if arm == "down":
                outage.start()

            def tell(status: SweepStatus) -> None:
                exporter.keep_alive()

            assert controller.run(tell).complete
            if arm == "down":
                outage.join()
        assert exporter.drained is not None
        assert exporter.drained.complete, exporter.drained
    points = trial.metrics()
    times = [at / 1e3 for of_one in points.values() for at, _ in of_one.values()]
    return {
        "seconds": max(times) - min(times),
        "cores": watch.seconds,
        "points": sum(map(len, points.values())),
    }


class _Watch(threading.Thread):
    """Reads what its rank has used of a core, ten times a second, until the rank is gone."""

    def __init__(self, trial: TrialDir) -> None:
        super().__init__(daemon=True)
        self._trial = trial
        self.seconds = 0.0

    def run(self) -> None:
        while not (ranks := [r for a in self._trial.attempts() for r in registered(a)]):
            time.sleep(0.1)
        with contextlib.suppress(psutil.Error):
            rank = psutil.Process(ranks[0].pid)
            while rank.status() != psutil.STATUS_ZOMBIE:
                times = rank.cpu_times()
                self.seconds = times.user + times.system
                time.sleep(0.1)


def _interrupt(server: "_Server", trial: TrialDir, steps: int) -> None:
    """Kill the server when a third of the steps is done, start it again at two thirds."""
    _wait_for(trial, steps / 3)
    server.kill()
    _wait_for(trial, 2 * steps / 3)
    server.start()


def _wait_for(trial: TrialDir, step: float) -> None:
    while trial.result() is None and ((trial.heartbeat() or {}).get("step") or 0) < step:
        time.sleep(0.2)


class _Server:
    """An MLflow server that keeps its address when it is started again."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self.start()

    def start(self) -> None:
        uri = default_tracking_uri(self._folder)
        options = ["--port", str(self.port), "--workers", "1", "--backend-store-uri", uri]
        options += ["--artifacts-destination", str(self._folder / "artifacts")]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *options],
                stdout=log,
                stderr=log,
                process_group=0,
                env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            )
        self._until_it_answers()

    def _until_it_answers(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            time.sleep(0.1)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[_Server]:
    server = _Server(folder)
    try:
        yield server
    finally:
        server.kill()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--folder", help="where to write; default: the system's temporary folder")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
