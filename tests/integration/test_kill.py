"""kill -9 in the middle of a sweep on Ray: everything is finished once, with the same numbers, and nothing stays.

The parent of a rank is its fork server, that of the first fork server the controller, which starts it before Ray.
"""

import os
import signal
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from orchestrator.launchers import ray as ray_launcher
from orchestrator.records import logs
from orchestrator.records.errors import ExperimentError
from orchestrator.records.rank_registry import registered
from orchestrator.records.trial_dir import TrialDir
from orchestrator.scheduling.fair_share import SweepUsage

pytestmark = [pytest.mark.integration, pytest.mark.faults]

FAULTS = str(Path(__file__).parents[1] / "chaos" / "faults")
"""Folder of the sitecustomize.py that lets storage fail."""


def outcomes(trial):
    return [attempt.end()["outcome"] for attempt in trial.attempts()]


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def name_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def supervisor_of(controller):
    below = psutil.Process(controller.pid).children(recursive=True)
    (found,) = (process.pid for process in below if "ray::NodeSupervisor" in name_of(process.pid))
    return found


def ray_processes(parent, name):
    """Return the children of a process that are this program of Ray's."""
    children = psutil.Process(parent).children()
    return [process for process in children if process.name() == name]


def kill_raylet(launcher):
    """Kill the raylet of a launcher of this process, once it has a node."""
    assert len(launcher.nodes()) == 1
    (raylet,) = ray_processes(os.getpid(), "raylet")
    os.kill(raylet.pid, signal.SIGKILL)


def steps_of(attempt):
    return [line.step for line in attempt.lines() if "train/loss" in line.metrics]


def folders_of_ray(controller):
    owner = f"pid {controller.pid}\n"
    locks = Path(tempfile.gettempdir()).glob("ms-*/lock")
    return [lock.parent for lock in locks if lock.read_text().endswith(owner)]


def wait_until(look):
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def another(tiny, *, than):
    """Wait for the middle of an attempt that is none of these."""
    attempt, rank = tiny.middle()
    while attempt.path in {other.path for other in than}:
        attempt, rank = tiny.middle()
    return attempt, rank


@pytest.mark.long
def test_killed_rank_fork_server_and_supervisor_cost_an_attempt_each(tiny, undisturbed):
    controller = tiny.submit(1, "ray")
    # Of the trial with tables in host memory. The others follow.
    first, killed = tiny.middle(of=tiny.memory, checkpointed=True)
    os.kill(killed.pid, signal.SIGKILL)

    second, rank = another(tiny, than=[first])
    fork_server = parent_of(rank.pid)
    assert "orchestrator.node.fork_server" in name_of(fork_server)
    os.kill(fork_server, signal.SIGKILL)

    third, rank = another(tiny, than=[first, second])
    supervisor = supervisor_of(controller)
    assert parent_of(parent_of(rank.pid)) == supervisor, "the fork server was replaced"
    os.kill(supervisor, signal.SIGKILL)

    assert controller.wait(timeout=200) == 0, tiny.log(1)
    assert first.end()["outcome"] == second.end()["outcome"] == "killed"
    assert third.end()["outcome"] == "node_lost"
    assert "the supervisor of" in third.end()["reason"]
    lost = TrialDir(third.path.parents[1])
    told = "".join(logs.read(lost, attempt=third.number))
    assert "people, " in told, "what its rank said"
    assert "── node_lost: the supervisor of" in told
    ended = [outcome for trial in tiny.disk.trials() for outcome in outcomes(trial)]
    assert set(ended) == {"killed", "node_lost", "done"}
    # Another process went on after a checkpoint of the killed one, which was in mid-run.
    one, two, *more = tiny.memory.attempts()
    assert (one.path, two.number) == (first.path, 2)
    later = [step for attempt in (two, *more) for step in steps_of(attempt)]
    assert 1 < min(later) <= max(steps_of(first)) + 1 <= max(later)
    assert registered(two)
    assert killed not in registered(two)
    tiny.assert_finished_like(undisturbed)
    tiny.assert_nothing_left(rank)


