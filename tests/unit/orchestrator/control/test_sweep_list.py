"""What `memscale list` says of every sweep of a runs folder."""

from dataclasses import replace

import pytest

from orchestrator.control.sweep_list import list_sweeps
from orchestrator.records.json_files import write_json
from orchestrator.records.locks import ControllerLock
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import TrialSpec


@pytest.fixture
def add(tmp_path):
    """Make a sweep of three trials, of which some are done, failed or cancelled."""

    def make(name, *, at, done=0, failed=0, cancelled=False):
        sweep = SweepDir(tmp_path / name)
        spec = TrialSpec(
            sweep=name,
            data={"source": "x"},
            model={"architecture": "dense"},
            train={"tokens": 100, "batch_tokens": 10},
            seed=0,
        )
        for seed in range(3):
            one = replace(spec, seed=seed)
            sweep.trial(one.trial_id).create(one)
        trials = sweep.trials()
        for trial in trials[:done]:
            write_json(trial.path / "result.json", {"metrics": {}, "finished_at": 1.0})
        for trial in trials[done : done + failed]:
            end = {"outcome": "user_error", "reason": "", "ended_at": 1.0, "final": True}
            write_json(trial.new_attempt({}).path / "end.json", end)
        if cancelled:
            write_json(sweep.path / "cancel.json", {"by": "test"})
        record = {"trial_ids": [trial.trial_id for trial in trials], "submitted_at": at}
        sweep.add_submission(record)
        return sweep

    return make


def test_the_last_submitted_comes_first_with_its_counts_and_state(tmp_path, add):
    add("finished", at=10.0, done=3)
    add("broken", at=20.0, done=1, failed=1)
    add("halted", at=30.0, done=1)
    add("given_up", at=40.0, done=1, cancelled=True)
    lock = ControllerLock(add("busy", at=50.0), submission=1)
    lock.acquire()
    (tmp_path / "mlartifacts").mkdir()
    try:
        found = list_sweeps(tmp_path)
    finally:
        lock.release()

    assert [(s.name, s.state, s.trials, dict(s.counts), s.submitted_at) for s in found] == [
        ("busy", "running", 3, {"waiting": 3}, 50.0),
        ("given_up", "cancelled", 3, {"done": 1, "cancelled": 2}, 40.0),
        ("halted", "stopped", 3, {"done": 1, "waiting": 2}, 30.0),
        ("broken", "failed", 3, {"done": 1, "failed": 1, "waiting": 1}, 20.0),
        ("finished", "done", 3, {"done": 3}, 10.0),
    ]


def test_a_damaged_sweep_is_a_row_and_hides_no_other(tmp_path, add):
    (add("damaged", at=1.0).path / "submissions" / "0001.json").write_text("{")
    add("whole", at=2.0)

    whole, damaged = list_sweeps(tmp_path)

    assert (whole.name, whole.problem) == ("whole", "")
    assert (damaged.name, damaged.state, damaged.trials) == ("damaged", "unreadable", 3)
    assert "0001.json: not valid JSON" in damaged.problem


def test_a_sweep_that_is_a_link_to_nothing_is_listed(tmp_path):
    (tmp_path / "mine").symlink_to("/nonexistent/scratch")
    (tmp_path / "cache").symlink_to("/nonexistent/cache")

    (found,) = list_sweeps(tmp_path)

    assert (found.name, found.state) == ("mine", "unreadable")
    assert "a link to /nonexistent/scratch, which is not there; mount that disk" in found.problem
