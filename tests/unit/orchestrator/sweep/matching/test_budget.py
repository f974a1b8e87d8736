"""Compute budgets in whole steps and whole widths."""

import pytest

from orchestrator.sweep.matching import budget


def test_tokens_are_rounded_up_to_whole_steps() -> None:
    assert [budget.steps_for_tokens(n, batch_tokens=64) for n in (1, 64, 65, 128)] == [1, 1, 2, 2]


def test_budgets_are_rounded_to_the_nearest_step() -> None:
    assert [budget.steps_for_budget(c, step_flops=10) for c in (1, 14, 16, 100)] == [1, 1, 2, 10]


@pytest.mark.parametrize(("target", "nearest"), [(-5, 1), (10, 1), (71, 7), (76, 8), (1e9, 2**10)])
def test_the_nearest_integer_is_found(target: float, nearest: int) -> None:
    assert budget.nearest_integer(lambda n: 10.0 * n, target, high=2**10) == nearest


def test_the_optimal_size_follows_the_square_root_of_compute() -> None:
    # With f(N) = 2N and D = 20N, C = 6 N D = 120 N^2.
    for size in (1e4, 1e6, 1e9):
        found = budget.optimal_size(
            lambda n: 2.0 * n, budget_flops=120 * size**2, tokens_per_param=20
        )
        assert found == pytest.approx(size, rel=1e-3)


def test_sizes_are_evenly_spaced_in_log_around_the_middle() -> None:
    sizes = budget.log_spaced(100.0, span=16.0, count=5)

    assert sizes == pytest.approx([25.0, 50.0, 100.0, 200.0, 400.0])
    assert budget.log_spaced(100.0, span=16.0, count=1) == [100.0]


def test_the_advised_batch_always_hits_the_budget() -> None:
    for target in (1e9, 3.3e9, 7e10):
        batch = budget.most_batch_tokens(target, forward_flops_per_token=1e4, multiple_of=16)
        step = 3e4 * batch
        reached = step * budget.steps_for_budget(target, step_flops=step)
        assert batch % 16 == 0
        assert budget.relative_error(reached, target) <= budget.TOLERANCE


def test_the_advised_batch_hits_budgets_that_lie_half_way_between_steps() -> None:
    # The worst case of rounding: a budget of so many steps and a half.
    for steps in (50.5, 77.5):
        target = 3e4 * 16 * steps * 100
        batch = budget.most_batch_tokens(target, forward_flops_per_token=1e4, multiple_of=16)
        for smaller in (batch, batch // 2 // 16 * 16):
            step = 3e4 * smaller
            assert abs(round(target / step) * step - target) <= budget.TOLERANCE * target
        assert target / (3e4 * batch) >= 1 / (2 * budget.TOLERANCE)


def test_no_batch_is_advised_where_one_sequence_is_too_much() -> None:
    assert budget.most_batch_tokens(1e5, forward_flops_per_token=1e4, multiple_of=16) == 0
