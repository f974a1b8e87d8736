from types import SimpleNamespace

import numpy as np
import pytest

from analysis.fitting.result import FitStatus
from analysis.laws.chinchilla import compute_optimum
from analysis.scaling.envelope import fit_envelope

EVEN = {"A": 500.0, "B": 500.0, "E": 1.8, "alpha": 0.35, "beta": 0.35}


def curves(sizes):
    """Training curves that are the law at every point: the envelope is then exact."""
    rows = []
    for i, N in enumerate(sizes):
        for D in np.geomspace(1e7, 1e13, 400):
            loss = EVEN["E"] + EVEN["A"] / N ** EVEN["alpha"] + EVEN["B"] / D ** EVEN["beta"]
            rows.append((i, N, 6 * N * D, loss))
    run, params, flops, loss = np.asarray(rows).T
    return {"run": run, "params": params, "flops": flops, "loss": loss}


def test_the_exponent_of_curves_that_follow_the_law():
    found = fit_envelope(curves(np.geomspace(1e7, 1e10, 40)), n_draws=50)

    assert found.status is FitStatus.CONVERGED
    assert found.exponent == pytest.approx(0.5, abs=0.01)
    assert found.interval[0] < 0.5 < found.interval[1]
    inside = ~found.at_edge
    expected = [compute_optimum(EVEN, C)[0] for C in found.compute[inside]]
    assert np.abs(np.log(found.params[inside] / expected)).max() < np.log(1e3) / 39


def test_the_smallest_and_largest_models_are_left_out():
    found = fit_envelope(curves(np.geomspace(1e8, 1e9, 8)), n_draws=0)

    assert found.at_edge[0]
    assert found.at_edge[-1]
    assert "won by the smallest or largest model" in found.sentence


def test_it_takes_what_load_returns():
    table = curves(np.geomspace(1e8, 1e9, 8))

    found = fit_envelope(SimpleNamespace(table=table), n_draws=0)

    assert found.exponent == fit_envelope(table, n_draws=0).exponent


def test_too_few_winners_give_no_exponent():
    found = fit_envelope(curves(np.geomspace(1e8, 1e9, 4)), n_draws=10)

    assert found.status is FitStatus.EDGE
    assert found.exponent is None
    assert not found.usable


def test_bad_curves():
    table = curves([1e8, 1e9])
    with pytest.raises(ValueError, match="no run has two checkpoints"):
        fit_envelope(table | {"run": np.arange(len(table["run"]))})
    with pytest.raises(ValueError, match="flops: no such column"):
        fit_envelope({k: v for k, v in table.items() if k != "flops"})
