import numpy as np
import pytest
import scipy.optimize

from analysis.fitting import levenberg_marquardt
from analysis.fitting.levenberg_marquardt import minimise

X = np.linspace(0.0, 2.0, 9)


def line(theta):
    return theta[:, :1] + theta[:, 1:] * X


def slopes(theta):
    return np.stack(
        [np.ones((len(theta), len(X))), np.broadcast_to(X, (len(theta), len(X)))], axis=-1
    )


def solve(y, *, weights=None, lower=(-9, -9), upper=(9, 9), huber=None, starts=((0.0, 0.0),)):
    starts = np.asarray(starts)
    weights = np.ones((len(starts), len(X))) if weights is None else weights
    return minimise(
        line,
        slopes,
        np.asarray(y),
        weights,
        starts,
        lower=np.asarray(lower, float),
        upper=np.asarray(upper, float),
        huber=huber,
    )


def test_a_line_equals_the_normal_equations():
    y = 1 + 0.5 * X + np.sin(9 * X)

    found = solve(y)

    expected = np.polynomial.polynomial.polyfit(X, y, 1)
    np.testing.assert_allclose(found.parameters[0], expected, rtol=1e-9)
    assert found.converged[0]
    assert found.gradient[0] < 1e-6


def test_weights_of_zero_remove_a_point():
    y = 1 + 0.5 * X
    y[3] = 100.0
    weights = np.ones((2, len(X)))
    weights[1, 3] = 0

    found = solve(y, weights=weights, starts=((0, 0), (0, 0)))

    np.testing.assert_allclose(found.parameters[1], [1, 0.5], atol=1e-9)
    assert abs(found.parameters[0, 0] - 1) > 1


def test_a_bound_is_kept_and_the_rest_is_optimal_there():
    y = -1 + 2 * X

    found = solve(y, lower=(0, -9))

    assert found.parameters[0, 0] == 0
    np.testing.assert_allclose(found.parameters[0, 1], (X @ y) / (X @ X), rtol=1e-9)
    assert found.converged[0]


def test_equal_bounds_fix_a_parameter():
    found = solve(1 + 0.5 * X, lower=(2, -9), upper=(2, 9))

    assert found.parameters[0, 0] == 2


def test_huber_follows_the_majority_and_has_the_stated_objective():
    y = 1 + 0.5 * X
    y[4] += 50.0

    found = solve(y, huber=1e-3)

    np.testing.assert_allclose(found.parameters[0], [1, 0.5], atol=2e-3)
    assert found.objective[0] == pytest.approx(1e-3 * 50, rel=1e-2)


def test_problems_do_not_disturb_each_other():
    y = np.cos(3 * X)
    weights = np.random.default_rng(0).integers(0, 3, (20, len(X))).astype(float)

    together = solve(y, weights=weights, starts=np.zeros((20, 2)))

    for i in range(20):
        alone = solve(y, weights=weights[i : i + 1])
        np.testing.assert_allclose(alone.parameters[0], together.parameters[i], rtol=1e-9)


def test_a_vanishing_threshold_is_the_absolute_error_of_a_linear_programme():
    y = 1 + 0.5 * X + np.sin(9 * X)
    n = len(X)

    found = solve(y, huber=1e-7, starts=[solve(y, huber=10.0**-k).parameters[0] for k in (1, 3, 5)])

    ones = np.eye(n)
    programme = scipy.optimize.linprog(
        np.concatenate([[0, 0], np.ones(n)]),
        A_ub=np.block(
            [[np.ones((n, 1)), X[:, None], -ones], [-np.ones((n, 1)), -X[:, None], -ones]]
        ),
        b_ub=np.concatenate([y, -y]),
        bounds=[(None, None)] * 2 + [(0, None)] * n,
    )
    assert found.objective.min() / 1e-7 == pytest.approx(programme.fun, rel=1e-5)


def test_many_problems_are_shared_out_over_threads_without_a_trace():
    y = np.cos(3 * X)
    starts = np.random.default_rng(0).normal(size=(9000, 2))

    together = solve(y, starts=starts)

    np.testing.assert_allclose(
        together.parameters, np.broadcast_to(together.parameters[0], (9000, 2)), rtol=1e-7
    )
    np.testing.assert_array_equal(together.parameters[-5:], solve(y, starts=starts[-5:]).parameters)


@pytest.mark.parametrize("iterations", [7, 300])
def test_dampings_tried_at_once_give_the_numbers_of_one_after_the_other(iterations, monkeypatch):
    starts = np.random.default_rng(0).normal(size=(5, 2))

    def exponential(theta):
        return theta[:, :1] * np.exp(theta[:, 1:] * X)

    def fitted():
        return minimise(
            exponential,
            lambda theta: np.stack(
                [np.exp(theta[:, 1:] * X), exponential(theta) * X], axis=1
            ).transpose(0, 2, 1),
            np.cos(3 * X),
            np.ones((5, len(X))),
            starts,
            lower=np.asarray([-9.0, -9.0]),
            upper=np.asarray([9.0, 9.0]),
            iterations=iterations,
        )

    at_once = fitted()
    monkeypatch.setattr(levenberg_marquardt, "_MOST_AHEAD", 1)
    one_by_one = fitted()

    assert at_once.iterations.max() > 6
    for name, values in vars(one_by_one).items():
        np.testing.assert_array_equal(getattr(at_once, name), values, err_msg=name)
