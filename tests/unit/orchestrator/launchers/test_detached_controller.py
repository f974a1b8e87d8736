"""Restarts of a detached controller, without a cluster."""

import errno
import os
import threading
from pathlib import Path

import pytest

from orchestrator.launchers import detached_controller
from orchestrator.launchers.detached_controller import DetachedController, controller_command
from orchestrator.records import storage_errors
from orchestrator.records.errors import BusyError, StoreError
from orchestrator.records.sweep_dir import SweepDir

DIES_ONCE = (
    'echo "$RAY_JOB_ID $MARK $CUDA_VISIBLE_DEVICES" >> said; '
    "[ -e once ] && exit 7; touch once; kill -9 $$"
)


@pytest.fixture
def hosted(tmp_path, monkeypatch):
    """Run a host whose controller is a line of shell; return its exit code once it has ended."""
    monkeypatch.setattr(detached_controller, "PAUSE_S", 0.0)

    def run(script):
        monkeypatch.setattr(
            detached_controller,
            "controller_command",
            lambda *_, **__: ["sh", "-c", f"cd {tmp_path}; {script}"],
        )
        ended = threading.Event()
        one = DetachedController(
            str(tmp_path), 1, address="a:1", environment={"MARK": "mark"}, on_end=ended.set
        )
        assert ended.wait(60)
        return one.exit_code()

    return run


def test_a_controller_that_was_killed_is_started_again_and_one_that_ended_is_not(
    hosted, tmp_path, monkeypatch
):
    monkeypatch.setenv("RAY_JOB_ID", "of the worker")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    assert hosted(DIES_ONCE) == 7

    assert (tmp_path / "said").read_text().split() == ["mark", "mark"]


@pytest.mark.parametrize("code", [BusyError.exit_code, storage_errors.EXIT_CODE])
def test_the_lock_of_a_controller_on_a_lost_node_and_failing_storage_are_waited_for(hosted, code):
    assert hosted(f"echo x >> said; [ $(wc -l < said) -gt 2 ] && exit 0; exit {code}") == 0


def test_storage_that_takes_no_log_is_waited_for(hosted, monkeypatch):
    really_open, left = Path.open, [2]

    def failing(path, *args, **more):
        if path.name == "controller.log" and left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, "Input/output error", str(path))
        return really_open(path, *args, **more)

    monkeypatch.setattr(Path, "open", failing)

    assert hosted("exit 7") == 7
    assert left == [0]


def test_a_controller_that_dies_again_and_again_is_given_up(hosted, tmp_path, monkeypatch):
    monkeypatch.setattr(detached_controller, "RESTARTS", 2)

    assert hosted("echo x >> said; kill -9 $$") == -9

    assert (tmp_path / "said").read_text().split() == ["x", "x", "x"]


def test_a_node_that_does_not_see_the_folder_says_so(tmp_path):
    with pytest.raises(StoreError, match="every node of the cluster sees"):
        DetachedController(str(tmp_path / "absent"), 1, address="a:1", environment={}, on_end=print)


def test_the_command_names_everything_the_controller_needs(tmp_path):
    command = controller_command(SweepDir(tmp_path), 7, address="a:1", dies_with=os.getpid())

    assert command[-6:] == [str(tmp_path), "7", "--address", "a:1", "--dies-with", str(os.getpid())]
    assert controller_command(SweepDir(tmp_path), 7)[-2:] == [str(tmp_path), "7"]
