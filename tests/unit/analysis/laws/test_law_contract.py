"""What every law owes: exact derivatives, coefficients that come back, and answers that do not depend on units or row order."""

import functools

import numpy as np
import pytest

from analysis.fitting.fit_law import fit_law
from analysis.fitting.law import LawProblem
from analysis.fitting.objective import SQUARES, Objective
from analysis.fitting.result import FitStatus
from analysis.fitting.synthetic import make_inputs, make_runs
from analysis.laws.registry import CURVES, all_laws, law_named

LAWS = sorted(all_laws().items())
every_law = pytest.mark.parametrize("law", [law for _, law in LAWS], ids=[n for n, _ in LAWS])
MANY_COEFFICIENTS = 8
"""Coefficients from which on further fits of a law, which take longest, wait for `make test-long`.
Its derivatives and its optimum are tested all the same."""
every_law_in_its_time = pytest.mark.parametrize(
    "law",
    [
        pytest.param(
            law,
            id=name,
            marks=pytest.mark.long if len(law.parameters) >= MANY_COEFFICIENTS else (),
        )
        for name, law in LAWS
    ],
)


def truth(law):
    return np.asarray([[law.example[name] for name in law.parameter_names]])


def problem_of(law, objective=SQUARES, n=40):
    runs = make_runs(law, n, noise=0.01)
    return LawProblem(law, {k: runs[k] for k in law.inputs}, runs["loss"], objective)


def near_truth(law, problem, size=0.05):
    moved = problem.scale(truth(law)) + size * np.random.default_rng(1).standard_normal(
        (3, len(law.parameters))
    )
    return np.clip(moved, problem.lower + 1e-3, problem.upper - 1e-3)


@functools.cache
def fitted(law):
    """One fit of 40 runs by Huber's loss, for the tests that look at it from several sides."""
    runs = make_runs(law, 40, noise=0.01)
    return fit_law(law, runs, objective=Objective(), n_draws=2, hold_out=False)


@every_law
def test_it_says_what_it_is(law):
    assert law.equation
    assert any(character.isdigit() for character in law.source), "a source has a year"
    assert set(law.example) == set(law.parameter_names)
    assert law_named(law.name) is law


def test_curves_of_one_size_have_names_and_are_no_candidates():
    assert [law_named(name) for name in CURVES] == list(CURVES.values())
    assert set(CURVES) == {"power_law", "saturating"}
    assert not set(CURVES) & set(all_laws())


def test_a_misspelt_law_is_guessed():
    with pytest.raises(
        ValueError, match=r"law: no 'chinchila'; did you mean chinchilla\? there are"
    ):
        law_named("chinchila")
    with pytest.raises(ValueError, match=r"law: no 'zzz'; there are batch_tokens"):
        law_named("zzz")


@every_law
@pytest.mark.parametrize("residual", ["log", "value"])
def test_derivatives_are_those_of_finite_differences(law, residual):
    problem = problem_of(law, Objective(residual=residual, huber=None))
    theta = near_truth(law, problem)

    exact = problem.jacobian(theta)

    for i in range(theta.shape[1]):
        step = np.zeros(theta.shape[1])
        step[i] = 1e-5
        numeric = (problem.values(theta + step) - problem.values(theta - step)) / 2e-5
        np.testing.assert_allclose(exact[:, :, i], numeric, rtol=1e-5, atol=1e-7)


@every_law
def test_centred_parameters_are_those_of_the_equation(law):
    problem = problem_of(law)
    theta = near_truth(law, problem)

    raw = problem.unscale(theta)

    inputs = make_inputs(law, 40)
    np.testing.assert_allclose(law.evaluate(inputs, raw), np.exp(problem.values(theta)), rtol=1e-9)
    np.testing.assert_allclose(problem.scale(raw), theta, rtol=1e-7, atol=1e-9)


