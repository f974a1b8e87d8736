import numpy as np
import pytest
from scipy.optimize import curve_fit

from analysis.fitting.fit_law import fit_law
from analysis.fitting.law import LawProblem
from analysis.fitting.objective import SQUARED_ERROR
from analysis.fitting.result import FitStatus
from analysis.laws.loss_to_accuracy import Exponential, Sigmoid

L = np.linspace(2.2, 4.0, 14)
CASES = [
    (Exponential(), [0.85, 2.1, 0.75]),
    (Exponential(fixed_eps=0.75), [0.75, 3.0, 0.9]),
    (Exponential(), [0.2, -0.01, -1.5]),
    (Sigmoid(chance=0.25), [0.9, 2.8, 3.0]),
    (Sigmoid(chance=0.5, fixed_ceiling=1.0), [1.0, 3.0, 2.0]),
    (Sigmoid(chance=None), [0.3, 0.9, 2.8, 5.0]),
    (Sigmoid(chance=None, fixed_ceiling=0.95), [0.3, 0.95, 2.8, 5.0]),
]


def fit_link(link, losses, y):
    return fit_law(link, {"loss": losses, "y": y}, outcome="y", n_draws=0, hold_out=False)


@pytest.mark.parametrize(("link", "parameters"), CASES)
def test_known_parameters_come_back(link, parameters):
    y = link.evaluate({"loss": L}, np.asarray(parameters))

    fit = fit_link(link, L, y)

    assert fit.status is FitStatus.CONVERGED, fit.sentence
    np.testing.assert_allclose(list(fit.parameters.values()), parameters, rtol=1e-5)
    np.testing.assert_allclose(fit.predict(L).y, y, rtol=1e-9)


@pytest.mark.parametrize(("link", "parameters"), CASES)
def test_the_inverse_leads_back(link, parameters):
    p = np.asarray([parameters])
    y = link.evaluate({"loss": np.asarray([2.9])}, p[0])

    np.testing.assert_allclose(link.invert(y, p), [2.9], rtol=1e-9)


@pytest.mark.parametrize(("link", "parameters"), CASES)
def test_derivatives_are_those_of_finite_differences(link, parameters):
    y = link.evaluate({"loss": L}, np.asarray(parameters)) + 0.01 * np.cos(9 * L)
    problem = LawProblem(link, {"loss": L}, y, SQUARED_ERROR)
    theta = np.clip(problem.starts()[:6] + 0.01, problem.lower, problem.upper)

    exact = problem.jacobian(theta)

    for i in np.flatnonzero(problem.lower < problem.upper):
        step = np.zeros(theta.shape[1])
        step[i] = 1e-6
        numeric = (problem.values(theta + step) - problem.values(theta - step)) / 2e-6
        np.testing.assert_allclose(exact[:, :, i], numeric, rtol=1e-4, atol=1e-6)


def test_a_straight_line_is_gamma_zero():
    fit = fit_link(Exponential(), L, 0.1 + 0.2 * L)

    assert abs(fit.parameters["gamma"]) < 1e-3
    np.testing.assert_allclose(fit.predict(L).y, 0.1 + 0.2 * L, rtol=1e-4)


@pytest.mark.parametrize(("link", "parameters"), CASES)
def test_centred_parameters_are_those_of_the_equation(link, parameters):
    y = link.evaluate({"loss": L}, np.asarray(parameters)) + 0.01 * np.cos(9 * L)
    problem = LawProblem(link, {"loss": L}, y, SQUARED_ERROR)
    raw = np.asarray([parameters])

    theta = problem.scale(raw)

    np.testing.assert_allclose(problem.unscale(theta), raw, rtol=1e-9)
    np.testing.assert_allclose(
        problem.values(theta)[0] * problem.y_unit, link.evaluate({"loss": L}, raw)[0], rtol=1e-9
    )


def test_noisy_errors_are_fitted_as_scipy_does():
    y = 0.85 - 2.1 * np.exp(-0.75 * L) + 0.004 * np.random.default_rng(0).standard_normal(len(L))

    fit = fit_link(Exponential(), L, y)

    expected, _ = curve_fit(
        lambda x, e, k, g: e - k * np.exp(-g * x),
        L,
        y,
        p0=[0.85, 2.1, 0.75],
        xtol=1e-12,
        ftol=1e-12,
    )
    np.testing.assert_allclose(list(fit.parameters.values()), expected, rtol=1e-3)


def test_a_fitted_floor_is_that_of_scipy():
    y = 0.35 + 0.6 / (1 + np.exp(5 * (L - 2.8))) + 0.01 * np.cos(9 * L)

    fit = fit_link(Sigmoid(chance=None), L, y)

    expected, _ = curve_fit(
        lambda x, f, c, m, k: f + (c - f) / (1 + np.exp(k * (x - m))), L, y, p0=[0.3, 0.9, 2.7, 4.0]
    )
    np.testing.assert_allclose(list(fit.parameters.values()), expected, rtol=1e-4)


def test_an_outcome_that_falls_with_the_loss_is_not_fitted():
    fit = fit_link(Exponential(), L, 1 - 0.2 * L)

    assert fit.status is FitStatus.FLAT
    assert not fit.usable


def test_levels_are_checked():
    with pytest.raises(ValueError, match="floor must lie"):
        Sigmoid(chance=1.0)
