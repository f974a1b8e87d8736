"""Variables that users' shells set for single programs, in processes that start many."""

import os
import subprocess
import sys

import pytest

from orchestrator.node import fork_server_process
from orchestrator.node.compute_variables import set_for_computing
from orchestrator.node.warm_interpreter import WarmInterpreter

IMPORTS_TORCH = "import os, torch; print(len(os.sched_getaffinity(0)))"
THE_COMMAND = """
import os
from orchestrator import cli

def app():
    import torch
    print(len(os.sched_getaffinity(0)), os.environ["CUDA_DEVICE_ORDER"])

cli.app = app
cli.main()
"""


@pytest.fixture(params=[{"OMP_PROC_BIND": "true"}, {"GOMP_CPU_AFFINITY": "0-1"}], ids=str)
def bound(request, monkeypatch):
    """Have the shell bind threads to cores."""
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    for name, value in request.param.items():
        monkeypatch.setenv(name, value)
    return {**os.environ}


def said_by(program, environment):
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout.split()


def test_torch_leaves_a_fork_server_all_cores(bound):
    cores = [str(len(os.sched_getaffinity(0)))]

    assert said_by(IMPORTS_TORCH, fork_server_process.process_environment({})) == cores


def test_the_command_may_import_torch_and_keeps_all_cores(bound):
    cores = str(len(os.sched_getaffinity(0)))

    assert said_by(THE_COMMAND, bound) == [cores, "PCI_BUS_ID"]


def test_a_warm_interpreter_imports_unbound(bound, tmp_path, monkeypatch):
    (tmp_path / "probe.py").write_text(
        "import os, pathlib, torch\n"
        "said = f'{len(os.sched_getaffinity(0))} {os.environ[\"CUDA_DEVICE_ORDER\"]}'\n"
        "pathlib.Path(__file__).with_suffix('.txt').write_text(said)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    warm = WarmInterpreter({}, ["probe"])
    warm.process.stdin.close()
    warm.process.wait(timeout=60)
    warm.close()

    cores = len(os.sched_getaffinity(0))
    assert (tmp_path / "probe.txt").read_text() == f"{cores} PCI_BUS_ID"


@pytest.mark.parametrize(
    ("chosen", "order"),
    [({}, "PCI_BUS_ID"), ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "FASTEST_FIRST")],
)
def test_gpus_are_numbered_as_nvml_does_unless_the_user_chose(chosen, order):
    variables = {"OMP_NUM_THREADS": "2", "OMP_PLACES": "cores", **chosen}

    set_for_computing(variables)

    assert variables == {"OMP_NUM_THREADS": "2", "CUDA_DEVICE_ORDER": order}
