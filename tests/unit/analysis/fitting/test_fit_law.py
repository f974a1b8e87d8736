import numpy as np
import pandas as pd
import pytest

from analysis.fitting import multistart
from analysis.fitting.fit_law import fit_law
from analysis.fitting.objective import SQUARES, Objective
from analysis.fitting.result import FitStatus
from analysis.fitting.synthetic import make_runs
from analysis.laws.chinchilla import CHINCHILLA, CHINCHILLA_TIED
from analysis.laws.power import POWER, PowerLaw
from analysis.laws.sparse import EFFECTIVE


def runs(n=40, noise=0.01, seed=0):
    return make_runs(CHINCHILLA, n, noise=noise, seed=seed)


def quick(table, law=CHINCHILLA, **options):
    return fit_law(law, table, n_draws=0, hold_out=False, **options)


def test_it_reads_a_table_with_other_column_names():
    table = pd.DataFrame(runs()).rename(columns={"params": "total_params", "loss": "val"})

    fit = quick(table, columns={"params": "total_params"}, outcome="val")

    assert dict(fit.parameters) == dict(quick(runs()).parameters)


def test_every_number_about_the_search_is_there():
    fit = fit_law(CHINCHILLA, runs(), n_draws=50, hold_out=False)

    assert fit.status is FitStatus.CONVERGED
    assert fit.gradient_norm < 1e-5
    assert fit.moved > 0
    assert fit.n_agreeing > 1
    assert fit.n_optima >= 1
    assert 1 < fit.condition_number < 1e4
    assert fit.degrees_of_freedom == 35
    assert fit.draws.shape == (50, 5)
    assert set(fit.intervals) == set(fit.parameters)


def test_residuals_and_objective_are_of_the_stated_loss():
    table = runs(20)
    for objective, rho in (
        (SQUARES, lambda r: r**2 / 2),
        (Objective(huber=0.01), lambda r: np.where(np.abs(r) < 0.01, r**2 / 2, 0.01 * (np.abs(r) - 0.005))),
        (Objective(huber=0), np.abs),
    ):  # fmt: skip
        fit = quick(table, objective=objective)
        r = np.log(fit.predict(table).y) - np.log(table["loss"])
        np.testing.assert_allclose(fit.residuals, r, atol=1e-12)
        assert fit.objective == pytest.approx(float(rho(r).sum()), rel=1e-6)


def test_a_threshold_in_residual_scales_follows_the_noise():
    quiet, loud = (
        quick(runs(24, noise=size), objective=Objective(huber_scales=1.345))
        for size in (0.002, 0.02)
    )

    assert loud.huber / quiet.huber == pytest.approx(10, rel=0.3)
    assert quiet.huber == pytest.approx(1.345 * 0.002, rel=0.5)


@pytest.mark.parametrize("n", [1, 5])
def test_too_few_runs_give_no_number_at_all(n):
    fit = fit_law(CHINCHILLA, runs(n))

    assert fit.status is FitStatus.UNDERDETERMINED
    assert not fit.usable
    assert not fit.intervals
    assert not len(fit.draws)
    assert np.isnan(fit.objective)
    assert f"{n} distinct {'run' if n == 1 else 'runs'} for 5 parameters" in fit.sentence
    with pytest.raises(ValueError, match="underdetermined"):
        fit.predict({"params": 1e9, "tokens": 1e10})


def test_seeds_are_no_further_runs():
    few = {k: np.repeat(v, 10) for k, v in runs(5).items()}

    assert fit_law(CHINCHILLA, few).status is FitStatus.UNDERDETERMINED


def test_one_spare_run_gives_numbers_without_an_interval():
    fit = fit_law(CHINCHILLA, runs(6))

    assert fit.usable
    assert not fit.intervals
    assert "too few for an interval" in fit.sentence
    assert np.isnan(fit.predict({"params": 1e9, "tokens": 1e10}).low).all()


def test_a_size_that_never_varies_is_named():
    fit = fit_law(CHINCHILLA, runs() | {"params": np.full(40, 1e8)})

    assert fit.status is FitStatus.UNDERDETERMINED
    assert "params is the same in all runs" in fit.sentence


def test_sizes_that_only_vary_together_are_told():
    table = runs()
    table["tokens"] = 20 * table["params"]
    table["loss"] = 1.8 + 400 / table["params"] ** 0.35

    fit = fit_law(CHINCHILLA, table, n_draws=0)

    assert fit.status in (FitStatus.UNDERDETERMINED, FitStatus.HIT_BOUND)


def test_a_loss_that_does_not_fall_with_tokens_says_so():
    table = runs()
    table["loss"] = 1.8 + 400 / table["params"] ** 0.35 + 1e-3 * np.log(table["tokens"])

    fit = quick(table)

    assert fit.status is FitStatus.HIT_BOUND
    assert "does not fall with tokens" in fit.sentence


