import numpy as np
import pytest

from analysis.fitting.fit_law import fit_law
from analysis.fitting.objective import Objective
from analysis.fitting.result import FitStatus
from analysis.laws.power import ALPHA_RANGE, PowerLaw
from analysis.loading.validation import ALL_KINDS

X = np.repeat(np.geomspace(1e5, 1e8, 7), 3)
CLUSTERS = np.repeat(np.arange(7), 3)


def fit_power_law(x, y, *, huber=None, **options):
    """As `memscale fit` fits a curve."""
    objective = Objective(residual="value", huber=huber)
    return fit_law(
        PowerLaw(), {"x": x, "loss": y}, objective=objective, accept=ALL_KINDS, **options
    )


def truth(x, E=1.7, A=400.0, alpha=0.35):
    return E + A * x**-alpha


def noisy(scale, seed=0):
    return truth(X) + scale * np.random.default_rng(seed).standard_normal(len(X))


def test_known_parameters_come_back_without_noise():
    fit = fit_power_law(X, truth(X), clusters=CLUSTERS, n_draws=50)

    assert fit.status is FitStatus.CONVERGED
    assert list(fit.parameters) == ["E", "A", "alpha"]
    np.testing.assert_allclose(list(fit.parameters.values()), [1.7, 400, 0.35], rtol=1e-6)
    assert fit.hold_out.mean_relative_error < 1e-6
    np.testing.assert_allclose(fit.residuals, 0, atol=1e-9)


def test_the_printed_name_fits_the_same_curve():
    runs = {"x": X, "loss": noisy(0.02)}

    named, made = (fit_law(law, runs, n_draws=0) for law in ("power_law", PowerLaw()))

    assert named.summary().startswith("power_law: ")
    assert named.parameters == made.parameters


def test_intervals_hold_the_truth_and_grow_with_the_noise():
    widths = []
    for scale in (0.005, 0.02):
        fit = fit_power_law(X, noisy(scale), clusters=CLUSTERS, n_draws=300)
        for name, value in (("E", 1.7), ("A", 400.0), ("alpha", 0.35)):
            low, high = fit.intervals[name]
            assert low < value < high
        widths.append(fit.intervals["alpha"][1] - fit.intervals["alpha"][0])
    assert widths[1] > 2 * widths[0]


@pytest.mark.parametrize("huber", [None, 0.01])
def test_no_point_of_a_dense_grid_is_better(huber):
    """An independent search: every (E, alpha) of a fine grid, A by a fine grid too."""
    y = noisy(0.03, seed=3)
    fit = fit_power_law(X, y, n_draws=0, hold_out=False, huber=huber)

    E = np.linspace(fit.parameters["E"] - 0.1, fit.parameters["E"] + 0.1, 41)
    alpha = np.linspace(0.2, 0.6, 81)
    at_geometric_mean = fit.parameters["A"] * np.exp(np.log(X).mean()) ** -fit.parameters["alpha"]
    B = at_geometric_mean * np.linspace(0.7, 1.3, 61)
    e, b, a = np.meshgrid(E, B, alpha, indexing="ij")
    u = X / np.exp(np.log(X).mean())
    r = np.abs(y - e[..., None] - b[..., None] * u ** -a[..., None])
    rho = 0.5 * r**2 if huber is None else np.where(r <= huber, 0.5 * r**2, huber * (r - huber / 2))
    grid = rho.sum(axis=-1)

    assert fit.objective <= grid.min() * (1 + 1e-9)
    assert grid.min() <= fit.objective * 1.02, "the grid is fine enough to mean something"
    best = np.unravel_index(grid.argmin(), grid.shape)
    assert abs(alpha[best[2]] - fit.parameters["alpha"]) < 0.02


def test_the_objective_is_half_the_sum_of_squares_in_units_of_y():
    fit = fit_power_law(X, noisy(0.03), n_draws=0)

    assert fit.objective == pytest.approx(0.5 * np.sum(fit.residuals**2), rel=1e-9)
    np.testing.assert_allclose(fit.residuals, fit.predict(X).y - noisy(0.03), rtol=1e-9)


def test_too_few_sizes_give_no_number_at_all():
    x = np.repeat([1e5, 1e6, 1e7], 4)
    fit = fit_power_law(x, truth(x))

    assert fit.status is FitStatus.UNDERDETERMINED
    assert not fit.usable
    assert not fit.parameters
    assert not fit.intervals
    assert np.isnan(fit.objective)
    assert "3 distinct sizes for 3 parameters" in fit.sentence
    with pytest.raises(ValueError, match="underdetermined"):
        fit.predict(1e6)


def test_equal_values_are_flat():
    assert fit_power_law(X, np.full(len(X), 2.5)).status is FitStatus.FLAT


