"""Saturating curve from a chance floor to a ceiling: accuracy against one size.

    accuracy = floor + (ceiling - floor) / (1 + (x0 / x)^k)

the Hill curve (Hill 1910), which is the four-parameter logistic of dose-response work (DeLean,
Munson and Rodbard 1978) in log x: bounded, monotone, and half-way at x0. A power law in x would
leave [0, 1]. The floor is known (0 for an open answer, 1/choices for a closed one) and is not
fitted; the ceiling is, unless the caller knows it.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import LawProblem, LinearScaleLaw, Parameter, grid_starts

Array = NDArray[np.float64]

K_RANGE = (0.05, 20.0)
"""Steepness. Above, the curve is a step between two sizes."""

X0_MARGIN = 3 * np.log(10)
"""How far (in ln x) the half-way point may lie outside the runs: a thousandfold."""

_N_GRID_X0, _N_GRID_K, _N_MINIMA, _N_SPREAD = 31, 17, 8, 12


class Saturating(LinearScaleLaw):
    """floor + (ceiling - floor) / (1 + (x0/x)^k); internal parameters: ceiling, ln x0, k."""

    name = "saturating"
    source = "Hill 1910"
    inputs: tuple[str, ...] = ("x",)
    outcome_is_share = True

    def __init__(self, *, floor: float = 0.0, fixed_ceiling: float | None = None) -> None:
        """Fix the levels that are known.

        Args:
            floor: Accuracy of a guess.
            fixed_ceiling: Accuracy at any size, where it is known; None fits it in (floor, 1].

        Raises:
            ValueError: If a level is no share, or the ceiling is not above the floor.
        """
        if not 0 <= floor < 1:
            raise ValueError(f"floor must lie in [0, 1), got {floor}")
        if fixed_ceiling is not None and not floor < fixed_ceiling <= 1:
            raise ValueError(
                f"ceiling must lie in (floor, 1] with floor {floor}, got {fixed_ceiling}"
            )
        self.floor, self.fixed_ceiling = floor, fixed_ceiling
        self.parameters = self._parameters("x0", "sizes", "a thousandfold")
        self.example = MappingProxyType({"ceiling": fixed_ceiling or 0.9, "x0": 1e6, "k": 1.2})
        self.equation = (
            "y = ceiling / (1 + (x0/x)^k)"
            if floor == 0
            else f"y = {floor:g} + (ceiling - {floor:g}) / (1 + (x0/x)^k)"
        )

    def _parameters(self, middle: str, sizes: str, far: str) -> tuple[Parameter, ...]:
        lowest, highest = self.floor, 1.0
        if self.fixed_ceiling is not None:
            lowest = highest = self.fixed_ceiling
        outside = f"{far} outside the runs, only the start or the end of the curve is seen"
        return (
            Parameter(
                "ceiling",
                lower=lowest,
                upper=highest,
                at_upper="these runs do not show where accuracy levels off",
            ),
            Parameter(middle, log=True, at_lower=outside, at_upper=outside),
            Parameter(
                "k",
                lower=K_RANGE[0],
                upper=K_RANGE[1],
                at_lower=f"accuracy hardly changes over these {sizes}",
                at_upper=f"a step between two neighbouring {sizes}",
            ),
        )

    def features(self, inputs: Mapping[str, Array]) -> Array:
        """Return ln x."""
        return np.log(inputs["x"])[None, :]

    def limits(self, features: Array, log_y: Array) -> tuple[Array, Array]:
        """The half-way point lies within X0_MARGIN of the runs."""
        lower, upper = super().limits(features, log_y)
        lower[1], upper[1] = features.min() - X0_MARGIN, features.max() + X0_MARGIN
        return lower, upper

    def values(self, features: Array, theta: Array) -> Array:
        """Return the accuracy."""
        share = _logistic(theta[:, 2:] * (features[0] - theta[:, 1:2]))
        return np.asarray(self.floor + (theta[:, :1] - self.floor) * share)

    def jacobian(self, features: Array, theta: Array) -> Array:
        """Return derivatives by the ceiling, ln x0 and k."""
        distance, k = features[0] - theta[:, 1:2], theta[:, 2:]
        share = _logistic(k * distance)
        slope = (theta[:, :1] - self.floor) * share * (1 - share)
        return np.stack([share, -slope * k, slope * distance], axis=1)

    def uncentre(self, theta: Array, centre: Array) -> Array:
        """Move x0 to ln x = 0."""
        moved = theta.copy()
        moved[:, 1] += centre[0]
        return moved

    def invert(self, y: Array, parameters: Array) -> Array:
        """Return x = x0 ((y - floor) / (ceiling - y))^(1/k) of each curve (k, 3).

        It is inf at or above the ceiling, 0 at or below the floor.
        """
        ceiling, x0, k = parameters.T
        with np.errstate(divide="ignore", over="ignore"):
            odds = np.log(np.maximum(y - self.floor, 0.0)) - np.log(np.maximum(ceiling - y, 0.0))
            return np.asarray(np.exp(np.log(x0) + odds / k))

    def starts(self, problem: LawProblem) -> Array:
        """Return points of a grid over x0 and k, each with its least-squares ceiling.

        ceiling - floor enters linearly, so for every (x0, k) it has a closed form (variable
        projection, Golub and Pereyra 1973).
        """
        x0, k = np.meshgrid(
            np.linspace(problem.lower[1], problem.upper[1], _N_GRID_X0),
            np.geomspace(*K_RANGE, _N_GRID_K),
            indexing="ij",
        )
        share = _logistic(k.reshape(-1, 1) * (problem.features[0] - x0.reshape(-1, 1)))
        target = problem.y * problem.y_unit - self.floor
        s2, t1 = (share**2).sum(axis=1), share @ target
        height = np.clip(
            t1 / np.maximum(s2, 1e-300),
            problem.lower[0] - self.floor,
            problem.upper[0] - self.floor,
        )
        loss = height**2 * s2 - 2 * height * t1
        chosen = grid_starts(loss.reshape(x0.shape), _N_MINIMA, _N_SPREAD)
        return np.column_stack([height + self.floor, x0.ravel(), k.ravel()])[chosen]


def _logistic(z: Array) -> Array:
    share: Array = 0.5 * (1 + np.tanh(0.5 * z))  # the form that does not overflow
    return share
