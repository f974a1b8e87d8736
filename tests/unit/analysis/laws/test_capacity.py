import numpy as np
import pytest

from analysis.fitting.fit_law import fit_law
from analysis.laws.capacity import CAPACITY


def test_small_models_are_full_and_large_ones_know_everything():
    at = {"params": np.asarray([1e3, 1e10]), "data_bits": np.asarray([5e6, 5e6])}

    np.testing.assert_allclose(CAPACITY.evaluate(at, np.asarray([2.0, 3.0])), [2e3, 5e6], rtol=1e-6)


def test_one_set_of_facts_is_enough_to_see_the_plateau():
    params = np.geomspace(1e5, 1e8, 12)
    runs = {"params": params, "data_bits": np.full(12, 5.82e6)}
    runs["stored_bits"] = CAPACITY.evaluate(runs, np.asarray([1.9, 4.0]))

    fit = fit_law(CAPACITY, runs, outcome="stored_bits", n_draws=0)

    assert fit.parameters["R"] == pytest.approx(1.9, rel=1e-6)