@pytest.mark.long
@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_cluster_of_this_machine_that_dies_is_started_again(tiny, undisturbed, name):
    controller = tiny.submit(1, "ray")
    lost, rank = tiny.middle()
    (killed,) = ray_processes(controller.pid, name)
    os.kill(killed.pid, signal.SIGKILL)

    assert controller.wait(timeout=200) == 0, tiny.log(1)
    if lost.end()["outcome"] != "done":  # Ray takes seconds to end without a GCS
        assert lost.end()["outcome"] == "node_lost"
        assert lost.end()["reason"].startswith(f"Ray of this machine ended: its {name} died")
    assert f"its {name} died; it is started again (1 of 3)" in tiny.log(1)
    # What Ray dumps of its state is in a log.
    assert "state-dump" not in tiny.log(1)
    tiny.assert_finished_like(undisturbed)
    tiny.assert_nothing_left(rank)
    assert folders_of_ray(controller) == []


def test_a_cluster_that_keeps_dying_ends_the_sweep_with_one_sentence(tiny, monkeypatch):
    monkeypatch.setattr(ray_launcher, "RESTARTS", 1)
    monkeypatch.setattr(ray_launcher, "RESTART_PAUSE_S", 0.0)
    launcher = ray_launcher.RayLauncher(tiny.disk, cpus=1, job="nothing:nothing")
    launcher.start()
    try:
        kill_raylet(launcher)
        wait_until(lambda: launcher.poll() or launcher.exchange_usage(SweepUsage()).may_grow)
        kill_raylet(launcher)
        with pytest.raises(ExperimentError, match="its raylet died, 2 times in a row") as error:
            wait_until(launcher.poll)
        assert "what was recorded is right: submit again" in str(error.value)
    finally:
        launcher.close()


@pytest.mark.long
def test_a_supervisor_killed_while_the_storage_fails_is_told_once_it_answers(
    tiny, undisturbed, tmp_path, monkeypatch
):
    flag = tmp_path / "fails"
    monkeypatch.setenv("CHAOS_STORAGE", f"{flag}:{tiny.disk.path}")
    monkeypatch.setenv("PYTHONPATH", FAULTS, prepend=os.pathsep)
    controller = tiny.submit(1, "ray")
    lost, rank = tiny.middle()
    supervisor = supervisor_of(controller)
    assert parent_of(parent_of(rank.pid)) == controller.pid
    (tmp_path / "new").write_text("EIO")
    (tmp_path / "new").rename(flag)
    os.kill(supervisor, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while "the storage of" not in tiny.log(1) or "its supervisor is gone" not in tiny.log(1):
        assert controller.poll() is None, tiny.log(1)
        assert time.monotonic() < deadline, tiny.log(1)
        time.sleep(0.1)
    flag.unlink()

    assert controller.wait(timeout=200) == 0, tiny.log(1)
    assert lost.end()["outcome"] == "node_lost"
    tiny.assert_finished_like(undisturbed)
    tiny.assert_nothing_left(rank)


@pytest.mark.long
def test_a_killed_controller_takes_everything_along_and_a_stopped_one_checkpoints(
    tiny, undisturbed
):
    controller = tiny.submit(1, "ray")
    lost, rank = tiny.middle()
    assert len(tiny.processes()) > 3
    assert len(folders_of_ray(controller)) == 1
    controller.kill()
    controller.wait()

    tiny.assert_nothing_left(rank)
    assert lost.end() is None
    assert folders_of_ray(controller) == []

    controller = tiny.submit(2, "ray")
    stopped, _ = another(tiny, than=[lost])
    # A terminal sends it to the whole foreground group.
    os.killpg(controller.pid, signal.SIGINT)

    assert controller.wait(timeout=200) == 1, tiny.log(2)
    assert lost.end()["outcome"] == "node_lost"
    assert stopped.end()["outcome"] == "interrupted"
    assert stopped.end()["reason"].startswith("stopped on request; no step is lost")
    tiny.assert_nothing_left()

    controller = tiny.submit(3, "ray")
    terminated, _ = another(tiny, than=[lost, stopped])
    # So do `timeout` and batch systems. Ray, were it of the group, would be gone before anybody could leave it in order.
    os.killpg(controller.pid, signal.SIGTERM)

    assert controller.wait(timeout=200) == 1, tiny.log(3)
    assert terminated.end()["outcome"] == "interrupted"
    assert "terminate" not in tiny.log(3)
    tiny.assert_nothing_left()

    controller = tiny.submit(4, "process")
    assert controller.wait(timeout=200) == 0, tiny.log(4)
    tiny.assert_finished_like(undisturbed)
    tiny.assert_nothing_left()
