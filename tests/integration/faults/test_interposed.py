"""Faults that a library between the program and the kernel makes: a kill at the N-th write, clocks that are set."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.control.status import status_from_disk
from orchestrator.records.sweep_dir import SweepDir

COMPILER = shutil.which("cc")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.faults,
    pytest.mark.skipif(COMPILER is None, reason="no C compiler here for faults by LD_PRELOAD"),
]
HERE = Path(__file__).parent
TEMPORARY = re.compile(r"\.(.+)-[0-9a-f]{8}|\.result-\d+\.json")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("faults") / "interposed.so"
    source = HERE / "interposed.c"
    command = [COMPILER, "-O1", "-shared", "-fPIC", "-o", path, source, "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return path


def start(library, sweep, *words, **faults):
    return subprocess.Popen(
        [sys.executable, HERE / "small_sweep.py", sweep, *words],
        env={
            **os.environ,
            **{key: str(value) for key, value in faults.items()},
            "LD_PRELOAD": str(library),
            "PYTHONPATH": str(HERE.parents[2]),
        },
        stderr=subprocess.PIPE,
        text=True,
    )


def run(library, sweep, **faults):
    process = start(library, sweep, **faults)
    _, said = process.communicate(timeout=120)
    return process.returncode, said


def assert_trained_once(sweep):
    status = status_from_disk(sweep)
    assert status.complete, status
    assert len(status.trials) == 3
    for trial in sweep.trials():
        assert trial.result()["steps"] == 5
        assert sum(a.end()["outcome"] == "done" for a in trial.attempts()) == 1
        assert trial.metrics()["train/loss"].keys() == {1, 2, 3, 4, 5}


def assert_nothing_is_left(sweep):
    left = [path for path in sweep.path.rglob(".*") if TEMPORARY.fullmatch(path.name)]
    assert left == []


@pytest.fixture(scope="module")
def n_calls(library, tmp_path_factory):
    """How often a sweep that nobody disturbs changes the file system."""
    folder = tmp_path_factory.mktemp("whole")
    code, said = run(library, folder / "s", FAULT_COUNT=folder / "count")
    assert code == 0, said
    return int((folder / "count").read_text())


@pytest.mark.long
@pytest.mark.parametrize("part", range(12), ids=lambda part: f"{part}/12")
def test_a_kill_at_any_write_loses_nothing_that_a_second_submission_does_not_mend(
    library, n_calls, tmp_path, part
):
    """The kill takes controller and ranks at once, as the end of a machine does."""
    assert n_calls > 50
    sweep = SweepDir(tmp_path / "s")

    code, _ = run(library, sweep.path, FAULT_KILL_AT=1 + part * n_calls // 12)
    assert code == -9
    code, said = run(library, sweep.path)

    assert code == 0, said
    assert_trained_once(sweep)
    assert_nothing_is_left(sweep)


@pytest.mark.parametrize("seconds", [-86_400, 7_200], ids=["a day back", "two hours forward"])
def test_a_clock_that_is_set_ends_nothing_and_a_cancellation_is_heard(library, tmp_path, seconds):
    sweep, clock, gate = SweepDir(tmp_path / "s"), tmp_path / "clock", tmp_path / "gate"
    clock.write_text("0")
    process = start(library, sweep.path, gate, FAULT_CLOCK=clock)
    try:
        wait_until(lambda: len([t for t in sweep.trials() if t.attempts()]) == 3)
        clock.write_text(str(seconds))
        time_set = (sweep.controller() or {})["updated_at"] + seconds
        wait_until(lambda: abs((sweep.controller() or {})["updated_at"] - time_set) < 60)
        first = sweep.trials()[0]
        first.request_cancel("a test")
        wait_until(lambda: first.attempts()[0].end() is not None)
        gate.touch()
        process.wait(timeout=60)
    finally:
        process.kill()
        process.communicate()

    ends = {trial: [a.end()["outcome"] for a in trial.attempts()] for trial in sweep.trials()}
    assert ends.pop(first) == ["cancelled"]
    assert list(ends.values()) == [["done"], ["done"]], "not their time limit of an hour"


def test_a_controller_that_stands_still_keeps_its_sweep_and_goes_on(library, tmp_path):
    """SIGSTOP, as of a suspended machine: its lock tells others that it is not dead."""
    sweep, gate = SweepDir(tmp_path / "s"), tmp_path / "gate"
    process = start(library, sweep.path, gate)
    try:
        wait_until(lambda: len([t for t in sweep.trials() if t.attempts()]) == 3)
        process.send_signal(signal.SIGSTOP)
        gate.touch()
        code, said = run(library, sweep.path)
        assert code == 1
        assert "BusyError" in said
        assert not any(trial.result() for trial in sweep.trials())
        process.send_signal(signal.SIGCONT)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.communicate()
    assert_trained_once(sweep)
    assert all(len(trial.attempts()) == 1 for trial in sweep.trials())


def wait_until(look, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not look():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
