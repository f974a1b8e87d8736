"""Real Slurm on this machine: munged, slurmctld and three slurmd with four pretended GPUs each, started by the test run.

Skipped, with one line that says why, where Debian's packages are not installed or the tests do not run as root (device
files of pretended GPUs need it).
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.control.status import TrialStatus, status_from_disk
from orchestrator.launchers.slurm.job_records import queue_reasons
from orchestrator.launchers.slurm.options import SlurmOptions
from orchestrator.planning.pricing import Plan, PlannedTrial
from orchestrator.planning.runtime_prior import RuntimePrediction
from orchestrator.records.processes import pids_with_environment
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TrialDir
from orchestrator.records.trial_spec import Logging, Resources, TrialSpec
from orchestrator.submit.slurm_submission import QueuedJobs, SlurmSubmission
from orchestrator.sweep.load import Sweep

COUNTING = Path(__file__).parents[2] / "unit" / "orchestrator" / "counting_job.py"
NODES = 3
DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch")
START_S = 60.0

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job waits cred_expire + 1 s before it may start: 121 s unless said.
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=20
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
MaxArraySize=4
GresTypes=gpu
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 RealMemory=4000 Gres=gpu:4
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=60 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP
"""


class Slurm:
    """The cluster; `environment` is what its commands need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        """Where jobs put temporary files; theirs alone, so that it shows what they leave."""
        self.environment = {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "TMPDIR": str(self.temporary),
        }

    def command(self, *words: str) -> str:
        """Return what a command prints."""
        done = subprocess.run(
            words,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout

    def jobs(self) -> list[str]:
        """Return the ids of all jobs that wait or run."""
        return self.command("squeue", "-h", "-r", "-o", "%i").split()

    def preempt(self, seconds: int) -> None:
        """Have a job of higher priority take every node for a while."""
        self.command(
            *("sbatch", "--partition=high", f"--nodes={NODES}", "--exclusive"),
            *("--output=/dev/null", f"--wrap=sleep {seconds}"),
        )

    def end_jobs(self) -> None:
        """End whatever is left."""
        if left := self.jobs():
            self.command("scancel", *left)
        wait_for(lambda: not self.jobs(), "the end of all jobs", 120.0)

    def up(self) -> bool:
        """Whether every node takes jobs."""
        done = subprocess.run(
            ["sinfo", "-h", "-N", "-p", "low", "-o", "%T"],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
        )
        return done.stdout.split() == ["idle"] * NODES


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    missing = [name for name in DAEMONS if _program(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: apt-get install slurm-wlm munge")
    if os.geteuid() != 0:
        pytest.skip("needs root, for the device files of pretended GPUs")
    pytest.importorskip("submitit", reason="needs submitit: pip install 'memscale[slurm]'")
    # Paths of sockets are limited to 107 bytes; pytest's folders are longer.
    folder = Path(tempfile.mkdtemp(prefix="msl-"))
    cluster, daemons = Slurm(folder), _start(folder)
    try:
        wait_for(cluster.up, "every node idle", START_S)
        yield cluster
    finally:
        subprocess.run(
            ["scancel", "--user=root"],
            env={**os.environ, **cluster.environment},
            check=False,
        )
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def slurm(slurm_cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """The cluster, with this process talking to it. Whatever jobs a test leaves are ended."""
    for name, value in slurm_cluster.environment.items():
        monkeypatch.setenv(name, value)
    # As where tests run inside a job themselves: nothing of it may be taken for the jobs started here.
    for name in [name for name in os.environ if name.startswith("SLURM_") and name != "SLURM_CONF"]:
        monkeypatch.delenv(name)
    yield slurm_cluster
    slurm_cluster.end_jobs()


class SlurmSweep:
    """A sweep of trials that count instead of training (unit/orchestrator/counting_job.py)."""

    STEPS = 20

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.disk = SweepDir(runs / "s")

    def spec(self, seed: int, *, gate: bool = False, **resources: Any) -> TrialSpec:
        """Return a trial; one with a gate waits before step 11 of its first attempt until `open_gate`."""
        return TrialSpec(
            sweep="s",
            data={"source": "x", "checkpoint_every": 2, **({"gate_at": 11} if gate else {})},
            model={"architecture": "dense"},
            train={"tokens": self.STEPS * 10, "batch_tokens": 10, "seq_len": 10},
            seed=seed,
            resources=Resources(**{"gpus": 0, **resources}),
            logging=Logging(),
        )

    def submit(self, specs: Sequence[TrialSpec], backend: str, **request: Any) -> QueuedJobs:
        """Do what `memscale submit --backend` does once the sweep file is read and priced."""
        trials = tuple(
            PlannedTrial(
                spec=spec,
                status="done" if self.disk.trial(spec.trial_id).result() else "new",
                why="",
                runtime=RuntimePrediction(seconds=1.0, source="guess"),
            )
            for spec in specs
        )
        sweep = Sweep(
            name="s",
            question="",
            text="",
            trials=tuple(specs),
            files=(),
            warnings=(),
        )
        plan = Plan(sweep=sweep, trials=trials, left_over=(), snapshot=self.disk.snapshot())
        return SlurmSubmission(
            plan=plan,
            runs=self.runs,
            request=SlurmOptions(backend=backend, **request),
            job=f"{COUNTING}:run",
        ).send()

    def trial(self, spec: TrialSpec) -> TrialDir:
        return self.disk.trial(spec.trial_id)

    def status(self, spec: TrialSpec) -> TrialStatus:
        """Return where a trial stands, as `memscale status` says."""
        trials = status_from_disk(self.disk, ask_queue=queue_reasons).trials
        return next(trial for trial in trials if trial.trial_id == spec.trial_id)

    def at_gate(self, *specs: TrialSpec) -> bool:
        return all((self.trial(spec).path / "at-gate").exists() for spec in specs)

    def open_gate(self, *specs: TrialSpec) -> None:
        for spec in specs:
            (self.trial(spec).path / "go").touch()

    def outcomes(self, spec: TrialSpec) -> list[str]:
        """Return how the attempts of a trial ended."""
        ends = [attempt.end() for attempt in self.trial(spec).attempts()]
        return [end["outcome"] for end in ends if end]

    def steps(self, spec: TrialSpec) -> list[int | None]:
        """Return the steps of all attempts, one after the other."""
        attempts = self.trial(spec).attempts()
        return [line.step for attempt in attempts for line in attempt.lines() if line.metrics]

    def seen_gpus(self, spec: TrialSpec, rank: int = 0) -> str:
        """Return what CUDA_VISIBLE_DEVICES was in the first attempt."""
        text = (self.trial(spec).attempt(1).path / f"seen-{rank}.json").read_text()
        gpus: str = json.loads(text)["gpus"]
        return gpus

    def printed(self) -> str:
        """Return what the jobs and Ray printed, for a test that fails."""
        logs = [*self.disk.path.glob("slurm/submitit/*.out"), *self.disk.path.glob("nodes/*")]
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')}" for log in logs)


@pytest.fixture
def sweep(slurm: Slurm, tmp_path: Path) -> Iterator[SlurmSweep]:
    """A sweep that was not submitted yet; afterwards none of its processes may be there."""
    made = SlurmSweep(tmp_path)
    yield made
    slurm.end_jobs()
    marked = lambda: pids_with_environment("MEMSCALE_SWEEP_DIR", str(made.disk.path))  # noqa: E731
    wait_for(lambda: not marked(), "the end of every process of the sweep", 60.0)


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """`wait_for`, for tests."""
    return wait_for


def wait_for(look: Callable[[], Any], what: str, timeout_s: float = 240.0) -> Any:
    """Return the first true value of `look`."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s in vain for {what}"
        time.sleep(0.1)
    return found


