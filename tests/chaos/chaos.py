"""Chaos test: a sweep on a Ray cluster of four nodes while everything is killed at random times.

    chaos=tests/chaos/chaos.py
    python $chaos                              # seeds 0 to 9, 40 trials each: `make test-chaos`
    python $chaos --seeds 3 --keep /tmp/look   # one seed again; its folder is kept
    python $chaos --seeds 0,1 --trials 6 --kinds rank,supervisor,controller --no-server
    python $chaos --seeds 0 --hosts            # four network namespaces, one of them cut off

Killed are ranks, supervisors, raylets (with their nodes; others join), the head with the whole
cluster, the submission (controller), its exporter and the tracking server. For a while the disk is
full (a tmpfs, where one may be mounted), and for a while the sweep's storage fails in every process
(faults/sitecustomize.py). The clock of one node is an hour ahead. With --hosts every node has a
network and a host name of its own (hosts.py), and one is cut off from the others for a while, with
all that runs there. The seed decides when: a share of all steps, and a pause after it. The last
steps of trials wait until every fault has occurred. What has ended is started again, as a person
would do: the cluster, the server, the submission.

Afterwards every trial is done once, and its measurements equal those of the undisturbed sweep bit
for bit. The tracker has each point once. Every attempt that did not finish ended for a reason that
was caused. Of processes, ports, locks and temporary files nothing is left.
"""

import argparse
import contextlib
import fcntl
import importlib.util
import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from orchestrator.launchers.ray_embedded import SETTINGS
from orchestrator.records.attempt_dir import AttemptDir
from orchestrator.records.processes import ProcessId, pids_with_environment, pids_writing_below
from orchestrator.records.rank_registry import registered
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Resources, Retries, TrialSpec
from orchestrator.tracking.mlflow_client import TrackingClient
from orchestrator.tracking.tracking_uri import default_tracking_uri

HERE = Path(__file__).parent
KINDS = (
    "rank",
    "supervisor",
    "raylet",
    "head",
    "controller",
    "exporter",
    "server",
    "disk",
    "storage",
)
OF_HOSTS = ("network",)
"""What strikes in addition where each node is a host of its own."""
CUT_S = 12.0
"""For how long a host is cut off: Ray has given it up by then."""
OUTCOMES = {
    "rank": {"killed"},
    "supervisor": {"node_lost"},
    "raylet": {"node_lost"},
    "network": {"node_lost"},
    "head": {"node_lost"},
    "controller": {"node_lost"},
    "disk": {"disk_full"},
    "storage": {"storage"},
}
"""What an attempt may have ended as, if this happened to it."""
FAILS_S = 3.0
"""For how long the storage fails: two looks of the controller at least."""
ERRORS = ("EIO", "ESTALE")
"""As which."""
AHEAD_S = 3600.0
"""How far the wrong clock is ahead."""
MARK = "MEMSCALE_CHAOS"
NODES = 4
PATIENCE_S = 900.0
NOTICED_S = 5.0
"""Within what time a controller knows that a supervisor is dead."""
STALLED_S = 5.0
HEAD_S = 20.0
"""How long a submission may take to notice that its cluster is gone, before it is ended."""

LOG = logging.getLogger("chaos")


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


