"""Solving for FLOPs: within 1 % wherever that is possible."""

import dataclasses
from collections.abc import Callable
from typing import Any

from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from orchestrator.sweep.draft_trial import FREE_DIMENSION, Match, Profile
from orchestrator.sweep.matching import budget, isoflop_ladder, match
from orchestrator.sweep.matching.quantities import QUANTITIES
from orchestrator.sweep.parsing.diagnostics import InvalidError
from orchestrator.sweep.parsing.yaml_loader import parse
from workloads.architectures import dense, memory_plus
from workloads.training.config import TrainConfig

WHERE, _ = parse("match: here")
ARCHITECTURES = st.sampled_from([dense, memory_plus])
FRAMES = st.builds(
    isoflop_ladder.Frame,
    vocab_size=st.integers(100, 50_000),
    seq_len=st.sampled_from([16, 64, 256]),
    batch_tokens=st.sampled_from([256, 1_024, 8_192]),
)


@given(budget_flops=st.floats(1e9, 1e24), step=st.floats(1e3, 1e20))
def test_the_nearest_step_is_the_nearest(budget_flops: float, step: float) -> None:
    steps = budget.steps_for_budget(budget_flops, step_flops=step)

    error = abs(steps * step - budget_flops)
    assert steps >= 1
    assert error <= abs((steps + 1) * step - budget_flops) * (1 + 1e-9)
    assert steps == 1 or error <= abs((steps - 1) * step - budget_flops) * (1 + 1e-9)


@given(
    slope=st.floats(0.0, 1e6),
    offset=st.floats(0.0, 1e9),
    target=st.floats(0.0, 1e12),
    high=st.integers(1, 2**20),
)
def test_the_nearest_integer_beats_its_neighbours(
    slope: float, offset: float, target: float, high: int
) -> None:
    def flops(n: int) -> float:
        return offset + slope * n

    best = budget.nearest_integer(flops, target, high=high)

    assert best is not None
    assert 1 <= best <= high
    for other in (best - 1, best + 1):
        if 1 <= other <= high:
            assert abs(flops(best) - target) <= abs(flops(other) - target)


POSSIBLE = st.one_of(
    st.integers(1, 96).map(lambda step: lambda n: n % step == 0),
    st.integers(1, 1_100).map(lambda most: lambda n: n <= most),
    st.integers(1, 1_100).map(lambda least: lambda n: n >= least),
    st.integers(1, 900).map(lambda whole: lambda n: whole % n == 0),
    st.sets(st.integers(1, 1_100), min_size=1, max_size=6).map(lambda some: lambda n: n in some),
    st.just(lambda n: n & (n - 1) == 0),
)
"""Which integers a Config takes: multiples, at most, at least, divisors, a few, powers of two."""


