"""Unigram-normalised loss against size, vocabulary and text.

    L_u = -E + A/N^alpha + V_c/V^gamma + B/D^beta
    D = H·(0.0064·ln(V)^2 - 0.1581·ln(V) + 1.2047)

N counts parameters that are not the vocabulary's, V is the size of the vocabulary, H the text in
characters, and D its tokens: a larger vocabulary makes fewer. L_u is the loss less that of a
unigram model, because losses of different vocabularies cannot be compared; it is negative. Source:
Tao et al. 2024, where the vocabulary's parameters stand in place of V; at one width they are
proportional. The coefficients of D are those of its tokenizers.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import LawProblem, LinearScaleLaw, Parameter, spread_over

Array = NDArray[np.float64]

TOKENS_PER_CHARACTER = (0.0064, -0.1581, 1.2047)
"""Coefficients of ln(V)^2, ln(V) and 1, of Tao et al. 2024's tokenizers (4,000 to 100,000)."""

_N_STARTS = 64
_SIZES = ("params", "vocabulary", "characters")


class Vocabulary(LinearScaleLaw):
    """Internal parameters: E, A, V_c, B at the centre, alpha, gamma, beta."""

    name = "vocabulary"
    equation = "L_u = -E + A/N^alpha + V_c/V^gamma + B/D^beta"
    source = "Tao et al. 2024, its parametric law"
    inputs = _SIZES
    parameters = (
        Parameter("E", lower=-np.inf, upper=np.inf, linear=True),
        Parameter("A", upper=np.inf, linear=True, at_lower="no effect of parameters is seen"),
        Parameter("V_c", upper=np.inf, linear=True, at_lower="no effect of the vocabulary is seen"),
        Parameter("B", upper=np.inf, linear=True, at_lower="no effect of text is seen"),
        Parameter("alpha", lower=0.01, upper=3.0, start=(0.1, 1.0)),
        Parameter("gamma", lower=0.01, upper=3.0, start=(0.1, 1.0)),
        Parameter("beta", lower=0.01, upper=3.0, start=(0.1, 1.0)),
    )
    example = MappingProxyType(
        {"E": 0.5, "A": 400.0, "V_c": 30.0, "B": 4900.0, "alpha": 0.3, "gamma": 0.35, "beta": 0.39}
    )

    def features(self, inputs: Mapping[str, Array]) -> Array:
        """Return minus the logs of N, V and D."""
        log_v = np.log(inputs["vocabulary"])
        tokens = inputs["characters"] * np.polyval(TOKENS_PER_CHARACTER, log_v)
        return np.stack([-np.log(inputs["params"]), -log_v, -np.log(tokens)])

    def values(self, features: Array, theta: Array) -> Array:
        """Return -E + the three terms."""
        return np.asarray(
            (theta[:, 1:4, None] * self._powers(features, theta)).sum(axis=1) - theta[:, :1]
        )

    def jacobian(self, features: Array, theta: Array) -> Array:
        """Return derivatives by all seven."""
        powers = self._powers(features, theta)
        floor = np.full((len(theta), 1, features.shape[1]), -1.0)
        return np.concatenate([floor, powers, theta[:, 1:4, None] * powers * features], axis=1)

    def uncentre(self, theta: Array, centre: Array) -> Array:
        """Move the amplitudes to sizes of one."""
        moved = theta.copy()
        moved[:, 1:4] *= np.exp(-theta[:, 4:7] * centre)
        return moved

    def starts(self, problem: LawProblem) -> Array:
        """Return points spread over the exponents, each with its least-squares amplitudes."""
        theta = np.column_stack(
            [np.zeros((_N_STARTS, 4)), spread_over(self.parameters[4:], _N_STARTS)]
        )
        powers = self._powers(problem.features, theta)
        columns = np.concatenate([-np.ones_like(powers[:, :1]), powers], axis=1)
        target = problem.y * problem.y_unit
        for row, column in zip(theta, columns, strict=True):
            row[:4] = np.linalg.lstsq(column.T, target, rcond=None)[0]
        theta[:, 1:4] = np.maximum(theta[:, 1:4], 1e-6)
        return theta

    def size(self, inputs: Mapping[str, Array]) -> Array:
        """Runs by parameters times text."""
        return np.asarray(np.log(inputs["params"]) + np.log(inputs["characters"]))

    def _powers(self, features: Array, theta: Array) -> Array:
        """Return size^-exponent of each term (B, 3, n)."""
        return np.exp(theta[:, 4:7, None] * features)


VOCABULARY = Vocabulary()
