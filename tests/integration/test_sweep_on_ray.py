"""The Ray launcher by itself: reservations, GPUs (pretended ones), and leaving the machine as it was."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
import ray

from orchestrator.control.launcher_port import Launch
from orchestrator.control.loop import Controller
from orchestrator.launchers import ray as ray_cluster
from orchestrator.launchers.ray import RayLauncher
from orchestrator.records.errors import ExperimentError
from orchestrator.records.processes import ProcessId, pids_with_environment
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Resources, TrialSpec

pytestmark = pytest.mark.integration
JOB = f"{Path(__file__).parents[1] / 'unit' / 'orchestrator' / 'counting_job.py'}:run"


def add(sweep, seed, **resources):
    spec = TrialSpec(
        sweep="s",
        data={"source": "x", "gate_at": 3},
        model={"architecture": "dense"},
        train={"tokens": 50, "batch_tokens": 10, "seq_len": 10},
        seed=seed,
        resources=Resources(**resources),
    )
    sweep.trial(spec.trial_id).create(spec)
    return spec.trial_id


def seen_gpus(sweep, trial_id, rank=0):
    path = sweep.trial(trial_id).attempt(1).path / f"seen-{rank}.json"
    return json.loads(path.read_text())["gpus"]


def folders_of_ray():
    """Return the temporary folders that this process made; tests beside it have clusters, too."""
    found = []
    for lock in Path(tempfile.gettempdir()).glob("ms-*/lock"):
        with contextlib.suppress(FileNotFoundError):
            if lock.read_text().endswith(f"pid {os.getpid()}\n"):
                found.append(lock.parent)
    return found


def test_sweep_with_shares_of_gpus(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 7,")
    before, on_sigterm = dict(os.environ), signal.getsignal(signal.SIGTERM)
    sweep = SweepDir(tmp_path / "s")
    sweep.path.mkdir()
    both = add(sweep, 0, gpus=2.0, ranks=2)
    whole = add(sweep, 1, gpus=1.0)
    halves = [add(sweep, seed, gpus=0.5) for seed in (2, 3)]
    none = add(sweep, 4, gpus=0)
    trials = [both, whole, *halves, none]
    launcher = RayLauncher(sweep, cpus=4, gpus=2, job=JOB)
    together, folders = [], set()

    def open_gates(status):
        """Let the trials that wait at their gate go on, once all that fit beside each other are there."""
        folders.update(folders_of_ray())
        running = [t.trial_id for t in status.trials if t.state == "running"]
        at_gate = [t for t in running if (sweep.trial(t).path / "at-gate").exists()]
        waiting = [t for t in status.trials if t.state == "waiting"]
        # A slow Ray is asked again in two seconds, which is not a lack of room.
        if running and at_gate == running and all(t.wait.startswith("needs ") for t in waiting):
            together.append(set(running))
            for trial_id in running:
                (sweep.trial(trial_id).path / "go").touch()

    status = Controller(
        sweep, submission=1, trial_ids=trials, launcher=launcher, cache=tmp_path / "cache", job=JOB
    ).run(open_gates)

    assert status.complete
    assert {both, none} in together
    assert {whole, *halves} in together
    assert {seen_gpus(sweep, both, rank) for rank in (0, 1)} == {"5", "7"}, "one each"
    assert seen_gpus(sweep, none) == ""
    shared = {seen_gpus(sweep, half) for half in halves}
    assert len(shared) == 1
    assert shared | {seen_gpus(sweep, whole)} == {"5", "7"}, "ids of the machine"
    assert dict(os.environ) == before
    assert signal.getsignal(signal.SIGTERM) is on_sigterm
    assert pids_with_environment("MEMSCALE_SWEEP_DIR", str(sweep.path)) == []
    assert len(folders) == 1
    assert folders_of_ray() == []


@pytest.mark.long
def test_gpus_keep_the_ids_that_the_machine_gave_them_and_reservations_are_reused(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    sweep = SweepDir(tmp_path / "s")
    sweep.path.mkdir()
    launcher = RayLauncher(sweep, cpus=2, gpus=2, job=JOB)
    launcher.start()
    try:
        (node,) = launcher.nodes()
        assert (node.cpus, node.gpus) == (2, ("5", "7"))
        got = []
        for seed in range(3):
            trial = sweep.trial(add(sweep, seed, gpus=1.0))
            (trial.path / "go").touch()
            attempt = trial.new_attempt({"submission": 1})
            launch = Launch(
                trial_id=trial.trial_id,
                trial_path=str(trial.path),
                attempt=attempt.number,
                node_id=node.node_id,
                ranks=1,
                cpus=1,
                gpus=1.0,
                gpu_ids=("5",),
                cache="c",
                job=JOB,
            )
            got.append(launcher.launch(launch))
            ended = []
            while not ended:
                ended = launcher.poll()
            assert ended[0].exit_codes == {0: 0}
            assert seen_gpus(sweep, trial.trial_id) == got[-1][0]
        assert len(set(got)) == 1
        assert got[0][0] in ("5", "7")
        orphan = ProcessId(host="elsewhere", pid=1, start_ticks=1)
        assert launcher.end_orphans([orphan]) == [orphan]
    finally:
        launcher.close()
    assert pids_with_environment("MEMSCALE_SWEEP_DIR", str(sweep.path)) == []


def listening():
    """Return the addresses at which this process and those below it take connections."""
    own = psutil.Process()
    return {
        connection.laddr
        for process in (own, *own.children(recursive=True))
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


STRANGER = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1])
"""


