"""Options of a fit: known errors, fixed and bounded parameters, log(y + c), the inverse.

Oracles: scipy's curve_fit and least_squares, and closed forms.
"""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize

from analysis.fitting.fit_file import load_fit
from analysis.fitting.fit_law import FitControls, fit_law
from analysis.fitting.inverse import REACH, _first_crossing
from analysis.fitting.objective import SQUARED_ERROR, SQUARES, Objective
from analysis.fitting.profile_likelihood import profile_interval
from analysis.fitting.synthetic import make_runs
from analysis.laws.broken import BROKEN
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.kaplan import KAPLAN, Kaplan
from analysis.laws.loss_to_accuracy import Exponential, Sigmoid
from analysis.laws.power import POWER, PowerLaw
from analysis.laws.saturating import Saturating
from analysis.laws.sparse import EFFECTIVE


def curve(noise=0.02, n=14):
    """Losses of one size whose errors grow with it."""
    x = np.geomspace(1e6, 1e9, n)
    sigma = noise * np.linspace(0.2, 2.0, n)
    errors = sigma * np.random.default_rng(0).standard_normal(n)
    return {"x": x, "loss": 1.7 + 400 * x**-0.35 + errors, "sd": sigma}


def power(x, E, A, alpha):
    return E + A * x**-alpha


def quick(law, table, **options):
    return fit_law(law, table, n_draws=0, hold_out=False, **options)


def test_sigma_is_that_of_scipy():
    table = curve()
    expected, _ = optimize.curve_fit(
        power, table["x"], table["loss"], p0=(1.7, 400, 0.35), sigma=table["sd"], xtol=1e-14
    )

    named = quick(PowerLaw(), table, objective=SQUARED_ERROR, sigma="sd")
    given = quick(PowerLaw(), table, objective=SQUARED_ERROR, sigma=3 * table["sd"])

    np.testing.assert_allclose(list(named.parameters.values()), expected, rtol=1e-5)
    # Sigmas of another scale round otherwise, so the last steps of the search differ.
    assert dict(given.parameters) == pytest.approx(dict(named.parameters), rel=1e-6)
    assert "least squares on outcome, sum, runs weighted" in named.summary()
    unweighted = quick(PowerLaw(), table, objective=SQUARED_ERROR)
    assert abs(unweighted.parameters["alpha"] / expected[2] - 1) > 1e-3


def test_noise_that_is_known_to_be_uneven_is_not_held_against_the_law():
    runs = make_runs(CHINCHILLA, 60, noise=0.0)
    place = np.log(runs["params"])
    sigma = 0.001 * 10 ** ((place - place.min()) / np.ptp(place))
    runs["loss"] = runs["loss"] * np.exp(sigma * np.random.default_rng(1).standard_normal(60))
    options = {"objective": SQUARES, "n_draws": 50, "hold_out": False}

    blind = fit_law(CHINCHILLA, runs, **options).verdict
    told = fit_law(CHINCHILLA, runs, sigma=sigma, **options).verdict

    assert blind.numbers["p_spread"] < 0.01
    assert told.numbers["p_spread"] > 0.05


def uneven(seed, n=64):
    """Runs of which the largest have ten times the noise."""
    runs = make_runs(CHINCHILLA, n, noise=0.0)
    compute = runs["params"] * runs["tokens"]
    runs["sd"] = np.where(compute >= np.quantile(compute, 0.75), 0.02, 0.002)
    noise = np.random.default_rng(seed).standard_normal(n)
    return runs | {"loss": runs["loss"] * np.exp(runs["sd"] * noise)}


def test_held_out_runs_are_as_far_off_as_their_own_sigma():
    options = {"objective": SQUARES, "n_draws": 100}

    fits = [fit_law(CHINCHILLA, uneven(s), sigma="sd", **options) for s in range(3)]

    for fit in fits:
        assert not fit.verdict.is_misfit
        # Noise alone makes it about a half.
        assert 0.2 < fit.verdict.numbers["hold_out_ratio"] < 1.0
    assert np.mean([fit.hold_out.covered for fit in fits]) > 0.8
    # The scale of sigma does not matter: the residuals say how large the noise is.
    table = uneven(0)
    scaled = fit_law(CHINCHILLA, table | {"sd": 5 * table["sd"]}, sigma="sd", **options)
    ratio = fits[0].verdict.numbers["hold_out_ratio"]
    assert scaled.verdict.numbers["hold_out_ratio"] == pytest.approx(ratio, rel=1e-3)


