import numpy as np
import pytest

from analysis.fitting.fit_law import fit_law
from analysis.fitting.objective import SQUARES
from analysis.laws.farseer import FARSEER

P = dict(FARSEER.example)
POINT = np.asarray([P[name] for name in FARSEER.parameter_names])


def loss(params, tokens):
    """The equation as it is printed, sizes in 1e9."""
    n, d = params / 1e9, tokens / 1e9
    floor = np.exp(P["s"] * n ** P["q"] + P["S"])
    exponent = np.exp(P["A"] * n ** P["a"] + P["E"])
    return floor + np.exp(P["B"] * n ** P["b"] + P["Q"]) * d**-exponent


def test_the_curve_is_the_printed_equation():
    params, tokens = np.asarray([2e8, 1e9, 2.5e10]), np.asarray([2e9, 1e11, 1e12])

    found = FARSEER.evaluate({"params": params, "tokens": tokens}, POINT)

    np.testing.assert_allclose(found, loss(params, tokens), rtol=1e-12)


def test_one_size_is_a_power_law_in_tokens_with_a_floor():
    tokens = np.geomspace(1e9, 1e12, 4)
    at = FARSEER.evaluate({"params": np.full(4, 1e9), "tokens": tokens}, POINT)
    above = np.log(at - np.exp(P["s"] + P["S"]))

    slopes = np.diff(above) / np.diff(np.log(tokens))

    np.testing.assert_allclose(slopes, -np.exp(P["A"] + P["E"]), rtol=1e-9)


@pytest.mark.parametrize("bend", [1e-9, -1e-9])
def test_a_bend_of_nearly_zero_is_a_power_law_in_size(bend):
    point = POINT.copy()
    at = {"params": np.geomspace(1e8, 1e10, 5), "tokens": np.full(5, 1e11)}
    internal = FARSEER.internal(point)
    internal[2] = bend

    found = FARSEER.log_values(FARSEER.features(at), internal[None, :])

    internal[2] = 1e-4
    near = FARSEER.log_values(FARSEER.features(at), internal[None, :])
    np.testing.assert_allclose(found, near, rtol=1e-3)


def test_runs_of_the_source_are_extrapolated(published_runs):
    table = published_runs("scalebench_farseer.csv")
    inputs = {"params": table["N"], "tokens": table["D"], "loss": table["loss"]}
    train, test = (
        {k: np.asarray(v[table["split"] == part]) for k, v in inputs.items()}
        for part in ("train", "test")
    )

    fit = fit_law(FARSEER, train, objective=SQUARES, n_draws=0, hold_out=False)

    error = fit.predict(test).y - test["loss"]
    assert 1 - (error**2).sum() / ((test["loss"] - test["loss"].mean()) ** 2).sum() > 0.95
