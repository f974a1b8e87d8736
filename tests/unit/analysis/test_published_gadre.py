"""Gadre et al. 2024: their fit sets, their coefficients, and the errors that they print for two held-out models.

Loss law and error law are least squares in loss and in error, from five and six runs. The synthetic twin runs the same
chain on made-up runs.
"""

import numpy as np
import pytest

from analysis.fitting.objective import Objective
from analysis.fitting.two_stage import fit_chain
from analysis.laws.loss_to_accuracy import Exponential
from analysis.laws.overtraining import OVERTRAINING

SQUARES_OF_LOSS = Objective(residual="value", huber=None)
SMALL = ("d=96_l=8_h=4", "d=512_l=8_h=4", "d=576_l=24_h=8", "d=1024_l=24_h=8")


def fitted(runs, train_data, outcome):
    table = runs[runs["train_data"] == train_data].reset_index(drop=True)
    multiplier = table["token_multiplier"].round().astype(int)
    law_rows = (table["model"].isin(SMALL) & (multiplier == 20)) | (
        (table["model"] == SMALL[0]) & (multiplier == 320)
    )
    link_rows = law_rows | ((table["model"] == "open_lm_1b") & (multiplier == 20))
    assert (law_rows.sum(), link_rows.sum()) == (5, 6)
    chain = fit_chain(
        OVERTRAINING,
        Exponential(),
        table,
        loss="loss_c4_val",
        outcome=outcome,
        law_rows=law_rows,
        link_rows=link_rows,
        objective=SQUARES_OF_LOSS,
    )
    return chain, table.assign(multiplier=multiplier)


def errors_of(chain, table, model, multiplier, outcome):
    """Return the relative errors, in per cent, of loss and outcome of one run."""
    run = table[(table["model"] == model) & (table["multiplier"] == multiplier)].iloc[0]
    at = chain.predict({"params": run["params"], "tokens": run["tokens"]})
    return [
        100 * abs(found - seen) / seen
        for found, seen in ((at.loss[0], run["loss_c4_val"]), (at.y[0], run[outcome]))
    ]


@pytest.mark.parametrize(
    ("train_data", "law", "link17", "link46"),
    [
        ("c4_original", [1.50826, 141.277, 189.516, 0.121236], [0.84974, 2.0789, 0.75612], [0.75895, 1.28851, 0.97216]),
        ("rpj", [1.83665, 212.236, 366.687, 0.136425], [0.85699, 2.20649, 0.71459], [0.76085, 1.32291, 0.89071]),
        ("rw_original", [1.73446, 157.116, 246.207, 0.127197], [0.86528, 2.21482, 0.70705], [0.76768, 1.12808, 0.82152]),
    ],
)  # fmt: skip
def test_coefficients(published_runs, train_data, law, link17, link46):
    runs = published_runs("gadre_overtraining.csv")

    for outcome, link in (("err_avg17", link17), ("err_avg46", link46)):
        chain, _ = fitted(runs, train_data, outcome)
        np.testing.assert_allclose(list(chain.to_loss.parameters.values()), law, rtol=5e-6)
        np.testing.assert_allclose(list(chain.to_outcome.parameters.values()), link, rtol=1e-5)


def test_the_four_published_errors(published_runs):
    chain, table = fitted(published_runs("gadre_overtraining.csv"), "rpj", "err_avg17")

    one = errors_of(chain, table, "open_lm_1b", 640, "err_avg17")
    seven = errors_of(chain, table, "open_lm_7b", 20, "err_avg17")

    assert [f"{e:.4f}" for e in one] == ["0.7103", "3.6365"]
    assert [f"{e:.4f}" for e in seven] == ["0.7320", "0.0464"]


@pytest.mark.parametrize(
    ("train_data", "expected"), [("c4_original", [4.295, 0.137]), ("rw_original", [1.619, 2.939])]
)
def test_other_corpora(published_runs, train_data, expected):
    chain, table = fitted(published_runs("gadre_overtraining.csv"), train_data, "err_avg17")

    found = errors_of(chain, table, "open_lm_7b", 20, "err_avg17")
    assert np.round(found, 3).tolist() == expected


def test_five_runs_for_four_parameters_give_no_interval(published_runs):
    chain, _ = fitted(published_runs("gadre_overtraining.csv"), "rpj", "err_avg17")

    assert not chain.to_loss.intervals
    assert "too few for an interval" in chain.sentence
    assert np.isnan(chain.predict({"params": 7e9, "tokens": 1.4e11}).low).all()


def test_synthetic_twin():
    """Five and six runs without noise, of the published coefficients: the held-out ones are met exactly."""
    params = np.asarray([1.06e7, 7.9e7, 1.54e8, 4.1e8, 1.06e7, 1.44e9, 1.44e9, 6.9e9])
    multiplier = np.asarray([20, 20, 20, 20, 320, 20, 640, 20.0])
    runs = {"params": params, "tokens": params * multiplier}
    law = np.asarray([OVERTRAINING.example[n] for n in OVERTRAINING.parameter_names])
    runs["loss"] = OVERTRAINING.evaluate(runs, law)
    runs["error"] = 0.85699 - 2.20649 * np.exp(-0.71459 * runs["loss"])
    rows = np.arange(8)

    chain = fit_chain(
        OVERTRAINING,
        Exponential(),
        runs,
        outcome="error",
        law_rows=rows < 5,
        link_rows=rows < 6,
        objective=SQUARES_OF_LOSS,
    )

    at = chain.predict({"params": params[6:], "tokens": runs["tokens"][6:]})
    np.testing.assert_allclose(at.loss, runs["loss"][6:], rtol=1e-6)
    np.testing.assert_allclose(at.y, runs["error"][6:], rtol=1e-6)