@pytest.mark.long
def test_only_this_machine_reaches_the_cluster_and_only_with_its_token(tmp_path):
    before = dict(os.environ)
    launcher = RayLauncher(SweepDir(tmp_path), cpus=1, job=JOB)
    others = listening()  # daemons of other tests that this process runs
    launcher.start()
    try:
        opened = {address.ip for address in listening() - others}
        assert opened
        assert {ip.removeprefix("::ffff:") for ip in opened} <= {"127.0.0.1", "::1"}
        address = ray.get_runtime_context().gcs_address
        command = [sys.executable, "-c", STRANGER, address]

        def joins(**environment):
            done = subprocess.run(
                command, env={**before, **environment}, capture_output=True, text=True, check=False
            )
            return done.returncode == 0, done.stderr

        for stranger in (
            {"RAY_AUTH_MODE": "disabled"},
            {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64},
        ):
            joined, said = joins(**stranger)
            assert not joined
            assert "InvalidAuthToken" in said, said
        token = os.environ["RAY_AUTH_TOKEN"]
        assert joins(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token) == (True, "")
        assert token not in "".join(
            path.read_text(errors="replace")
            for path in (tmp_path / "s").rglob("*")
            if path.is_file()
        )
    finally:
        launcher.close()
    assert dict(os.environ) == before


@pytest.mark.parametrize("kind", [RuntimeError, Exception])
@pytest.mark.parametrize("failures", [1, 3])
def test_a_ray_that_does_not_come_up_in_time_is_started_again(
    tmp_path, monkeypatch, failures, kind
):
    before, tokens = dict(os.environ), []

    def init(**options):
        tokens.append(os.environ["RAY_AUTH_TOKEN"])
        if len(tokens) <= failures:
            raise kind("Timed out waiting for file gcs_server_port")
        raise ValueError("came so far")

    monkeypatch.setattr(ray, "init", init)
    launcher = RayLauncher(SweepDir(tmp_path), cpus=1, job=JOB)

    told = "came so far" if failures == 1 else "Timed out waiting .*`--launcher process`"
    with pytest.raises(ExperimentError, match=f"Ray did not start on this machine: {told}"):
        launcher.start()
    launcher.close()

    assert len(tokens) == len(set(tokens)) == min(failures + 1, 3)
    assert dict(os.environ) == before


@pytest.mark.parametrize("failures", [1, 3])
def test_a_client_whose_server_died_at_once_joins_again(tmp_path, monkeypatch, failures):
    asked = []

    def init(**options):
        asked.append(options["address"])
        if len(asked) <= failures:
            raise ConnectionAbortedError("Initialization failure from server")
        raise ValueError("came so far")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray_cluster, "ping", lambda address: None)
    launcher = RayLauncher(SweepDir(tmp_path), address="ray://head:10001", job=JOB)

    told = "came so far" if failures == 1 else "Initialization failure from server"
    with pytest.raises(ExperimentError, match=f"no Ray cluster could be joined .{told}"):
        launcher.start()

    assert asked == ["ray://head:10001"] * min(failures + 1, 3)
