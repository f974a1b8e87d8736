import numpy as np
import pytest
from scipy.optimize import minimize_scalar

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
