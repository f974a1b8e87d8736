"""What a fit must not depend on: the order of the rows and the units of x and y."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.fitting.fit_law import fit_law
from analysis.fitting.objective import SQUARES, Objective
from analysis.fitting.result import FitStatus
from analysis.fitting.synthetic import make_inputs
from analysis.laws.chinchilla import CHINCHILLA, CHINCHILLA_TIED
from analysis.laws.power import PowerLaw
from analysis.laws.saturating import Saturating
from analysis.loading.validation import ALL_KINDS

FEW = settings(max_examples=max(5, settings.default.max_examples // 16), deadline=None)
"""An example is two fits, most of a tenth of a second; new seeds draw more of them."""
SIZES = np.geomspace(1e5, 1e8, 6)
X = np.repeat(SIZES, 2)

scales = st.floats(-6, 6).map(lambda power: 10.0**power)
seeds = st.integers(0, 2**32 - 1)


def fit_power_law(x, y, **options):
    runs = {"x": x, "loss": y}
    return fit_law(PowerLaw(), runs, accept=ALL_KINDS, **options)


def fit_saturating(x, y, **options):
    return fit_law(Saturating(), {"x": x, "y": y}, outcome="y", accept=ALL_KINDS, **options)


def losses(seed):
    generator = np.random.default_rng(seed)
    E, alpha = generator.uniform(0.5, 3), generator.uniform(0.2, 0.9)
    clean = E + generator.uniform(0.5, 5) * (X / 1e6) ** -alpha
    return clean + 0.01 * generator.standard_normal(len(X))


def accuracies(seed):
    generator = np.random.default_rng(seed)
    ceiling, k = generator.uniform(0.5, 1), generator.uniform(0.6, 2.5)
    clean = ceiling / (1 + (10 ** generator.uniform(5.5, 7.5) / X) ** k)
    return np.clip(clean + 0.005 * generator.standard_normal(len(X)), 0, 1)


def same_curve(first, second, at, rtol):
    assert first.status == second.status
    if first.usable:
        np.testing.assert_allclose(first.predict(at).y, second.predict(at).y, rtol=rtol, atol=1e-6)


@FEW
@given(seed=seeds, x_unit=scales, y_unit=scales)
def test_a_power_law_scales_with_its_units(seed, x_unit, y_unit):
    y = losses(seed)

    fit = fit_power_law(X, y, n_draws=0, hold_out=False)
    other = fit_power_law(X * x_unit, y * y_unit, n_draws=0, hold_out=False)

    assert fit.status == other.status
    assert fit.usable
    np.testing.assert_allclose(
        other.predict(SIZES * x_unit).y / y_unit, fit.predict(SIZES).y, rtol=1e-5
    )
    np.testing.assert_allclose(other.objective / y_unit**2, fit.objective, rtol=1e-5)
    np.testing.assert_allclose(other.parameters["alpha"], fit.parameters["alpha"], rtol=1e-3)


@FEW
@given(seed=seeds, x_unit=scales)
def test_a_saturating_curve_scales_with_the_unit_of_x(seed, x_unit):
    y = accuracies(seed)

    fit = fit_saturating(X, y, n_draws=0, hold_out=False)
    other = fit_saturating(X * x_unit, y, n_draws=0, hold_out=False)

    assert fit.status == other.status
    if fit.usable:
        np.testing.assert_allclose(
            other.predict(SIZES * x_unit).y, fit.predict(SIZES).y, rtol=1e-4, atol=1e-6
        )


@FEW
@given(seed=seeds, order=st.permutations(range(len(X))))
def test_the_order_of_the_rows_changes_nothing(seed, order):
    rows = np.asarray(order)
    clusters = np.repeat([f"configuration {i}" for i in range(6)], 2)
    for fitter, y in ((fit_power_law, losses(seed)), (fit_saturating, accuracies(seed))):
        fit = fitter(X, y, clusters=clusters, n_draws=20, hold_out=False)
        other = fitter(X[rows], y[rows], clusters=clusters[rows], n_draws=20, hold_out=False)

        assert dict(fit.parameters) == dict(other.parameters)
        np.testing.assert_array_equal(fit.draws, other.draws)
        if fit.usable:
            np.testing.assert_array_equal(fit.residuals[rows], other.residuals)


@FEW
@given(seed=seeds)
def test_every_run_twice_gives_the_same_curve(seed):
    y = losses(seed)

    once = fit_power_law(X, y, n_draws=0, hold_out=False)
    twice = fit_power_law(np.tile(X, 2), np.tile(y, 2), n_draws=0, hold_out=False)

    same_curve(once, twice, SIZES, 1e-5)
    np.testing.assert_allclose(twice.objective, 2 * once.objective, rtol=1e-5)


@FEW
@given(
    y=st.lists(st.floats(0, 1, width=32), min_size=6, max_size=6),
    fitter=st.sampled_from([fit_power_law, fit_saturating]),
)
def test_any_outcome_at_all_gives_a_status_and_never_a_bad_number(y, fitter):
    fit = fitter(SIZES, y, n_draws=10)

    assert fit.sentence
    assert fit.usable == (fit.status in {FitStatus.CONVERGED, FitStatus.HIT_BOUND})
    if fit.usable:
        assert np.isfinite(list(fit.parameters.values())).all()
        assert np.isfinite(fit.predict(SIZES).y).all()
        constant = 0.5 * np.sum((np.asarray(y) - np.mean(y)) ** 2)
        assert fit.objective <= constant


@FEW
@given(
    logs=st.lists(st.floats(-3, 3, width=32), min_size=9, max_size=9),
    objective=st.sampled_from([Objective(), SQUARES, Objective(residual="value", huber=None)]),
)
def test_any_losses_at_all_give_a_status_and_never_a_bad_number(logs, objective):
    inputs = make_inputs(CHINCHILLA, 9)
    runs = inputs | {"loss": np.exp(np.asarray(logs))}

    fit = fit_law(CHINCHILLA, runs, objective=objective, n_draws=10, hold_out=False)
    tied = fit_law(CHINCHILLA_TIED, runs, objective=objective, n_draws=0, hold_out=False)

    assert fit.sentence
    assert fit.usable == (fit.status in {FitStatus.CONVERGED, FitStatus.HIT_BOUND})
    if fit.usable:
        assert np.isfinite(list(fit.parameters.values())).all()
        assert np.isfinite(fit.predict(inputs).y).all()
        assert np.isfinite(fit.draws).all()
    if fit.usable and tied.usable:
        assert fit.objective <= tied.objective * (1 + 1e-6)