def test_no_floor_is_reported_as_zero_and_flagged():
    table = runs(noise=0)
    table["loss"] = 400 / table["params"] ** 0.1 + 1000 / table["tokens"] ** 0.1

    fit = quick(table, objective=SQUARES)

    assert fit.status is FitStatus.HIT_BOUND
    assert fit.parameters["E"] == 0
    assert "E is at its bound 0: these runs show no floor" in fit.sentence


def test_the_resampling_unit_is_the_configuration():
    """Checkpoints of a run share its error; taken as independent, they narrow the interval."""
    base = runs(20, noise=0.0)
    error = 0.02 * np.random.default_rng(1).standard_normal(20)
    table = {k: np.repeat(v, 6) for k, v in base.items()}
    table["tokens"] = table["tokens"] * np.tile(np.geomspace(0.5, 1, 6), 20)
    clean = CHINCHILLA.evaluate(table, np.asarray(list(CHINCHILLA.example.values())))
    table["loss"] = clean * np.exp(np.repeat(error, 6))
    run = np.repeat(np.arange(20), 6)

    def width(clusters):
        fit = fit_law(
            CHINCHILLA, table, clusters=clusters, objective=SQUARES, n_draws=300, hold_out=False
        )
        return np.diff(fit.intervals["E"])[0]

    assert width(run) > 1.4 * width(np.arange(120))


def test_a_new_run_scatters_more_than_the_law():
    fit = fit_law(CHINCHILLA, runs(80, noise=0.01), objective=SQUARES, n_draws=400, hold_out=False)

    at = fit.predict({"params": [1e8, 1e9], "tokens": [1e10, 2e10]})

    assert (at.low < at.y).all()
    assert (at.y < at.high).all()
    assert (at.new_low < at.low).all()
    assert (at.high < at.new_high).all()
    half = np.log(at.new_high / at.new_low) / 2
    np.testing.assert_allclose(half, 1.96 * 0.01, rtol=0.25)
    for alone, of_all in zip(fit.curve(at.inputs), (at.y, at.low, at.high), strict=True):
        np.testing.assert_array_equal(alone, of_all)


@pytest.mark.parametrize("residual", ["log", "value"])
def test_the_band_of_a_new_run_is_on_the_side_of_the_noise(residual):
    n = 400
    generator = np.random.default_rng(0)
    x = np.geomspace(1e5, 1e8, n)
    curve = 2 + 400 * x**-0.35
    # Most runs lie a little below the curve, a few far above it; mean 0.
    noise = 0.03 * (generator.exponential(size=n) - 1)
    loss = curve * np.exp(noise) if residual == "log" else curve + noise
    objective = Objective(residual=residual, huber=None)
    fit = fit_law(POWER, {"x": x, "loss": loss}, objective=objective, n_draws=100, hold_out=False)
    at = fit.predict([3e6])
    above, below = at.new_high[0] - at.y[0], at.y[0] - at.new_low[0]
    assert above > 2 * below
    # A mirrored band would hold fewer of the runs that it was made from.
    runs = fit.predict(x)
    assert 0.93 < ((loss >= runs.new_low) & (loss <= runs.new_high)).mean() < 0.98


def test_predictions_say_how_far_they_extrapolate():
    fit = fit_law(CHINCHILLA, runs(), n_draws=0, hold_out=False)
    largest = fit.inputs["params"].max()

    at = fit.predict({"params": [1e9, 8 * largest], "tokens": [1e10, 1e10]})

    assert at.extrapolated.tolist() == [False, True]
    assert at.distance == pytest.approx([1, 8])


@pytest.mark.parametrize(("smallest", "distance"), [(0.0, [1, 1]), (1e8, [np.inf, 100])])
def test_no_memory_is_an_extrapolation_from_runs_that_all_have_some(smallest, distance):
    N, M, D = (
        v.ravel()
        for v in np.meshgrid(
            [1e7, 3e7, 1e8, 3e8], [smallest, 1e8, 4e8, 1.6e9], [1e9, 4e9, 1.6e10], indexing="ij"
        )
    )
    loss = 1.8 + 400 * (N + 0.3 * M**0.9) ** -0.34 + 1000 * D**-0.35
    fit = quick({"n_active": N, "n_memory": M, "tokens": D, "loss": loss}, law=EFFECTIVE)

    at = fit.predict({"n_active": [3e7, 3e7], "n_memory": [0.0, 1e6], "tokens": [4e9, 4e9]})

    assert at.distance == pytest.approx(distance)
    assert at.extrapolated.tolist() == [d > 1 for d in distance]


