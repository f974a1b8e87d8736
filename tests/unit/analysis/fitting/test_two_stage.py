import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import curve_fit

from analysis.fitting.objective import Objective
from analysis.fitting.synthetic import make_runs
from analysis.fitting.two_stage import fit_chain
from analysis.fitting.verdict import FitVerdict, VerdictStatus
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.loss_to_accuracy import Exponential, Sigmoid

LINK = np.asarray([0.9, 2.9, 4.0])
TARGET = {"params": 3e10, "tokens": 1e12}


def runs(loss_noise=0.01, outcome_noise=0.01, n=60, seed=0):
    table = make_runs(CHINCHILLA, n, noise=loss_noise, seed=seed)
    noise = outcome_noise * np.random.default_rng(seed + 1).standard_normal(n)
    clean = Sigmoid(chance=0.25).evaluate({"loss": table["loss"]}, LINK)
    return table | {"accuracy": np.clip(clean + noise, 0.01, 1)}


def chain(table, n_draws=0, **options):
    link = Sigmoid(chance=0.25)
    return fit_chain(CHINCHILLA, link, table, n_draws=n_draws, hold_out=False, **options)


def test_without_noise_the_target_is_met():
    at = chain(runs(0, 0)).predict(TARGET)

    loss = CHINCHILLA.evaluate(
        {k: np.asarray([v]) for k, v in TARGET.items()},
        np.asarray(list(CHINCHILLA.example.values())),
    )
    np.testing.assert_allclose(at.loss, loss, rtol=1e-6)
    np.testing.assert_allclose(at.y, Sigmoid(chance=0.25).evaluate({"loss": loss}, LINK), rtol=1e-6)
    assert at.extrapolated.tolist() == [True]


def test_it_takes_what_load_returns():
    """An object with a table, as well as the table."""
    loaded = SimpleNamespace(table=runs())

    found = chain(loaded)

    plain = chain(runs())
    assert dict(found.to_outcome.parameters) == dict(plain.to_outcome.parameters)


@pytest.mark.parametrize(("n_clusters", "has_interval"), [(3, False), (12, True)])
def test_few_clusters_have_no_interval(n_clusters, has_interval):
    """Their resamples would lie too close together (`verdict.too_few_for_intervals`)."""
    table = runs()
    clusters = np.arange(len(table["loss"])) % n_clusters

    at = chain(table, n_draws=40, clusters=clusters).predict(TARGET)

    assert bool(np.isfinite(at.low).all()) == has_interval


def test_it_takes_a_law_by_its_name():
    found = fit_chain("chinchilla", Sigmoid(chance=0.25), runs(), n_draws=0, hold_out=False)

    assert dict(found.to_loss.parameters) == dict(chain(runs()).to_loss.parameters)
    with pytest.raises(
        ValueError, match=r"link: must be a curve .* such as Sigmoid.*got 'sigmoid'"
    ):
        fit_chain("chinchilla", "sigmoid", runs())


@pytest.mark.parametrize("link", [Sigmoid(chance=0.25), Exponential(fixed_eps=0.75)])
def test_outcomes_in_per_cent_are_refused_where_levels_are_shares(link):
    table = runs()
    table["accuracy"] = 100 * table["accuracy"]

    with pytest.raises(ValueError, match="accuracy: in per cent\\? divide by 100; the median is"):
        fit_chain("chinchilla", link, table, n_draws=0)


def test_its_summary_and_table_have_both_stages():
    found = chain(runs(), n_draws=30)

    frame = found.to_frame()
    assert frame.loc[("loss", "alpha"), "value"] == found.to_loss.parameters["alpha"]
    assert frame.loc[("accuracy", "k"), "low"] == found.to_outcome.intervals["k"][0]
    text = found.summary()
    assert text.startswith(f"verdict: {found.verdict}")
    assert found.to_loss.summary() in text
    assert "2. from loss to accuracy" in text
    assert pickle.loads(pickle.dumps(found)).summary() == text


def test_an_answer_nll_may_be_above_one():
    table = runs()
    table["answer_nll"] = 3 + table["loss"]

    link = Exponential()
    found = fit_chain("chinchilla", link, table, outcome="answer_nll", n_draws=0, hold_out=False)

    assert found.to_outcome.usable


