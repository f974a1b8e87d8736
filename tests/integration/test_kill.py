"""kill -9 in the middle of a sweep on Ray: everything is finished once, with the same numbers, and nothing stays.

`parent_of` walks up from a rank: rank, template, supervisor (Ray's actor).
"""

import os
import signal
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration


def outcomes(trial):
    return [attempt.end()["outcome"] for attempt in trial.attempts()]


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def name_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def folders_of_ray(controller):
    return list(Path(tempfile.gettempdir()).glob(f"ms-{controller.pid}-*"))


def test_killed_rank_and_killed_template_cost_an_attempt_each(tiny, undisturbed):
    controller = tiny.submit(1, "ray")
    attempt, rank = tiny.middle()
    os.kill(rank.pid, signal.SIGKILL)
    first = attempt.path

    attempt, rank = tiny.middle()
    while attempt.path == first:
        attempt, rank = tiny.middle()
    template = parent_of(rank.pid)
    assert "orchestrator.launchers.template" in name_of(template)
    os.kill(template, signal.SIGKILL)

    assert controller.wait(timeout=200) == 0, tiny.log(1)
    ended = [outcome for trial in tiny.disk.trials() for outcome in outcomes(trial)]
    assert ended.count("killed") >= 2
    assert set(ended) == {"killed", "done"}
    tiny.assert_finished_like(undisturbed)
    tiny.assert_nothing_left()


def test_killed_supervisor_is_replaced_and_its_ranks_are_gone(tiny, undisturbed):
    controller = tiny.submit(1, "ray")
    attempt, rank = tiny.middle()
    supervisor = parent_of(parent_of(rank.pid))
    assert "ray::NodeSupervisor" in name_of(supervisor)
    os.kill(supervisor, signal.SIGKILL)

    assert controller.wait(timeout=200) == 0, tiny.log(1)
    assert attempt.end()["outcome"] == "node_lost"
    assert "the supervisor of" in attempt.end()["reason"]
    tiny.assert_finished_like(undisturbed)
    tiny.assert_nothing_left(rank)


def test_killed_controller_takes_everything_along_and_the_next_one_resumes(tiny, undisturbed):
    controller = tiny.submit(1, "ray")
    attempt, rank = tiny.middle()
    assert len(tiny.processes()) > 3
    assert len(folders_of_ray(controller)) == 1
    controller.kill()
    controller.wait()

    tiny.assert_nothing_left(rank)
    assert attempt.end() is None
    assert folders_of_ray(controller) == []

    controller = tiny.submit(2, "ray")
    assert controller.wait(timeout=200) == 0, tiny.log(2)
    assert attempt.end()["outcome"] == "node_lost"
    tiny.assert_finished_like(undisturbed)
    tiny.assert_nothing_left()


def test_ctrl_c_checkpoints_and_the_next_submission_resumes(tiny, undisturbed):
    controller = tiny.submit(1, "ray")
    attempt, _ = tiny.middle()
    # A terminal sends it to the whole foreground group: Ray, supervisor, template and ranks get it too.
    os.killpg(controller.pid, signal.SIGINT)

    assert controller.wait(timeout=60) == 1, tiny.log(1)
    assert attempt.end()["outcome"] == "interrupted"
    assert attempt.end()["reason"].startswith("stopped on request; it checkpointed first")
    tiny.assert_nothing_left()

    controller = tiny.submit(2, "process")
    assert controller.wait(timeout=200) == 0, tiny.log(2)
    tiny.assert_finished_like(undisturbed)
    tiny.assert_nothing_left()