@given(
    possible=POSSIBLE,
    grain=st.integers(1, 300),
    slope=st.floats(0.0, 1e3),
    target=st.floats(0.0, 1e6),
    written=st.none() | st.integers(1, 1_200),
)
def test_no_possible_integer_is_nearer_and_none_as_near_lies_on_the_way_to_what_is_written(
    possible: Callable[[int], bool], grain: int, slope: float, target: float, written: int | None
) -> None:
    def quantity(n: int) -> float | None:
        return slope * (n // grain) if possible(n) else None

    best = budget.nearest_integer(quantity, target, high=1_024, written=written)

    there = {n: quantity(n) for n in range(1, 1_025) if possible(n)}
    assert (best is None) == (not there)
    if best is None:
        return
    nearest = min(abs(number - target) for number in there.values() if number is not None)
    assert abs(slope * (best // grain) - target) == nearest
    equal = [n for n, number in there.items() if number == quantity(best)]
    low, high = sorted((best, written or 1))
    assert not [n for n in equal if low <= n <= high and n != best]


@settings(max_examples=20, deadline=None)
@given(
    quantity=st.sampled_from(
        ["training_flops", "active_params", "total_params", "bytes_per_token"]
    ),
    architecture=ARCHITECTURES,
    field=st.sampled_from(["d_ff", "n_layers", "n_keys", "knn"]),
    factor=st.floats(0.5, 1.5),
)
def test_match_finds_the_nearest_value_of_any_field_or_says_that_it_is_too_far(
    quantity: str, architecture: Any, field: str, factor: float
) -> None:
    model = architecture.Config(**architecture.PRESETS["d16"])
    assume(hasattr(model, field))
    frame = isoflop_ladder.Frame(1_000, 16, 256)
    count = QUANTITIES[quantity].count
    assert count is not None
    target = factor * count(model, frame, 2_560)

    def numbers(stop: int) -> dict[int, float]:
        changed = {n: match.with_field(model, field, n) for n in range(1, stop)}
        return {n: count(m, frame, 2_560) for n, m in changed.items() if m is not None}

    refused = None
    try:
        value, reached = match.solved_field(
            a_match(quantity, solve_for=field), model, frame, target=target, tokens=2_560
        )
    except InvalidError as error:
        (refused,) = error.diagnostics

    if refused is not None:
        nearest = min(budget.relative_error(number, target) for number in numbers(400).values())
        assert nearest > 0.01
        assert f"{field} " in refused.message
        return

    possible = numbers(2 * value)
    assert abs(reached - target) == min(abs(number - target) for number in possible.values())
    assert budget.relative_error(reached, target) <= 0.01
    assert possible[value] == reached


def a_match(quantity: str, *, solve_for: str = FREE_DIMENSION) -> Match:
    assert WHERE is not None
    return Match(
        where=WHERE,
        quantity=quantity,
        target=WHERE,
        architecture="dense",
        target_number=None,
        solve=solve_for,
    )


@given(
    frame=FRAMES,
    preset=st.sampled_from(["1m", "3m", "10m", "134m"]),
    n_keys=st.sampled_from([64, 128, 256, 512]),
    steps=st.integers(1, 10_000),
)
def test_match_hits_the_dense_model_within_one_percent(
    frame: isoflop_ladder.Frame, preset: str, n_keys: int, steps: int
) -> None:
    tokens = steps * frame.batch_tokens
    train = TrainConfig(
        tokens=tokens, batch_tokens=frame.batch_tokens, seq_len=frame.seq_len, lr=1e-3
    )
    target = isoflop_ladder.training_flops(
        dense.Config(**dense.PRESETS[preset]), frame, tokens=train.tokens
    )
    model = memory_plus.Config(**{**memory_plus.PRESETS[preset], "n_keys": n_keys})

    refused = None
    try:
        value, reached = match.solved_field(
            a_match("training_flops"), model, frame, target=target, tokens=train.tokens
        )
    except InvalidError as error:
        (refused,) = error.diagnostics

    if refused is not None:
        # Only where even the narrowest feed-forward block costs too much is there no answer.
        assert "d_ff 1 " in refused.message
    else:
        solved = dataclasses.replace(model, d_ff=value)
        assert reached == isoflop_ladder.training_flops(solved, frame, tokens=train.tokens)
        assert budget.relative_error(reached, target) <= 0.01


@settings(max_examples=12, deadline=None)
@given(
    frame=FRAMES,
    architecture=ARCHITECTURES,
    budget_flops=st.floats(1e13, 1e18),
    ratio=st.floats(5.0, 100.0),
)
def test_profiles_spend_their_budget_within_one_percent_or_say_why(
    frame: isoflop_ladder.Frame, architecture: object, budget_flops: float, ratio: float
) -> None:
    assert WHERE is not None
    profile = Profile(
        budget=WHERE,
        budget_flops=budget_flops,
        index=1,
        sizes=3,
        span=4.0,
        tokens_per_param=ratio,
    )
    nearest_size = architecture.Config.nearest_size  # type: ignore[attr-defined]
    center = isoflop_ladder.profile_center(nearest_size, profile, frame)
    try:
        model = isoflop_ladder.profile_model(nearest_size, profile, center=center)
    except InvalidError:
        reject()

    refused = None
    try:
        tokens = isoflop_ladder.tokens_for(profile, model, frame, largest=lambda: model)
    except InvalidError as error:
        (refused,) = error.diagnostics

    if refused is not None:
        _, reached = isoflop_ladder.tokens_near(budget_flops, model, frame)
        assert budget.relative_error(reached, budget_flops) > 0.01
        assert "lower train." in refused.fix
    else:
        assert tokens % frame.batch_tokens == 0
        reached = isoflop_ladder.training_flops(model, frame, tokens=tokens)
        assert budget.relative_error(reached, budget_flops) <= 0.01