def test_the_largest_runs_are_held_out():
    table = runs(40)
    fit = fit_law(CHINCHILLA, table, n_draws=0, objective=SQUARES)

    compute = table["params"] * table["tokens"]
    held = fit.hold_out.rows
    assert len(held) == 10
    assert compute[held].min() >= np.delete(compute, held).max()
    alone = quick({k: np.delete(v, held) for k, v in table.items()}, objective=SQUARES)
    np.testing.assert_allclose(
        fit.hold_out.predicted,
        alone.predict({k: table[k][held] for k in CHINCHILLA.inputs}).y,
        rtol=1e-6,
    )
    assert 0 < fit.hold_out.mean_absolute_log_error <= fit.hold_out.rms_log_error < 0.05


def test_configurations_are_held_out_whole():
    table = {k: np.repeat(v, 3) for k, v in runs(20).items()}
    table["loss"] = table["loss"] * np.exp(0.01 * np.random.default_rng(0).standard_normal(60))

    fit = fit_law(CHINCHILLA, table, n_draws=0, objective=SQUARES)

    assert set(np.bincount(fit.hold_out.rows // 3, minlength=20)) == {0, 3}


def test_a_nested_law_never_fits_better():
    table = runs()

    assert quick(table).objective <= quick(table, CHINCHILLA_TIED).objective * (1 + 1e-9)


def test_the_same_seed_gives_the_same_draws():
    first, second, other = (
        fit_law(
            CHINCHILLA, runs(20), n_draws=20, seed=seed, hold_out=False, objective=SQUARES
        ).draws
        for seed in (4, 4, 5)
    )

    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


def test_other_units_of_the_sizes_give_the_same_curve():
    table = runs()
    units = table | {"params": table["params"] / 1e6, "tokens": table["tokens"] / 1e9}

    fit, other = quick(table), quick(units)

    np.testing.assert_allclose(other.predict(units).y, fit.predict(table).y, rtol=1e-6)
    expected = fit.parameters["A"] / 1e6 ** fit.parameters["alpha"]
    assert other.parameters["A"] == pytest.approx(expected, rel=1e-4)


def test_a_fit_of_all_runs_twice_is_the_same_fit():
    table = runs()

    twice = quick({k: np.tile(v, 2) for k, v in table.items()})

    assert twice.objective == pytest.approx(2 * quick(table).objective, rel=1e-6)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("loss", np.nan, "loss, row 3: must be positive and finite, got nan"),
        ("loss", -1.0, "loss, row 3: must be positive and finite, got -1.0"),
        ("params", 0.0, "params, row 3: must be positive and finite, got 0.0"),
        ("tokens", np.inf, "tokens, row 3: must be positive and finite, got inf"),
    ],
)
def test_a_bad_value_is_named_with_its_row(column, value, message):
    table = runs()
    table[column] = table[column].copy()
    table[column][3] = value

    with pytest.raises(ValueError, match=message):
        fit_law(CHINCHILLA, table)


def test_bad_arguments():
    table = runs()
    with pytest.raises(ValueError, match="tokens: no such column; there are params, loss"):
        fit_law(CHINCHILLA, {k: table[k] for k in ("params", "loss")})
    with pytest.raises(ValueError, match="one configuration per run"):
        fit_law(CHINCHILLA, table, clusters=["a"])
    with pytest.raises(ValueError, match="hold_out: must mark some"):
        fit_law(CHINCHILLA, table, hold_out=np.ones(40, dtype=bool))
    with pytest.raises(ValueError, match="huber: must not be negative"):
        Objective(huber=-1)
    with pytest.raises(ValueError, match="residual: must be log or value"):
        Objective(residual="ratio")


def test_one_size_is_enough_for_a_law_of_one():
    table = make_runs(POWER, 12, noise=0.001)

    assert quick(table, POWER).parameters["alpha"] == pytest.approx(0.35, rel=0.1)


def test_where_no_start_rests_the_lowest_go_on(monkeypatch):
    table = runs(24, seed=4)
    expected = quick(table)
    full = multistart._minimise

    def stopped(*args, iterations=300):
        return full(*args, iterations=iterations if iterations == multistart.LONG else 3)

    monkeypatch.setattr(multistart, "_minimise", stopped)
    fit = quick(table)

    assert fit.status is FitStatus.CONVERGED
    assert fit.objective == pytest.approx(expected.objective, rel=1e-6)


def checkpoints(n_runs):
    """Runs of 20 checkpoints each, which share their run's error."""
    generator = np.random.default_rng(1)
    run = np.repeat(np.arange(n_runs), 20)
    table = {
        "params": np.geomspace(1e7, 3e9, n_runs)[run],
        "tokens": np.tile(np.geomspace(2e8, 6e10, 20), n_runs),
    }
    curve = CHINCHILLA.evaluate(table, np.asarray(list(CHINCHILLA.example.values())))
    shared = 0.003 * generator.standard_normal(n_runs)[run]
    own = 0.001 * generator.standard_normal(len(run))
    return {**table, "loss": curve * np.exp(shared + own), "run": run}


