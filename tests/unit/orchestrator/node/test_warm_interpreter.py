"""A process that imports packages first and becomes the fork server later, with real processes."""

import ast
import json
import os
from pathlib import Path

import pytest

import workloads
from orchestrator.node import fork_server_process, warm_interpreter
from orchestrator.node.early_fork_server import EarlyForkServer
from orchestrator.node.warm_interpreter import COMPILER_PACKAGES, PACKAGES, WarmInterpreter
from tests.unit.orchestrator.node.test_early_fork_server import (
    JOB,
    code_of_end,
    launch,
    supervisor_of,
)

SAYS_WHAT_IS_THERE = """
import sys
print("ours:", [m for m in sys.modules if m.startswith(("orchestrator", "workloads"))], file=sys.stderr)
"""
SAYS_HOW_IT_RUNS = """
import json, os, sys
def main(arguments):
    print(json.dumps([__file__, arguments, dict(os.environ), os.readlink("/proc/self/fd/0")]), file=sys.stderr)
"""


@pytest.fixture
def started():
    """Return interpreters that are closed after the test."""
    made = []

    def start(*packages, **environment):
        made.append(WarmInterpreter(environment, packages or ("colorsys",)))
        return made[-1]

    yield start
    for one in made:
        one.close()
        one.close()


def test_becomes_a_fork_server_with_its_supervisor(started, tmp_path):
    warm = started()
    early = EarlyForkServer(tmp_path / "nodes" / "log", environment={}, job=JOB, warm=warm)
    assert (early.address, early._process) == (warm.address, warm.process)
    supervisor = supervisor_of(early, tmp_path)

    trial, _ = launch(supervisor, tmp_path)
    assert code_of_end(supervisor) == 0

    assert trial.result() is not None
    assert not (tmp_path / "own.log").exists()
    supervisor.close()
    assert warm.process.wait(timeout=60) == 0
    early.close()


def test_runs_the_copy_of_the_code_as_if_started_with_its_variables(started, tmp_path, monkeypatch):
    (tmp_path / "probe.py").write_text(SAYS_WHAT_IS_THERE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    warm = started("probe", ONLY_WHILE_PLANNING="1")
    copy = tmp_path / "code"
    (copy / "orchestrator" / "node").mkdir(parents=True)
    (copy / "orchestrator" / "__init__.py").touch()
    (copy / "orchestrator" / "node" / "__init__.py").touch()
    module = copy / "orchestrator" / "node" / "fork_server.py"
    module.write_text(SAYS_HOW_IT_RUNS)
    environment = {"PYTHONPATH": f"{copy}{os.pathsep}{tmp_path}", "OF_THE_SWEEP": "1"}

    assert warm.become_fork_server(tmp_path / "log", environment=environment, job=JOB)
    assert warm.process.wait(timeout=60) == 0

    printed, said = (tmp_path / "log").read_text().splitlines()
    assert printed == "ours: []"
    file, arguments, variables, standard_input = json.loads(said)
    assert file == str(module)
    assert arguments == fork_server_process.arguments(JOB, ())
    assert variables == fork_server_process.process_environment(environment)
    assert standard_input.startswith("socket:")


def test_ends_by_itself_when_it_is_not_needed(started):
    warm = started()
    warm.process.stdin.close()
    assert warm.process.wait(timeout=60) == 0


def test_one_that_cannot_import_is_replaced(started, tmp_path):
    warm = started("no_such_package")
    assert warm.process.wait(timeout=60) != 0

    early = EarlyForkServer(tmp_path / "early.log", environment={}, job=JOB, warm=warm)

    assert early._process is not warm.process
    supervisor = supervisor_of(early, tmp_path)
    assert supervisor.wait_until_ready() > 0.0
    supervisor.close()
    early.close()


def test_is_used_once(started, tmp_path):
    warm = started()
    assert warm.become_fork_server(tmp_path / "log", environment={}, job=JOB)
    assert not warm.become_fork_server(tmp_path / "log", environment={}, job=JOB)


def test_imports_what_the_fork_server_does_and_nothing_of_ours():
    ours = ("workloads.", "orchestrator.")
    training = [m for m in fork_server_process.TRAINING_MODULES if not m.startswith(ours)]
    assert list(PACKAGES) == training

    (name,) = fork_server_process.COMPILER_MODULES
    file = Path(workloads.__path__[0]).joinpath(*name.split(".")[1:]).with_suffix(".py")
    imports = [n for n in ast.parse(file.read_text()).body if isinstance(n, ast.Import)]
    names = {alias.name for node in imports for alias in node.names}
    assert names - {"contextlib"} == set(COMPILER_PACKAGES)


@pytest.mark.parametrize("gpus", [(), ("0",)])
def test_imports_the_compiler_where_there_are_gpus(gpus, monkeypatch, started):
    monkeypatch.setattr(fork_server_process, "visible_gpus", lambda: gpus)
    commands = []

    class Process:
        def __init__(self, command, **settings):
            commands.append(command)

    monkeypatch.setattr(warm_interpreter.subprocess, "Popen", Process)
    WarmInterpreter({})
    expected = PACKAGES + (COMPILER_PACKAGES if gpus else ())
    assert tuple(commands[0][-len(expected) :]) == expected
    assert commands[0].count("numpy") == 1