disk_sweep = load(HERE.parent / "unit" / "orchestrator" / "tracking" / "disk_sweep.py")
hosts = load(HERE / "hosts.py")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run of chaos consists of."""

    seed: int
    trials: int = 40
    steps: int = 120
    pause_s: float = 0.02
    kinds: tuple[str, ...] = KINDS
    server: bool = True
    times: int = 1
    """How often each kind strikes; ranks twice as often."""
    nodes: int = NODES
    hosts: bool = False
    """Whether each node is a host of its own."""

    def strikes(self) -> list[tuple[float, float, str]]:
        """Return (share of steps done, seconds after it, kind), in order."""
        chance = random.Random(self.seed)
        all_kinds = (*self.kinds, *OF_HOSTS) if self.hosts else self.kinds
        kinds = [k for k in all_kinds for _ in range(self.times * (2 if k == "rank" else 1))]
        return sorted((chance.uniform(0.0, 0.85), chance.uniform(0.0, 1.0), k) for k in kinds)


def write_trials(sweep: SweepDir, plan: Plan) -> list[str]:
    """Write the specs: one core each, every fifth of two ranks."""
    ids = []
    for seed in range(plan.trials):
        spec = TrialSpec(
            sweep=sweep.name,
            data={
                "source": "none",
                "pause_s": plan.pause_s,
                "checkpoint_every": max(1, plan.steps // 12),
            },
            model={"architecture": "dense"},
            train={"tokens": 10 * plan.steps, "batch_tokens": 10, "seq_len": 10},
            seed=seed,
            resources=Resources(gpus=0, ranks=2 if seed % 5 == 4 else 1),
            retries=Retries(preemption=100),
        )
        sweep.trial(spec.trial_id).create(spec)
        ids.append(spec.trial_id)
    return ids


def metrics_of(sweep: SweepDir) -> dict[str, dict[str, dict[int, float]]]:
    """Return trial -> metric -> step -> value, of what measures no time."""
    return {
        trial.trial_id: {
            name: {step: value for step, (_, value) in points.items()}
            for name, points in trial.metrics().items()
            if name.startswith("train/")
        }
        for trial in sweep.trials()
    }


def undisturbed(folder: Path, plan: Plan) -> dict[str, dict[str, dict[int, float]]]:
    """Run the same trials by plain processes, without pauses; return what they measured."""
    sweep = SweepDir(folder / "undisturbed")
    write_trials(sweep, plan)
    subprocess.run([sys.executable, HERE / "submit.py", sweep.path, "1", "process"], check=True)
    return metrics_of(sweep)


class Ray:
    """A cluster of processes of this machine. The clock of its last node is wrong."""

    def __init__(self, nodes: int) -> None:
        from ray.cluster_utils import Cluster

        self.folder = Path(tempfile.mkdtemp(prefix="mc-"))
        # Cluster leaves its address there for others to find; nobody else is meant to.
        os.environ["RAY_TMPDIR"] = str(self.folder)
        (self.folder / "ray").mkdir()
        self._cluster = Cluster()
        try:
            self._patiently(include_dashboard=False, temp_dir=str(self.folder))
            for i in range(1, nodes):
                self._join(wrong_clock=i == nodes - 1)
        except BaseException:
            self.close()
            raise

    def _patiently(self, **more: Any) -> Any:
        """Add a node; again if its agents did not start in the 30 s that Ray allows."""
        for left in reversed(range(5)):
            try:
                return self._cluster.add_node(num_cpus=2, **more)
            except Exception as error:
                LOG.info("a node did not start: %s", str(error).partition(".")[0])
                if self._cluster.head_node is None:
                    _kill_all(pids_writing_below(self.folder))
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _join(self, *, wrong_clock: bool) -> None:
        if wrong_clock:
            os.environ["CHAOS_AHEAD_S"] = str(AHEAD_S)
        try:
            node = self._patiently()
        finally:
            os.environ.pop("CHAOS_AHEAD_S", None)
        node.wrong_clock = wrong_clock

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def raylets(self) -> list[int]:
        """Return the pids of the raylets of all nodes but the head."""
        return [_raylet(node) for node in self._cluster.worker_nodes]

    def kill_raylet(self, pid: int) -> None:
        """Kill a raylet alone: what depends on it must end by itself. Another node joins."""
        os.kill(pid, signal.SIGKILL)
        (node,) = [n for n in self._cluster.worker_nodes if _raylet(n) == pid]
        self._cluster.remove_node(node, allow_graceful=False)
        self._join(wrong_clock=node.wrong_clock)

    def close(self) -> None:
        """End what Ray started, and wait until nothing writes into its folder any more."""
        with contextlib.suppress(Exception):  # a head that was killed cannot be asked
            self._cluster.shutdown()
        until(lambda: not _kill_all(pids_writing_below(self.folder)), "Ray's processes end")
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill_head(self) -> None:
        """Kill every process of the head at once."""
        for entries in self._cluster.head_node.all_processes.values():
            for entry in entries:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(entry.process.pid, signal.SIGKILL)


def _raylet(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def _kill_all(pids: list[int]) -> list[int]:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


class Server:
    """An MLflow server that can be killed and started again at the same address."""

    def __init__(self, uri: str, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._uri, self._log = uri, log
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        options = ["--port", str(self.port), "--workers", "1", "--backend-store-uri", self._uri]
        artifacts = ["--artifacts-destination", str(self._log.parent / "artifacts")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *options, *artifacts],
                stdout=log,
                stderr=log,
                process_group=0,
                env={
                    **os.environ,
                    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                    "MLFLOW_DISABLE_TELEMETRY": "true",
                },
            )

    def answers(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            return True
        return False

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@dataclass
class Chaos:
    """One disturbed sweep."""

    plan: Plan
    folder: Path
    expected: dict[Path, set[str]] = field(default_factory=dict)
    """Attempt to what it may have ended as, besides done."""
    struck: list[str] = field(default_factory=list)
    left_at: list[float] = field(default_factory=list)
    """Times of day at which a supervisor was struck, or a raylet with its own."""
    submissions: int = 0

    def __post_init__(self) -> None:
        self.sweep = SweepDir(self.folder / "runs" / f"chaos-{self.plan.seed}")
        self.ids = write_trials(self.sweep, self.plan)
        self.flag = self.folder / "storage-fails"
        os.environ["CHAOS_STORAGE"] = f"{self.flag.absolute()}:{self.sweep.path.absolute()}"
        self.ray: Any = None
        self.server: Server | None = None
        self.controller: subprocess.Popen[bytes] | None = None
        self.head_died_at: float | None = None
        self.last_share = (-1.0, 0.0)

    @property
    def store(self) -> str:
        return default_tracking_uri(self.folder)

    def run(self) -> None:
        """Disturb the sweep until it is done."""
        strikes = self.plan.strikes()
        due_at: float | None = None
        hold = self.sweep.path / "hold"
        hold.touch()
        self.ray = self._cluster()
        TrackingClient(self.store).open()
        if self.plan.server:
            self.server = Server(self.store, self.folder / "server.log")
        deadline = time.monotonic() + PATIENCE_S
        try:
            while True:
                assert time.monotonic() < deadline, f"not done in {PATIENCE_S:.0f} s: {self.told()}"
                if not self._submitted():
                    return
                share = self._share()
                if strikes and (share >= strikes[0][0] or self._stalled(share)):
                    due_at = due_at or time.monotonic() + strikes[0][1]
                    if time.monotonic() >= due_at and self._strike(strikes[0][2]):
                        self.struck.append(strikes.pop(0)[2])
                        LOG.info(
                            "seed %d: %s struck, %.0f %% done",
                            self.plan.seed,
                            self.struck[-1],
                            100 * share,
                        )
                        due_at = None
                        if not strikes:
                            hold.unlink()
                time.sleep(0.05)
        finally:
            self.close()

    def _cluster(self) -> Any:
        if self.plan.hosts:
            return hosts.Hosts(self.plan.nodes, ahead_s=AHEAD_S)
        return Ray(self.plan.nodes)

    def _share(self) -> float:
        """Return the share of all steps that are behind the trials, as their checkpoints say."""
        done = sum(trial.checkpoint_step() for trial in self._trials())
        return done / (len(self.ids) * self.plan.steps)

    def _stalled(self, share: float) -> bool:
        """Whether all that run wait before their last steps."""
        if share != self.last_share[0]:
            self.last_share = (share, time.monotonic())
        return time.monotonic() - self.last_share[1] > STALLED_S

    def _trials(self) -> list[Any]:
        return [self.sweep.trial(trial_id) for trial_id in self.ids]

    def _submitted(self) -> bool:
        """See to it that a submission runs; False once one has ended with everything done."""
        if self.head_died_at is not None and time.monotonic() - self.head_died_at > HEAD_S:
            self._end_controller()
        if self.controller is not None:
            code = self.controller.poll()
            if code is None:
                return True
            self.controller = None
            if code == 0:
                return False
        if self.head_died_at is not None:
            self.ray.close()
            self.ray, self.head_died_at = self._cluster(), None
        if self.server is not None:
            until(self.server.answers, "the tracking server answers")
        self.submissions += 1
        number = self.sweep.add_submission(
            {"submitted_at": time.time(), "trial_ids": self.ids, "new": {}}
        )
        uri = self.store if self.server is None else self.server.url
        with (self.folder / f"controller-{self.plan.seed}.log").open("ab") as log:
            self.controller = subprocess.Popen(
                [
                    *(sys.executable, HERE / "submit.py", self.sweep.path, str(number)),
                    *(self.ray.address, uri),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return True

    def _end_controller(self) -> None:
        if self.controller is not None and self.controller.poll() is None:
            self._expect("controller", self._open())
            self.controller.kill()
            self.controller.wait()

    def close(self) -> None:
        """End everything, whatever state it is in."""
        self._end_controller()
        if self.server is not None:
            self.server.kill()
        if self.ray is not None:
            self.ray.close()

    def _strike(self, kind: str) -> bool:
        """Do it to somebody who is there now; False if nobody is."""
        if self.head_died_at is not None:
            return False
        return bool(getattr(self, f"_strike_{kind}")())

    def _open(self) -> list[AttemptDir]:
        last = [trial.attempts()[-1:] for trial in self._trials()]
        return [attempt for one in last for attempt in one if attempt.end() is None]

    def _expect(self, kind: str, attempts: list[AttemptDir]) -> None:
        for attempt in attempts:
            self.expected.setdefault(attempt.path, set()).update(OUTCOMES[kind])

    def _below(self, pid: int) -> list[AttemptDir]:
        """Return the attempts with ranks below a process, and those whose ranks are unknown."""
        with contextlib.suppress(psutil.NoSuchProcess):
            there = {child.pid for child in psutil.Process(pid).children(recursive=True)}
            found = []
            for attempt in self._open():
                # Not registered yet, or dead by an earlier strike that was not taken note of.
                alive = {rank.pid for rank in registered(attempt) if _alive(rank)}
                if not alive or alive & there:
                    found.append(attempt)
            return found
        return []

    def _strike_rank(self) -> bool:
        ranks = [(a, rank) for a in self._open() for rank in registered(a) if _alive(rank)]
        if not ranks:
            return False
        attempt, rank = random.Random(len(self.struck)).choice(ranks)
        self._expect("rank", [attempt])
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank.pid, signal.SIGKILL)
        return True

    def _strike_supervisor(self) -> bool:
        found = [
            process
            for process in psutil.Process().children(recursive=True)
            if "ray::NodeSupervisor" in _command(process)
        ]
        carrying = [p for p in found if _runs(self._below(p.pid))]
        if not carrying:
            return False
        self._expect("supervisor", self._below(carrying[0].pid))
        carrying[0].kill()
        self.left_at.append(time.time())
        return True

    def _strike_raylet(self) -> bool:
        carrying = [p for p in self.ray.raylets() if _runs(self._below(p))]
        if not carrying:
            return False
        self._expect("raylet", self._below(carrying[0]))
        self.ray.kill_raylet(carrying[0])
        self.left_at.append(time.time())
        return True

    def _strike_network(self) -> bool:
        carrying = [p for p in self.ray.raylets() if _runs(self._below(p))]
        if not carrying:
            return False
        before = self._below(carrying[0])
        self._expect("network", before)
        self.ray.cut(carrying[0], seconds=CUT_S)
        return True

    def _strike_head(self) -> bool:
        if self.controller is None or not any(registered(a) for a in self._open()):
            return False
        self._expect("head", self._open())
        self.ray.kill_head()
        # Its processes go on until they notice; whatever it starts until then goes with it.
        self.head_died_at = time.monotonic()
        return True

    def _strike_controller(self) -> bool:
        if self.controller is None or not any(registered(a) for a in self._open()):
            return False
        self._expect("controller", self._open())
        self.controller.kill()
        self.controller.wait()
        # What it started between our look and its end.
        self._expect("controller", self._open())
        return True

    def _strike_exporter(self) -> bool:
        if self.controller is None or self.controller.poll() is not None:
            return False
        for process in psutil.Process(self.controller.pid).children():
            if "orchestrator.tracking.exporter" in _command(process):
                process.kill()
                return True
        return False

    def _strike_server(self) -> bool:
        if self.server is None:
            return True
        self.server.kill()
        time.sleep(1.0)
        self.server.start()
        return True

    def _strike_disk(self) -> bool:
        """Fill the file system for a while."""
        if not os.path.ismount(self.folder):
            LOG.info("no tmpfs may be mounted here: the disk does not fill")
            return True
        if not any(registered(a) for a in self._open()):
            return False
        ballast = self.folder / "ballast"
        end, running = time.monotonic() + 1.5, self._open()
        with ballast.open("wb", buffering=0) as file:
            while time.monotonic() < end:
                try:
                    while file.write(bytes(1 << 16)):
                        pass
                except OSError:
                    time.sleep(0.02)
                running += self._open()
        ballast.unlink()
        self._expect("disk", running)
        return True

    def _strike_storage(self) -> bool:
        """Let the sweep's storage fail for a while, for whoever uses it."""
        if not any(registered(a) for a in self._open()):
            return False
        end, running = time.monotonic() + FAILS_S, self._open()
        self.flag.write_text(ERRORS[self.plan.seed % len(ERRORS)])
        while time.monotonic() < end:
            time.sleep(0.02)
            running += self._open()
        self.flag.unlink()
        self._expect("storage", [*running, *self._open()])
        return True

    def told(self) -> str:
        """Return how attempts ended."""
        ends = [a.end() for trial in self._trials() for a in trial.attempts()]
        counts = Counter("open" if end is None else end["outcome"] for end in ends)
        struck = ", ".join(self.struck)
        return f"{self.submissions} submissions; struck {struck}; attempts {dict(counts)}"

    def check(self, measured: dict[str, dict[str, dict[int, float]]]) -> None:
        """Raise AssertionError for the first thing that does not hold."""
        self._check_trials(measured)
        self._check_reasons()
        self._check_tracker()
        self._check_nothing_left()

    def _check_trials(self, measured: dict[str, dict[str, dict[int, float]]]) -> None:
        for trial in self._trials():
            ends = [attempt.end() for attempt in trial.attempts()]
            assert all(ends), f"{trial.trial_id}: an attempt has no end"
            outcomes = [end["outcome"] for end in ends]
            assert outcomes.count("done") == 1, f"{trial.trial_id}: {outcomes}"
            assert outcomes[-1] == "done", f"{trial.trial_id}: {outcomes}"
            assert trial.result()["attempt"] == trial.attempts()[-1].number
            last = {
                name: points[self.plan.steps] for name, points in measured[trial.trial_id].items()
            }
            found = trial.result()["metrics"]
            assert {name: found[name] for name in last} == last, f"{trial.trial_id}: other result"
        assert metrics_of(self.sweep) == measured, "a measurement differs from the undisturbed one"

    def _check_reasons(self) -> None:
        for trial in self._trials():
            for attempt in trial.attempts():
                end = attempt.end()
                may = self.expected.get(attempt.path, set()) | {"done"}
                # The controller may have sent it to a supervisor that had just died.
                started = attempt.launch()["started_at"]
                if not registered(attempt) and any(
                    left - 1.0 <= started <= left + NOTICED_S for left in self.left_at
                ):
                    may.add("node_lost")
                where = f"{trial.trial_id}, attempt {attempt.number}"
                assert end["outcome"] in may, f"{where}: {end}, expected one of {sorted(may)}"
                assert end["reason"], f"{where}: no reason"

    def _check_tracker(self) -> None:
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self.store)
        experiment = client.get_experiment_by_name(self.sweep.name)
        runs = client.search_runs([experiment.experiment_id], "tags.`memscale.kind` = 'trial'")
        by_trial = {run.data.tags["memscale.trial_id"]: run for run in runs}
        assert len(runs) == len(by_trial) == len(self.ids), "a trial has two runs, or none"
        for trial in self._trials():
            run = by_trial[trial.trial_id]
            assert run.info.status == "FINISHED", f"{trial.trial_id}: {run.info.status}"
            points = disk_sweep.stored_points(client, run.info.run_id)
            expected = disk_sweep.expected_points(trial)
            assert sorted(p for p in points if p[0].startswith("train/")) == sorted(
                (key, step, t, value)
                for (key, step), (t, value) in expected.items()
                if key.startswith("train/")
            ), f"{trial.trial_id}: the tracker has other points"

    def _check_nothing_left(self) -> None:
        mark = os.environ[MARK]
        until(
            lambda: (
                not pids_with_environment(MARK, mark)
                and not pids_with_environment("MEMSCALE_SWEEP_DIR", str(self.sweep.path))
            ),
            "every process has ended",
        )
        assert self.server is None or not self.server.answers(), "the server's port is taken"
        locks = [self.sweep.path / "controller.lock", self.sweep.path / "tracking.lock"]
        for lock in [*locks, *self.sweep.path.glob("trials/*/lease.lock")]:
            with lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert self.sweep.controller()["ended_at"], "the controller's record says that it runs"
        left = [path for path in self.sweep.path.rglob(".*") if path.is_file()]
        assert not left, f"temporary files: {[str(p.relative_to(self.sweep.path)) for p in left]}"
        assert not self.ray.folder.exists(), "Ray's folder is left"


