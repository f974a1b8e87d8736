import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from analysis.fitting.law import Law
from analysis.laws.chinchilla import CHINCHILLA, compute_optimum
from analysis.laws.farseer import FARSEER

P = dict(CHINCHILLA.example)


@pytest.mark.parametrize("compute", [1e18, 5.76e23])
def test_the_compute_optimum_is_where_a_search_finds_it(compute):
    params, tokens = compute_optimum(P, compute)

    def loss(log_n):
        N = np.exp(log_n)
        return P["E"] + P["A"] / N ** P["alpha"] + P["B"] / (compute / 6 / N) ** P["beta"]

    found = minimize_scalar(loss, bounds=(10, 40), method="bounded", options={"xatol": 1e-10})
    assert params * tokens * 6 == pytest.approx(compute)
    assert params == pytest.approx(np.exp(found.x), rel=1e-4)


def test_every_row_of_sizes_is_evaluated_under_its_own_parameters():
    k, n = 4, 6
    generator = np.random.default_rng(0)
    inputs = {name: 10 ** generator.uniform(6, 10, (k, n)) for name in CHINCHILLA.inputs}
    inputs["params"][1, 2] = np.nan
    parameters = np.asarray(list(P.values())) * generator.uniform(0.9, 1.1, (k, 1))

    found = CHINCHILLA.evaluate_each(inputs, parameters)

    for i in range(k):
        row = {name: values[i] for name, values in inputs.items()}
        np.testing.assert_array_equal(found[i], CHINCHILLA.evaluate(row, parameters[i]))
    np.testing.assert_array_equal(found, Law.evaluate_each(CHINCHILLA, inputs, parameters))


@pytest.mark.filterwarnings("error")
def test_an_input_that_is_not_known_has_no_outcome_and_spoils_no_other():
    inputs = {name: np.array([[1e7, np.nan], [2e7, 3e7]]) for name in FARSEER.inputs}
    example = dict(FARSEER.example)
    parameters = np.tile([example[p.name] for p in FARSEER.parameters], (2, 1))

    found = FARSEER.evaluate_each(inputs, parameters)

    assert np.isnan(found[0, 1])
    known = {name: values[0, :1] for name, values in inputs.items()}
    assert found[0, 0] == FARSEER.evaluate(known, parameters[[0]])[0, 0]
    assert np.isfinite(found[1]).all()
    none = {name: values[:0] for name, values in inputs.items()}
    assert FARSEER.evaluate_each(none, parameters[:0]).shape == (0, 2)
