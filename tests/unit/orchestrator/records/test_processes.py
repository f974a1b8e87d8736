import os
import signal
import subprocess
import sys
import time
import uuid

import pytest

from orchestrator.records.processes import ProcessId, kill_and_wait, pids_with_environment

SLEEPER = [sys.executable, "-S", "-c", "import sys; print('up', flush=True); sys.stdin.read()"]


@pytest.fixture
def mark():
    """Of this test alone: another one may run at the same time."""
    return f"here it is {uuid.uuid4().hex}"


@pytest.fixture
def child(mark):
    """A process that waits until its stdin ends."""
    with subprocess.Popen(
        SLEEPER,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "MEMSCALE_TEST_MARK": mark},
    ) as process:
        process.stdout.readline()
        yield process


def test_own_name_is_alive_and_travels_as_json():
    own = ProcessId.own()

    assert own.alive()
    assert ProcessId.from_json(own.to_json()) == own
    assert own.pid == os.getpid()


def test_another_start_time_is_another_process(child):
    name = ProcessId.of(child.pid)

    assert name.alive()
    assert not ProcessId(host=name.host, pid=name.pid, start_ticks=name.start_ticks + 1).alive()


def test_zombie_is_not_alive(child):
    name = ProcessId.of(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert ProcessId.of(child.pid) == name
    assert not name.alive()


def test_process_of_another_machine_is_not_judged_here():
    with pytest.raises(ValueError, match="belongs to elsewhere; ask there"):
        ProcessId(host="elsewhere", pid=1, start_ticks=1).alive()


def test_no_process_has_no_name():
    assert ProcessId.of(2**22 + 1) is None


def test_ended_for_good(child):
    name = ProcessId.of(child.pid)

    assert kill_and_wait([name, ProcessId(host=name.host, pid=2**22 + 1, start_ticks=1)]) == []
    assert not name.alive()


def test_processes_are_found_by_the_environment_they_were_started_with(child, mark):
    assert pids_with_environment("MEMSCALE_TEST_MARK", mark) == [child.pid]
    assert pids_with_environment("MEMSCALE_TEST_MARK", "here") == []


def test_child_dies_with_its_parent():
    """The parent makes a child that asks for it, prints both names and is killed."""
    code = (
        "import os, sys, time\n"
        "from orchestrator.records.processes import ProcessId, die_with_parent\n"
        "parent = os.getpid()\n"
        "ready, done = os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    die_with_parent(parent)\n"
        "    os.write(done, b'.')\n"
        "    while True: time.sleep(60)\n"
        "os.read(ready, 1)\n"
        "print(child, ProcessId.of(child).start_ticks, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        pid, ticks = map(int, parent.stdout.readline().split())
        child = ProcessId(host=ProcessId.own().host, pid=pid, start_ticks=ticks)
        assert child.alive()
        parent.kill()
        parent.wait()

        deadline = time.monotonic() + 10.0
        while child.alive():
            assert time.monotonic() < deadline, "the child outlived its parent"
            os.sched_yield()
