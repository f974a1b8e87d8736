import numpy as np
import pytest
from scipy.optimize import brentq

from analysis.laws.routed import ROUTED

P = dict(ROUTED.example)
POINT = np.asarray([P[name] for name in ROUTED.parameter_names])


def loss(params, experts):
    """The equation as it is printed, base-10 logarithms."""
    saturated = 1 / (1 / (experts - 1 + 1 / (1 / P["E_start"] - 1 / P["E_max"])) + 1 / P["E_max"])
    n, e = np.log10(params), np.log10(saturated)
    return 10 ** (P["a"] * n + P["b"] * e + P["c"] * n * e + P["d"])


def test_the_curve_is_the_printed_equation():
    params, experts = np.asarray([1e7, 1e8, 1e9]), np.asarray([1.0, 16.0, 512.0])

    found = ROUTED.evaluate({"params": params, "experts": experts}, POINT)

    np.testing.assert_allclose(found, loss(params, experts), rtol=1e-12)


def test_experts_saturate_from_start_to_maximum():
    found = ROUTED.saturated_experts(np.asarray([1.0, 1e12]), P)

    np.testing.assert_allclose(found, [P["E_start"], P["E_max"]], rtol=1e-6)


@pytest.mark.parametrize("experts", [1.0, 8.0, 256.0])
def test_the_dense_equivalent_has_the_same_loss(experts):
    found = ROUTED.dense_equivalent(np.asarray([1e8]), np.asarray([experts]), P)[0]

    expected = 10 ** brentq(lambda n: loss(10**n, 1.0) - loss(1e8, experts), 6, 12)
    assert found == pytest.approx(expected, rel=1e-6)