def test_a_loss_that_rises_with_size_is_flat():
    fit = fit_power_law(X, 2 + 0.1 * np.log(X))

    assert fit.status is FitStatus.FLAT
    assert not fit.usable


def test_a_pure_power_law_rests_on_the_bound_of_E():
    x = X[::3]
    bend = -0.05 * (np.log(x) - np.log(x).mean()) ** 2  # bends down: a floor makes it only worse
    fit = fit_power_law(x, 400 * x**-0.35 * np.exp(bend), n_draws=50)

    assert fit.status is FitStatus.HIT_BOUND
    assert fit.parameters["E"] == 0
    assert "E is at its bound 0" in fit.sentence


def test_a_straight_line_in_log_x_rests_on_the_bound_of_alpha():
    fit = fit_power_law(X, 50 - 0.2 * np.log(X), n_draws=20)

    assert fit.status is FitStatus.HIT_BOUND
    assert fit.parameters["alpha"] == pytest.approx(ALPHA_RANGE[0])


def test_huber_ignores_one_bad_run():
    y = truth(X)
    y[10] += 3.0

    squares = fit_power_law(X, y, n_draws=0)
    robust = fit_power_law(X, y, n_draws=0, huber=0.001)

    assert abs(robust.parameters["alpha"] - 0.35) < 0.01
    assert abs(squares.parameters["alpha"] - 0.35) > 0.05


def test_seeds_of_a_configuration_are_resampled_together():
    """With one noise value per configuration, pretending that runs are independent narrows the interval."""
    shared = np.repeat(0.03 * np.random.default_rng(1).standard_normal(7), 3)
    y = truth(X) + shared

    together = fit_power_law(X, y, clusters=CLUSTERS, n_draws=400)
    apart = fit_power_law(X, y, clusters=np.arange(len(X)), n_draws=400)

    def width(fit):
        return fit.intervals["E"][1] - fit.intervals["E"][0]

    assert width(together) > 1.2 * width(apart)


def test_predictions_carry_a_band_and_say_where_they_extrapolate():
    fit = fit_power_law(X, noisy(0.02), clusters=CLUSTERS, n_draws=200)

    at = fit.predict([1e4, 1e6, 1e10])

    assert at.extrapolated.tolist() == [True, False, True]
    assert (at.low <= at.high).all()
    assert (at.low <= at.y + 1e-9).all()
    inside, outside = (at.high - at.low)[1:]
    assert outside > inside


def test_hold_out_predicts_the_largest_sizes_from_the_rest():
    fit = fit_power_law(X, noisy(0.005), clusters=CLUSTERS, n_draws=50)

    sizes = np.unique(X)
    assert np.unique(X[fit.hold_out.rows]).tolist() == sizes[-2:].tolist()
    assert fit.hold_out.n_fitted == 15
    small = sizes[-2] > X
    again = fit_power_law(X[small], noisy(0.005)[small], n_draws=0)
    np.testing.assert_allclose(fit.hold_out.predicted, again.predict(X[~small]).y, rtol=1e-6)


def test_four_sizes_are_fitted_but_nothing_can_be_held_out():
    x = np.geomspace(1e5, 1e8, 4)
    fit = fit_power_law(x, truth(x), n_draws=20)

    assert fit.usable
    assert fit.hold_out is None
    assert "5 are needed" in fit.hold_out_note
    assert fit.share_refused > 0.2


def test_the_same_seed_gives_the_same_draws():
    first, second = (fit_power_law(X, noisy(0.02), n_draws=50, seed=4).draws for _ in range(2))

    np.testing.assert_array_equal(first, second)
    assert (fit_power_law(X, noisy(0.02), n_draws=50, seed=5).draws != first).any()


def test_inverse_of_the_curve():
    P = np.asarray([[1.7, 400.0, 0.35], [1.7, 400.0, 0.35]])
    y = PowerLaw().evaluate({"x": np.asarray([3e6])}, P[0])

    x = PowerLaw().invert(np.asarray([y[0], 1.0]), P)

    np.testing.assert_allclose(x, [3e6, np.inf])


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([1, 2], [1.0], "2 values for 1 runs"),
        ([], [], "one number per run"),
        ([1, 0, 2], [1.0, 1, 1], "positive"),
        ([1, 2, 3], [1.0, np.nan, 1], "finite"),
    ],
)
def test_bad_arguments(x, y, message):
    with pytest.raises(ValueError, match=message):
        fit_power_law(x, y)


def test_clusters_are_checked():
    with pytest.raises(ValueError, match="one configuration per run"):
        fit_power_law([1, 2], [1.0, 2], clusters=["a"])