@every_law_in_its_time
def test_known_coefficients_come_back_without_noise(law):
    fit = fit_law(law, make_runs(law, 60, noise=0), objective=SQUARES, n_draws=0, hold_out=False)

    assert fit.status is FitStatus.CONVERGED, fit.sentence
    np.testing.assert_allclose(list(fit.parameters.values()), truth(law)[0], rtol=1e-6)
    assert fit.moved > 0
    assert fit.condition_number < 1e6


@every_law
def test_internal_values_depend_on_what_the_law_declares(law):
    place = {name: i for i, name in enumerate(law.parameter_names)}
    before = law.internal(truth(law))[0]

    for p in law.parameters:
        for name in place.keys() - {p.name, *p.coupled_to}:
            moved = truth(law)
            moved[0, place[name]] *= 1.1
            after = law.internal(moved)[0]
            assert after[place[p.name]] == pytest.approx(before[place[p.name]], rel=1e-12), name


@every_law_in_its_time
def test_a_parameter_is_held_at_the_truth_or_not_at_all(law):
    runs = make_runs(law, 60, noise=0)
    of_value = law.default_objective.residual == "value"
    options = {
        "objective": law.default_objective if of_value else SQUARES,
        "n_draws": 0,
        "hold_out": False,
    }
    for p in law.parameters:
        if p.coupled_to:
            with pytest.raises(ValueError, match=f"^{p.name}: {law.name} can hold it only where"):
                fit_law(law, runs, fixed={p.name: law.example[p.name]}, **options)

        known = {name: law.example[name] for name in (p.name, *p.coupled_to)}
        fit = fit_law(law, runs, fixed=known, **options)

        assert fit.status is FitStatus.CONVERGED, (p.name, fit.sentence)
        np.testing.assert_allclose(list(fit.parameters.values()), truth(law)[0], rtol=1e-5)


@every_law
def test_no_random_point_nearby_is_better(law):
    fit = fitted(law)
    problem = fit.problem()
    best = problem.scale(np.asarray([list(fit.parameters.values())]))
    scale = 10.0 ** np.random.default_rng(0).uniform(-6, -1, (500, 1))
    moved = best + scale * np.random.default_rng(1).standard_normal((500, best.shape[1]))
    r = np.abs(problem.values(np.clip(moved, problem.lower, problem.upper)) - problem.y)

    others = np.where(r <= 1e-3, r**2 / 2, 1e-3 * (r - 5e-4)).sum(axis=1)

    assert fit.usable
    assert others.min() >= fit.objective * (1 - 1e-9)


@pytest.mark.parametrize("name", ["power", "chinchilla", "fine_grained"])
def test_the_order_of_the_rows_changes_nothing(name):
    """Of laws with one, two and three inputs.

    Rows are sorted before any law sees them, and property tests draw orders.
    """
    law = law_named(name)
    runs = make_runs(law, 40, noise=0.01)
    shuffled = np.random.default_rng(3).permutation(40)

    fit = fitted(law)
    runs = {k: v[shuffled] for k, v in runs.items()}
    other = fit_law(law, runs, objective=Objective(), n_draws=2, hold_out=False)

    assert dict(fit.parameters) == dict(other.parameters)
    np.testing.assert_array_equal(fit.draws, other.draws)
    np.testing.assert_array_equal(fit.residuals[shuffled], other.residuals)


@every_law_in_its_time
def test_the_unit_of_the_outcome_only_scales_it(law):
    runs = make_runs(law, 40, noise=0.01)
    same_unit = {"loss", "data_bits"}
    bits = {k: v / np.log(2) if k in same_unit else v for k, v in runs.items()}

    fit = fitted(law)
    other = fit_law(law, bits, objective=Objective(), n_draws=0, hold_out=False)

    np.testing.assert_allclose(other.predict(bits).y * np.log(2), fit.predict(runs).y, rtol=1e-5)
    np.testing.assert_allclose(other.objective, fit.objective, rtol=1e-6)
