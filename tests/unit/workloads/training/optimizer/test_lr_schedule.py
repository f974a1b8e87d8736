import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.training.config import TrainConfig
from workloads.training.optimizer.lr_schedule import evaluation_steps, learning_rate, value_lr_ratio

fractions = st.floats(0, 1)


def config(steps: int, **changes: object) -> TrainConfig:
    return TrainConfig(
        **{"tokens": 8 * steps, "batch_tokens": 8, "seq_len": 8, "lr": 0.5, **changes}
    )


@given(
    steps=st.integers(1, 300),
    schedule=st.sampled_from(["cosine", "linear", "wsd", "constant"]),
    warmup=fractions,
    decay=fractions,
    final=fractions,
)
def test_the_rate_rises_once_and_falls_once_within_zero_and_the_peak(
    steps, schedule, warmup, decay, final
):
    train = config(
        steps,
        schedule=schedule,
        warmup_fraction=warmup,
        decay_fraction=decay,
        final_lr_fraction=final,
    )

    rates = [learning_rate(step, train) for step in range(1, steps + 1)]

    assert all(0 <= rate <= train.lr * (1 + 1e-12) for rate in rates)
    signs = [b > a for a, b in itertools.pairwise(rates) if abs(b - a) > 1e-12]
    assert signs == sorted(signs, reverse=True), "a rise after a fall"


@given(
    steps=st.integers(2, 300), warmup=st.floats(0, 0.5), final=fractions, decay=st.floats(0.02, 0.4)
)
def test_decaying_schedules_end_at_the_final_share(steps, warmup, final, decay):
    for schedule in ("cosine", "linear", "wsd"):
        train = config(
            steps,
            schedule=schedule,
            warmup_fraction=warmup,
            final_lr_fraction=final,
            decay_fraction=decay,
        )
        expected = final if schedule != "wsd" or round(decay * steps) else 1.0
        assert learning_rate(steps, train) == pytest.approx(train.lr * expected)


def test_warmup_is_a_straight_line_from_zero_that_reaches_the_peak():
    train = config(100, warmup_fraction=0.1)

    assert [learning_rate(step, train) for step in range(1, 11)] == pytest.approx(
        [0.05 * step for step in range(1, 11)]
    )


def test_cosine_is_halfway_in_the_middle():
    train = config(100, warmup_fraction=0.0, final_lr_fraction=0.1)

    assert learning_rate(50, train) == pytest.approx(0.5 * (1 + 0.1) / 2)


def test_linear_is_one_straight_line_after_warmup():
    train = config(12, schedule="linear", warmup_fraction=1 / 6, final_lr_fraction=0.5)

    rates = [learning_rate(step, train) / train.lr for step in range(1, 13)]

    assert rates == pytest.approx([0.5, 1, *(1 - 0.05 * i for i in range(1, 11))])


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd", "constant"])
def test_a_run_that_stops_early_takes_the_first_steps_of_the_whole_schedule(schedule):
    fields = {"schedule": schedule, "value_lr_ratio": 5.0, "value_lr_final_ratio": 1.0}
    whole = config(20, decay_fraction=0.5, **fields)
    stopped = dataclasses.replace(whole, stop_at_tokens=12 * whole.batch_tokens - 1)

    assert (stopped.steps, stopped.schedule_steps, whole.steps) == (12, 20, 20)
    for rate in (learning_rate, value_lr_ratio):
        assert [rate(s, stopped) for s in range(1, 13)] == [rate(s, whole) for s in range(1, 13)]
        with pytest.raises(ValueError, match=r"step must lie in 1\.\.12, got 13"):
            rate(13, stopped)


def test_a_run_stops_within_its_schedule_or_is_refused():
    whole = config(20)
    for stop in (whole.tokens, whole.batch_tokens - 1):
        with pytest.raises(ValueError, match=r"stop_at_tokens must be at least batch_tokens"):
            dataclasses.replace(whole, stop_at_tokens=stop)


def test_without_a_final_ratio_values_keep_theirs():
    train = config(10, value_lr_ratio=4.0)

    assert {value_lr_ratio(step, train) for step in range(1, 11)} == {4.0}


def test_values_fall_in_a_straight_line_to_the_final_ratio():
    whole = config(10, value_lr_ratio=10.0, value_lr_final_ratio=1.0)
    half = config(10, value_lr_ratio=5.0, value_lr_final_ratio=1.0, value_lr_decay_fraction=0.5)

    assert [value_lr_ratio(step, whole) for step in (1, 5, 10)] == pytest.approx([9.1, 5.5, 1.0])
    assert [value_lr_ratio(step, half) for step in range(1, 11)] == pytest.approx(
        [4.2, 3.4, 2.6, 1.8, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    )


@given(
    steps=st.integers(1, 300),
    start=st.floats(0.1, 20),
    final=st.floats(0.1, 20),
    fraction=st.floats(0.01, 1),
)
def test_the_formula_of_ultramem_holds_for_a_final_ratio_of_one(steps, start, final, fraction):
    train = config(
        steps, value_lr_ratio=start, value_lr_final_ratio=final, value_lr_decay_fraction=fraction
    )
    ratios = [value_lr_ratio(step, train) for step in range(1, steps + 1)]

    assert all(min(start, final) - 1e-9 <= r <= max(start, final) + 1e-9 for r in ratios)
    assert ratios[-1] == pytest.approx(final)
    ours = dataclasses.replace(train, value_lr_final_ratio=1.0)
    for step in range(1, steps + 1):
        theirs = 1 + (start - 1) * max(0, 1 - step / (fraction * steps))
        assert value_lr_ratio(step, ours) == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value_lr_final_ratio": 0.0}, "value_lr_final_ratio must be positive or null, got 0"),
        ({"value_lr_decay_fraction": 0.5}, "does nothing without value_lr_final_ratio, got 0.5"),
        (
            {"value_lr_final_ratio": 1.0, "value_lr_decay_fraction": 0.0},
            "value_lr_decay_fraction must be above 0 and at most 1 or null, got 0",
        ),
    ],
)
def test_a_fall_of_values_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        config(10, **changes)


def test_wsd_is_flat_and_then_a_straight_line():
    train = config(
        10, schedule="wsd", warmup_fraction=0.0, decay_fraction=0.4, final_lr_fraction=0.0
    )

    rates = [learning_rate(step, train) / train.lr for step in range(1, 11)]

    assert rates == pytest.approx([1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0])


@pytest.mark.parametrize("step", [0, 11])
def test_steps_outside_the_run_are_refused(step):
    for rate in (learning_rate, value_lr_ratio):
        with pytest.raises(ValueError, match=r"step must lie in 1\.\.10, got"):
            rate(step, config(10))


@given(steps=st.integers(1, 10_000), evaluations=st.integers(1, 50))
def test_evaluations_are_evenly_spaced_and_the_last_is_at_the_end(steps, evaluations):
    at = sorted(evaluation_steps(steps, evaluations))

    assert at[-1] == steps
    assert at[0] >= 1
    assert len(at) == min(steps, evaluations)
    gaps = [b - a for a, b in itertools.pairwise([0, *at])]
    assert max(gaps) - min(gaps) <= 1
