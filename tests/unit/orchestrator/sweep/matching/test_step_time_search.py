"""Finding equal step times from noisy ones. Times here are made up, noise included; nothing is timed."""

import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.sweep.matching import step_time_search
from orchestrator.sweep.matching.step_time_search import NoMatchError, RatioEstimate

Ratio = Callable[[int], float]


class Bench:
    """A machine on which a step takes `ratio(value)`, more or less."""

    def __init__(self, ratio: Ratio, *, noise: float = 0.0, bursts: float = 0.0, seed: int = 0):
        self.ratio, self.noise, self.bursts = ratio, noise, bursts
        self.measured: list[int] = []
        self.random = random.Random(seed)

    def measure(self, value: int, exactly: bool) -> list[float]:
        self.measured.append(value)
        return [self.block(value) for _ in range(40 if exactly else 10)]

    def block(self, value: int) -> float:
        disturbed = 1.6 if self.random.random() < self.bursts else 1.0
        return disturbed * self.ratio(value) * math.exp(self.random.gauss(0.0, self.noise))

    def search(
        self, *, start: int = 88, possible: Callable[[int], bool] = lambda value: True
    ) -> tuple[int, RatioEstimate]:
        return step_time_search.search(
            self.measure,
            field="d_ff",
            wanted="the step time of dense",
            start=start,
            possible=possible,
            report=lambda value, found: None,
        )


def affine(*, equal_at: float, share: float) -> Ratio:
    """A step of which `share` grows with the value, as long as the target's at `equal_at`."""
    return lambda value: 1 - share + share * value / equal_at


@given(
    equal_at=st.floats(8.0, 4_000.0),
    share=st.floats(0.1, 1.0),
    start=st.integers(8, 4_000),
)
def test_without_noise_the_value_is_within_one_percent_and_few_are_measured(
    equal_at: float, share: float, start: int
) -> None:
    bench = Bench(affine(equal_at=equal_at, share=share))

    try:
        value, found = bench.search(start=start)
    except NoMatchError:
        # Steps of one are then more than two per cent of a step's time, or the limit of the search is in between.
        near = [n for n in range(1, 4_001) if abs(bench.ratio(n) - 1) <= 0.01]
        assert not near or min(near) > step_time_search.FARTHEST * start
        return

    assert abs(bench.ratio(value) - 1) <= 0.01 + 1e-12
    assert found.uncertainty == 0
    assert len(bench.measured) <= 14


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("start", [20, 88, 700])
def test_with_noise_the_value_is_as_near_as_it_says(seed: int, start: int) -> None:
    bench = Bench(affine(equal_at=60, share=0.5), noise=0.05, bursts=0.05, seed=seed)

    value, found = bench.search(start=start)

    # Its uncertainty covers 95 % of the cases; three halves of it all of these.
    assert abs(bench.ratio(value) - 1) <= 0.01 + 1.5 * found.uncertainty
    assert found.uncertainty <= step_time_search.LARGEST_UNCERTAINTY
    assert found.measurements >= step_time_search.FEWEST_OF_ONE
    assert len(bench.measured) <= step_time_search.MOST_MEASUREMENTS


def test_steps_that_take_longer_between_multiples_of_eight_are_met_at_one() -> None:
    def kernels(value: int) -> float:
        return (0.5 + 0.5 * value / 72) * (1.0 if value % 8 == 0 else 1.3)

    assert Bench(kernels).search(start=176)[0] == 72


def test_only_possible_values_are_measured() -> None:
    bench = Bench(affine(equal_at=48, share=0.5))

    value, _ = bench.search(start=96, possible=lambda n: n % 12 == 0)

    assert value == 48
    assert all(n % 12 == 0 for n in bench.measured)


@pytest.mark.parametrize(
    ("ratio", "told"),
    [
        (lambda value: 60 / value, "the nearest is d_ff"),
        (lambda value: 1.3, "make the rest of the model smaller, or solve for another field"),
        (lambda value: 0.7, "make the rest of the model larger, or solve for another field"),
        (lambda value: 0.8 if value < 70 else 1.2, " with 0.800 ± 0.000 × it"),
    ],
    ids=["falling", "always slower", "always faster", "jump"],
)
def test_where_no_value_is_near_the_nearest_is_named(ratio: Ratio, told: str) -> None:
    bench = Bench(ratio)

    with pytest.raises(NoMatchError, match="no d_ff gives the step time of dense within 1 %") as no:
        bench.search()

    assert told in str(no.value)
    assert len(bench.measured) < step_time_search.MOST_MEASUREMENTS


def test_a_field_that_takes_one_value_alone_is_measured_again_before_it_is_given_up() -> None:
    bench = Bench(lambda value: 1.5)

    with pytest.raises(NoMatchError, match=r"the nearest is d_ff 88 with 1.500"):
        bench.search(possible=lambda n: n == 88)

    assert bench.measured == [88] * step_time_search.FEWEST_OF_ONE


def test_timings_that_say_nothing_are_refused() -> None:
    with pytest.raises(NoMatchError, match="timings vary too much on this machine: a ratio of"):
        Bench(lambda value: 1.0, noise=2.0).search()


def test_a_search_ends() -> None:
    wild = Bench(lambda value: 1.0)
    wild.block = lambda value: math.exp(wild.random.gauss(0.0, 0.3) * len(wild.measured))  # type: ignore[method-assign]

    with pytest.raises(NoMatchError):
        wild.search()

    assert len(wild.measured) <= step_time_search.MOST_MEASUREMENTS


def test_an_estimate_covers_what_differs_between_measurements_and_ignores_long_blocks() -> None:
    steady = [1.0, 1.001, 0.999, 1.0, 1.002, 0.998, 1.0, 9.0]

    alone = step_time_search.estimate([steady])
    apart = step_time_search.estimate([steady, [1.04 * ratio for ratio in steady]])

    assert alone.ratio == 1.0
    assert alone.uncertainty < 0.005
    assert apart.uncertainty > 0.03
    assert str(alone) == f"1.000 ± {alone.uncertainty:.3f}"


def test_a_single_ratio_is_measured_until_it_is_known_within_one_percent() -> None:
    told: list[RatioEstimate] = []
    bench = Bench(lambda value: 1.3, noise=0.02)

    found = step_time_search.settled(lambda: bench.measure(0, True), report=told.append)

    assert found == told[-1]
    assert found.ratio == pytest.approx(1.3, abs=0.02)
    assert found.uncertainty <= 0.01
    assert len(told) >= step_time_search.FEWEST_OF_ONE


def test_a_single_ratio_that_stays_unknown_is_refused() -> None:
    def measure() -> Sequence[float]:
        return [0.5, 1.0, 2.0]

    with pytest.raises(NoMatchError, match="after 6 measurements"):
        step_time_search.settled(measure, report=lambda found: None)
