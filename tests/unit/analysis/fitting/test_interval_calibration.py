import numpy as np
import pytest
from scipy import special

from analysis.fitting.fit_law import FitControls, fit_law
from analysis.fitting.interval_calibration import (
    Levels,
    calibrated,
    covering_level,
    simulate_fits,
    weighted_sum,
    widened,
)
from analysis.fitting.objective import SQUARES
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.power import PowerLaw


def resamples(n, n_draws, seed=0, at_least=1):
    """Weights of resamples that hold `at_least` different runs."""
    generator = np.random.default_rng(seed)
    weights = generator.multinomial(n, np.full(n, 1 / n), size=4 * n_draws).astype(float)
    return weights[(weights > 0).sum(axis=1) >= at_least][:n_draws]


def design(n=18):
    """Sizes and lengths as in a small sweep: columns of ln A, ln B, E, alpha and beta."""
    u, v = np.meshgrid(np.linspace(-2, 2, n // 3), [-1.0, 0.0, 1.0], indexing="ij")
    u, v = u.ravel(), (u + v).ravel()
    return np.stack(
        [
            np.exp(-0.3 * u),
            np.exp(-0.3 * v),
            np.ones(n),
            u * np.exp(-0.3 * u),
            v * np.exp(-0.3 * v),
        ],
        axis=1,
    )


@pytest.mark.parametrize("n", [6, 12, 40])
def test_a_mean_needs_what_the_formula_says(n):
    """Hesterberg 2015, section 3.5: sqrt(n / (n - 1)) t(n - 1) in place of the normal's quantile."""
    imagined = simulate_fits(np.ones((n, 1)), resamples(n, 4000), np.arange(n), np.ones((1, 1)))

    quantile = np.sqrt(n / (n - 1)) * special.stdtrit(n - 1, 0.975)
    assert covering_level(0.95, imagined) == pytest.approx(
        2 * special.ndtr(quantile) - 1, abs=0.012
    )


def test_a_level_holds_fresh_errors_as_often_as_it_says():
    """By brute force: other errors, every resample solved by itself."""
    J = design()
    n, p = J.shape
    weights = resamples(n, 200, seed=3, at_least=p)
    levels = calibrated(
        0.95, jacobian=J, coefficients=np.eye(p), weights=weights, clusters=np.arange(n)
    )
    errors = np.random.default_rng(11).standard_normal((n, 400))
    root = np.sqrt(weights)[:, :, None]
    refits = np.stack([np.linalg.lstsq(r * J, r * errors, rcond=None)[0] for r in root])

    def held(level, of):
        low, high = np.quantile(of @ refits, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return ((low <= 0) & (high >= 0)).mean()

    assert held(levels.curve, J) == pytest.approx(0.95, abs=0.015)
    both = (held(levels.coefficient, np.eye(p)) + held(levels.coefficient, J)) / 2
    assert both == pytest.approx(0.95, abs=0.015)
    # One coefficient's formula would take 0.989, which holds nearly all.
    assert held(0.989, np.eye(p)) > 0.98


def test_a_new_run_falls_into_its_interval_as_often_as_it_says():
    x = np.linspace(-1, 1, 8)
    J = np.stack([np.ones(8), x, x**2], axis=1)
    weights = resamples(8, 200, seed=1, at_least=3)
    level = calibrated(
        0.95, jacobian=J, coefficients=np.eye(3), weights=weights, clusters=range(8)
    ).new_run
    generator = np.random.default_rng(5)
    errors = generator.standard_normal((8, 1000))
    residuals = errors - J @ np.linalg.lstsq(J, errors, rcond=None)[0]
    root = np.sqrt(weights)[:, :, None]
    refits = np.stack([np.linalg.lstsq(r * J, r * errors, rcond=None)[0] for r in root])
    picked = np.take_along_axis(
        residuals * np.sqrt(8 / 5), generator.integers(8, size=(200, 1000)), axis=0
    )

    low, high = np.quantile(
        J @ refits + picked[:, None, :], [(1 - level) / 2, (1 + level) / 2], axis=0
    )

    new = generator.standard_normal((8, 1000))
    assert ((low <= new) & (new <= high)).mean() == pytest.approx(0.95, abs=0.02)


def test_units_and_mixtures_of_coefficients_change_nothing():
    J = design()
    weights = resamples(18, 150, at_least=5)
    mixed = np.random.default_rng(2).standard_normal((5, 5)) * np.geomspace(1e-6, 1e6, 5)

    one = calibrated(
        0.9, jacobian=J, coefficients=np.eye(5), weights=weights, clusters=np.arange(18)
    )
    other = calibrated(
        0.9, jacobian=J @ mixed, coefficients=mixed, weights=weights, clusters=np.arange(18)
    )

    assert other.coefficient == pytest.approx(one.coefficient, abs=0.01)
    assert other.curve == pytest.approx(one.curve, abs=0.01)
    assert other.new_run == pytest.approx(one.new_run, abs=0.01)


def test_a_sum_over_two_laws_is_between_them_and_a_normal():
    """The mean of five and the mean of 40: weighed all on one, its level; half and half, nearer to the plain 0.95."""
    few, many = (
        simulate_fits(
            np.ones((n, 1)), resamples(n, 1000, seed=n), np.arange(n), np.ones((1, 1)), seed=n
        )
        for n in (5, 40)
    )

    def level(*factors):
        return covering_level(0.95, weighted_sum([few, many], np.asarray(factors)))

    assert level(1.0, 0.0) == covering_level(0.95, few)
    assert level(0.0, 1.0) == covering_level(0.95, many)
    assert level(0.0, 1.0) < level(1.0, 2.0) < level(1.0, 0.0)


def test_without_draws_there_is_nothing_to_calibrate():
    levels = calibrated(
        0.8,
        jacobian=design(),
        coefficients=np.eye(5),
        weights=np.empty((0, 18)),
        clusters=range(18),
    )

    assert levels == Levels(coefficient=0.8, curve=0.8, new_run=0.8)


def test_a_curve_of_six_sizes_takes_its_intervals_further_out_and_keeps_its_draws():
    x = np.repeat(np.geomspace(1e5, 1e8, 6), 3)
    y = 1.7 + 400 * x**-0.35 + 0.01 * np.random.default_rng(0).standard_normal(18)

    fit = fit_law(
        PowerLaw(),
        {"x": x, "loss": y},
        clusters=np.repeat(np.arange(6), 3),
        n_draws=300,
        hold_out=False,
    )

    assert 0.9 < fit.levels.coefficient < fit.levels.curve < 1
    shares = [(1 - fit.levels.coefficient) / 2, (1 + fit.levels.coefficient) / 2]
    assert fit.intervals["alpha"] == tuple(np.quantile(fit.draws[:, 2], shares))
    shares = [(1 - fit.levels.curve) / 2, (1 + fit.levels.curve) / 2]
    at = fit.predict([1e6])
    curves = fit.law.evaluate({"x": np.asarray([1e6])}, fit.draws)[:, 0]
    assert (at.low[0], at.high[0]) == tuple(np.quantile(curves, shares))


def test_a_law_can_be_asked_for_plain_percentiles():
    generator = np.random.default_rng(1)
    params = np.exp(generator.uniform(np.log(1e6), np.log(1e8), 18))
    tokens = params * np.exp(generator.uniform(np.log(5), np.log(80), 18))
    truth = np.asarray(list(CHINCHILLA.example.values()))
    runs = {"params": params, "tokens": tokens}
    runs["loss"] = CHINCHILLA.evaluate(runs, truth) * np.exp(0.003 * generator.standard_normal(18))

    fit = fit_law(
        CHINCHILLA,
        runs,
        objective=SQUARES,
        n_draws=100,
        hold_out=False,
        controls=FitControls(calibrate=False),
    )

    assert fit.levels == Levels.plain(0.95)
    assert fit.intervals["E"] == tuple(np.quantile(fit.draws[:, 2], [0.025, 0.975]))


def test_widened_residuals_have_the_variance_of_the_errors():
    """Residuals of p coefficients have (n - p) / n of it."""
    J = design()
    errors = np.random.default_rng(3).standard_normal((18, 4000))
    residuals = errors - J @ np.linalg.lstsq(J, errors, rcond=None)[0]

    assert (residuals**2).mean() == pytest.approx(13 / 18, rel=0.02)
    assert (widened(residuals, 5) ** 2).mean() == pytest.approx(1.0, rel=0.02)