def _alive(rank: ProcessId) -> bool:
    """Whether a rank runs, on whatever host: they are all on this machine."""
    return replace(rank, host=socket.gethostname()).alive()


def _runs(attempts: list[AttemptDir]) -> bool:
    return any(_alive(rank) for attempt in attempts for rank in registered(attempt))


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def until(look: Callable[[], Any], what: str, timeout_s: float = 120.0) -> None:
    """Wait for a state."""
    deadline = time.monotonic() + timeout_s
    while not look():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.1)


@contextlib.contextmanager
def chaos_environment() -> Iterator[None]:
    """Mark every process started inside, set Ray up as memscale does; restore it all."""
    before = dict(os.environ)
    places = (str(HERE / "faults"), str(HERE.parents[1]), before.get("PYTHONPATH"))
    path = os.pathsep.join(filter(None, places))
    # Ray reads its mode when it is imported, which in a test process may be long ago.
    mode = {"RAY_AUTH_MODE": "disabled"}
    os.environ.update({**SETTINGS, **mode, MARK: uuid.uuid4().hex, "PYTHONPATH": path})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def small_disk(folder: Path, *, size: str = "256m") -> Iterator[bool]:
    """Mount a tmpfs over a folder, if that is allowed; yield whether it was."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def main() -> int:
    """Run the seeds; return 1 if one of them failed."""
    arguments = _arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    kinds = tuple(arguments.kinds.split(","))
    if arguments.hosts and (why_not := hosts.enter()):
        LOG.error("four hosts cannot be made here: %s", why_not)
        return 2
    failed = []
    root = Path(arguments.keep or tempfile.mkdtemp(prefix="memscale-chaos-"))
    root.mkdir(parents=True, exist_ok=True)
    with chaos_environment():
        plain = Plan(seed=0, trials=arguments.trials, steps=arguments.steps)
        measured = undisturbed(root, plain)
        for seed in arguments.seeds:
            plan = Plan(
                seed=seed,
                trials=arguments.trials,
                steps=arguments.steps,
                kinds=kinds,
                server=not arguments.no_server,
                hosts=arguments.hosts,
            )
            begin, folder = time.monotonic(), root / f"seed-{seed}"
            with small_disk(folder) if "disk" in kinds else contextlib.nullcontext():
                folder.mkdir(exist_ok=True)
                chaos = Chaos(plan, folder)
                try:
                    chaos.run()
                    chaos.check(measured)
                    verdict = "holds"
                except Exception as error:  # the other seeds are worth knowing
                    verdict = f"FAILED: {type(error).__name__}: {error}"
                    failed.append(seed)
                    shutil.copytree(folder, root / f"failed-{seed}", dirs_exist_ok=True)
                LOG.info(
                    "seed %d: %s in %.0f s; %s",
                    seed,
                    verdict,
                    time.monotonic() - begin,
                    chaos.told(),
                )
    if arguments.keep is None and not failed:
        shutil.rmtree(root)
    LOG.info("failed: %s; see %s", failed, root) if failed else LOG.info("all seeds hold")
    return 1 if failed else 0


def _seeds(text: str) -> list[int]:
    first, dash, last = text.partition("-")
    if dash:
        return list(range(int(first), int(last) + 1))
    return [int(seed) for seed in text.split(",")]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=_seeds, default="0-9", help="as 0-9, or 1,5")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--no-server", action="store_true", help="export straight to SQLite")
    parser.add_argument("--hosts", action="store_true", help="every node a host of its own")
    parser.add_argument("--keep", help="folder to keep everything in")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
