import os
import subprocess
import sys

import pytest

from orchestrator.errors import BusyError
from orchestrator.lease import STALE_S, ControllerLease, LeaseHeld, TrialLease, is_alive
from orchestrator.processes import ProcessId
from orchestrator.trial_dir import SweepDir, TrialDir


@pytest.fixture
def sweep(tmp_path):
    return SweepDir(tmp_path / "s")


def test_second_controller_is_told_who_holds_the_sweep(sweep):
    first, second = ControllerLease(sweep, submission=1), ControllerLease(sweep, submission=2)
    first.acquire()

    with pytest.raises(
        BusyError, match=rf"sweep s: process {os.getpid()} on .* runs it already; watch it with"
    ):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_controller_json_tells_of_a_living_then_of_an_ended_controller(sweep):
    lease = ControllerLease(sweep, submission=3, clock=lambda: 50.0)
    lease.acquire()
    lease.beat({"waits": {"t": "why"}})
    record = sweep.controller()

    assert is_alive(record)
    assert (record["submission"], record["started_at"], record["waits"]) == (3, 50.0, {"t": "why"})
    lease.release()
    assert not is_alive(sweep.controller())


def test_controller_on_another_machine_is_judged_by_its_heartbeat():
    record = {"host": "elsewhere", "pid": 1, "start_ticks": 1, "updated_at": 100.0}

    assert is_alive(record, now=100.0 + STALE_S - 1)
    assert not is_alive(record, now=100.0 + STALE_S + 1)


def test_reused_pid_is_not_the_old_controller():
    record = {**ProcessId.own().to_json(), "updated_at": 0.0}

    assert is_alive(record)
    assert not is_alive({**record, "start_ticks": record["start_ticks"] - 1})
    assert not is_alive(None)


def test_lock_of_a_killed_process_is_free(sweep):
    code = (
        "import sys; from pathlib import Path; from orchestrator.lease import ControllerLease;"
        "from orchestrator.trial_dir import SweepDir;"
        "ControllerLease(SweepDir(Path(sys.argv[1])), submission=1).acquire(); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(sweep.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout.readline() == b"held\n"
        lease = ControllerLease(sweep, submission=2)
        with pytest.raises(BusyError, match=f"process {holder.pid} on"):
            lease.acquire()
        assert is_alive(sweep.controller())
        holder.kill()
        holder.wait()

        assert not is_alive(sweep.controller())
        lease.acquire()
        lease.release()


def test_trial_lease_waits_for_its_predecessor_and_then_gives_up(tmp_path):
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    first, second = TrialLease(TrialDir(tmp_path)), TrialLease(TrialDir(tmp_path))
    first.acquire(wait_s=0)

    with pytest.raises(
        LeaseHeld, match=r"lease.lock: another process still trains this trial after 30 s"
    ):
        second.acquire(wait_s=30, clock=lambda: now[0], sleep=sleep)
    assert now[0] >= 30

    def let_go(seconds):
        first.release()

    second.acquire(wait_s=30, clock=lambda: now[0], sleep=let_go)
    second.release()
