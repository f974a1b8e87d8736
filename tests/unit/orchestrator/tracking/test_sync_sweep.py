"""Rounds over a sweep, against a tracker in memory that fails anywhere."""

import errno
import itertools
import json
import sqlite3
import time

import pytest
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.records.json_files import read_json, write_json
from orchestrator.records.trial_spec import TrialState
from orchestrator.tracking import sync_state, sync_sweep
from orchestrator.tracking.mlflow_client import RefusedError, TrackerError, opens_tracker
from orchestrator.tracking.run_schema import (
    CANCEL,
    CANCEL_TAKEN,
    FOLDER_ID,
    KEY,
    KIND,
    RETRY,
    RETRY_TAKEN,
)
from orchestrator.tracking.sync_sweep import SweepSync


def interrupted_and_resumed(sweep, disk, seed=0):
    """A trial killed at step 19 and resumed from step 10, on a non-deterministic device."""
    spec = disk.make_spec(seed)
    sweep.submit([spec])
    first = sweep.start(spec)
    sweep.measure(first, range(20))
    sweep.end(first, "killed", final=False)
    second = sweep.start(spec)
    sweep.measure(second, range(10, 30), late_ms=50_000)
    sweep.finish(second, step=29)
    return spec


def stored(run):
    return {(p.key, p.step): (p.t, p.value) for p in run.points if "/" in p.key}


def assert_holds(run, sweep, disk, spec):
    expected = disk.expected_points(sweep.disk.trial(spec.trial_id))
    assert stored(run) == expected
    assert sum("/" in p.key for p in run.points) == len(expected), "a point is doubled"


def test_a_round_sends_a_trial_whole(sweep, disk, store):
    spec = interrupted_and_resumed(sweep, disk)

    assert SweepSync(sweep.disk, store).round() is True

    run = store.trial(spec.trial_id)
    assert_holds(run, sweep, disk, spec)
    assert run.status == "FINISHED"
    assert run.tags["mlflow.parentRunId"] in store._runs
    assert run.tags["memscale.attempt"] == "2"
    assert run.tags["mlflow.source.git.commit"] == "c0ffee"
    assert run.params["architecture"] == "dense"
    assert run.params["model.layers"] == "[1, 2]"
    assert {p.key: p.value for p in run.points if p.key == "total_params"} == {
        "total_params": 1_234_567
    }
    assert set(run.artifacts) == {
        "config/spec.json",
        "environment/attempt-1.json",
        "environment/attempt-2.json",
        "log/attempt-1.txt",
        "log/attempt-2.txt",
    }
    assert store.parent().status == "FINISHED"


def test_a_second_round_sends_nothing(sweep, disk, store):
    interrupted_and_resumed(sweep, disk)
    SweepSync(sweep.disk, store).round()
    store.log.clear()

    assert SweepSync(sweep.disk, store).round() is True

    assert store.log == ["open", "experiment", "runs"]


@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
def test_whatever_call_fails_the_next_exporter_completes_without_doubles(
    sweep, disk, store, new_store, after_effect
):
    spec = interrupted_and_resumed(sweep, disk)
    SweepSync(sweep.disk, store).round()
    n_calls = store.calls
    assert n_calls > 10

    for fail_at in range(1, n_calls + 1):
        uri = f"sqlite:///memory-{after_effect}-{fail_at}"
        failing = new_store(uri)
        failing.fail_at, failing.after_effect = fail_at, after_effect
        with pytest.raises(TrackerError, match="down"):
            SweepSync(sweep.disk, failing).round()
        failing.fail_at = None

        assert SweepSync(sweep.disk, failing).round() is True
        assert len(failing.of_kind("trial")) == len(failing.of_kind("sweep")) == 1
        assert_holds(failing.trial(spec.trial_id), sweep, disk, spec)
        assert failing.trial(spec.trial_id).status == "FINISHED"
        assert failing.parent().status == "FINISHED"


@pytest.mark.parametrize("rounds_before", [0, 1, 2])
def test_runs_that_a_server_makes_long_after_a_timeout_are_no_doubles(
    sweep, disk, store, rounds_before
):
    specs = [disk.make_spec(seed) for seed in (0, 1)]
    sweep.submit(specs)
    for spec in specs:
        sweep.measure(sweep.start(spec), range(3))
    sender = SweepSync(sweep.disk, store)
    store.late_call = "create_run"
    for _ in range(2):  # of the parent: asked for again in the second round
        with pytest.raises(TrackerError, match="in time"):
            sender.round()
    store.late_call = None
    store.carry_out_late()
    store.late_call = "create_run"
    with pytest.raises(TrackerError, match="in time"):
        sender.round()  # of the first trial
    store.late_call = None
    for _ in range(rounds_before):
        assert sender.round() is True
    written = [run for run in store.of_kind("trial") if not run.deleted]
    assert sender.in_doubt
    store.carry_out_late()

    while sender.in_doubt:
        assert sender.round() is True

    alive = [run for run in store.of_kind("trial") if not run.deleted]
    assert set(written) <= set(alive), "the run with notes and an address that people know"
    assert sorted(run.tags[KEY] for run in alive) == sorted(spec.trial_id for spec in specs)
    assert parents_of_trials(store) == {store.run_id(store.parent())}
    for spec in specs:
        assert len(stored(store.trial(spec.trial_id))) == 6
    assert SweepSync(sweep.disk, store).round() is True
    assert [run for run in store.of_kind("trial") if not run.deleted] == alive


