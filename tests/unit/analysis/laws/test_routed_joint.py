import numpy as np
import pytest

from analysis.fitting.fit_law import fit_law
from analysis.fitting.objective import SQUARES
from analysis.laws.chinchilla import compute_optimum
from analysis.laws.routed import log_saturated
from analysis.laws.routed_joint import ROUTED_JOINT

P = dict(ROUTED_JOINT.example)
POINT = np.asarray([P[name] for name in ROUTED_JOINT.parameter_names])

AT_EXPERTS = {
    1: (30.3640, -0.1817, 53.9838, -0.1965),
    2: (27.7982, -0.1780, 66.8401, -0.2065),
    4: (24.8462, -0.1731, 87.7022, -0.2192),
    8: (21.8330, -0.1676, 119.9126, -0.2338),
    16: (19.0159, -0.1617, 167.5073, -0.2494),
    32: (16.5424, -0.1557, 234.6726, -0.2652),
}
"""Ludziejewski et al. 2025, table 4: amplitude and exponent of parameters and of tokens at each number of experts."""

ACTIVE = [79e6, 118e6, 169e6, 321e6, 469e6, 709e6, 1.1e9, 2.7e9]
TOKENS = [5e8, 1e9, 2e9, 4e9, 8e9, 1.6e10, 3.2e10]
"""Sizes of their appendix E."""


def log_saturated_experts(experts):
    logs = (np.log([[value]]) for value in (P["E_start"], P["E_max"] / P["E_start"]))
    return log_saturated(np.asarray([float(experts)]), *logs)[0][0, 0]


@pytest.mark.parametrize("experts", AT_EXPERTS)
def test_at_a_number_of_experts_it_is_the_published_chinchilla_law(experts):
    """To what the printed digits leave of exponents and amplitudes."""
    w = log_saturated_experts(experts)
    m, mu, n, nu = AT_EXPERTS[experts]

    assert P["alpha"] + P["gamma"] * w == pytest.approx(mu, abs=2e-4)
    assert P["beta"] + P["zeta"] * w == pytest.approx(nu, abs=2e-4)
    assert P["a"] * np.exp(P["delta"] * w) == pytest.approx(m, rel=3e-3)
    assert P["b"] * np.exp(P["omega"] * w) == pytest.approx(n, rel=3e-3)
    inputs = {
        "n_active": np.asarray(ACTIVE),
        "tokens": np.full(8, 1e10),
        "experts": np.full(8, float(experts)),
    }
    expected = m * inputs["n_active"] ** mu + n * inputs["tokens"] ** nu + P["c"]
    np.testing.assert_allclose(ROUTED_JOINT.evaluate(inputs, POINT), expected, rtol=1e-3)


@pytest.mark.parametrize(
    ("experts", "active", "tokens"), [(1, 5.7e9, 29.3e9), (8, 3.8e9, 44.3e9), (32, 2.85e9, 58.4e9)]
)
def test_the_published_optimum_of_a_budget(experts, active, tokens):
    """Their table 1, 1e21 FLOPs."""
    w = log_saturated_experts(experts)
    dense = {
        "A": P["a"] * np.exp(P["delta"] * w),
        "alpha": -(P["alpha"] + P["gamma"] * w),
        "B": P["b"] * np.exp(P["omega"] * w),
        "beta": -(P["beta"] + P["zeta"] * w),
    }

    assert compute_optimum(dense, 1e21) == pytest.approx((active, tokens), rel=0.02)


def test_published_coefficients_come_back_from_published_sizes():
    n, d, e = (v.ravel() for v in np.meshgrid(ACTIVE[::2], TOKENS[::2], list(AT_EXPERTS)))
    runs = {"n_active": n, "tokens": d, "experts": e.astype(float)}
    runs["loss"] = ROUTED_JOINT.evaluate(runs, POINT)

    fit = fit_law(ROUTED_JOINT, runs, objective=SQUARES, n_draws=0, hold_out=False)

    np.testing.assert_allclose(list(fit.parameters.values()), POINT, rtol=1e-4)
