"""Kaplan's law, L = [(N_c/N)^(alpha_N/alpha_D) + D_c/D]^alpha_D, without a floor.

Source: Kaplan et al. 2020, equation 1.5; N counts no embeddings there. With p and q the logarithms
of the losses that either size alone would allow, (N_c/N)^alpha_N and (D_c/D)^alpha_D, it is ln L =
alpha_D ln(e^(p/alpha_D) + e^(q/alpha_D)).
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import Law, Parameter

Array = NDArray[np.float64]


class Kaplan(Law):
    """Internal parameters: p and q at the centre, alpha_N, alpha_D."""

    name = "kaplan"
    equation = "L = [(N_c/N)^(alpha_N/alpha_D) + D_c/D]^alpha_D"
    source = "Kaplan et al. 2020, equation 1.5"
    inputs = ("params", "tokens")
    parameters = (
        Parameter(
            "N_c",
            amplitude=True,
            at_lower="parameters never limit the loss in these runs",
            coupled_to=("alpha_N",),
        ),
        Parameter(
            "D_c",
            amplitude=True,
            at_lower="tokens never limit the loss in these runs",
            coupled_to=("alpha_D",),
        ),
        Parameter("alpha_N", lower=1e-3, upper=3.0, start=(0.02, 0.5)),
        Parameter("alpha_D", lower=1e-3, upper=3.0, start=(0.02, 0.5)),
    )

    example = MappingProxyType({"N_c": 6.4e13, "D_c": 1.8e13, "alpha_N": 0.076, "alpha_D": 0.103})

    def features(self, inputs: Mapping[str, Array]) -> Array:
        """Return -ln N and -ln D."""
        return np.stack([-np.log(inputs["params"]), -np.log(inputs["tokens"])])

    def log_values(self, features: Array, theta: Array) -> Array:
        """Return alpha_D ln(e^(p/alpha_D) + e^(q/alpha_D))."""
        p, q = self._limits_of_loss(features, theta)
        alpha_D = theta[:, 3:]
        return np.asarray(alpha_D * np.logaddexp(p / alpha_D, q / alpha_D))

    def log_jacobian(self, features: Array, theta: Array) -> Array:
        """Return shares of the two limits, and what alpha_D does as the sharpness of their sum."""
        p, q = self._limits_of_loss(features, theta)
        alpha_D = theta[:, 3:]
        total = np.logaddexp(p / alpha_D, q / alpha_D)
        by_p, by_q = np.exp(p / alpha_D - total), np.exp(q / alpha_D - total)
        sharpness = total - (by_p * p + by_q * q) / alpha_D
        return np.stack([by_p, by_q, by_p * features[0], by_q * features[1] + sharpness], axis=1)

    def uncentre(self, theta: Array, centre: Array) -> Array:
        """Move p and q to feature zero."""
        moved = theta.copy()
        moved[:, 0] -= theta[:, 2] * centre[0]
        moved[:, 1] -= theta[:, 3] * centre[1]
        return moved

    def external(self, theta: Array) -> Array:
        """N_c = exp(p / alpha_N), D_c = exp(q / alpha_D)."""
        raw = theta.copy()
        raw[..., :2] = np.exp(np.clip(theta[..., :2] / theta[..., 2:], -700, 700))
        return raw

    def internal(self, parameters: Array) -> Array:
        """The reverse of `external`."""
        theta = np.array(parameters, dtype=np.float64)
        with np.errstate(divide="ignore"):
            theta[..., :2] = np.log(theta[..., :2]) * theta[..., 2:]
        return theta

    def _limits_of_loss(self, features: Array, theta: Array) -> tuple[Array, Array]:
        p = theta[:, 0, None] + theta[:, 2, None] * features[0]
        q = theta[:, 1, None] + theta[:, 3, None] * features[1]
        return p, q


KAPLAN = Kaplan()
