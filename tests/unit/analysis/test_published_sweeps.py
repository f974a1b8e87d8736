"""Other people's sweeps (docs/analysis.md): their coefficients back from their runs, or from runs made of them.

The twins always run; a test that reads published runs is skipped where its file is not there. Files:
`llama3_isoflops.csv` (eric-czech/llama3_isoflop_extraction, as it is), `datablations.csv` (the table of
`utils/parametric_fit.ipynb` in huggingface/datablations, as model, params, tokens, unique_tokens, val_loss),
`olmo_ladder.csv` (the last row of every ladder run in allenai/OLMo, scripts/scaling/data/peteish-moreeval, with its name
and n), `bnsl_4digit.csv` (the 17 points in ethancaballero/broken_neural_scaling_laws).
"""

import numpy as np
import pytest

import analysis
from analysis.fitting.fit_law import fit_law
from analysis.fitting.objective import SQUARES
from analysis.fitting.two_stage import fit_chain
from analysis.laws.broken import BROKEN
from analysis.laws.chinchilla import CHINCHILLA, CHINCHILLA_TIED
from analysis.laws.loss_to_accuracy import Sigmoid
from analysis.laws.routed import ROUTED
from analysis.scaling.isoflop import fit_isoflop

CLARK = {
    "S-BASE": (-0.082, -0.108, 0.009, 1.104, 1.847, 314.478),
    "RL-R": (-0.083, -0.126, 0.012, 1.111, 1.880, 469.982),
    "HASH": (-0.087, -0.136, 0.012, 1.157, 4.175, 477.741),
}
"""Clark et al. 2022, table 3: a, b, c, d, E_start, E_max."""
CLARK_SIZES = np.asarray([15e6, 25e6, 55e6, 130e6, 370e6, 870e6, 1.3e9])


@pytest.mark.parametrize("router", CLARK)
def test_routed_models_twin(router):
    params, experts = (v.ravel() for v in np.meshgrid(CLARK_SIZES, 2.0 ** np.arange(10)))
    runs = {"params": params, "experts": experts}
    runs["loss"] = ROUTED.evaluate(runs, np.asarray(CLARK[router]))

    fit = fit_law(ROUTED, runs, objective=SQUARES, n_draws=0, hold_out=False)

    np.testing.assert_allclose(list(fit.parameters.values()), CLARK[router], rtol=1e-5)


MUENNIGHOFF = dict(
    zip(
        ("A", "B", "E", "alpha"),
        [*np.exp([6.4526014, 8.022968, 0.63987476]), 0.3595363],
        strict=True,
    )
)
"""Muennighoff et al. 2023, notebook: the runs of at most 2.5 epochs, one exponent; ln A, ln B, ln E and alpha."""


def test_data_constrained_twin():
    params, tokens = (
        v.ravel()
        for v in np.meshgrid(
            [7e6, 1.4e7, 1.5e8, 1.1e9, 2.8e9, 8.7e9], [1e8, 4e8, 1.2e10, 5.5e10, 1.78e11]
        )
    )
    runs = {"params": params, "tokens": tokens}
    runs["loss"] = CHINCHILLA_TIED.evaluate(runs, np.asarray(list(MUENNIGHOFF.values())))

    fit = fit_law(CHINCHILLA_TIED, runs, n_draws=0, hold_out=False)

    assert fit.parameters == pytest.approx(MUENNIGHOFF, rel=1e-5)


def test_data_constrained_runs(published_runs):
    table = published_runs("datablations.csv")
    once = table[table["tokens"] <= 2.5 * table["unique_tokens"]].reset_index(drop=True)
    assert len(once) == 62

    fit = fit_law(CHINCHILLA_TIED, analysis.load(once).table, n_draws=0, hold_out=False)

    assert fit.objective <= 0.00121893963  # that of the published coefficients
    assert fit.parameters["alpha"] == pytest.approx(MUENNIGHOFF["alpha"], abs=1e-4)
    for name in "ABE":
        assert fit.parameters[name] == pytest.approx(MUENNIGHOFF[name], rel=2e-3)


