"""Limit of an evaluation's time: between passes, between tasks, and as a share of training."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.evaluation import measure as measuring
from workloads.evaluation.in_training import BenchmarksInTraining
from workloads.evaluation.task_result import TaskResult
from workloads.evaluation.time_limit import OutOfTime, TimeLimit


class Clock:
    """Time that passes when told to."""

    now = 0.0

    def __call__(self):
        return self.now


def test_one_rank_looks_between_passes():
    clock = Clock()
    limit = TimeLimit(seconds=5.0, clock=clock)
    clock.now = 5.0
    limit.between_passes()
    clock.now = 5.1
    with pytest.raises(OutOfTime):
        limit.between_passes()
    with pytest.raises(OutOfTime):
        limit.between_tasks()


def test_ranks_stop_together_between_tasks():
    clock = Clock()
    world = SimpleNamespace(size=2, all_gather_objects=lambda own: [own, True])
    limit = TimeLimit(seconds=5.0, clock=clock, world=world)
    with pytest.raises(OutOfTime):
        limit.between_tasks()  # the other one's time is over
    clock.now = 9.0
    limit.between_passes()  # passes are common: nobody leaves alone


@pytest.mark.parametrize(("seconds", "done"), [(0.5, 0), (1.5, 1), (99.0, 3)])
def test_what_is_left_is_named_and_asked_again(seconds, done, monkeypatch):
    clock = Clock()
    tasks = ("a", "b", "c")
    asked = SimpleNamespace(task_names=tasks, digest="all")

    def results(asked, model, progress):
        for task in tasks:
            clock.now += 1.0
            progress(task, 1, 1)
            yield TaskResult(task=task, n=2, metrics={"acc": 0.5}, chance=None, n_truncated=0)

    monkeypatch.setattr(measuring, "_results", results)
    limit = TimeLimit(seconds=seconds, clock=clock)

    record = measuring.measure(asked, None, step=1, limit=limit, clock=clock)

    assert list(record["tasks"]) == list(tasks[:done])
    assert set(record["metrics"]) == {f"eval/{task}/acc" for task in tasks[:done]}
    assert record.get("unfinished", []) == list(tasks[done:])
    assert record["digest"] == ("all" if done == 3 else None)


@given(
    most_share=st.floats(0.01, 0.5),
    steps=st.sets(st.integers(1, 100), min_size=1, max_size=5),
    step_s=st.floats(0.01, 10.0),
)
def test_all_evaluations_together_stay_within_their_share(most_share, steps, step_s):
    hook = BenchmarksInTraining(
        asked=(), steps=frozenset(steps), keep=Mock(), most_share=most_share
    )
    spent = 0.0
    for step in sorted(steps):
        trained = SimpleNamespace(
            step=step, n_steps=100, training_s=step * step_s, benchmarks_s=spent
        )
        allowed = hook._seconds(trained)
        assert allowed >= 0
        spent += allowed  # each takes all it may
    assert spent == pytest.approx(most_share * 100 * step_s)