def test_the_interval_holds_both_steps():
    both = chain(runs(), 60).predict(TARGET)
    link_only = chain(runs(loss_noise=1e-6), 60).predict(TARGET)
    law_only = chain(runs(outcome_noise=1e-6), 60).predict(TARGET)

    def width(at):
        return float(at.high[0] - at.low[0])

    assert width(both) > width(link_only)
    assert width(both) > width(law_only)
    assert both.low[0] < both.y[0] < both.high[0]
    assert both.new_low[0] < both.low[0]
    assert both.new_high[0] > both.high[0]


def test_both_steps_see_the_same_resamples():
    """Runs whose loss and outcome err together: resampled apart, the target's interval would be another."""
    fitted = chain(runs(), 10, seed=3)
    again = chain(runs(), 10, seed=3)

    np.testing.assert_array_equal(fitted.to_loss.draws, again.to_loss.draws)
    np.testing.assert_array_equal(fitted.to_outcome.draws, again.to_outcome.draws)
    assert len(fitted.to_loss.draws) == len(fitted.to_outcome.draws) == 10


@pytest.mark.parametrize("residual", ["log", "value"])
def test_the_band_of_a_new_run_is_on_the_side_of_the_noise(residual):
    """A few runs have a much higher loss than the law's, and so a much lower accuracy."""
    n = 300
    table = make_runs(CHINCHILLA, n, noise=0, seed=0)
    noise = 0.02 * (np.random.default_rng(0).exponential(size=n) - 1)
    loss = table["loss"] * np.exp(noise) if residual == "log" else table["loss"] + 3 * noise
    accuracy = Sigmoid(chance=0.25).evaluate({"loss": loss}, LINK)
    fit = fit_chain(
        CHINCHILLA,
        Sigmoid(chance=0.25),
        table | {"loss": loss, "accuracy": accuracy},
        objective=Objective(residual=residual, huber=None),
        n_draws=300,
        hold_out=False,
    )
    at = fit.predict({"params": 1e9, "tokens": 2e10})

    assert at.y[0] - at.new_low[0] > 1.5 * (at.new_high[0] - at.y[0])


def test_a_step_without_numbers_makes_no_prediction():
    table = {k: v[:4] for k, v in runs().items()}

    fitted = chain(table)

    assert not fitted.usable
    assert "distinct runs for 5 parameters" in fitted.sentence
    with pytest.raises(ValueError, match="no numbers to predict from"):
        fitted.predict(TARGET)


def test_an_anchor_is_a_point_of_small_weight():
    """The same curve by scipy, the anchor weighted by the scatter of the runs over its own."""
    table = runs(n=24, seed=4)
    link = Sigmoid(chance=None)

    fit = fit_chain(CHINCHILLA, link, table, n_draws=0, hold_out=False).to_outcome

    def curve(x, floor, ceiling, middle, k):
        return floor + (ceiling - floor) / (1 + np.exp(k * (x - middle)))

    loss, accuracy = table["loss"], table["accuracy"]
    bounds = ([0, 0, 0, 0], [1, 1, 9, 20])
    start = [0.25, 0.9, 2.9, 4.0]
    free, _ = curve_fit(curve, loss, accuracy, p0=start, bounds=bounds)
    scale = np.sqrt(np.sum((curve(loss, *free) - accuracy) ** 2) / 20)
    sigma = np.append(np.full(24, scale), 0.1)
    x, y = np.append(loss, 0.0), np.append(accuracy, 1.0)
    expected, _ = curve_fit(curve, x, y, p0=start, bounds=bounds, sigma=sigma)
    assert abs(expected[1] - free[1]) > 1e-3
    np.testing.assert_allclose(list(fit.parameters.values()), expected, rtol=2e-4)
    assert len(fit.y) == len(fit.residuals) == len(fit.clusters) == 24


def test_the_verdict_is_the_worse_of_both_stages():
    fit = chain(runs(), n_draws=50)
    misfit = FitVerdict(status=VerdictStatus.MISFIT, sentence="wrong")
    vars(fit.to_outcome)["verdict"] = misfit  # a cached property

    assert fit.verdict.status is VerdictStatus.MISFIT
    assert fit.verdict.sentence == "accuracy: wrong"
