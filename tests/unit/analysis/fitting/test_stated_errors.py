"""Stated errors: p-values that are uniform where they are right."""

import numpy as np
import pytest

from analysis.fitting.stated_errors import compare_with_stated


@pytest.mark.parametrize("shared", [0.0, 0.8])
def test_right_errors_are_seldom_called_wrong(shared):
    """Also where runs of a cluster share most of them: 12 clusters of 5 are not 60 runs."""
    generator = np.random.default_rng(0)
    design = np.vander(np.linspace(-1, 1, 60), 3)
    cluster = np.arange(60) % 12
    p = []
    for _ in range(400):
        common, own = generator.standard_normal(12)[cluster], generator.standard_normal(60)
        errors = np.sqrt(shared) * common + np.sqrt(1 - shared) * own
        p.append(compare_with_stated(errors, design, cluster).larger)

    assert 0.005 <= np.mean(np.asarray(p) < 0.05) <= 0.1


def test_the_ratio_is_that_of_the_sizes():
    errors = 3 * np.random.default_rng(1).standard_normal(400)

    found = compare_with_stated(errors, np.ones((400, 1)), np.arange(400))

    assert found.ratio == pytest.approx(3, rel=0.1)
    assert found.larger < 1e-6
    assert found.smaller > 0.999


def test_as_many_parameters_as_runs_leave_nothing_to_compare():
    found = compare_with_stated(np.ones(3), np.eye(3), np.arange(3))

    assert np.isnan(found.ratio)
