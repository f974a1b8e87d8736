import numpy as np

from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.overfitting import OVERFITTING

P = dict(OVERFITTING.example)
POINT = np.asarray([P[name] for name in OVERFITTING.parameter_names])


def test_the_penalty_is_a_power_of_repetitions_and_of_parameters_per_unique_token():
    at = {
        name: np.asarray([v]) for name, v in zip(OVERFITTING.inputs, (3e8, 4e10, 1e9), strict=True)
    }

    found = OVERFITTING.evaluate(at, POINT)[0]

    chinchilla = P["E"] + P["A"] / 3e8 ** P["alpha"] + P["B"] / 4e10 ** P["beta"]
    np.testing.assert_allclose(found - chinchilla, P["P"] * 39 ** P["delta"] * 0.3 ** P["kappa"])


def test_new_tokens_are_chinchillas_law():
    tokens = np.asarray([1e10, 1e11])
    at = {"params": np.asarray([1e7, 1e8]), "tokens": tokens, "unique_tokens": tokens}
    point = np.asarray([P[name] for name in CHINCHILLA.parameter_names])

    np.testing.assert_allclose(
        OVERFITTING.evaluate(at, POINT), CHINCHILLA.evaluate(at, point), rtol=1e-5
    )


def test_many_epochs_raise_the_loss():
    epochs = np.asarray([1.0, 4.0, 1e3])
    at = {"params": np.full(3, 1e9), "tokens": 1e9 * epochs, "unique_tokens": np.full(3, 1e9)}

    first, some, many = OVERFITTING.evaluate(at, POINT)

    assert some < first < many
