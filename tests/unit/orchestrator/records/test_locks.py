import contextlib
import errno
import fcntl
import os
import shutil
import subprocess
import sys

import pytest

from orchestrator.records import locks as lease_module
from orchestrator.records.errors import BusyError, MovedError
from orchestrator.records.json_files import write_json
from orchestrator.records.liveness import is_alive
from orchestrator.records.locks import STALE_S, ControllerLock, LockHeld, TrialLock, locked
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_dir import TrialDir


@pytest.fixture
def sweep(tmp_path):
    sweep = SweepDir(tmp_path / "s")
    sweep.path.mkdir()
    return sweep


def test_second_controller_is_told_who_holds_the_sweep(sweep):
    first, second = ControllerLock(sweep, submission=1), ControllerLock(sweep, submission=2)
    first.acquire()

    with pytest.raises(
        BusyError, match=rf"sweep s: process {os.getpid()} on .* runs it already; watch it with"
    ):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_controller_json_tells_of_a_living_then_of_an_ended_controller(sweep):
    lock = ControllerLock(sweep, submission=3, wall_clock=lambda: 50.0)
    lock.acquire()
    lock.heartbeat({"waits": {"t": "why"}})
    record = sweep.controller()

    assert is_alive(sweep.path, record)
    assert (record["submission"], record["started_at"], record["waits"]) == (3, 50.0, {"t": "why"})
    lock.release()
    assert not is_alive(sweep.path, sweep.controller())


HOLD = """
import sys
from pathlib import Path
from orchestrator.records.locks import ControllerLock
from orchestrator.records.sweep_dir import SweepDir
lock = ControllerLock(SweepDir(Path(sys.argv[1])), submission=1)
lock.acquire()
print('held', flush=True)
sys.stdin.read()
lock.release()
"""


@contextlib.contextmanager
def another_controller(sweep):
    """A process that holds the sweep until its input ends."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(sweep.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout.readline() == b"held\n"
        yield holder


def test_lock_of_a_killed_process_is_free(sweep):
    with another_controller(sweep) as holder:
        lock = ControllerLock(sweep, submission=2)
        with pytest.raises(BusyError, match=f"process {holder.pid} on"):
            lock.acquire()
        assert is_alive(sweep.path, sweep.controller())
        holder.kill()
        holder.wait()

        assert not is_alive(sweep.path, sweep.controller())
        lock.acquire()
        lock.release()


def test_trial_lease_waits_for_its_predecessor_and_then_gives_up(tmp_path):
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    first, second = (TrialLock(TrialDir(tmp_path), attempt=1) for _ in range(2))
    first.acquire(wait_s=0)

    with pytest.raises(
        LockHeld, match=r"lease.lock: another process still trains this trial after 30 s"
    ):
        second.acquire(wait_s=30, clock=lambda: now[0], sleep=sleep)
    assert now[0] >= 30

    def let_go(seconds):
        first.release()

    second.acquire(wait_s=30, clock=lambda: now[0], sleep=let_go)
    second.release()


@pytest.mark.parametrize("closed", [True, False])
def test_a_later_attempt_takes_the_lock_of_a_closed_one_that_stands_still(tmp_path, closed):
    trial = TrialDir(tmp_path)
    still, later, after = (TrialLock(trial, attempt=number) for number in (1, 2, 2))
    still.acquire(wait_s=0)
    trial.attempt(1).path.mkdir(parents=True)
    if closed:
        write_json(trial.attempt(1).path / "end.json", {"outcome": "node_lost"})
        later.acquire(wait_s=0)
    else:
        with pytest.raises(LockHeld):
            later.acquire(wait_s=0)
        return

    # Nobody but one attempt has it, also when the one that stood still wakes and lets go.
    still.release()
    with pytest.raises(LockHeld):
        after.acquire(wait_s=0)
    later.release()
    after.acquire(wait_s=0)
    after.release()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempts", "lease.lock"]


def test_an_attempt_does_not_take_a_lock_whose_holder_it_does_not_know(tmp_path):
    """Of an older version, which does not look whether its attempt was closed."""
    lock = locked(tmp_path / "lease.lock")

    with pytest.raises(LockHeld):
        TrialLock(TrialDir(tmp_path), attempt=2).acquire(wait_s=0)
    os.close(lock)


@pytest.fixture
def silent(sweep):
    """A lock whose last beat was longer ago than anybody waits, on a file system that has forgotten its lock."""
    now = [1000.0]
    lock = ControllerLock(sweep, submission=1, clock=lambda: now[0])
    lock.acquire()
    now[0] += STALE_S + 1
    fcntl.flock(lock._locks[0][0], fcntl.LOCK_UN)
    yield lock
    lock.release()


@pytest.mark.parametrize("ended", [False, True])
def test_after_a_long_silence_a_sweep_that_another_took_over_is_left_alone(sweep, silent, ended):
    with another_controller(sweep) as other:
        if ended:
            other.communicate()
        theirs = sweep.controller()

        with pytest.raises(BusyError, match=rf"process {other.pid} on .* took it over while the"):
            silent.heartbeat({"waits": {"t": "mine"}})
        assert not silent.heartbeat({})
        silent.release()

        assert sweep.controller() == theirs
        assert theirs["pid"] == other.pid


def test_after_a_long_silence_a_lock_that_was_forgotten_is_taken_again(sweep, silent):
    assert silent.heartbeat({})

    with pytest.raises(BusyError, match="runs it already"):
        ControllerLock(sweep, submission=2).acquire()
    assert is_alive(sweep.path, sweep.controller())


def test_a_lock_that_was_not_forgotten_is_kept(sweep):
    now = [1000.0]
    lock = ControllerLock(sweep, submission=1, clock=lambda: now[0])
    lock.acquire()
    now[0] += STALE_S + 1

    assert lock.heartbeat({})
    with pytest.raises(BusyError):
        ControllerLock(sweep, submission=2).acquire()
    lock.release()
    ControllerLock(sweep, submission=2).acquire()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.ESTALE])
def test_a_beat_that_the_storage_does_not_take_says_so(sweep, monkeypatch, code):
    lock = ControllerLock(sweep, submission=1)
    lock.acquire()

    def refuse(path, record):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(lease_module, "write_json", refuse)
        assert not lock.heartbeat({})
    assert lock.heartbeat({})
    lock.release()


def moved(sweep, lock, to=None):
    """Move or remove the sweep's folder and return what its controller says of it."""
    lock.acquire()
    shutil.rmtree(sweep.path) if to is None else sweep.path.rename(to)

    with pytest.raises(MovedError) as error:
        lock.heartbeat({})
    assert not lock.heartbeat({})
    lock.release()
    assert not sweep.path.exists()
    return str(error.value)


