"""Data mixing law: the printed equation, and mixtures that nobody trained on."""

import numpy as np
import pytest

from analysis.fitting.fit_law import fit_law
from analysis.fitting.objective import SQUARES
from analysis.laws.data_mixing import DATA_MIXING, DataMixing


def mixtures(domains, n, seed=0):
    shares = np.random.default_rng(seed).dirichlet(np.ones(len(domains)), n)
    return dict(zip(domains, shares.T, strict=True))


def printed(shares, c, k, t):
    """L = c + k exp(sum of t_j r_j), as Ye et al. print it."""
    return c + k * np.exp(sum(t[name] * shares[name] for name in t))


def test_it_is_the_printed_equation_with_k_in_every_t():
    t = {"web": 0.4, "code": -0.9, "books": 0.1}
    shares = mixtures(t, 20)
    with_k = {f"t_{name}": value + np.log(0.7) for name, value in t.items()}
    theta = np.asarray([{"c": 1.6, **with_k}[name] for name in DATA_MIXING.parameter_names])

    found = DATA_MIXING.evaluate(shares, theta)

    np.testing.assert_allclose(found, printed(shares, 1.6, 0.7, t), rtol=1e-12)


def test_tokens_of_any_unit_are_shares():
    shares = mixtures(DATA_MIXING.inputs, 20)
    tokens = {name: 3e9 * values for name, values in shares.items()}
    theta = np.asarray(list(DATA_MIXING.example.values()))

    np.testing.assert_allclose(
        DATA_MIXING.evaluate(tokens, theta), DATA_MIXING.evaluate(shares, theta)
    )


def test_a_mixture_that_was_not_trained_is_predicted():
    domains = ("en", "de", "math", "code")
    t = dict(zip(domains, (0.3, -0.2, -1.5, -0.6), strict=True))
    shares = mixtures(domains, 30)
    noise = 0.001 * np.random.default_rng(1).standard_normal(30)
    runs = {**shares, "loss": printed(shares, 1.8, 1.2, t) * np.exp(noise)}
    alone = {name: np.asarray([float(name == "math")]) for name in domains}

    fit = fit_law(DataMixing(domains), runs, objective=SQUARES, n_draws=200)

    at = fit.predict(alone)
    assert at.low[0] < printed(alone, 1.8, 1.2, t)[0] < at.high[0]
    assert at.y[0] == pytest.approx(printed(alone, 1.8, 1.2, t)[0], rel=0.01)
    assert fit.hold_out.mean_absolute_log_error < 0.003


def test_a_mixture_of_nothing_is_named():
    with pytest.raises(ValueError, match="row 1: got 0 of every domain"):
        DATA_MIXING.features({name: np.asarray([1.0, 0.0]) for name in DATA_MIXING.inputs})
