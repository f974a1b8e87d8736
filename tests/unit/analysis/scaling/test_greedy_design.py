import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.scaling.greedy_design import DesignModel, greedy_plan, mean_removed, spread_plan
from analysis.scaling.kriging import kriging


def model(seed, n=8, n_targets=2):
    root = np.random.default_rng(seed).standard_normal((n + n_targets, n + n_targets))
    return DesignModel(covariance=root @ root.T, noise=np.full(n, 0.1))


@given(
    seed=st.integers(0, 99),
    budget=st.floats(0.01, 50),
    n_runs=st.integers(1, 9),
    wild=st.booleans(),
)
@settings(max_examples=60, deadline=None)  # fmt: skip
def test_plans_keep_to_the_budget_choose_once_and_are_deterministic(seed, budget, n_runs, wild):
    costs = np.random.default_rng(seed).lognormal(sigma=3 if wild else 0.1, size=8)
    models = [model(seed), model(seed + 1)]
    allowed = np.arange(8) != 3

    plan = spread_plan(models, costs, budget=budget, n_runs=n_runs, allowed=allowed)

    rows = [i for i, _ in plan]
    assert costs[rows].sum() <= budget * (1 + 1e-9)
    assert len(rows) == len(set(rows)) <= n_runs
    assert 3 not in rows
    # Whoever stops early has nothing left that fits.
    rest = np.setdiff1d(np.flatnonzero(allowed), rows)
    assert len(rows) == n_runs or (costs[rest] > budget - costs[rows].sum()).all()
    assert plan == spread_plan(models, costs, budget=budget, n_runs=n_runs, allowed=allowed)
    left = [1.0, *(share for _, share in plan)]
    assert all(a >= b >= 0 for a, b in pairwise(left))


@given(order=st.permutations(range(4)))
@settings(max_examples=10, deadline=None)
def test_what_is_left_is_that_of_conditioning_on_all_at_once(order):
    """The oracle conditions the joint normal distribution with one inverse."""
    given_, rows = model(5), [2 + i for i in order]
    after = given_
    for i in order:
        after = after.after(i)

    C = given_.covariance
    among = C[np.ix_(rows, rows)] + 0.1 * np.eye(4)
    expected = C[:2, :2] - C[:2, rows] @ np.linalg.inv(among) @ C[rows, :2]
    assert after.variance == pytest.approx(np.trace(expected), rel=1e-6)


def test_gains_are_averaged_over_models():
    models = [model(1), model(2)]
    start = [m.variance for m in models]

    shares = [m.removed() / s for m, s in zip(models, start, strict=True)]

    assert mean_removed(models, start) == pytest.approx((shares[0] + shares[1]) / 2)


def test_over_candidates_it_is_their_variance_that_falls():
    targets = model(7)
    region = dataclasses.replace(targets, over_candidates=True)

    removed = region.removed()

    assert region.variance == pytest.approx(np.trace(targets.covariance[2:, 2:]))
    for i, value in enumerate(removed):
        assert region.variance - region.after(i).variance == pytest.approx(value)
    # It chooses, and the share that is left is the targets' alone.
    costs = np.ones(8)
    plan = spread_plan([targets, region], costs, n_runs=1)
    shares = (mean_removed([m], [m.variance]) for m in (targets, region))
    assert plan[0][0] == int(sum(shares).argmax())
    assert plan[0][1] == pytest.approx(1 - targets.removed()[plan[0][0]] / targets.variance)


def sizes_and_lengths():
    """Return logarithms of a grid of sizes and tokens, and what each costs."""
    N, D = (x.ravel() for x in np.meshgrid(np.geomspace(1e7, 1e9, 7), np.geomspace(1e9, 1e11, 7)))
    return np.log(np.column_stack([N, D])), N * D / 1e18


@given(budget=st.floats(3, 200))
@settings(max_examples=20, deadline=None)
def test_without_any_runs_or_law_it_fills_the_space(budget):
    at, costs = sizes_and_lengths()
    target = np.log([[1e10, 1e12]])
    found = kriging(np.empty((0, 2)), np.empty(0), np.concatenate([target, at]), box=at)
    one = DesignModel(covariance=found.covariance, noise=np.full(len(at), found.noise))

    rows = [i for i, _ in spread_plan([one], costs, budget=budget, n_runs=12)]

    assert len(set(at[rows, 0])) >= 3
    assert len(set(at[rows, 1])) >= 3
    # One run takes most of the budget, and few are of the smallest size.
    assert costs[rows].max() > np.median(costs[costs <= budget])
    assert np.mean(at[rows, 0] == at[:, 0].min()) <= 0.5


def test_a_model_that_only_wants_the_cheapest_does_not_get_its_way():
    """A wrong law that finds the smallest size most telling, per cost, against kriging."""
    at, costs = sizes_and_lengths()
    found = kriging(np.empty((0, 2)), np.empty(0), np.concatenate([np.log([[1e10, 1e12]]), at]), box=at)  # fmt: skip
    row = np.concatenate([[1.0], np.where(at[:, 0] == at[:, 0].min(), 1.0, 1e-3)])
    law = DesignModel(covariance=np.outer(row, row), noise=np.full(len(at), 1e-4))
    robust = DesignModel(covariance=found.covariance, noise=np.full(len(at), found.noise))

    alone = greedy_plan(law, costs, budget=30.0, n_runs=7, allowed=np.ones(len(at), dtype=bool))
    both = spread_plan([law, robust], costs, budget=30.0, n_runs=7)

    sizes = [{at[i, 0] for i, _ in plan} for plan in (alone, both)]
    assert sizes[0] == {at[:, 0].min()}
    assert len(sizes[1]) >= 3