def test_a_double_that_may_not_be_deleted_stays_and_stops_nothing(
    sweep, disk, store, monkeypatch, caplog
):
    spec = interrupted_and_resumed(sweep, disk)
    SweepSync(sweep.disk, store).round()
    (run,) = store.of_kind("trial")
    store.create_run(
        "e0", start_s=0.0, name="late", tags={k: run.tags[k] for k in (KIND, KEY, FOLDER_ID)}
    )

    def refuse(run_id):
        raise RefusedError("Permission denied")

    monkeypatch.setattr(store, "delete_run", refuse)
    sender = SweepSync(sweep.disk, store)

    assert sender.round() is sender.round() is True
    assert caplog.text.count("is there twice, and stays: Permission denied") == 1
    assert_holds(run, sweep, disk, spec)
    assert len(store.of_kind("trial")) == 2


def test_lost_progress_is_found_again_by_tags(sweep, disk, store):
    spec = interrupted_and_resumed(sweep, disk)
    SweepSync(sweep.disk, store).round()
    (sweep.disk.trial(spec.trial_id).path / "tracking.json").write_text("torn")

    assert SweepSync(sweep.disk, store).round() is True

    assert len(store.of_kind("trial")) == 1
    assert_holds(store.trial(spec.trial_id), sweep, disk, spec)


@pytest.mark.parametrize("lost", [sync_state.FILE, sync_state.SECOND])
def test_a_lost_record_of_the_sweep_doubles_no_run(sweep, disk, store, lost):
    interrupted_and_resumed(sweep, disk)
    SweepSync(sweep.disk, store).round()
    runs = dict(store._runs)
    (sweep.disk.path / lost).unlink()

    assert SweepSync(sweep.disk, store).round() is True

    assert store._runs == runs
    assert (sweep.disk.path / lost).is_file(), "the next loss does not double, either"


def test_another_database_under_the_same_address_gets_everything(sweep, disk, store, new_store):
    spec = interrupted_and_resumed(sweep, disk)
    SweepSync(sweep.disk, store).round()

    emptied = new_store(store.uri)
    assert SweepSync(sweep.disk, emptied).round() is True

    assert_holds(emptied.trial(spec.trial_id), sweep, disk, spec)


def test_two_folders_of_one_sweep_share_an_experiment_and_no_run(tmp_path, disk, store):
    sweeps = [disk.DiskSweep(tmp_path / user / "runs") for user in ("ada", "bob")]
    for sweep in sweeps:
        interrupted_and_resumed(sweep, disk)
        assert SweepSync(sweep.disk, store).round() is True

    assert list(store.experiments) == ["demo"]
    assert len(store.of_kind("trial")) == 2


def test_points_come_while_the_trial_runs_and_the_rest_later(sweep, disk, store):
    spec = disk.make_spec()
    sweep.submit([spec])
    sweep.control()
    sender = SweepSync(sweep.disk, store)
    assert sender.round() is True
    run = store.trial(spec.trial_id)
    assert (run.status, run.tags["memscale.state"]) == ("SCHEDULED", "waiting")
    assert run.tags["memscale.reason"] == "new: not there yet"

    attempt = sweep.start(spec)
    sweep.measure(attempt, range(5))
    sender.round()
    assert (run.status, run.tags["memscale.state"]) == ("RUNNING", "running")
    assert store.parent().status == "RUNNING"
    assert len(stored(run)) == 10

    sweep.measure(attempt, range(5, 8))
    sweep.finish(attempt, step=7)
    sender.round()
    assert run.status == "FINISHED"
    assert_holds(run, sweep, disk, spec)
    assert "log/attempt-1.txt" in run.artifacts


def test_a_trial_that_finished_gets_its_log_once_its_attempt_is_closed(sweep, disk, store):
    spec = disk.make_spec()
    sweep.submit([spec])
    sweep.control()
    attempt = sweep.start(spec)
    sweep.measure(attempt, [1])
    result = {
        "trial_id": spec.trial_id,
        "attempt": 1,
        "finished_at": 1.0,
        "steps": 1,
        "metrics": {},
    }
    write_json(sweep.disk.trial(spec.trial_id).path / "result.json", result)
    sender = SweepSync(sweep.disk, store)
    sender.round()
    assert "log/attempt-1.txt" not in store.trial(spec.trial_id).artifacts

    sweep.end(attempt)
    sender.round()

    assert store.trial(spec.trial_id).artifacts["log/attempt-1.txt"] == "log of attempt 1\n"


