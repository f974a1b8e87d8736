import numpy as np
import pytest

from analysis.fitting.fit_law import fit_law
from analysis.fitting.result import FitStatus
from analysis.laws.saturating import Saturating
from analysis.loading.validation import ALL_KINDS

X = np.repeat(np.geomspace(3e4, 3e7, 7), 3)
CLUSTERS = np.repeat(np.arange(7), 3)


def fit_saturating(x, y, *, floor=0.0, ceiling=None, **options):
    law = Saturating(floor=floor, fixed_ceiling=ceiling)
    return fit_law(law, {"x": x, "accuracy": y}, outcome="accuracy", accept=ALL_KINDS, **options)


def truth(x, ceiling=0.9, x0=8e5, k=1.3, floor=0.0):
    return floor + (ceiling - floor) / (1 + (x0 / x) ** k)


def noisy(scale, seed=0):
    noise = scale * np.random.default_rng(seed).standard_normal(len(X))
    return np.clip(truth(X) + noise, 0, 1)


@pytest.mark.parametrize("floor", [0.0, 0.25])
def test_known_parameters_come_back_without_noise(floor):
    fit = fit_saturating(X, truth(X, floor=floor), floor=floor, clusters=CLUSTERS, n_draws=50)

    assert fit.status is FitStatus.CONVERGED
    assert list(fit.parameters) == ["ceiling", "x0", "k"]
    np.testing.assert_allclose(list(fit.parameters.values()), [0.9, 8e5, 1.3], rtol=1e-6)
    assert fit.hold_out.mean_absolute_error < 1e-6


def test_a_floor_that_is_not_known_is_fitted():
    x = np.geomspace(1e3, 1e9, 12)
    fit = fit_saturating(x, truth(x, floor=0.3), floor=None, n_draws=0)

    assert list(fit.parameters) == ["floor", "ceiling", "x0", "k"]
    np.testing.assert_allclose(list(fit.parameters.values()), [0.3, 0.9, 8e5, 1.3], rtol=1e-5)
    above = truth(2e6, floor=0.3)
    best = np.asarray(list(fit.parameters.values()))[None, :]
    np.testing.assert_allclose(fit.law.invert(np.asarray([above]), best), 2e6, rtol=1e-4)


def test_intervals_hold_the_truth():
    fit = fit_saturating(X, noisy(0.01), clusters=CLUSTERS, n_draws=300)

    for name, value in (("ceiling", 0.9), ("x0", 8e5), ("k", 1.3)):
        low, high = fit.intervals[name]
        assert low < value < high


def test_no_point_of_a_dense_grid_is_better():
    y = noisy(0.03, seed=2)
    fit = fit_saturating(X, y, n_draws=0, hold_out=False)

    m, x0, k = np.meshgrid(
        np.linspace(0.8, 1, 61),
        np.geomspace(3e5, 3e6, 121),
        np.linspace(0.7, 2.2, 76),
        indexing="ij",
    )
    curve = m[..., None] / (1 + (x0[..., None] / X) ** k[..., None])
    grid = 0.5 * ((y - curve) ** 2).sum(axis=-1)

    assert fit.objective <= grid.min() * (1 + 1e-9)
    assert grid.min() <= fit.objective * 1.02
    assert m.ravel()[grid.argmin()] == pytest.approx(fit.parameters["ceiling"], abs=0.01)


def test_no_seen_plateau_puts_the_ceiling_at_its_bound():
    x = np.geomspace(1e4, 3e5, 6)
    y = 0.5 * (x / 3e5) ** 1.3  # still bending upward
    fit = fit_saturating(x, y, n_draws=50)

    assert fit.status is FitStatus.HIT_BOUND
    assert "do not show where accuracy levels off" in fit.sentence
    assert fit.parameters["ceiling"] == pytest.approx(1)


def test_a_known_ceiling_needs_one_size_less_and_is_not_called_a_bound():
    x = np.geomspace(1e5, 1e7, 3)
    assert fit_saturating(x, truth(x, ceiling=1.0)).status is FitStatus.UNDERDETERMINED

    fit = fit_saturating(x, truth(x, ceiling=1.0), ceiling=1.0, n_draws=50)

    assert fit.status is FitStatus.CONVERGED
    assert fit.parameters["ceiling"] == 1
    np.testing.assert_allclose(fit.parameters["x0"], 8e5, rtol=1e-6)


def test_a_step_between_two_sizes_is_reported():
    x = np.geomspace(1e5, 1e7, 6)
    fit = fit_saturating(x, np.where(x > 1e6, 0.8, 0.0), n_draws=20)

    assert fit.status is FitStatus.HIT_BOUND
    assert "step" in fit.sentence


@pytest.mark.parametrize("value", [0.0, 0.4, 1.0])
def test_equal_accuracies_are_flat(value):
    fit = fit_saturating(X, np.full(len(X), value))

    assert fit.status is FitStatus.FLAT
    assert not fit.usable


def test_accuracy_that_falls_with_size_never_looks_like_a_good_fit():
    fit = fit_saturating(X, truth(X)[::-1], n_draws=20)

    assert fit.status in {FitStatus.FLAT, FitStatus.HIT_BOUND}


def test_the_band_stays_within_zero_and_one():
    fit = fit_saturating(X, noisy(0.1), clusters=CLUSTERS, n_draws=200)

    at = fit.predict(np.geomspace(1e2, 1e12, 50))

    assert (at.low >= 0).all()
    assert (at.high <= 1).all()


def test_inverse_of_the_curve():
    law = Saturating()
    P = np.tile([0.9, 8e5, 1.3], (4, 1))

    x = law.invert(np.asarray([0.45, truth(2e6), 0.95, 0.0]), P)

    np.testing.assert_allclose(x, [8e5, 2e6, np.inf, 0])


def test_accuracies_outside_zero_to_one_are_refused():
    with pytest.raises(ValueError, match=r"\[0, 1\], got 45.0; give shares"):
        fit_saturating([1, 2], [0.3, 45.0])


@pytest.mark.parametrize(
    "options", [{"floor": 1.0}, {"floor": 0.5, "ceiling": 0.5}, {"ceiling": 1.2}]
)
def test_impossible_floors_and_ceilings(options):
    with pytest.raises(ValueError, match="must lie in"):
        fit_saturating([1, 2], [0.1, 0.2], **options)


def test_a_new_run_recalls_no_less_than_nothing_and_no_more_than_all():
    generator = np.random.default_rng(0)
    y = np.clip(truth(X, ceiling=1.0) + 0.15 * generator.standard_normal(len(X)), 0, 1)
    fit = fit_saturating(X, y, clusters=CLUSTERS, n_draws=200)

    prediction = fit.predict(np.geomspace(1e3, 1e10, 8))

    assert prediction.new_low.min() == 0.0
    assert prediction.new_high.max() == 1.0
