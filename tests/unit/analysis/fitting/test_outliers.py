"""Outliers: seldom named in noise, also of heavy tails."""

import numpy as np
import pytest

from analysis.fitting.outliers import find_outliers, scale_of


@pytest.mark.parametrize("n", [20, 240])
@pytest.mark.parametrize("draw", ["standard_normal", "standard_t"])
def test_noise_alone_names_a_run_in_one_table_of_a_hundred(n, draw):
    generator = np.random.default_rng(0)
    shape = (5,) if draw == "standard_t" else ()
    tables = getattr(generator, draw)(*shape, size=(1000, n))

    named = [len(find_outliers(table, 0, rounding=0.0)) > 0 for table in tables]

    assert np.mean(named) <= 0.02


def test_the_furthest_is_first_and_rounding_is_no_noise():
    residuals = np.random.default_rng(0).standard_normal(40)
    residuals[[3, 30]] = -20, 40

    assert find_outliers(residuals, 5, rounding=0.0).tolist() == [30, 3]
    assert not len(find_outliers(residuals, 5, rounding=10.0))


def test_the_scale_leaves_out_runs_that_the_curve_goes_through():
    residuals = np.concatenate([np.zeros(10), np.ones(10)])

    assert scale_of(residuals, 10) == pytest.approx(1.4826, rel=1e-4)
