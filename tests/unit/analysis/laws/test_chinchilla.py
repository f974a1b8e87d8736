import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from analysis.fitting.law import Law
from analysis.laws.chinchilla import CHINCHILLA, compute_optimum

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