def test_the_band_of_a_new_run_is_as_wide_as_its_sigma():
    fit = fit_law(
        CHINCHILLA, uneven(0, n=200), sigma="sd", objective=SQUARES, n_draws=100, hold_out=False
    )
    place = {"params": np.full(2, 1e8), "tokens": np.full(2, 1e10)}

    at = fit.predict(place, sigma=[0.02, 0.002])

    half = np.log(at.new_high / at.new_low) / 2
    np.testing.assert_allclose(half, [1.96 * 0.02, 1.96 * 0.002], rtol=0.3)
    plain, of_one = fit.predict(place), fit.predict(place, sigma=fit.stated_sd)
    np.testing.assert_allclose(of_one.new_high, plain.new_high, rtol=1e-12)
    np.testing.assert_array_equal(at.low, plain.low)
    with pytest.raises(ValueError, match="sigma: 3 values for 2 runs"):
        fit.predict(place, sigma=[0.1, 0.1, 0.1])
    with pytest.raises(ValueError, match="sigma: the fit was made without it; give sigma to fit_l"):
        quick(CHINCHILLA, uneven(0)).predict(place, sigma=0.1)


@pytest.mark.parametrize("name", ["E", "A", "beta"])
def test_a_fixed_parameter_leaves_the_best_of_the_others(name):
    runs = make_runs(CHINCHILLA, 30, noise=0.003)
    value = 1.05 * CHINCHILLA.example[name]
    names = [n for n in CHINCHILLA.parameter_names if n != name]

    def residuals(logs):
        values = dict(zip(names, np.exp(logs), strict=True)) | {name: value}
        theta = np.asarray([values[n] for n in CHINCHILLA.parameter_names])
        return np.log(CHINCHILLA.evaluate(runs, theta) / runs["loss"])

    begin = np.log([CHINCHILLA.example[n] for n in names])
    expected = optimize.least_squares(residuals, begin, xtol=1e-15, ftol=1e-15, gtol=1e-15)

    fit = quick(CHINCHILLA, runs, objective=SQUARES, fixed={name: value})

    assert fit.parameters[name] == pytest.approx(value, rel=1e-12)
    assert fit.objective == pytest.approx(expected.cost, rel=1e-6)
    assert fit.n_free == 4
    assert fit.degrees_of_freedom == 26


def test_fixing_what_was_fitted_changes_nothing():
    runs = make_runs(CHINCHILLA, 30, noise=0.003)
    free = quick(CHINCHILLA, runs, objective=SQUARES)

    held = quick(CHINCHILLA, runs, objective=SQUARES, fixed={"A": free.parameters["A"]})

    assert held.objective == pytest.approx(free.objective, rel=1e-7)
    assert dict(held.parameters) == pytest.approx(dict(free.parameters), rel=1e-3)


def test_a_bound_binds_where_the_runs_disagree_and_only_there():
    runs = make_runs(CHINCHILLA, 30, noise=0.003)
    free = quick(CHINCHILLA, runs)

    wide = quick(CHINCHILLA, runs, bounds={"E": (0.5, 2.5)})
    tight = quick(CHINCHILLA, runs, bounds={"E": (0.5, 1.5)})

    assert dict(wide.parameters) == pytest.approx(dict(free.parameters), rel=1e-4)
    assert tight.parameters["E"] == pytest.approx(1.5)
    assert tight.status == "hit_bound"
    assert "the bound that was given" in tight.sentence


def test_intervals_keep_to_what_was_given(tmp_path):
    runs = make_runs(CHINCHILLA, 30, noise=0.01)

    fit = fit_law(
        "chinchilla", runs, fixed={"alpha": 0.34}, bounds={"beta": (0.3, 0.4)}, n_draws=60
    )

    assert fit.intervals["alpha"] == pytest.approx((0.34, 0.34))
    low, high = fit.intervals["beta"]
    assert 0.3 <= low < high <= 0.4
    assert "given: beta within 0.3..0.4, alpha = 0.34" in fit.summary()
    fit.save(tmp_path / "fit.json")
    for again in (pickle.loads(pickle.dumps(fit)), load_fit(tmp_path / "fit.json")):
        assert again.law.bounds == fit.law.bounds
        assert again.n_free == 4
        assert str(again.verdict) == str(fit.verdict)


