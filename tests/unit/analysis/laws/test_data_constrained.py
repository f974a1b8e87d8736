import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.data_constrained import DATA_CONSTRAINED

P = dict(DATA_CONSTRAINED.example)
POINT = np.asarray([P[name] for name in DATA_CONSTRAINED.parameter_names])


def loss(params, tokens, unique):
    """The equation as it is printed, and the optimal size by search instead of by formula."""

    def dense(log_n, log_d):
        return P["A"] * np.exp(-P["alpha"] * log_n) + P["B"] * np.exp(-P["beta"] * log_d)

    def tokens_of(log_n):
        # The size for which `unique` is compute-optimal: no shift along N D = const helps.
        total = log_n + np.log(unique)
        best = minimize_scalar(lambda n: dense(n, total - n), bounds=(0, 60), method="bounded")
        return (best.x - log_n) ** 2

    optimum = np.exp(minimize_scalar(tokens_of, bounds=(10, 30), method="bounded").x)
    u_n = min(params, optimum)
    r_n, r_d = params / u_n - 1, tokens / unique - 1
    n = u_n * (1 + P["R_N"] * (1 - np.exp(-r_n / P["R_N"])))
    d = unique * (1 + P["R_D"] * (1 - np.exp(-r_d / P["R_D"])))
    return P["E"] + P["A"] / n ** P["alpha"] + P["B"] / d ** P["beta"]


@pytest.mark.parametrize("size", [(1e8, 1e10, 1e9), (3e9, 4e10, 1e9), (1e8, 1e11, 1e11)])
def test_the_curve_is_the_printed_equation(size):
    at = dict(zip(DATA_CONSTRAINED.inputs, np.asarray(size)[:, None], strict=True))

    found = DATA_CONSTRAINED.evaluate(at, POINT)[0]

    assert found == pytest.approx(loss(*size), rel=1e-4)


def test_new_tokens_and_balanced_sizes_are_chinchillas_law():
    params, tokens = np.asarray([1e7, 1e8]), np.asarray([1e10, 1e11])
    at = {"params": params, "tokens": tokens, "unique_tokens": tokens}
    point = np.asarray([P[name] for name in CHINCHILLA.parameter_names])

    np.testing.assert_allclose(
        DATA_CONSTRAINED.evaluate(at, POINT), CHINCHILLA.evaluate(at, point), rtol=1e-12
    )


def test_more_epochs_help_less_and_less():
    epochs = np.asarray([1.0, 2.0, 4.0, 8.0, 1e3, 1e5])
    at = {
        "params": np.full(6, 1e8),
        "tokens": 1e10 * epochs,
        "unique_tokens": np.full(6, 1e10),
    }

    gained = -np.diff(DATA_CONSTRAINED.evaluate(at, POINT))

    assert (gained[:3] > 0).all()
    assert gained[-1] < 1e-12
