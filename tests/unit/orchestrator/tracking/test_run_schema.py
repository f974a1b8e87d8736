"""What runs are called and carry."""

import pytest

from orchestrator.records.trial_spec import TrialState
from orchestrator.tracking import run_schema
from orchestrator.tracking.trial_view import TrialView

DONE, FAILED, RUNNING, WAITING, CANCELLED = (
    TrialState.DONE,
    TrialState.FAILED,
    TrialState.RUNNING,
    TrialState.WAITING,
    TrialState.CANCELLED,
)


@pytest.mark.parametrize(
    ("states", "controlled", "status"),
    [
        ([DONE, DONE], True, "FINISHED"),
        ([DONE, DONE], False, "FINISHED"),
        ([DONE, RUNNING, FAILED], True, "RUNNING"),
        ([DONE, WAITING], True, "RUNNING"),
        ([DONE, WAITING], False, "KILLED"),
        ([DONE, CANCELLED], False, "KILLED"),
        ([FAILED, WAITING], False, "FAILED"),
        ([DONE, FAILED], True, "FAILED"),
        ([], False, "FINISHED"),
    ],
)
def test_the_parents_status_follows_its_trials(states, controlled, status):
    assert run_schema.submission_status(states, controlled=controlled) == status


def test_the_parent_counts_over_time_from_what_was_done_before():
    endings = [[(5.0, DONE)], [(30.0, FAILED)], [(20.0, DONE)], [(40.0, CANCELLED)], []]

    points = run_schema.submission_points(endings, n_trials=6, submitted_at_s=10.0)

    assert [(p.key, p.value, p.t, p.step) for p in points] == [
        ("trials/total", 6, 10_000, 0),
        ("trials/done", 1, 10_000, 0),
        ("trials/failed", 0, 10_000, 0),
        ("trials/done", 2, 20_000, 1),
        ("trials/failed", 0, 20_000, 1),
        ("trials/done", 2, 30_000, 2),
        ("trials/failed", 1, 30_000, 2),
        ("trials/done", 2, 40_000, 3),
        ("trials/failed", 1, 40_000, 3),
    ]


def test_more_endings_only_add_points():
    endings = [[(20.0, DONE)], [(30.0, FAILED)], [(45.0, DONE)]]
    before = run_schema.submission_points(endings[:2], n_trials=3, submitted_at_s=10.0)

    assert (
        run_schema.submission_points(endings, n_trials=3, submitted_at_s=10.0)[: len(before)]
        == before
    )


def test_a_retry_adds_points_and_its_failure_no_longer_counts():
    before = [[(20.0, FAILED)], [(30.0, FAILED)], [(35.0, CANCELLED)]]
    after = [[(20.0, FAILED), (50.0, DONE)], [(30.0, FAILED), (60.0, FAILED)], before[2]]

    first, then = (
        run_schema.submission_points(endings, n_trials=3, submitted_at_s=10.0)
        for endings in (before, after)
    )

    assert then[: len(first)] == first
    assert [(p.key, p.value, p.step) for p in then[-6:]] == [
        ("trials/done", 0, 3),
        ("trials/failed", 2, 3),
        ("trials/done", 1, 4),
        ("trials/failed", 1, 4),
        ("trials/done", 1, 5),
        ("trials/failed", 1, 5),
    ]


def test_a_trial_belongs_to_the_submission_that_first_asked_for_it():
    submissions = [{"number": 1, "trial_ids": ["a", "b"]}, {"number": 2, "trial_ids": ["b", "c"]}]

    assert run_schema.first_asked(submissions) == {"a": 1, "b": 1, "c": 2}


def test_a_name_says_what_tells_trials_apart(disk):
    spec = disk.make_spec(3, "memory_plus")
    assert run_schema.trial_name(spec) == f"memory_plus 1m seed 3 {spec.trial_id[12:18]}"

    unnamed = disk.make_spec(3, preset=None)
    assert run_schema.trial_name(unnamed).startswith("dense 1.23m seed 3 ")


def test_params_hold_every_setting_once_and_nothing_absent(disk):
    spec = disk.make_spec(model={"architecture": "dense", "bias": True, "window": None})

    params = run_schema.trial_params(spec)

    assert params["model.bias"] == "true"
    assert params["train.lr"] == "0.003"
    assert params["data.source"] == "biographies"
    assert {"model.window", "model.architecture"}.isdisjoint(params)

    matched = disk.make_spec(match={"training_flops": "dense", "solve": "d_ff"})
    assert run_schema.trial_params(matched)["match.training_flops"] == "dense"
    assert matched.trial_id == disk.make_spec().trial_id


def test_a_recipe_and_what_is_not_causal_are_on_the_run(disk):
    spec = disk.make_spec(recipe="peer", not_causal="in training: experts choose tokens")
    view = TrialView(state=DONE, attempt=1, outcome="done", reason="", ended_at_s=1.0)

    tags = run_schema.trial_tags(spec, view, submission=1, environment={}, colour="#000000")
    plain = run_schema.trial_tags(
        disk.make_spec(), view, submission=1, environment={}, colour="#000000"
    )

    assert run_schema.trial_params(spec)["recipe"] == tags["memscale.recipe"] == "peer"
    assert tags["memscale.not_causal"] == "in training: experts choose tokens"
    assert plain["memscale.recipe"] == plain["memscale.not_causal"] == ""
