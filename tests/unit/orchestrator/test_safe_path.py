"""Processes that the command starts: files of the current folder shadow nothing that they import."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.cli import mlflow_server
from orchestrator.launchers.detached_controller import controller_command
from orchestrator.launchers.ray_embedded import RayEnvironment
from orchestrator.launchers.slurm.ray_bootstrap import RayNode
from orchestrator.node import private_folder
from orchestrator.node.mps import MpsDaemon
from orchestrator.node.supervisor import NodeSupervisor
from orchestrator.records.code_snapshot import with_code
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.submit.slurm_submission import SlurmSubmission
from orchestrator.sweep.matching.step_timer import StepTimer
from orchestrator.tracking.exporter_process import ExporterProcess

ROOT = Path(__file__).parents[3]
SHADOWS = ("orchestrator", "workloads", "analysis", "mlflow")
ORIGINS = f"""
import importlib.util
for name in {SHADOWS}:
    print(importlib.util.find_spec(name).origin)
"""


class Started(Exception):
    """Instead of a new process."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with modules of the user's own, and a sweep."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')", encoding="utf-8")
    (tmp_path / "runs" / "s").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(private_folder, "safe_root", lambda: tmp_path / "runs")
    return tmp_path


def start_step_timer(sweep):
    timer = StepTimer()
    try:
        timer._running()
    finally:
        timer._complaints.close()


def start_ray_watchdog(sweep):
    ray = RayEnvironment()
    try:
        ray.create({})
    finally:
        ray.close()


def start_ray_node(sweep):
    log = sweep.path / "ray.log"
    node = RayNode(label="n", address="127.0.0.1", cpus=1, gpus=0, log=log, token="secret")
    # Without the watchdog, which would be started first.
    node._ray_environment.create = lambda settings: sweep.path
    node._start("--head")


STARTERS = {
    "exporter": ExporterProcess,
    "step timer": start_step_timer,
    "fork server": lambda sweep: NodeSupervisor(log=str(sweep.path / "node.log"), environment={}),
    "MLflow server": lambda sweep: mlflow_server._start(
        "sqlite:///x.db", sweep.path.parent, host="127.0.0.1", port=5000
    ),
    "exporter of a Slurm submission": lambda sweep: SlurmSubmission.follow_in_background(
        SimpleNamespace(sweep=sweep, tracking_uri=None)
    ),
    "watchdog of Ray": start_ray_watchdog,
    "node of Ray": start_ray_node,
}


@pytest.mark.parametrize("start", STARTERS.values(), ids=STARTERS)
def test_what_is_started_imports_nothing_from_the_current_folder(folder, monkeypatch, start):
    calls = []

    def popen(command, **options):
        calls.append((list(map(str, command)), options["env"]))
        raise Started

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", popen)
        with pytest.raises(Started):
            start(SweepDir(folder / "runs" / "s"))

    ((command, environment),) = calls
    assert_unshadowed(command, environment, folder)


@pytest.mark.parametrize(
    "start",
    [lambda daemon: daemon._start("0"), lambda daemon: daemon._try_client("0", timeout_s=1.0)],
    ids=["guard", "first client"],
)
def test_what_mps_starts_imports_the_standard_library_alone(folder, monkeypatch, start):
    calls = []

    def popen(command, **options):
        calls.append(command)
        raise Started

    daemon = MpsDaemon(control="true")
    daemon._folder = folder
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", popen)
        with pytest.raises(Started):
            start(daemon)

    ((python, *options),) = (command[:3] for command in calls)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    told = [python, *options, "-c", "import sys; print(sys.path)"]
    done = subprocess.run(told, capture_output=True, text=True, check=True)
    assert str(folder) not in done.stdout
    assert "''" not in done.stdout
    assert "site-packages" not in done.stdout


def test_a_detached_controller_imports_nothing_from_the_current_folder(folder):
    command = controller_command(SweepDir(folder / "runs" / "s"), 1)

    assert_unshadowed(command, with_code(ROOT, os.environ), folder)


def assert_unshadowed(command, environment, folder):
    """Ask a Python with the same options and variables where it would import from."""
    python = command[: command.index("-m")]
    done = subprocess.run(
        [*python, "-c", ORIGINS], env=environment, capture_output=True, text=True, check=True
    )
    origins = [Path(line) for line in done.stdout.splitlines()]
    assert len(origins) == len(SHADOWS)
    assert folder not in {origin.parent for origin in origins}
    # What it starts in turn is as safe.
    assert environment["PYTHONSAFEPATH"] == "1"


def test_the_command_as_a_module_imports_only_its_own(folder):
    """Where `python -m orchestrator.cli` finds the command at all, nothing else is shadowed."""
    (folder / "orchestrator.py").unlink()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", "plan", "--recipes"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "recipe" in done.stdout


def test_workers_of_ray_do_not_import_from_the_folder_of_the_driver(folder):
    from orchestrator.launchers.ray_connect import SafePathJobConfig

    config = SafePathJobConfig(_py_driver_sys_path=["/opt/program", str(folder)])

    assert str(folder) not in str(config._serialize())
    assert config._py_driver_sys_path == ["/opt/program"]