def test_a_dead_controllers_running_trial_is_not_shown_as_running(sweep, disk, store):
    spec = disk.make_spec()
    sweep.submit([spec])
    sweep.control()
    sweep.measure(sweep.start(spec), range(3))
    sweep.uncontrol()

    SweepSync(sweep.disk, store).round()

    run = store.trial(spec.trial_id)
    assert (run.status, run.tags["memscale.state"]) == ("KILLED", "waiting")
    assert "submit again" in run.tags["memscale.reason"]
    assert store.parent().status == "KILLED"


def test_a_failed_trial_says_why_and_a_later_submission_may_finish_it(sweep, disk, store):
    spec = disk.make_spec()
    sweep.submit([spec])
    sweep.end(sweep.start(spec), "diverged")
    SweepSync(sweep.disk, store).round()
    run = store.trial(spec.trial_id)
    assert (run.status, run.tags["memscale.outcome"]) == ("FAILED", "diverged")
    assert run.tags["mlflow.note.content"] == "diverged: it was diverged"
    assert store.parent().status == "FAILED"

    sweep.submit([spec], at_s=disk.T0 / 1000 + 200)
    attempt = sweep.start(spec, submission=2, at_s=disk.T0 / 1000 + 201)
    sweep.measure(attempt, range(4))
    sweep.finish(attempt, step=3, at_s=disk.T0 / 1000 + 300)
    SweepSync(sweep.disk, store).round()

    assert (run.status, run.tags["mlflow.note.content"]) == ("FINISHED", "")
    assert run.tags["memscale.submission"] == "1"
    assert len(store.of_kind("trial")) == 1
    failed, done = (
        {p.step: p.value for p in store.parent().points if p.key == f"trials/{name}"}
        for name in ("failed", "done")
    )
    assert failed == {0: 0, 1: 1, 2: 0, 3: 0}
    assert done == {0: 0, 1: 0, 2: 0, 3: 1}


def parents_of_trials(store):
    return {run.tags["mlflow.parentRunId"] for run in store.of_kind("trial")}


