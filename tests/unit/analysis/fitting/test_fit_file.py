"""Fits that leave the process: pickles and JSON files give the same answers back."""

import functools
import json
import pickle

import numpy as np
import pytest

import analysis
from analysis.fitting.fit_file import load_fit
from analysis.fitting.fit_law import fit_law
from analysis.fitting.synthetic import make_runs
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.registry import all_laws
from analysis.laws.saturating import Saturating

FAR = {"params": 1e11, "tokens": 1e12}


@functools.cache
def fitted():
    return fit_law("chinchilla", make_runs(CHINCHILLA, 24, noise=0.01), n_draws=20)


def same(one, other):
    assert one.law is other.law
    assert one.status is other.status
    assert dict(one.intervals) == dict(other.intervals)
    np.testing.assert_array_equal(one.draws, other.draws)
    assert one.predict(FAR).new_high == other.predict(FAR).new_high
    np.testing.assert_array_equal(one.hold_out.observed, other.hold_out.observed)
    assert str(one.verdict) == str(other.verdict)


def test_a_pickle_gives_the_same_answers():
    same(fitted(), pickle.loads(pickle.dumps(fitted())))


def test_a_file_gives_the_same_answers(tmp_path):
    fitted().save(tmp_path / "fit.json")

    same(fitted(), analysis.load_fit(tmp_path / "fit.json"))


def test_a_bound_without_an_end_comes_back(tmp_path):
    bounds = {"E": (1.5, float("inf"))}
    runs = make_runs(CHINCHILLA, 24, noise=0.01)
    fit = fit_law("chinchilla", runs, bounds=bounds, n_draws=0)

    fit.save(tmp_path / "fit.json")

    assert dict(load_fit(tmp_path / "fit.json").law.bounds) == bounds


def test_a_fit_without_numbers_can_be_saved(tmp_path):
    empty = fit_law("chinchilla", make_runs(CHINCHILLA, 4, noise=0))
    empty.save(tmp_path / "fit.json")

    assert load_fit(tmp_path / "fit.json").sentence == empty.sentence


def test_runs_that_were_changed_are_refused(tmp_path):
    file = tmp_path / "fit.json"
    fitted().save(file)
    content = json.loads(file.read_text())
    content["fit"]["y"]["$array"][0] *= 1.01
    file.write_text(json.dumps(content))

    with pytest.raises(ValueError, match="the runs were changed after the fit"):
        load_fit(file)


@pytest.mark.parametrize("text", ["[]", "{}", "not json", '{"format": "other"}'])
def test_what_is_no_fit_is_refused(tmp_path, text):
    file = tmp_path / "fit.json"
    file.write_text(text)

    with pytest.raises(ValueError, match=r"fit\.json: (not a saved fit|format must be)"):
        load_fit(file)


def test_a_law_with_settings_is_pickled_not_saved(tmp_path):
    runs = {"x": np.geomspace(1e5, 1e8, 8), "accuracy": np.linspace(0.26, 0.8, 8)}
    fit = fit_law(Saturating(floor=0.25), runs, outcome="accuracy", n_draws=5)

    with pytest.raises(ValueError, match="pickle the fit instead"):
        fit.save(tmp_path / "fit.json")
    again = pickle.loads(pickle.dumps(fit))
    np.testing.assert_array_equal(again.predict([1e9]).y, fit.predict([1e9]).y)


def test_registered_laws_come_back_as_themselves():
    for law in all_laws().values():
        assert pickle.loads(pickle.dumps(law)) is law


def test_the_summary_says_what_people_ask_for():
    text = fitted().summary()

    assert "L = E + A/N^alpha + B/D^beta" in text
    assert "verdict: " in text
    assert "hold the noise of runs, not an error of the law" in text
    assert len(repr(fitted())) < 80
    assert fitted().to_frame().loc["alpha", "value"] == fitted().parameters["alpha"]
    assert "<table" in fitted()._repr_html_()


def test_loaded_runs_are_taken_as_they_are():
    loaded = analysis.load(make_runs(CHINCHILLA, 24, noise=0.01))

    fit = fit_law("chinchilla", loaded, n_draws=0, hold_out=False)

    assert dict(fit.parameters) == pytest.approx(dict(fitted().parameters), rel=1e-6)
    with pytest.raises(ValueError, match="runs: must be a DataFrame, a dict"):
        fit_law("chinchilla", [1, 2, 3])
