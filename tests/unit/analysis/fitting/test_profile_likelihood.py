import numpy as np
import pytest
import scipy.optimize

from analysis.fitting.fit_law import fit_law
from analysis.fitting.objective import SQUARES
from analysis.fitting.profile_likelihood import profile_interval
from analysis.fitting.synthetic import make_runs
from analysis.laws.power import POWER

RUNS = make_runs(POWER, 20, noise=0.01)


@pytest.fixture(scope="module")
def fit():
    return fit_law(POWER, RUNS, objective=SQUARES, n_draws=0, hold_out=False)


def squares_with(alpha):
    """Return the least sum of squares with alpha held, by scipy in other coordinates."""
    y = np.log(RUNS["loss"])

    def residuals(p):
        return np.log(np.exp(p[0]) + np.exp(p[1]) * (RUNS["x"] / 1e7) ** -alpha) - y

    return 2 * scipy.optimize.least_squares(residuals, [0.5, 0.0], xtol=1e-12, ftol=1e-12).cost


def test_the_ends_are_where_the_likelihood_ratio_reaches_the_quantile(fit):
    interval = profile_interval(fit, "alpha")

    assert interval.low < interval.value < interval.high
    for end in (interval.low, interval.high):
        ratio = 20 * np.log(squares_with(end) / (2 * fit.objective))
        assert ratio == pytest.approx(3.8415, rel=1e-3)


def test_a_prediction_has_a_profile_too(fit):
    interval = profile_interval(fit, {"x": 1e10})

    assert interval.value == pytest.approx(fit.predict({"x": 1e10}).y[0])
    assert interval.low < interval.value < interval.high


def test_a_higher_level_is_wider(fit):
    interval, wider = (profile_interval(fit, "E", level=level) for level in (0.95, 0.99))

    assert wider.low < interval.low
    assert wider.high > interval.high


def test_a_profile_keeps_to_what_was_given(fit):
    known = {"objective": SQUARES, "n_draws": 0, "hold_out": False}
    held = profile_interval(fit_law(POWER, RUNS, fixed={"alpha": 0.35}, **known), "alpha")
    bounds = {"alpha": (0.35, 0.36)}
    kept = profile_interval(fit_law(POWER, RUNS, bounds=bounds, **known), "alpha")

    assert (held.low, held.value, held.high) == (0.35, 0.35, 0.35)
    assert (kept.low, kept.high) == (0.35, 0.36)
    # Within its bounds a profile is that of the free fit.
    wide = fit_law(POWER, RUNS, bounds={"alpha": (0.1, 1.0)}, **known)
    free = profile_interval(fit, "alpha")
    assert profile_interval(wide, "alpha").low == pytest.approx(free.low, rel=1e-4)


def test_what_has_no_profile(fit):
    with pytest.raises(ValueError, match="needs least squares"):
        profile_interval(fit_law(POWER, RUNS, n_draws=0, hold_out=False), "alpha")
    with pytest.raises(ValueError, match="no 'gamma'"):
        profile_interval(fit, "gamma")
    nothing = fit_law(POWER, {k: v[:3] for k, v in RUNS.items()}, objective=SQUARES)
    with pytest.raises(ValueError, match="no numbers"):
        profile_interval(nothing, "alpha")