def test_a_controller_whose_folder_was_moved_says_where_it_is_and_writes_nothing(sweep):
    to = sweep.path.parent / "elsewhere" / "s"
    to.parent.mkdir()

    said = moved(sweep, ControllerLock(sweep, submission=1), to)

    assert f"its folder {sweep.path} was moved to {to} while it trained" in said
    assert f"submit again with --runs {to.parent}: trials go on" in said
    again = ControllerLock(SweepDir(to), submission=2)
    again.acquire()
    again.release()


def test_a_renamed_sweep_is_to_get_its_name_back(sweep):
    said = moved(sweep, ControllerLock(sweep, submission=1), sweep.path.with_name("old"))

    assert "move it to where it was, or to any folder as s, and submit again" in said


def test_a_removed_folder_is_told_from_a_moved_one(sweep):
    said = moved(sweep, ControllerLock(sweep, submission=1))

    assert f"its folder {sweep.path} was moved or removed (its controller.lock is not there" in said


def test_a_folder_that_another_took_the_place_of_is_not_written_to(sweep):
    first, second = ControllerLock(sweep, submission=1), ControllerLock(sweep, submission=2)
    first.acquire()
    sweep.path.rename(sweep.path.with_name("old"))
    sweep.path.mkdir()
    second.acquire()

    with pytest.raises(MovedError, match="was moved to"):
        first.heartbeat({})
    first.release()
    assert sweep.controller()["submission"] == 2
    second.release()


def test_a_task_of_one_trial_notices_it_too(sweep):
    trial = sweep.trial("dense-0123456789ab")
    trial.path.parent.mkdir()

    moved(sweep, ControllerLock(sweep, submission=1, trial=trial), sweep.path.with_name("old"))


def test_no_lock_makes_the_folder_of_a_sweep(sweep):
    sweep.path.rmdir()

    with pytest.raises(MovedError, match="was moved or removed since it was submitted"):
        ControllerLock(sweep, submission=1).acquire()
    assert not sweep.path.exists()