X, LOSS = np.geomspace(1e5, 1e8, 16), np.linspace(2, 4.5, 16)
"""Sizes, and losses, of runs on a curve of accuracy or error."""
SHAPE = {"x0": 2e6, "k": 1.2}
LEVELS = {"floor": 0.25, "ceiling": 0.9}
BEND = {"eps": 0.85, "k": 2.1, "gamma": 0.75}


@pytest.mark.parametrize(
    ("law", "known"),
    [
        (Saturating(floor=0.25), {"ceiling": 0.9} | SHAPE),
        (Saturating(floor=None), LEVELS | SHAPE),
        (Sigmoid(chance=0.25), {"ceiling": 0.9, "L0": 2.9, "k": 3.0}),
        (Sigmoid(chance=None), LEVELS | {"L0": 2.9, "k": 3.0}),
        (Exponential(), BEND),
        (Exponential(fixed_eps=0.85), BEND),
        (PowerLaw(), {"E": 1.7, "A": 400.0, "alpha": 0.35}),
        (BROKEN, {"a": 0.3, "b": 40.0, "c0": 0.1, "c1": 0.35, "d": 3e6, "f": 0.4}),
    ],
    ids=lambda law: getattr(law, "equation", ""),
)
def test_a_curve_holds_what_it_does_not_refuse(law, known):
    inputs = {law.inputs[0]: LOSS if law.inputs == ("loss",) else X}
    y = law.evaluate(inputs, np.asarray([known[name] for name in law.parameter_names]))
    for p in law.parameters:
        value = known[p.name]
        ends = sorted((0.97 * value, 0.99 * value))
        if p.lower == p.upper:
            with pytest.raises(ValueError, match="knows it already"):
                quick(law, inputs | {"y": y}, outcome="y", fixed={p.name: value})
            continue
        if p.coupled_to:
            with pytest.raises(ValueError, match=f"{p.name}: .* only where .* fixed, too"):
                quick(law, inputs | {"y": y}, outcome="y", bounds={p.name: ends})
        others = {n: known[n] for n in p.coupled_to}

        held = quick(law, inputs | {"y": y}, outcome="y", fixed={p.name: value} | others)
        kept = quick(law, inputs | {"y": y}, outcome="y", bounds={p.name: ends}, fixed=others)

        assert dict(held.parameters) == pytest.approx(known, rel=1e-4), p.name
        assert kept.parameters[p.name] == pytest.approx(ends[value > 0], rel=1e-9)
        assert "the bound that was given" in kept.sentence


def test_a_value_far_from_the_runs_is_held_all_the_same():
    # A free half-way point lies within a thousandfold of the runs.
    runs = {"x": X, "y": Saturating().evaluate({"x": X}, np.asarray([0.9, 1e13, 0.5]))}

    fixed = quick(Saturating(), runs, outcome="y", fixed={"x0": 1e13})
    bounded = quick(Saturating(), runs, outcome="y", bounds={"x0": (1e13, 1e14)})
    tiny = quick(POWER, make_runs(POWER, 20, noise=0.01), bounds={"E": (1e-40, 1e-30)})
    none = quick(POWER, make_runs(POWER, 20, noise=0.01), bounds={"E": (0, 1e-30)})

    assert fixed.parameters == pytest.approx({"ceiling": 0.9, "x0": 1e13, "k": 0.5}, rel=1e-3)
    assert 1e13 * (1 - 1e-9) <= bounded.parameters["x0"] <= 1e14
    assert 1e-40 <= tiny.parameters["E"] <= 1e-30 * (1 + 1e-9)
    assert 0 <= none.parameters["E"] <= 1e-30 * (1 + 1e-9)


def test_a_law_that_does_not_name_what_it_couples_is_found_out():
    class Undeclared(Kaplan):
        parameters = tuple(replace(p, coupled_to=()) for p in Kaplan.parameters)

    with pytest.raises(ValueError, match=r"N_c: given as 6\.4e\+13\.\.6\.4e\+13, but"):
        quick(Undeclared(), make_runs(KAPLAN, 20, noise=0.01), fixed={"N_c": 6.4e13})