@pytest.mark.parametrize(("n_runs", "said"), [(3, "3 clusters"), (6, "6 clusters")])
def test_few_clusters_give_no_interval_however_many_checkpoints(n_runs, said):
    fit = fit_law(CHINCHILLA, checkpoints(n_runs), clusters="run", n_draws=50, hold_out=False)

    assert not fit.intervals
    assert fit.verdict.status != "adequate"
    for sentence in (fit.sentence, fit.verdict.sentence):
        assert f"{said} of runs for 5 parameters are too few for an interval" in sentence
        assert f"add {7 - n_runs}" in sentence


def test_enough_clusters_give_an_interval():
    fit = fit_law(CHINCHILLA, checkpoints(7), clusters="run", n_draws=50, hold_out=False)

    assert set(fit.intervals) == set(fit.parameters)


def test_a_law_of_few_parameters_needs_six_clusters_of_unequal_runs():
    table = make_runs(POWER, 24, noise=0.003)
    known = {name: POWER.example[name] for name in ("E", "alpha")}

    few, enough, sizes = (
        fit_law(POWER, runs, clusters=of, fixed=known, n_draws=50, hold_out=False)
        for runs, of in (
            (table, np.arange(24) % 5),
            (table, np.arange(24) % 6),
            ({k: v[::5] for k, v in table.items()}, None),
        )
    )

    assert "5 clusters of runs for 1 parameters" in few.sentence
    assert not few.intervals
    assert enough.intervals
    assert sizes.intervals


def test_columns_that_say_what_the_inputs_say_are_no_conditions():
    size, tokens = (
        v.ravel() for v in np.meshgrid(np.geomspace(1e8, 1e10, 6), np.geomspace(1e9, 1e11, 6))
    )
    table = {"params": size, "tokens": tokens}
    table["loss"] = CHINCHILLA.evaluate(table, np.asarray(list(CHINCHILLA.example.values())))
    alike = {
        "training_tokens": tokens,
        "N": [f"{v:.3g}" for v in size],
        "tokens_per_param": (tokens / size).round(3),
        "lr": np.where(np.arange(36) % 5 < 2, 1e-3, 3e-3),
        "schedule": np.where(np.arange(36) % 5 < 2, "cosine", "linear"),
    }

    assert list(quick(table | alike).conditions) == ["lr"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": 95}, "level: must lie between 0 and 1, got 95; 0.95 is 95 %"),
        ({"n_draws": -1}, "n_draws: must be a whole number, got -1"),
        ({"fixed": {"a": 1.0}}, "fixed: chinchilla has no parameter a; it has A, B, E"),
    ],
)
def test_impossible_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        fit_law(CHINCHILLA, runs(20), **options)


def test_predictions_say_which_input_is_missing_or_too_short():
    fit = quick(runs(20))

    with pytest.raises(ValueError, match="got params; give tokens, too"):
        fit.predict({"params": 7e10})
    with pytest.raises(ValueError, match="params: 2 values, but tokens has 3; give one per run"):
        fit.predict({"params": [1e9, 2e9], "tokens": [1e10, 2e10, 3e10]})


def test_a_loss_that_rises_with_size_says_so():
    table = runs()
    table["loss"] = 1.8 + 1000 / table["tokens"] ** 0.3 + 0.1 * np.log10(table["params"] / 1e7)

    fit = quick(table)

    assert not fit.usable
    assert "the loss does not fall with parameters" in fit.sentence
    assert "vary the sizes" not in fit.sentence


def test_a_size_far_beyond_the_runs_is_no_end_of_an_interval():
    """Curves that are nearly flat reach a value at 1e100 parameters, which says: nowhere known."""
    x = np.repeat(np.geomspace(5.8e3, 4.2e4, 6), 2)
    noise = 0.02 * np.random.default_rng(0).standard_normal(len(x))
    fit = fit_law(PowerLaw(), {"x": x, "loss": 5.2 + 30 / x**0.5 + noise}, clusters=list(x))
    values = np.linspace(fit.y.min(), fit.y.max(), 40)

    ends = np.asarray([fit.x_reaching(y)[1:] for y in values])

    best = np.asarray([fit.x_reaching(y)[0] for y in values])
    assert fit.x_reaching(0.0)[1:] == (np.inf, np.inf), "below the floor of every curve"
    assert (ends[:, 0] <= np.nextafter(best, np.inf) * 1.5).all()
    assert np.isfinite(ends[:, 0]).all()
    known = ends[np.isfinite(ends) & (ends > 0)]
    assert np.isinf(ends[:, 1]).any()
    assert len(known) > 10
    assert (known >= x.min() / 1e3).all()
    assert (known <= x.max() * 1e3).all()