def test_a_sweep_that_was_stopped_and_resumed_has_one_parent_run(sweep, disk, store):
    specs = [disk.make_spec(seed) for seed in (0, 1)]
    sweep.submit(specs[:1])
    (sweep.disk.path / "sweep.yaml").write_text("seeds: [0]")
    sweep.end(sweep.start(specs[0]), "interrupted", final=False)
    SweepSync(sweep.disk, store).round()
    parent = store.parent()
    assert (parent.status, parent.tags["mlflow.runName"]) == ("KILLED", "demo")

    sweep.submit(specs, at_s=disk.T0 / 1000 + 200)
    (sweep.disk.path / "sweep.yaml").write_text("seeds: [0, 1]")
    sweep.control(submission=2)
    sender = SweepSync(sweep.disk, store)
    sender.round()
    assert parent.status == "RUNNING"
    for at_s, spec in enumerate(specs, disk.T0 // 1000 + 300):
        sweep.finish(sweep.start(spec, submission=2), step=1, at_s=at_s)
    sender.round()

    assert store.parent() is parent
    assert parents_of_trials(store) == {store.run_id(parent)}
    assert (parent.status, parent.ended_at_s) == ("FINISHED", disk.T0 / 1000 + 301.5)
    assert parent.artifacts["config/sweep.yaml"] == "seeds: [0, 1]"
    assert parent.params == {
        "submission.1": "2023-11-14T22:13:10+00:00, ada, 1 trial",
        "submission.2": "2023-11-14T22:16:40+00:00, ada, 2 trials",
    }
    assert {p.value for p in parent.points if p.key == "trials/total"} == {1, 2}


def test_of_the_parents_of_an_old_tracker_the_one_with_most_trials_goes_on(sweep, disk, store):
    specs = [disk.make_spec(seed) for seed in range(7)]
    sweep.submit(specs)
    SweepSync(sweep.disk, store).round()
    store.delete(store.parent(), for_good=True)
    tags = {KIND: "submission", FOLDER_ID: sync_state.folder_id(sweep.disk)}
    old = {
        key: store.create_run("e0", start_s=at, name=f"demo #{key}", tags={**tags, KEY: key})
        for at, key in enumerate("1234")
    }
    for spec, key in zip(specs, "1222334", strict=True):
        store.trial(spec.trial_id).tags["mlflow.parentRunId"] = old[key]
        (sweep.disk.trial(spec.trial_id).path / "tracking.json").unlink()
    store.delete(store._runs[old["2"]])  # by somebody, on the page

    for _ in range(2):
        assert SweepSync(sweep.disk, store).round() is True

    assert parents_of_trials(store) == {old["3"]}
    assert store._runs[old["3"]].tags["mlflow.runName"] == "demo"
    assert {run.tags[KEY] for run in store.of_kind("submission") if not run.deleted} == set("134")
    assert store.of_kind("sweep") == []
    assert [store._runs[old[key]].status for key in "14"] == ["KILLED", "KILLED"]


@pytest.mark.parametrize("ids", [("a", "b"), ("b", "a")])
def test_of_two_parents_made_at_once_that_which_was_written_to_lives_on(
    sweep, disk, store, monkeypatch, ids
):
    spec = interrupted_and_resumed(sweep, disk)
    here, there = (SweepSync(sweep.disk, store) for _ in range(2))
    store.run_ids = itertools.chain([ids[0], "trial", ids[1]], store.run_ids)
    create_run = store.create_run

    def after_the_other_host(*args, **more):
        monkeypatch.setattr(store, "create_run", create_run)
        assert there.round() is True
        return create_run(*args, **more)

    monkeypatch.setattr(store, "create_run", after_the_other_host)
    assert here.round() is True
    assert there.round() is here.round() is True

    assert store.run_id(store.parent()) == ids[0]
    assert store._runs[ids[1]].deleted
    assert parents_of_trials(store) == {ids[0]}
    assert store.parent().status == "FINISHED"
    assert_holds(store.trial(spec.trial_id), sweep, disk, spec)


def test_a_parent_left_by_a_kill_is_taken_up_or_deleted(sweep, disk, store):
    interrupted_and_resumed(sweep, disk)
    tags = {KIND: "sweep", FOLDER_ID: sync_state.folder_id(sweep.disk)}
    store.experiment("demo", artifacts=None, tags={})
    for at_s in (2, 1):
        store.create_run("e0", start_s=at_s, name="demo", tags=tags)

    assert SweepSync(sweep.disk, store).round() is True

    assert store.parent().start_s == 1
    assert [run.deleted for run in store.of_kind("sweep")] == [True, False]


def test_a_parent_that_somebody_deleted_is_not_made_again_and_goes_on_when_restored(
    sweep, disk, store
):
    spec = disk.make_spec()
    sweep.submit([spec])
    SweepSync(sweep.disk, store).round()
    parent = store.parent()
    store.delete(parent)
    sweep.finish(sweep.start(spec), step=1)

    assert SweepSync(sweep.disk, store).round() is True
    assert store.trial(spec.trial_id).status == "FINISHED"
    parent.deleted = False
    assert SweepSync(sweep.disk, store).round() is True

    assert store.parent() is parent
    assert parent.status == "FINISHED"


def test_a_controller_of_other_trials_does_not_make_these_run(sweep, disk, store):
    specs = [disk.make_spec(seed) for seed in (0, 1)]
    sweep.submit(specs[:1])
    sweep.measure(sweep.start(specs[0]), range(3))
    sweep.submit(specs[1:], at_s=disk.T0 / 1000 + 5)
    sweep.control(submission=2)

    SweepSync(sweep.disk, store).round()

    assert store.trial(specs[0].trial_id).status == "KILLED"
    assert store.trial(specs[1].trial_id).status == "SCHEDULED"
    assert store.parent().status == "RUNNING"


def test_trials_that_started_come_first_and_few_of_those_that_wait(sweep, disk, store, monkeypatch):
    monkeypatch.setattr(sync_sweep, "WAITING_SHOWN", 3)
    specs = sorted((disk.make_spec(seed) for seed in range(9)), key=lambda spec: spec.trial_id)
    sweep.submit(specs)
    sweep.control()
    attempt = sweep.start(specs[8])
    sender = SweepSync(sweep.disk, store)
    assert sender.round() is True

    names = [run.tags["memscale.trial_id"] for run in store.of_kind("trial")]
    assert names == [spec.trial_id for spec in (specs[8], *specs[:3])]
    assert {p.value for p in store.parent().points if p.key == "trials/total"} == {9}

    sweep.finish(attempt, step=1)
    sweep.start(specs[0])  # its run was there; another one of those that wait takes its place
    assert sender.round() is True
    names = [run.tags["memscale.trial_id"] for run in store.of_kind("trial")]
    assert names == [spec.trial_id for spec in (specs[8], *specs[:4])]


def test_trials_cancelled_before_they_started_need_no_runs(sweep, disk, store, monkeypatch):
    monkeypatch.setattr(sync_sweep, "WAITING_SHOWN", 2)
    specs = [disk.make_spec(seed) for seed in range(50)]
    sweep.submit(specs)
    sweep.control()
    sender = SweepSync(sweep.disk, store)
    sender.round()
    for spec in specs:
        sweep.disk.trial(spec.trial_id).request_cancel("a test", durable=False)
    calls = store.calls

    assert sender.round() is True

    assert [run.status for run in store.of_kind("trial")] == ["KILLED"] * 2
    assert store.parent().status == "KILLED"
    assert store.calls - calls < 10
    assert sync_state.points_waiting(sweep.disk, store.uri) == 0


def test_values_of_the_result_that_the_journal_lacks_are_added(sweep, disk, store):
    spec = disk.make_spec()
    sweep.submit([spec])
    attempt = sweep.start(spec)
    sweep.measure(attempt, [9])
    sweep.finish(
        attempt, step=9, metrics={"train/loss": disk.value("train/loss", 9), "valid/loss": 0.5}
    )

    SweepSync(sweep.disk, store).round()

    points = store.trial(spec.trial_id).points
    assert [p.value for p in points if p.key == "valid/loss"] == [0.5]
    assert sum(p.key == "train/loss" for p in points) == 1


def test_a_run_deleted_on_the_page_is_left_alone(sweep, disk, store):
    specs = [disk.make_spec(seed) for seed in (0, 1)]
    sweep.submit(specs)
    sender = SweepSync(sweep.disk, store)
    sender.round()
    store.delete(store.trial(specs[0].trial_id))
    for spec in specs:
        sweep.measure(sweep.start(spec), range(3))

    assert sender.round() is False  # met while sending
    assert sender.round() is True  # known by now

    assert sync_state.points_waiting(sweep.disk, store.uri) == 0
    assert stored(store.trial(specs[0].trial_id)) == {}
    assert len(stored(store.trial(specs[1].trial_id))) == 6


def test_a_run_that_vanished_is_made_again(sweep, disk, store):
    spec = interrupted_and_resumed(sweep, disk)
    sender = SweepSync(sweep.disk, store)
    sender.round()
    store.delete(store.trial(spec.trial_id), for_good=True)
    sweep.end(sweep.disk.trial(spec.trial_id).attempt(1), "killed")

    assert SweepSync(sweep.disk, store).round() is True

    assert_holds(store.trial(spec.trial_id), sweep, disk, spec)


def test_one_broken_trial_does_not_stop_the_others(sweep, disk, store, caplog):
    specs = [disk.make_spec(seed) for seed in (0, 1)]
    sweep.submit(specs)
    sweep.start(specs[0])
    (sweep.disk.trial(specs[0].trial_id).path / "spec.json").write_text("{")

    assert SweepSync(sweep.disk, store).round() is False

    assert [run.tags["memscale.trial_id"] for run in store.of_kind("trial")] == [specs[1].trial_id]
    assert "not sent" in caplog.text


def test_a_param_that_changed_is_told_and_stops_nothing(sweep, disk, store, caplog):
    spec = disk.make_spec()
    sweep.submit([spec])
    SweepSync(sweep.disk, store).round()
    renamed = disk.make_spec(preset="tiny")
    assert renamed.trial_id == spec.trial_id
    sweep.submit([renamed], at_s=disk.T0 / 1000 + 5)

    assert SweepSync(sweep.disk, store).round() is True

    assert store.trial(spec.trial_id).params["preset"] == "1m"
    assert "stay as they were" in caplog.text


def test_cancelling_a_trial_on_the_page(sweep, disk, store):
    specs = [disk.make_spec(seed) for seed in (0, 1)]
    sweep.submit(specs)
    sender = SweepSync(sweep.disk, store, clock=lambda: 0.0)
    sender.round()
    run = store.trial(specs[0].trial_id)
    run.tags[CANCEL] = "yes"

    assert sender.take_cancel_requests() == [specs[0].trial_id]

    assert sweep.disk.trial(specs[0].trial_id).state() is TrialState.CANCELLED
    assert sweep.disk.trial(specs[1].trial_id).state() is TrialState.WAITING
    assert CANCEL not in run.tags
    assert run.tags[CANCEL_TAKEN] == time.strftime("%F %T", time.localtime(0))
    assert sender.take_cancel_requests() == []


def test_cancelling_the_parent_cancels_the_sweep(sweep, disk, store):
    sweep.submit([disk.make_spec()])
    sender = SweepSync(sweep.disk, store)
    sender.round()
    store.parent().tags[CANCEL] = "1"

    assert sender.take_cancel_requests() == ["demo"]

    assert sweep.disk.cancel_requested()


@pytest.mark.parametrize("word", ["false", "No", "0"])
def test_a_cancel_tag_that_says_no_cancels_nothing(sweep, disk, store, word):
    spec = disk.make_spec()
    sweep.submit([spec])
    sender = SweepSync(sweep.disk, store)
    sender.round()
    store.trial(spec.trial_id).tags[CANCEL] = word

    assert sender.take_cancel_requests() == []

    assert not sweep.disk.trial(spec.trial_id).cancel_requested()


@pytest.fixture
def ended(sweep, disk, store):
    """A tracked sweep under a live controller, with trials in all states."""
    specs = [disk.make_spec(seed) for seed in range(5)]
    sweep.submit(specs)
    sweep.control()
    for spec, outcome in zip(specs, ("user_error", "cancelled"), strict=False):
        sweep.end(sweep.start(spec), outcome)
    sweep.disk.trial(specs[1].trial_id).request_cancel("somebody")
    sweep.finish(sweep.start(specs[2]), step=29)
    sweep.start(specs[3])
    SweepSync(sweep.disk, store).round()
    return [sweep.disk.trial(spec.trial_id) for spec in specs]


def told(run):
    assert RETRY not in run.tags
    when, _, said = run.tags[RETRY_TAKEN].partition(": ")
    assert time.strptime(when, "%Y-%m-%d %H:%M:%S")
    return said


def states(trials):
    return [trial.state().value for trial in trials]


@pytest.mark.parametrize("which", [0, 1], ids=["failed", "cancelled"])
def test_retrying_a_trial_on_the_page(sweep, store, ended, which):
    sender, run = SweepSync(sweep.disk, store), store.trial(ended[which].trial_id)
    run.tags[RETRY] = "yes"

    assert sender.take_retry_requests() == ["1 trial back in the queue"]

    assert told(run) == "1 trial back in the queue"
    assert ended[which].state() is TrialState.WAITING
    assert ended[which].retry_requested()
    assert ended[which].retry_request()["by"] == "tag memscale.retry in MLflow"
    assert sender.take_retry_requests() == []
    assert sender.round() is True
    assert (run.tags["memscale.state"], run.status) == ("waiting", "SCHEDULED")


def test_retrying_the_parent_retries_what_failed_or_was_cancelled(sweep, store, ended):
    store.parent().tags[RETRY] = "1"

    SweepSync(sweep.disk, store).take_retry_requests()

    assert states(ended) == ["waiting", "waiting", "done", "running", "waiting"]
    assert [trial.retry_requested() for trial in ended] == [True, True, False, False, False]
    said = "2 trials back in the queue (not the others: 1 running, 1 waiting, 1 done)"
    assert told(store.parent()) == said


@pytest.mark.parametrize(("which", "how"), [(2, "done"), (3, "running"), (4, "waiting")])
def test_other_trials_ignore_it_and_the_tag_says_why(sweep, store, ended, which, how):
    store.trial(ended[which].trial_id).tags[RETRY] = "yes"
    before = states(ended)

    SweepSync(sweep.disk, store).take_retry_requests()

    assert told(store.trial(ended[which].trial_id)) == f"nothing to retry: 1 {how}"
    assert states(ended) == before
    assert not (ended[which].path / "retry.json").exists()


@pytest.mark.parametrize("word", ["false", "No", "0"])
def test_a_retry_tag_that_says_no_retries_nothing(sweep, store, ended, word):
    store.parent().tags[RETRY] = word

    SweepSync(sweep.disk, store).take_retry_requests()

    assert told(store.parent()) == "nothing to retry: the tag says no"
    assert not any((trial.path / "retry.json").exists() for trial in ended)


def test_a_second_tag_before_the_attempt_changes_nothing_and_after_it_asks_again(
    sweep, disk, store, ended
):
    sender, run = SweepSync(sweep.disk, store), store.trial(ended[0].trial_id)
    run.tags[RETRY] = "yes"
    sender.take_retry_requests()
    run.tags[RETRY] = "yes"

    assert sender.take_retry_requests() == ["nothing to retry: 1 waiting"]

    sweep.end(sweep.start(disk.make_spec(0)), "user_error")
    assert ended[0].state() is TrialState.FAILED
    run.tags[RETRY] = "yes"
    assert sender.take_retry_requests() == ["1 trial back in the queue"]
    assert ended[0].retry_request()["after"] == 2


def test_without_a_controller_the_request_stands_and_the_tag_says_what_to_do(sweep, store, ended):
    sweep.uncontrol()
    store.trial(ended[0].trial_id).tags[RETRY] = "yes"

    SweepSync(sweep.disk, store).take_retry_requests()

    said = "1 trial noted; no controller is at work on that, so submit the sweep again"
    assert told(store.trial(ended[0].trial_id)) == said
    assert ended[0].state() is TrialState.WAITING


def test_a_controller_that_ended_just_then_is_told_of(sweep, store, ended):
    sender, run = SweepSync(sweep.disk, store), store.trial(ended[0].trial_id)
    run.tags[RETRY] = "yes"
    sender.take_retry_requests()
    sweep.uncontrol()

    assert sender.take_retry_requests() == []

    assert "submit the sweep again" in run.tags[RETRY_TAKEN]


def test_a_broken_trial_keeps_no_tag_of_another_waiting(sweep, store, ended):
    for trial in ended[:2]:
        store.trial(trial.trial_id).tags[RETRY] = "yes"
    (ended[0].attempt(1).path / "end.json").write_text("torn")

    SweepSync(sweep.disk, store).take_retry_requests()

    assert "end.json: not valid JSON" in told(store.trial(ended[0].trial_id))
    assert told(store.trial(ended[1].trial_id)) == "1 trial back in the queue"


def test_a_trial_of_a_cancelled_sweep_is_retried_with_all_of_it(sweep, store, ended):
    write_json(sweep.disk.path / "cancel.json", {"by": "test"})
    sender = SweepSync(sweep.disk, store)
    store.trial(ended[4].trial_id).tags[RETRY] = "yes"
    sender.take_retry_requests()
    said = "nothing to retry: 1 cancelled with the whole sweep: ask for all of it"
    assert told(store.trial(ended[4].trial_id)) == said

    store.parent().tags[RETRY] = "yes"
    sender.take_retry_requests()

    assert [trial.retry_requested() for trial in ended] == [True, True, False, False, True]
    assert not sweep.disk.cancel_requested()


@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", ["tagged", "set_tags", "delete_tag"])
@pytest.mark.parametrize("attempted", [False, True], ids=["at once", "after its attempt"])
def test_wherever_it_is_killed_a_retry_is_neither_lost_nor_taken_twice(
    sweep, disk, store, ended, after_effect, call, attempted
):
    store.parent().tags[RETRY] = "yes"
    sender = SweepSync(sweep.disk, store)
    counts = {"tagged": 1, "set_tags": 2, "delete_tag": 3}
    sender._look_up()
    store.calls, store.fail_at, store.after_effect = 0, counts[call], after_effect
    with pytest.raises(TrackerError, match="down"):
        sender.take_retry_requests()
    assert store.log[-1] == call
    store.fail_at = None
    written = ended[0].retry_requested()
    assert written == (call != "tagged")
    if attempted and written:
        sweep.end(sweep.start(disk.make_spec(0)), "user_error")

    SweepSync(sweep.disk, store).take_retry_requests()

    assert RETRY not in store.parent().tags
    assert ended[0].retry_request()["after"] == 1
    assert ended[0].retry_requested() == (not (attempted and written))
    assert ended[1].retry_requested()


def test_growing_a_sweep_keeps_the_colours(sweep, disk, store):
    first = disk.make_spec(0, "memory_plus")
    sweep.submit([first])
    SweepSync(sweep.disk, store).round()
    colour = store.trial(first.trial_id).tags["mlflow.runColor"]
    second = disk.make_spec(0, "dense")
    sweep.submit([first, second], at_s=disk.T0 / 1000 + 5)

    SweepSync(sweep.disk, store).round()

    assert store.trial(first.trial_id).tags["mlflow.runColor"] == colour
    assert store.trial(second.trial_id).tags["mlflow.runColor"] != colour
    assert store.trial(second.trial_id).tags["memscale.submission"] == "2"


def test_the_waiting_points_are_counted_without_a_tracker(sweep, disk, store):
    spec = interrupted_and_resumed(sweep, disk)
    expected = len(disk.expected_points(sweep.disk.trial(spec.trial_id)))
    assert sync_state.points_waiting(sweep.disk, store.uri) == expected

    SweepSync(sweep.disk, store).round()

    assert sync_state.points_waiting(sweep.disk, store.uri) == 0
    assert sync_state.points_waiting(sweep.disk, "http://elsewhere") == expected


def test_storage_that_fails_between_any_two_writes_loses_and_doubles_nothing(
    sweep, disk, store, monkeypatch
):
    spec = interrupted_and_resumed(sweep, disk)
    write, sender, left = sync_state.write_json, SweepSync(sweep.disk, store), [0]

    def failing(path, record, **more):
        if left[0] == 0:
            raise OSError(errno.EIO, "Input/output error", str(path))
        left[0] -= 1
        write(path, record, **more)

    monkeypatch.setattr(sync_state, "write_json", failing)
    for rounds in range(40):
        left[0] = rounds
        try:
            assert sender.round() is True
        except OSError:
            continue
        break

    assert 3 < rounds < 39, "it failed at every write once"
    assert_holds(store.trial(spec.trial_id), sweep, disk, spec)


def test_names_say_what_varies_also_once_a_later_submission_varies_it(sweep, disk, store):
    slow, fast = (
        disk.make_spec(train={"tokens": 1000, "batch_tokens": 10, "lr": lr}) for lr in (1e-3, 3e-3)
    )
    sweep.submit([slow])
    sweep.finish(sweep.start(slow), step=1)
    sync = SweepSync(sweep.disk, store)
    sync.round()
    assert "lr=" not in store.trial(slow.trial_id).tags["mlflow.runName"]

    sweep.submit([slow, fast])
    sync.round()

    names = [store.trial(spec.trial_id).tags["mlflow.runName"] for spec in (slow, fast)]
    assert [name.rpartition(" ")[0] for name in names] == [
        "dense 1m lr=1e-3 seed 0",
        "dense 1m lr=3e-3 seed 0",
    ]


def test_a_finished_model_is_registered_once_and_only_where_asked(sweep, disk, store):
    asked, other = disk.make_spec(0), disk.make_spec(1)
    number = sweep.submit([asked])
    sweep.submit([other])
    record = sweep.disk.path / "submissions" / f"{number:04d}.json"
    write_json(record, {**read_json(record), "register": True})
    attempts = [sweep.start(spec) for spec in (asked, other)]
    for spec in (asked, other):
        weights = sweep.disk.trial(spec.trial_id).checkpoints / "final"
        weights.mkdir(parents=True)
        (weights / "state.pt").write_bytes(b"learnt")
    SweepSync(sweep.disk, store).round()
    assert store.models == {}, "it trains still"
    for attempt in attempts:
        sweep.finish(attempt, step=1)

    SweepSync(sweep.disk, store).round()
    (sweep.disk.trial(asked.trial_id).path / "tracking.json").unlink()
    SweepSync(sweep.disk, store).round()

    run = store.trial(asked.trial_id)
    assert run.artifacts["model/final/state.pt"] == b"learnt"
    assert json.loads(run.artifacts["model/spec.json"])["seed"] == 0
    assert store.models == {"demo": {store.run_id(run): "1"}}
    assert "model/spec.json" not in store.trial(other.trial_id).artifacts


def test_status_says_which_tracker_lacks_measurements_and_why(sweep, disk):
    sweep.submit([disk.make_spec(0)])
    words = ["status", sweep.disk.name, "--runs", str(sweep.disk.path.parent)]
    sync_state.save_problem(sweep.disk, "http://ada:secret@tracker:5000", "it is away")

    shown = " ".join(CliRunner().invoke(app, words).output.split())
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    watched = " ".join(CliRunner().invoke(app, [*words, "--watch"]).output.split())
    sync_state.save_problem(sweep.disk, "http://ada:secret@tracker:5000", None)

    said = "http://tracker:5000 lacks measurements, which wait in the trials' folders: it is away"
    assert said in shown
    assert said in watched
    assert found["trackers_behind"] == {"http://tracker:5000": "it is away"}
    assert "lacks" not in CliRunner().invoke(app, words).output


def test_status_says_that_the_record_of_trackers_is_damaged(sweep, disk):
    sweep.submit([disk.make_spec(0)])
    (sweep.disk.path / sync_state.FILE).write_text("")
    words = ["status", sweep.disk.name, "--runs", str(sweep.disk.path.parent)]

    shown = " ".join(CliRunner().invoke(app, words).output.split())
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)

    assert "the tracker lacks measurements, which wait" in shown
    assert "tracking.json: not valid JSON" in found["trackers_behind"]["the tracker"]