def test_a_worth_of_memory_far_from_one_is_found_with_another_parameter_held():
    law = EFFECTIVE
    truth = dict(law.example) | {"kappa": 3e6, "rho": 0.1}
    runs = make_runs(law, 60, noise=0.0, parameters=truth)

    fit = quick(law, runs, objective=SQUARES, fixed={"A": truth["A"]})

    assert dict(fit.parameters) == pytest.approx(truth, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fixed": {"gamma": 1.0}}, "no parameter gamma; it has A, B, E, alpha, beta"),
        ({"bounds": {"alpha": (0.5, 0.2)}}, "alpha: bounds must be ascending"),
        ({"fixed": {"A": -1}}, "A: must be greater than 0 to be fixed, got -1$"),
        ({"fixed": {"A": 0}}, "A: must be greater than 0 to be fixed, got 0$"),
        ({"fixed": {"A": math.inf}}, "A: must be greater than 0 to be fixed, got inf"),
        ({"fixed": {"alpha": 7}}, "alpha: must be from 0 to 5 to be fixed, got 7"),
        ({"fixed": {"alpha": math.nan}}, "alpha: must be from 0 to 5 to be fixed, got nan"),
        ({"fixed": {"alpha": 0.3}, "bounds": {"alpha": (0, 1)}}, "alpha has bounds, too"),
        ({"sigma": [0.1]}, "sigma: 1 values for 20 runs"),
        ({"sigma": np.zeros(20)}, "sigma, row 0: must be positive"),
        (
            {"sigma": np.ones(20), "controls": FitControls(weights=np.ones(20))},
            "controls.weights are given, too",
        ),
        ({"sigma": -0.1}, "sigma, row 0: must be positive"),
        (
            {"controls": FitControls(weights=np.ones(19))},
            "controls.weights: 19 values for 20 runs; give one per run",
        ),
        (
            {"controls": FitControls(weights=np.arange(20))},
            "controls.weights, row 0: must be positive",
        ),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        quick(CHINCHILLA, make_runs(CHINCHILLA, 20, noise=0.01), **options)


def test_one_sigma_is_that_of_all_runs():
    runs = make_runs(CHINCHILLA, 20, noise=0.01)

    one, all_ = (quick(CHINCHILLA, runs, sigma=s) for s in (0.01, np.full(20, 0.01)))

    assert dict(one.parameters) == dict(all_.parameters)
    assert one.stated_sd == all_.stated_sd == pytest.approx(0.01)


def test_a_bound_far_above_the_runs_may_have_no_other_end():
    x = np.geomspace(1e6, 1e9, 12)
    runs = {"x": x, "y": 0.9 / (1 + 1e8 / x)}

    open_, closed = (
        quick(Saturating(), runs, outcome="y", bounds={"x0": (1e14, end)})
        for end in (math.inf, 1e15)
    )

    assert open_.status == "hit_bound"
    assert dict(open_.parameters) == pytest.approx(dict(closed.parameters))


def test_log_of_y_plus_c_is_the_minimum_of_its_own_sum():
    x = np.geomspace(1e6, 1e9, 12)
    errors = 0.02 * np.random.default_rng(2).standard_normal(12)
    y = (np.exp(np.log(400 * x**-0.35 + 0.1) + errors) - 0.1).clip(0)
    y[-1] = 0.0  # a logarithm of the outcome itself would refuse it

    def residuals(theta):
        return np.log(theta[0] + np.exp(theta[1]) * x ** -theta[2] + 0.1) - np.log(y + 0.1)

    expected = optimize.least_squares(
        residuals, (0.01, 6, 0.35), bounds=((0, 0, 0), np.inf), x_scale=(0.01, 1, 0.1), xtol=1e-15
    )
    table = {"x": x, "error": y}

    fit = quick(POWER, table, outcome="error", objective=Objective(huber=None, offset=0.1))

    assert fit.objective <= expected.cost * (1 + 1e-6)
    at = fit.predict(x).y
    np.testing.assert_allclose(fit.residuals, np.log(at + 0.1) - np.log(y + 0.1), atol=1e-12)


def test_the_inverse_finds_the_size_with_its_interval():
    runs = make_runs(CHINCHILLA, 40, noise=0.003)
    fit = fit_law("chinchilla", runs, n_draws=100, hold_out=False)
    p, tokens = fit.parameters, 1e11
    target = 2.4

    size, low, high = fit.inverse(target, of="params", at={"tokens": tokens})

    closed = (p["A"] / (target - p["E"] - p["B"] / tokens ** p["beta"])) ** (1 / p["alpha"])
    assert size == pytest.approx(closed, rel=1e-9)
    assert low < size < high
    band = fit.predict({"params": np.asarray([low, high]), "tokens": np.full(2, tokens)})
    # The end of the size's interval is where the curve's band ends at the target.
    assert band.low[0] < target < band.high[0] * 1.002
    assert band.high[1] == pytest.approx(target, rel=2e-3)


def test_a_loss_below_the_floor_has_no_size():
    fit = fit_law("chinchilla", make_runs(CHINCHILLA, 40, noise=0.003), n_draws=0)

    size, low, high = fit.inverse(1.0, of="params", at={"tokens": 1e11})

    assert size == np.inf
    assert np.isnan([low, high]).all()


@pytest.mark.parametrize("factor", [0.9, 0.99, 1.01, 1.2])
def test_a_loss_that_the_smallest_size_beats_already_takes_no_size(factor):
    """Of a law of one size `x_reaching` inverts the draws in closed form."""
    x = np.geomspace(1e8, 1e9, 12)
    noise = np.exp(0.01 * np.random.default_rng(0).standard_normal(12))
    fit = fit_law(PowerLaw(), {"x": x, "loss": (1.8 + 400 * x**-0.34) * noise}, n_draws=200)
    highest = float(fit.predict(x.min() / REACH).y[0])

    size, low, high = fit.inverse(factor * highest)

    closed = fit.x_reaching(factor * highest)
    assert low == closed[1] == 0.0
    assert 0.0 < high < np.inf
    assert high == pytest.approx(closed[2], rel=1e-3)
    assert size == pytest.approx(closed[0] if factor < 1 else 0.0, rel=1e-6)


@pytest.mark.parametrize(
    ("curve", "y", "expected"),
    [
        ([4.0, 3.0, 2.0], 5.0, 0.0),
        ([4.0, 3.0, 2.0], 1.0, np.inf),
        ([0.2, 0.3, 0.4], 0.1, 0.0),
        ([0.2, 0.3, 0.4], 0.5, np.inf),
        ([4.0, 2.0, 4.5], 1.0, np.inf),
        ([4.0, 2.0, 4.5], 5.0, 0.0),
        ([2.0, 2.0, 2.0], 3.0, np.inf),
        ([4.0, 3.0, 2.0], 4.0, 1.0),
        ([4.0, 3.0, 2.0], 3.5, 10.0),
    ],
)
def test_where_a_curve_that_never_crosses_would_is_its_slope_at_the_start(curve, y, expected):
    found = _first_crossing(np.asarray([curve]), y, np.asarray([1.0, 100.0, 1e4]))

    assert found == pytest.approx(expected)


def test_what_cannot_be_inverted_is_named():
    fit = fit_law("chinchilla", make_runs(CHINCHILLA, 40, noise=0.003), n_draws=0)

    with pytest.raises(ValueError, match="of: say which of params, tokens"):
        fit.inverse(2.4)
    with pytest.raises(ValueError, match="at: must give tokens, got nothing"):
        fit.inverse(2.4, of="params")


def test_a_profile_knows_the_weights():
    table = curve()
    weighted = quick(POWER, table, objective=SQUARES, sigma=table["sd"] / table["loss"])
    repeated = {k: np.repeat(v, 2) for k, v in table.items()}
    halves = quick(
        POWER,
        repeated,
        objective=SQUARES,
        sigma=repeated["sd"] / repeated["loss"],
        clusters=np.repeat(np.arange(14), 2),
        accept={"duplicates"},
    )

    one, two = (profile_interval(fit, "alpha") for fit in (weighted, halves))

    assert two.value == pytest.approx(one.value, rel=1e-4)
    # Twice the runs: the interval is narrower by the root of two, but for its curvature.
    assert (two.high - two.low) / (one.high - one.low) == pytest.approx(2**-0.5, rel=0.1)
