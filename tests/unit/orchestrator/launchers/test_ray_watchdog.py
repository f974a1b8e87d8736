"""The watchdog with stand-ins for Ray's processes."""

import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

from orchestrator.launchers.ray_watchdog import OWNER, clean_up
from orchestrator.records.processes import ProcessId, pids_writing_below

WAITS = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def start():
    """Start a Python that runs a line, prints `up` and waits; it is ended with the test."""
    with ExitStack() as stack:

        def start(code=WAITS, **environment):
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-S", "-c", code],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, **environment},
                )
            )
            assert process.stdout.readline() == b"up\n"
            return process

        yield start


def test_marked_processes_and_those_that_write_into_the_folder_are_ended_and_nobody_else(
    start, tmp_path
):
    folder, owner = tmp_path / "cluster", "4194305-77"
    folder.mkdir()
    marked = start(**{OWNER: owner})
    writer = start(f"out = open({str(folder / 'log')!r}, 'w'); {WAITS}")
    (folder / "log").touch()
    reader = start(f"log = open({str(folder / 'log')!r}); {WAITS}")
    other = start(**{OWNER: "4194305-78"})

    clean_up(owner, folder)

    assert (marked.wait(), writer.wait()) == (-9, -9)
    assert reader.poll() is None
    assert other.poll() is None
    assert not folder.exists()


def test_controller_that_closed_its_cluster_is_left_alone(tmp_path):
    own = ProcessId.own()
    with (tmp_path / "log").open("w"):
        clean_up(f"{own.pid}-{own.start_ticks}", tmp_path)

    assert not tmp_path.exists()


def test_file_that_was_deleted_still_counts(start, tmp_path):
    writer = start(f"out = open({str(tmp_path / 'log')!r}, 'w'); {WAITS}")
    (tmp_path / "log").unlink()

    assert pids_writing_below(tmp_path) == [writer.pid]


def test_end_of_the_pipe_sets_it_off(start, tmp_path):
    folder = tmp_path / "cluster"
    folder.mkdir()
    marked = start(**{OWNER: "4194305-79"})
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator.launchers.ray_watchdog", "4194305-79", str(folder)],
        stdin=subprocess.PIPE,
    ) as watchdog:
        assert marked.poll() is None
        watchdog.stdin.close()
        assert watchdog.wait(timeout=30) == 0

    assert marked.wait() == -9
    assert not folder.exists()
