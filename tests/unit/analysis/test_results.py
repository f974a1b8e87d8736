"""A result as the last line of a notebook's cell is one line, which says what to call."""

import re

import pytest

import analysis
from analysis.fitting.synthetic import make_runs
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.loss_to_accuracy import Sigmoid

FAST = {"n_draws": 20}


@pytest.fixture(scope="module")
def runs():
    table = make_runs(CHINCHILLA, 36, noise=0.004)
    table["flops"] = 6 * table["params"] * table["tokens"]
    table["accuracy"] = 0.25 + 0.5 * (table["loss"].max() - table["loss"]) / table["loss"].max()
    table["architecture"] = ["dense", "memory"] * 18
    return analysis.load(table)


@pytest.fixture(scope="module")
def laws(runs):
    return analysis.fit_families(runs, **FAST)


RESULTS = {
    "load": lambda runs, laws: runs,
    "fit_sweep": lambda runs, laws: analysis.fit_sweep(runs, **FAST),
    "fit_law": lambda runs, laws: analysis.fit_law("chinchilla", runs, **FAST),
    "fit_isoflop": lambda runs, laws: analysis.fit_isoflop(runs, **FAST),
    "fit_chain": lambda runs, laws: analysis.fit_chain(
        "chinchilla", Sigmoid(chance=0.25), runs, **FAST
    ),
    "fit_partial": lambda runs, laws: analysis.fit_partial("chinchilla", runs, **FAST),
    "choose_law": lambda runs, laws: analysis.choose_law(runs, ["chinchilla", "kaplan"], **FAST),
    "fit_families": lambda runs, laws: laws,
    "named": lambda runs, laws: laws.named("dense"),
    "multipliers": lambda runs, laws: analysis.multipliers(laws, "memory"),
    "frontier": lambda runs, laws: analysis.frontier(laws),
    "next_runs": lambda runs, laws: analysis.next_runs(
        laws,
        [
            {
                "name": "larger",
                "architecture": "dense",
                "inputs": {"params": 1e10, "tokens": 1e11},
                "gpu_hours": 1.0,
            }
        ],
        "dense: params=1e11, tokens=1e12",
        n_runs=1,
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_shown_in_one_line(runs, laws, name):
    result = RESULTS[name](runs, laws)
    shown = repr(result)

    assert re.fullmatch(rf"<{type(result).__name__}\b.*>", shown)  # `.` is no line break
    assert len(shown) < 200
    # What it says to call is there.
    told = re.search(r"see (.*)>$", shown)
    for what in re.findall(r"\w+(?=[(,>]|$)", told.group(1)) if told else ():
        assert what == "i" or hasattr(result, what)
