import numpy as np

from analysis.laws.routed import ROUTED, log_saturated

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
    start, maximum = P["E_start"], P["E_max"]
    logs = (np.log([[value]]) for value in (start, maximum / start))

    found, *_ = log_saturated(np.asarray([1.0, 1e12]), *logs)

    np.testing.assert_allclose(np.exp(found[0]), [start, maximum], rtol=1e-6)
