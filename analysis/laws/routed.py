"""Loss of routed models against size and experts, at one data budget.

    log10 L = a log10 N + b log10 Eh + c log10 N log10 Eh + d
    1/Eh = 1 / (E - 1 + (1/E_start - 1/E_max)^-1) + 1/E_max

N is the size of the dense model that the experts are added to, E the number of experts. Eh is the
saturating expert count: E_start at one expert, E_max at infinitely many. a and b are negative (more
is better), c positive: experts help large models less, and not at all at log10 N = -b/c. Source:
Clark et al. 2022, equation 1.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import Law, LawProblem, Parameter, spread_over

Array = NDArray[np.float64]

LN10 = math.log(10)

SATURATION = (
    Parameter(
        "E_start",
        lower=0.0,
        upper=math.log(64),
        log=True,
        start=(0.0, 1.5),
        at_lower="one expert counts as one: no start-up effect is seen",
    ),
    Parameter(
        "E_max",
        lower=math.log(1.5),
        upper=math.log(1e5),
        log=True,
        start=(2.0, 8.0),
        at_lower="experts have no effect in these runs",
        at_upper="no saturation with the number of experts is seen",
        coupled_to=("E_start",),
    ),
)
"""Internally ln E_start and ln(E_max / E_start)."""


class Routed(Law):
    """Internal parameters, natural logs: a, b, c, d, ln E_start, ln(E_max / E_start).

    b and d are those at the centre.
    """

    name = "routed"
    equation = "log10 L = a·log10 N + b·log10 Eh + c·log10 N·log10 Eh + d"
    source = "Clark et al. 2022, equation 1"
    inputs = ("params", "experts")
    parameters = (
        Parameter(
            "a",
            lower=-2.0,
            upper=0.0,
            start=(-0.3, -0.02),
            at_upper="the loss does not fall with size",
        ),
        Parameter("b", lower=-2.0, upper=1.0, start=(-0.3, 0.0)),
        Parameter("c", lower=-0.5, upper=0.5, start=(0.0, 0.02)),
        Parameter("d", lower=-50.0, upper=50.0),
        *SATURATION,
    )

    example = MappingProxyType(
        {"a": -0.082, "b": -0.108, "c": 0.009, "d": 1.104, "E_start": 1.847, "E_max": 314.478}
    )

    def features(self, inputs: Mapping[str, Array]) -> Array:
        """Return ln N and E."""
        return np.stack([np.log(inputs["params"]), inputs["experts"]])

    def centre(self, features: Array) -> Array:
        """Return the mean of ln N; the expert count stays as it is."""
        return np.asarray([features[0].mean(), 0.0])

    def log_values(self, features: Array, theta: Array) -> Array:
        """Return ln L."""
        a, b, c, d = (theta[:, i, None] for i in range(4))
        w = log_saturated(features[1], theta[:, 4:5], theta[:, 5:6])[0]
        return np.asarray(d + a * features[0] + (b + c * features[0]) * w)

    def log_jacobian(self, features: Array, theta: Array) -> Array:
        """Return derivatives by all six."""
        u = features[0]
        b, c = theta[:, 1, None], theta[:, 2, None]
        w, by_start, by_ratio = log_saturated(features[1], theta[:, 4:5], theta[:, 5:6])
        slope = b + c * u
        ones = np.ones_like(w)
        return np.stack([ones * u, w, u * w, ones, slope * by_start, slope * by_ratio], axis=1)

    def uncentre(self, theta: Array, centre: Array) -> Array:
        """Move b and d to ln N = 0."""
        moved = theta.copy()
        moved[:, 1] -= theta[:, 2] * centre[0]
        moved[:, 3] -= theta[:, 0] * centre[0]
        return moved

    def external(self, theta: Array) -> Array:
        """Return c and d for base-10 logarithms, as published."""
        raw = np.array(theta, dtype=np.float64)
        raw[..., 2] *= LN10
        raw[..., 3] /= LN10
        raw[..., 4] = np.exp(theta[..., 4])
        raw[..., 5] = np.exp(theta[..., 4] + theta[..., 5])
        return raw

    def internal(self, parameters: Array) -> Array:
        """The reverse of `external`."""
        theta = np.array(parameters, dtype=np.float64)
        theta[..., 2] /= LN10
        theta[..., 3] *= LN10
        theta[..., 5] = np.log(parameters[..., 5] / parameters[..., 4])
        theta[..., 4] = np.log(parameters[..., 4])
        return theta

    def starts(self, problem: LawProblem) -> Array:
        """Return points spread over E_start and E_max, each with its least-squares a, b, c, d."""
        n = 32
        theta = np.column_stack([np.zeros((n, 4)), spread_over(self.parameters[4:], n)])
        J = self.log_jacobian(problem.features, theta)[:, :4].transpose(0, 2, 1)
        theta[:, :4] = np.stack([np.linalg.lstsq(j, problem.log_y, rcond=None)[0] for j in J])
        return theta


def log_saturated(experts: Array, log_start: Array, log_ratio: Array) -> tuple[Array, Array, Array]:
    """Return ln Eh and its derivatives by ln E_start and ln(E_max / E_start), each (B, n).

    Args:
        experts: E (n,).
        log_start: ln E_start (B, 1).
        log_ratio: ln(E_max / E_start) (B, 1).
    """
    start = np.exp(log_start)
    maximum = start * np.exp(log_ratio)
    gap = 1 / start - 1 / maximum
    q = experts - 1 + 1 / gap
    inverse = 1 / q + 1 / maximum
    # d inverse = d gap / (gap q)^2 - d E_max / E_max^2; both logs move E_max, the first moves
    # E_start too.
    weight = 1 / (gap * q) ** 2
    by_start = (gap * weight + 1 / maximum) / inverse
    by_ratio = (-weight / maximum + 1 / maximum) / inverse
    return -np.log(inverse), by_start, by_ratio


ROUTED = Routed()
