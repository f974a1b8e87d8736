"""Verdicts: each word for what earns it, with what to do."""

import dataclasses
import functools

import numpy as np
import pytest

from analysis.fitting import verdict as judging
from analysis.fitting.fit_law import fit_law
from analysis.fitting.synthetic import make_runs
from analysis.fitting.verdict import FitVerdict, VerdictStatus, worst
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.kaplan import KAPLAN
from analysis.laws.power import POWER


@functools.cache
def chinchilla_runs():
    return make_runs(CHINCHILLA, 40, noise=0.003)


def fit(law, runs, **options):
    return fit_law(law, runs, **{"n_draws": 50, **options})


def test_the_right_law_is_adequate():
    found = fit(CHINCHILLA, chinchilla_runs()).verdict

    assert found.status is VerdictStatus.ADEQUATE
    assert "show no pattern" in found.sentence
    assert "of 10 held-out runs lie in their intervals" in found.sentence
    assert found.numbers["scale"] == pytest.approx(0.003, rel=0.3)


def test_a_wrong_law_is_a_misfit_although_it_converged():
    fitted = fit(KAPLAN, chinchilla_runs())

    assert fitted.status == "converged"
    assert fitted.verdict.is_misfit
    assert "residuals follow a curve in params and tokens" in fitted.verdict.sentence
    assert "try another law" in fitted.verdict.sentence
    assert fitted.verdict.numbers["systematic"] > fitted.verdict.numbers["noise"]


def test_of_several_fits_judged_together_one_oddity_is_no_misfit(monkeypatch):
    fitted = fit(CHINCHILLA, chinchilla_runs())
    odd = dataclasses.replace(
        judging._tested(fitted, np.ones(40, dtype=bool)), curve=0.02, systematic=1.0
    )
    monkeypatch.setattr(judging, "lack_of_fit", lambda *_, **__: odd)

    alone, third = (dataclasses.replace(fitted, n_judged=n).verdict for n in (1, 3))

    assert alone.is_misfit
    assert third.status is VerdictStatus.ADEQUATE
    assert "one of 3 fits judged together, so p counts up to 0.015" in third.sentence


def test_pooled_conditions_are_named():
    runs = chinchilla_runs()
    rate = np.random.default_rng(0).integers(2, size=40)
    pooled = {**runs, "loss": runs["loss"] * 1.02**rate, "lr": 1e-3 * 3**rate, "seed": rate}

    found = fit(CHINCHILLA, pooled).verdict

    assert found.is_misfit
    assert "runs of different lr are pooled and differ" in found.sentence


def test_a_curve_through_too_few_sizes_is_underdetermined():
    x = np.geomspace(1e6, 1e8, 5)
    loss = 2.0 + 50 * x**-0.3 + np.asarray([0.01, -0.02, 0.03, -0.02, 0.01])

    found = fit(POWER, {"x": x, "loss": loss}).verdict

    assert found.status is VerdictStatus.UNDERDETERMINED
    assert "add sizes further apart" in found.sentence


def test_a_fit_without_numbers_says_why():
    fitted = fit(POWER, {"x": [1e6, 1e7], "loss": [3.0, 2.0]})

    assert fitted.verdict.status is VerdictStatus.UNDERDETERMINED
    assert fitted.verdict.sentence == fitted.sentence


def test_without_intervals_nothing_says_how_well_it_is_determined():
    found = fit(CHINCHILLA, chinchilla_runs(), n_draws=0).verdict

    assert found.status is VerdictStatus.DOUBTFUL
    assert "no intervals" in found.sentence


def test_a_curve_through_all_runs_is_not_tested_on_rounding():
    found = fit(CHINCHILLA, make_runs(CHINCHILLA, 40, noise=0)).verdict

    assert found.status is VerdictStatus.ADEQUATE
    assert "through all runs" in found.sentence


def verdict(status):
    return FitVerdict(status=VerdictStatus(status), sentence="because")


def test_what_rests_on_several_fits_has_the_worst_verdict():
    found = worst({"a": verdict("adequate"), "b": verdict("misfit"), "c": verdict("misfit")})

    assert str(found) == "misfit: b: because; so for c"
    assert worst({"a": verdict("adequate")}).sentence == "because"


def test_a_wild_run_is_named():
    runs = chinchilla_runs()
    wild = {**runs, "loss": np.where(np.arange(40) == 17, 1.3 * runs["loss"], runs["loss"])}

    fitted = fit(CHINCHILLA, wild)
    accepted = fit(CHINCHILLA, wild, accept={"outliers"})

    assert fitted.verdict.status is VerdictStatus.DOUBTFUL
    assert "row 17 lies far from the curve, by up to 2" in fitted.verdict.sentence
    assert "by a robust scale" in fitted.verdict.sentence
    assert fitted.verdict.numbers["robust_scale"] == pytest.approx(0.003, rel=0.3)
    assert not accepted.warnings


@pytest.mark.parametrize(
    ("stated", "status", "said"),
    [
        (0.0003, VerdictStatus.MISFIT, "errors of the size in sigma do not explain"),
        (0.003, VerdictStatus.ADEQUATE, "show no pattern"),
        (0.03, VerdictStatus.ADEQUATE, "errors in sigma are 1"),
    ],
)
def test_stated_errors_are_compared_with_residuals(stated, status, said):
    found = fit(CHINCHILLA, chinchilla_runs(), sigma=np.full(40, stated)).verdict

    assert found.status is status
    assert found.numbers["stated_ratio"] == pytest.approx(0.003 / stated, rel=0.3)
    assert said in found.sentence
    assert ("sigma" in found.sentence) == (stated != 0.003)