def test_isoflop_twin():
    """Budgets of Llama 3, every curve a parabola about 0.299 C^0.537 tokens."""
    budgets = np.repeat([6e18, 1e19, 3e19, 6e19, 1e20, 3e20, 6e20, 1e21, 3e21, 1e22], 9)
    away = np.tile(np.linspace(-1.0, 1.3, 9), 10)
    tokens = 0.299 * budgets**0.537 * np.exp(away)
    runs = {
        "compute_budget": budgets,
        "training_tokens": tokens,
        "validation_loss": 0.9 - 0.02 * np.log(budgets / 6e18) + 0.01 * away**2,
    }

    fit = fit_isoflop(analysis.load(runs).table, n_draws=0)

    line = fit.lines["tokens"]
    assert (line.exponent, line.coefficient) == pytest.approx((0.537, 0.299), rel=1e-6)


def test_isoflop_runs(published_runs):
    runs = analysis.load(published_runs("llama3_isoflops.csv"))

    fit = fit_isoflop(runs.table, n_draws=200, method="parabola")

    line = fit.lines["tokens"]
    assert f"{line.exponent:.3f}" == "0.537"
    assert f"{line.coefficient:.3f}" == "0.299"
    assert line.interval[0] < 0.537 < line.interval[1]
    value, low, high = line.at(3.8e25)
    assert low < 16.55e12 < high
    assert value == pytest.approx(16.55e12, rel=0.03)


LADDER = {"params": "n", "tokens": "throughput/total_tokens"}
LADDER_SIZES = [190354176, 371262464, 758220288, 1279395840]
TARGET = {"params": 13202396160, "tokens": 5000088518656}


def test_task_ladder_twin():
    """Two steps without noise: loss by size and tokens, accuracy by loss above chance."""
    n, ratio = (v.ravel() for v in np.meshgrid(LADDER_SIZES, [20.0, 40, 100, 200]))
    runs = {"n": n, "throughput/total_tokens": n * ratio}
    law = np.asarray([7.9, 41.0, 0.46, 0.172, 0.237])
    runs["bpb"] = CHINCHILLA.evaluate({"params": n, "tokens": n * ratio}, law)
    link = Sigmoid(chance=0.25)
    runs["accuracy"] = link.evaluate({"loss": runs["bpb"]}, np.asarray([0.97, 0.76, 12.6]))

    chain = fit_chain(CHINCHILLA, link, runs, loss="bpb", columns=LADDER, n_draws=0, hold_out=False)

    at = chain.predict(TARGET)
    expected = CHINCHILLA.evaluate({k: np.asarray([v]) for k, v in TARGET.items()}, law)
    np.testing.assert_allclose(at.loss, expected, rtol=1e-5)
    np.testing.assert_allclose(
        at.y, link.evaluate({"loss": expected}, np.asarray([0.97, 0.76, 12.6])), rtol=1e-4
    )


@pytest.mark.parametrize(
    ("task", "chance", "loss", "second", "chained"),
    [("hellaswag", 0.25, (0.65318, 0.66093), 0.84157, 0.85304), ("piqa", 0.5, (0.87479, 0.89879), 0.80746, 0.82080)],
)  # fmt: skip
def test_task_ladder_runs(published_runs, task, chance, loss, second, chained):
    """Bhagia et al. 2024: loss of the 13B model predicted and measured, accuracy from the measured loss, and through both."""
    table = published_runs("olmo_ladder.csv")
    chain = fit_chain(
        CHINCHILLA,
        Sigmoid(chance=chance),
        table,
        columns=LADDER,
        n_draws=200,
        hold_out=False,
        loss=f"eval/downstream_bpb/{task}_val_rc_5shot_bpb",
        outcome=f"eval/downstream/{task}_val_rc_5shot_len_norm",
    )

    at = chain.predict(TARGET)
    assert at.loss[0] == pytest.approx(loss[0], rel=0.02)
    assert chain.to_outcome.predict([loss[1]]).y[0] == pytest.approx(second, rel=0.005)
    assert at.y[0] == pytest.approx(chained, rel=0.02)
    assert at.low[0] < chained < at.high[0]


def test_abrupt_break_runs(published_runs):
    """Caballero et al. 2023, figure 4 left: 14 points fitted, three predicted; their code with our start: 0.0109."""
    runs = published_runs("bnsl_4digit.csv")
    runs.columns = ["x", "loss"]

    fit = fit_law(BROKEN, runs, objective=SQUARES, n_draws=0, hold_out=np.arange(17) >= 14)

    assert fit.status == "converged"
    assert fit.hold_out.rms_log_error < 0.0115
