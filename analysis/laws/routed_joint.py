"""Loss of routed models against active parameters, tokens and number of experts.

    L = a Eh^delta N^(alpha + gamma ln Eh) + b Eh^omega D^(beta + zeta ln Eh) + c

Eh is the saturating expert count of Clark et al. 2022 (`analysis/laws/routed.py`), N counts active
parameters. The signs are those of the source: alpha and beta are negative. At a given number of
experts it is a Chinchilla law with exponents and amplitudes of its own. Source: Ludziejewski et al.
2025, joint law; coefficients: table 3.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import Law, LawProblem, Parameter, spread_over
from analysis.laws.routed import SATURATION, log_saturated
from analysis.laws.sum_of_powers import log_amplitudes

Array = NDArray[np.float64]

_N_STARTS = 96
_A, _ALPHA, _DELTA, _GAMMA, _B, _BETA, _OMEGA, _ZETA, _START, _RATIO, _C = range(11)


def _power(name: str, of: str) -> Parameter:
    return Parameter(
        name,
        lower=-3.0,
        upper=0.0,
        start=(-0.6, -0.05),
        at_upper=f"the loss does not fall with {of}",
    )


class RoutedJoint(Law):
    """Internal parameters: amplitudes and expert counts as logarithms, E_max over E_start.

    ln a, ln b, delta and omega are those at the centre.
    """

    name = "routed_joint"
    equation = "L = a·Eh^delta·N^(alpha + gamma·ln Eh) + b·Eh^omega·D^(beta + zeta·ln Eh) + c"
    source = "Ludziejewski et al. 2025, joint law"
    inputs = ("n_active", "tokens", "experts")
    parameters = (
        Parameter("a", amplitude=True, at_lower="the loss does not fall with active parameters"),
        _power("alpha", "active parameters"),
        Parameter("delta", lower=-5.0, upper=5.0, start=(-0.4, 0.1)),
        Parameter("gamma", lower=-0.5, upper=0.5, start=(-0.02, 0.02)),
        Parameter("b", amplitude=True, at_lower="the loss does not fall with tokens"),
        _power("beta", "tokens"),
        Parameter("omega", lower=-5.0, upper=5.0, start=(-0.3, 0.2)),
        Parameter("zeta", lower=-0.5, upper=0.5, start=(-0.04, 0.02)),
        *SATURATION,
        Parameter(
            "c", amplitude=True, at_lower="these runs show no floor, do not extrapolate to one"
        ),
    )
    example = MappingProxyType(
        {
            "a": 35.91,
            "alpha": -0.1889,
            "delta": -0.2285,
            "gamma": 0.0098,
            "b": 35.98,
            "beta": -0.1775,
            "omega": 0.5529,
            "zeta": -0.0259,
            "E_start": 2.0732,
            "E_max": 290.4521,
            "c": 1.3637,
        }
    )

    def features(self, inputs: Mapping[str, Array]) -> Array:
        """Return ln N, ln D and E."""
        return np.stack([np.log(inputs["n_active"]), np.log(inputs["tokens"]), inputs["experts"]])

    def centre(self, features: Array) -> Array:
        """Return the means of ln N and ln D; the expert count stays as it is."""
        return np.asarray([features[0].mean(), features[1].mean(), 0.0])

    def limits(self, features: Array, log_y: Array) -> tuple[Array, Array]:
        """A term alone, at one expert that counts as one, may exceed the outcome."""
        lower, upper = super().limits(features, log_y)
        upper[[_A, _B]] += 5.0
        return lower, upper

    def log_values(self, features: Array, theta: Array) -> Array:
        """Return the log-sum-exp of the three terms."""
        return np.asarray(np.logaddexp.reduce(self._log_terms(features, theta)[0], axis=0))

    def log_jacobian(self, features: Array, theta: Array) -> Array:
        """Return derivatives by all eleven.

        They are shares of the terms, times what a parameter multiplies in them.
        """
        logs, w, by_start, by_ratio = self._log_terms(features, theta)
        first, second, floor = np.exp(logs - np.logaddexp.reduce(logs, axis=0))
        u, v = features[0], features[1]
        slope = first * (theta[:, _DELTA, None] + theta[:, _GAMMA, None] * u)
        slope += second * (theta[:, _OMEGA, None] + theta[:, _ZETA, None] * v)
        of_params = [first, first * u, first * w, first * w * u]
        of_tokens = [second, second * v, second * w, second * w * v]
        return np.stack([*of_params, *of_tokens, slope * by_start, slope * by_ratio, floor], axis=1)

    def uncentre(self, theta: Array, centre: Array) -> Array:
        """Move a, delta, b and omega to ln N = ln D = 0."""
        moved = theta.copy()
        moved[:, _A] -= theta[:, _ALPHA] * centre[0]
        moved[:, _DELTA] -= theta[:, _GAMMA] * centre[0]
        moved[:, _B] -= theta[:, _BETA] * centre[1]
        moved[:, _OMEGA] -= theta[:, _ZETA] * centre[1]
        return moved

    def external(self, theta: Array) -> Array:
        """Return parameters in the units of the data; E_max is kept as its ratio to E_start."""
        raw = super().external(theta)
        raw[..., _RATIO] = np.exp(theta[..., _START] + theta[..., _RATIO])
        return np.asarray(raw)

    def internal(self, parameters: Array) -> Array:
        """The reverse of `external`."""
        theta = super().internal(parameters)
        theta[..., _RATIO] = np.log(parameters[..., _RATIO] / parameters[..., _START])
        return np.asarray(theta)

    def starts(self, problem: LawProblem) -> Array:
        """Return points over the exponents and expert counts, each with its best a, b and c."""
        theta = np.zeros((_N_STARTS, len(self.parameters)))
        free = [i for i, p in enumerate(self.parameters) if not p.amplitude]
        theta[:, free] = spread_over([self.parameters[i] for i in free], _N_STARTS)
        logs = self._log_terms(problem.features, theta)[0]
        columns = np.exp(logs - problem.log_y).transpose(1, 0, 2)
        theta[:, [_A, _B, _C]] = log_amplitudes(columns)
        return theta

    def _log_terms(self, features: Array, theta: Array) -> tuple[Array, Array, Array, Array]:
        """Return the logarithms of the terms (3, B, n), ln Eh and its derivatives, each (B, n)."""
        u, v = features[0], features[1]
        t = [theta[:, i, None] for i in range(len(self.parameters))]
        w, by_start, by_ratio = log_saturated(features[2], t[_START], t[_RATIO])
        first = t[_A] + t[_ALPHA] * u + (t[_DELTA] + t[_GAMMA] * u) * w
        second = t[_B] + t[_BETA] * v + (t[_OMEGA] + t[_ZETA] * v) * w
        return np.stack([first, second, np.broadcast_to(t[_C], first.shape)]), w, by_start, by_ratio


ROUTED_JOINT = RoutedJoint()
