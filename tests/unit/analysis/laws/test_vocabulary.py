import numpy as np
import pytest

from analysis.laws.step_law import BATCH_TOKENS, LEARNING_RATE
from analysis.laws.vocabulary import VOCABULARY

P = dict(VOCABULARY.example)


def test_the_curve_is_the_printed_equation():
    n, v, h = 1e8, 32768.0, 1e10
    tokens = h * (0.0064 * np.log(v) ** 2 - 0.1581 * np.log(v) + 1.2047)
    expected = (
        -P["E"]
        + P["A"] / n ** P["alpha"]
        + P["V_c"] / v ** P["gamma"]
        + P["B"] / tokens ** P["beta"]
    )
    at = {"params": np.asarray([n]), "vocabulary": np.asarray([v]), "characters": np.asarray([h])}

    found = VOCABULARY.evaluate(at, np.asarray([P[name] for name in VOCABULARY.parameter_names]))

    assert found[0] == pytest.approx(expected)
    assert 3.5 < h / tokens < 4.5  # characters per token of a vocabulary of 32,768


def test_step_law_is_the_printed_equation():
    at = {"params": np.asarray([1e9]), "tokens": np.asarray([1e11])}
    rate = np.asarray([LEARNING_RATE.example[name] for name in LEARNING_RATE.parameter_names])
    batch = np.asarray([BATCH_TOKENS.example[name] for name in BATCH_TOKENS.parameter_names])

    assert LEARNING_RATE.evaluate(at, rate)[0] == pytest.approx(1.79 * 1e9**-0.713 * 1e11**0.307)
    assert BATCH_TOKENS.evaluate(at, batch)[0] == pytest.approx(0.58 * 1e11**0.571)
