"""Seconds by activity, and what of them warm-up steps are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.training.metrics.metrics_log import Stopwatch, Throughput

SECONDS = st.floats(min_value=0.0, max_value=1e6)


def stopwatch(**seconds: float) -> Stopwatch:
    watch = Stopwatch(clock=lambda: 0.0)
    watch.seconds |= seconds
    return watch


def test_compilation_is_no_training() -> None:
    """Ten steps of 2 s, three of which compiled for 30 s more."""
    watch = stopwatch(start=36.0, train=14.0, evaluate=5.0, data=1.0)

    assert watch.split(steps=10, warm_ups=3) == {
        "train": 20.0,
        "start": 30.0,
        "evaluate": 5.0,
        "data": 1.0,
    }


@pytest.mark.parametrize("steps", [0, 3])
def test_nothing_is_known_of_warm_ups_alone(steps: int) -> None:
    assert stopwatch(start=36.0).split(steps=steps, warm_ups=steps) == {
        "train": 36.0,
        "start": 0.0,
        "evaluate": 0.0,
        "data": 0.0,
    }


@given(start=SECONDS, train=SECONDS, steps=st.integers(0, 50), warm_ups=st.integers(0, 50))
def test_a_split_loses_no_second(start: float, train: float, steps: int, warm_ups: int) -> None:
    split = stopwatch(start=start, train=train).split(steps=steps, warm_ups=min(steps, warm_ups))

    assert split["train"] + split["start"] == pytest.approx(start + train)
    assert split["start"] >= 0.0
    assert split["train"] >= train


def test_a_short_last_lap_is_joined_with_the_one_before() -> None:
    watch = stopwatch()
    throughput = Throughput(watch, tokens=500)
    rates = []
    for tokens, seconds, is_short in ((1000, 10.0, False), (1000, 5.0, False), (100, 5.0, True)):
        throughput.tokens += tokens
        watch.seconds["train"] += seconds
        rates.append(throughput.lap(is_short=is_short))

    assert rates == [100.0, 200.0, 110.0]


def test_a_first_lap_that_is_short_stands_alone() -> None:
    watch = stopwatch()
    throughput = Throughput(watch, tokens=500)
    throughput.tokens += 100
    watch.seconds["train"] += 5.0

    assert throughput.lap(is_short=True) == 20.0