def _start(folder: Path) -> list[subprocess.Popen[bytes]]:
    """Write the configuration and start every daemon as a child of this process."""
    host = socket.gethostname().split(".")[0]
    ports = _free_ports(1 + NODES)
    for name in ("state", "spool", "dev", "tmp"):
        (folder / name).mkdir()
    for i in range(4):
        # Ordinary files would not give CUDA_VISIBLE_DEVICES.
        subprocess.run(["mknod", str(folder / f"dev/nvidia{i}"), "c", "195", str(i)], check=True)
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(
            host=host, folder=folder, nodes=NODES, port=ports[0], first=ports[1], last=ports[-1]
        )
    )
    (folder / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={folder}/dev/nvidia[0-3]\n")
    (folder / "cgroup.conf").touch()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    folder.chmod(0o755)
    daemons = [
        _daemon(
            folder,
            "munged",
            *("--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.sock"),
            *(f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log"),
            f"--seed-file={folder}/munge.seed",
        )
    ]
    wait_for((folder / "munge.sock").exists, "munged", START_S)
    daemons.append(_daemon(folder, "slurmctld", "-D", "-c"))
    daemons += [_daemon(folder, "slurmd", "-D", "-N", f"n{i + 1}") for i in range(NODES)]
    return daemons


def _daemon(folder: Path, name: str, *words: str) -> subprocess.Popen[bytes]:
    program = _program(name)
    assert program is not None, "looked for before"
    with (folder / "daemons.out").open("ab") as out:
        return subprocess.Popen(
            # Gone with the test run, however that ends.
            [sys.executable, "-c", _BOUND, str(os.getpid()), program, *words],
            stdout=out,
            stderr=out,
            env={**os.environ, "SLURM_CONF": str(folder / "slurm.conf")},
        )


_BOUND = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _free_ports(n: int) -> Sequence[int]:
    """Return n free ports in a row, which is how Slurm wants those of several slurmd on one machine."""
    for first in range(27000 + os.getpid() % 1000 * 5, 60000, n):
        sockets = []
        try:
            for port in range(first, first + n):
                sockets.append(socket.socket())
                sockets[-1].bind(("127.0.0.1", port))
        except OSError:
            continue
        else:
            return range(first, first + n)
        finally:
            for one in sockets:
                one.close()
    raise AssertionError("no free ports")
