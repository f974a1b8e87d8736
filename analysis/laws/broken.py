"""Broken power law with one break, y = a + b x^-c0 (1 + (x/d)^(1/f))^(-c1 f).

Slope -c0 (in log-log, above the floor a) well before the break d, -(c0 + c1) well after; f is how
many e-folds wide the turn is. Source: Caballero et al. 2023 (smoothly broken power law), with one
break. It needs runs on both sides of the break.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import Law, LawProblem, Parameter, latin_hypercube
from analysis.laws.sum_of_powers import log_amplitudes

Array = NDArray[np.float64]

_N_STARTS = 96


class Broken(Law):
    """Internal parameters: ln a, ln b at the centre, c0, c1, ln(d / centre), ln f."""

    name = "broken"
    equation = "y = a + b·x^-c0·(1 + (x/d)^(1/f))^(-c1·f)"
    source = "Caballero et al. 2023, with one break"
    inputs = ("x",)
    parameters = (
        Parameter("a", amplitude=True, at_lower="these runs show no floor"),
        Parameter("b", amplitude=True, at_lower="the outcome does not fall with x"),
        Parameter("c0", lower=-3.0, upper=5.0, start=(0.0, 0.8)),
        Parameter("c1", lower=-5.0, upper=20.0, start=(-0.5, 1.0)),
        Parameter(
            "d",
            lower=-np.inf,
            upper=np.inf,
            log=True,
            at_lower="the break lies at or before the smallest run: none is seen",
            at_upper="the break lies at or beyond the largest run: none is seen",
        ),
        Parameter(
            "f",
            lower=float(np.log(0.02)),
            upper=float(np.log(5.0)),
            log=True,
            start=(-2.5, 0.7),
            at_lower="a kink between two neighbouring runs",
            at_upper="the turn is wider than the runs show",
        ),
    )

    example = MappingProxyType({"a": 0.3, "b": 40.0, "c0": 0.1, "c1": 0.35, "d": 3e19, "f": 0.4})

    def features(self, inputs: Mapping[str, Array]) -> Array:
        """Return ln x."""
        return np.log(inputs["x"])[None, :]

    def limits(self, features: Array, log_y: Array) -> tuple[Array, Array]:
        """The break lies between the runs.

        b alone may exceed the outcome, where the break is far from the centre.
        """
        lower, upper = super().limits(features, log_y)
        lower[4], upper[4] = features[0].min(), features[0].max()
        upper[1] += 5 * float(np.ptp(features[0]))
        return lower, upper

    def log_values(self, features: Array, theta: Array) -> Array:
        """Return ln(a + the broken power)."""
        return np.asarray(np.logaddexp(theta[:, :1], self._falling(features, theta)[0]))

    def log_jacobian(self, features: Array, theta: Array) -> Array:
        """Return derivatives by all six."""
        x = features[0]
        log, turn, share_after = self._falling(features, theta)
        total = np.logaddexp(theta[:, :1], log)
        floor, falling = np.exp(theta[:, :1] - total), np.exp(log - total)
        c1, middle, f = theta[:, 3:4], theta[:, 4:5], np.exp(theta[:, 5:6])
        by_middle = c1 * share_after
        by_log_f = -c1 * (f * turn - share_after * (x - middle))
        slopes = [-falling * x, -falling * f * turn, falling * by_middle, falling * by_log_f]
        return np.stack([floor, falling, *slopes], axis=1)

    def uncentre(self, theta: Array, centre: Array) -> Array:
        """Move b and the break to ln x = 0."""
        moved = theta.copy()
        moved[:, 1] += theta[:, 2] * centre[0]
        moved[:, 4] += centre[0]
        return moved

    def starts(self, problem: LawProblem) -> Array:
        """Return points spread over the exponents and the break, each with its best a and b."""
        low = np.asarray([p.start[0] for p in self.parameters[2:]])
        high = np.asarray([p.start[1] for p in self.parameters[2:]])
        x = problem.features[0]
        low[2], high[2] = np.quantile(x, [0.1, 0.9])
        theta = np.column_stack(
            [np.zeros((_N_STARTS, 2)), low + (high - low) * latin_hypercube(_N_STARTS, 4)]
        )
        columns = np.stack(
            [np.ones((_N_STARTS, len(x))), np.exp(self._falling(problem.features, theta)[0])],
            axis=1,
        )
        theta[:, :2] = log_amplitudes(columns / np.exp(problem.log_y))
        return theta

    def _falling(self, features: Array, theta: Array) -> tuple[Array, Array, Array]:
        """Return ln of the broken power, ln(1 + (x/d)^(1/f)) and its slope, each (B, n)."""
        x = features[0]
        log_b, c0, c1, middle = (theta[:, i, None] for i in (1, 2, 3, 4))
        f = np.exp(theta[:, 5:6])
        z = (x - middle) / f
        turn = np.logaddexp(0.0, z)
        return log_b - c0 * x - c1 * f * turn, turn, np.exp(z - turn)


BROKEN = Broken()
