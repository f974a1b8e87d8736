"""What runs are called and carry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    assert run_schema.sweep_status(states, controlled=controlled) == status


def submitted(at, *trial_ids):
    return {"submitted_at": at, "trial_ids": trial_ids}


def test_the_parent_counts_over_time_from_what_was_done_before():
    ends = {
        "a": [(5.0, DONE)],
        "b": [(30.0, FAILED)],
        "c": [(20.0, DONE)],
        "d": [(40.0, CANCELLED)],
    }

    points = run_schema.sweep_points([submitted(10.0, *"abcdef")], ends)

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


def test_a_later_submission_counts_on_and_asks_again_for_what_failed():
    ends = {"a": [(20.0, DONE)], "b": [(30.0, FAILED), (60.0, DONE)]}

    points = run_schema.sweep_points([submitted(10.0, "a", "b"), submitted(50.0, *"abc")], ends)

    assert [(p.key, p.value, p.t, p.step) for p in points[7:]] == [
        ("trials/total", 3, 50_000, 3),
        ("trials/done", 1, 50_000, 3),
        ("trials/failed", 0, 50_000, 3),
        ("trials/done", 2, 60_000, 4),
        ("trials/failed", 0, 60_000, 4),
    ]


@given(st.data())
def test_what_happens_later_only_adds_points(data):
    """Each event is a submission or the end of a trial; the oracle counts from the last of each."""
    event = st.sampled_from([None, DONE, FAILED, CANCELLED])
    events = data.draw(st.lists(st.tuples(event, st.sampled_from("abc")), max_size=12))
    submissions, ends, last, before = [submitted(0.0, "a")], {}, {"a": None}, []
    for at, (state, trial_id) in enumerate(events, 1):
        if state is None:
            submissions.append(submitted(float(at), trial_id))
        else:
            ends.setdefault(trial_id, []).append((float(at), state))
        if last.get(trial_id) is not DONE:
            last[trial_id] = state
        points = run_schema.sweep_points(submissions, ends)
        assert points[: len(before)] == before
        before = points
        counts = {p.key: p.value for p in points if p.step == at}
        assert counts["trials/done"] == list(last.values()).count(DONE)
        assert counts["trials/failed"] == list(last.values()).count(FAILED)


def test_a_retry_adds_points_and_its_failure_no_longer_counts():
    before = {"a": [(20.0, FAILED)], "b": [(30.0, FAILED)], "c": [(35.0, CANCELLED)]}
    after = {"a": [(20.0, FAILED), (50.0, DONE)], "b": [(30.0, FAILED), (60.0, FAILED)]}

    first, then = (
        run_schema.sweep_points([submitted(10.0, *"abc")], ends)
        for ends in (before, before | after)
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

    first = run_schema.first_asked(submissions)

    assert {i: one["number"] for i, one in first.items()} == {"a": 1, "b": 1, "c": 2}


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

    tags = run_schema.trial_tags(
        spec, view, submission=1, parent="p", environment={}, colour="#000000"
    )
    plain = run_schema.trial_tags(
        disk.make_spec(), view, submission=1, parent="p", environment={}, colour="#000000"
    )

    assert run_schema.trial_params(spec)["recipe"] == tags["memscale.recipe"] == "peer"
    assert tags["memscale.not_causal"] == "in training: experts choose tokens"
    assert plain["memscale.recipe"] == plain["memscale.not_causal"] == ""