def test_a_tracker_that_never_took_anything_is_forgotten(sweep, disk, new_store):
    sweep.submit([disk.make_spec(0)])
    used, wrong, cut_off = (new_store(f"http://{name}") for name in ("used", "wrong", "cut_off"))
    SweepSync(sweep.disk, used).round()
    cut_off.fail_at = 12
    with pytest.raises(TrackerError):
        SweepSync(sweep.disk, cut_off).round()
    assert "create_run" in cut_off.log
    assert sync_state.load_parent(sweep.disk, cut_off.uri) is None
    for store in (used, wrong, cut_off):
        sync_state.save_problem(sweep.disk, store.uri, "nothing answers")
    identity = sync_state.folder_id(sweep.disk)

    sync_state.forget_unused(sweep.disk)

    assert sync_state.problems(sweep.disk).keys() == {used.uri, cut_off.uri}
    assert sync_state.folder_id(sweep.disk) == identity


def test_an_artifact_that_cannot_be_written_is_no_outage(tmp_path):
    (tmp_path / "file").touch()

    @opens_tracker
    def write():
        (tmp_path / "file" / "log.txt").write_text("")

    with pytest.raises(RefusedError, match=r"file/log\.txt: Not a directory; its artifacts"):
        write()


def test_a_locked_database_is_told_from_other_outages(tmp_path):
    holder = sqlite3.connect(tmp_path / "held.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")

    @opens_tracker
    def read():
        sqlite3.connect(tmp_path / "held.db", timeout=0.0).execute("SELECT * FROM sqlite_master")

    with pytest.raises(TrackerError, match="^another process has locked the database$"):
        read()
    holder.close()
