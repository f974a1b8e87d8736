"""Saturating curve from a chance floor to a ceiling: accuracy against one size.

    accuracy = floor + (ceiling - floor) / (1 + (x0 / x)^k)

the Hill curve (Hill 1910), which is the four-parameter logistic of dose-response work (DeLean,
Munson and Rodbard 1978) in log x: bounded, monotone, and half-way at x0. A power law in x would
leave [0, 1]. The floor is usually known (0 for an open answer, 1/choices for a closed one); with
`floor=None` it is fitted, as the ceiling is unless the caller knows it.
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

CEILING_SEEN = 0.9
"""Mean outcome of a size from which on a ceiling of 1 is known: it lies between the two. Below, the
curve may as well level off where the runs end."""

_N_GRID_X0, _N_GRID_K, _N_MINIMA, _N_SPREAD = 31, 17, 8, 12


class Saturating(LinearScaleLaw):
    """floor + (ceiling - floor) / (1 + (x0/x)^k).

    Internal parameters: ceiling, ln x0, k. With a fitted floor: floor, (ceiling - floor) over
    (top - floor), ln x0, k, where top is the known ceiling or 1; so bounds stay a box.
    """

    name = "saturating"
    source = "Hill 1910"
    inputs: tuple[str, ...] = ("x",)
    outcome_is_share = True

    def __init__(self, *, floor: float | None = 0.0, fixed_ceiling: float | None = None) -> None:
        """Fix the levels that are known.

        Args:
            floor: Accuracy of a guess; None fits it in [0, ceiling).
            fixed_ceiling: Accuracy at any size, where it is known; None fits it in (floor, 1].

        Raises:
            ValueError: If a level is no share, or the ceiling is not above the floor.
        """
        if floor is not None and not 0 <= floor < 1:
            raise ValueError(f"floor must lie in [0, 1), got {floor}")
        if fixed_ceiling is not None and not (floor or 0.0) < fixed_ceiling <= 1:
            raise ValueError(
                f"ceiling must lie in (floor, 1] with floor {floor}, got {fixed_ceiling}"
            )
        self.floor, self.fixed_ceiling = floor, fixed_ceiling
        self.parameters = self._parameters("x0", "sizes", "a thousandfold")
        self.example = self._example(x0=1e6, k=1.2)
        low, top = self._floor_name, self._ceiling_name
        self.equation = (
            f"y = {top} / (1 + (x0/x)^k)"
            if floor == 0
            else f"y = {low} + ({top} - {low}) / (1 + (x0/x)^k)"
        )

    @property
    def _floor_name(self) -> str:
        return "floor" if self.floor is None else f"{self.floor:g}"

    @property
    def _ceiling_name(self) -> str:
        return "ceiling" if self.fixed_ceiling is None else f"{self.fixed_ceiling:g}"

    def _example(self, **shape: float) -> Mapping[str, float]:
        levels = {"floor": 0.25} if self.floor is None else {}
        return MappingProxyType(levels | {"ceiling": self.fixed_ceiling or 0.9} | shape)

    def _parameters(self, middle: str, sizes: str, far: str) -> tuple[Parameter, ...]:
        top = 1.0 if self.fixed_ceiling is None else self.fixed_ceiling
        # With a fitted floor the second number is a share of what lies between floor and top.
        lowest, highest = (0.0, 1.0) if self.floor is None else (self.floor, top)
        if self.fixed_ceiling is not None:
            lowest = highest
        outside = f"{far} outside the runs, only the start or the end of the curve is seen"
        floors = (
            Parameter(
                "floor",
                upper=top,
                at_lower="these runs do not show where accuracy levels off below",
            ),
        )
        return (
            *(floors if self.floor is None else ()),
            Parameter(
                "ceiling",
                lower=lowest,
                upper=highest,
                at_upper="these runs do not show where accuracy levels off",
                coupled_to=("floor",) if self.floor is None else (),
            ),
            Parameter(
                middle, lower=-np.inf, upper=np.inf, log=True, at_lower=outside, at_upper=outside
            ),
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
        lower[-2], upper[-2] = features.min() - X0_MARGIN, features.max() + X0_MARGIN
        return lower, upper

    def reaches(self, parameter: str, features: Array, y: Array) -> bool:
        """Return whether the best size comes near a ceiling of 1, above which no share is."""
        if parameter != "ceiling" or self.fixed_ceiling is not None:
            return False
        _, place = np.unique(features[0], return_inverse=True)
        means = np.bincount(place.reshape(-1), weights=y) / np.bincount(place.reshape(-1))
        return bool(means.max() >= CEILING_SEEN)

    def _levels(self, theta: Array) -> tuple[Array, Array]:
        """Return the floor and the ceiling (B, 1) of internal parameters (B, p)."""
        if self.floor is not None:
            return np.asarray(self.floor), theta[:, :1]
        floor = theta[:, :1]
        return floor, floor + theta[:, 1:2] * (self._top - floor)

    @property
    def _top(self) -> float:
        return 1.0 if self.fixed_ceiling is None else self.fixed_ceiling

    def values(self, features: Array, theta: Array) -> Array:
        """Return the accuracy."""
        floor, ceiling = self._levels(theta)
        share = _logistic(theta[:, -1:] * (features[0] - theta[:, -2:-1]))
        return np.asarray(floor + (ceiling - floor) * share)

    def jacobian(self, features: Array, theta: Array) -> Array:
        """Return derivatives by the fitted levels, ln x0 and k."""
        floor, ceiling = self._levels(theta)
        distance, k = features[0] - theta[:, -2:-1], theta[:, -1:]
        share = _logistic(k * distance)
        slope = (ceiling - floor) * share * (1 - share)
        levels = [share]
        if self.floor is None:
            levels = [1 - theta[:, 1:2] * share, (self._top - floor) * share]
        return np.stack([*levels, -slope * k, slope * distance], axis=1)

    def external(self, theta: Array) -> Array:
        """Return the levels, x0 and k."""
        out = np.array(theta, dtype=np.float64)
        if self.floor is None:
            out[:, 1] = self._levels(theta)[1][:, 0]
        out[:, -2] = self._place(theta[:, -2])
        return out

    def internal(self, parameters: Array) -> Array:
        """The reverse of `external`."""
        theta = np.array(parameters, dtype=np.float64)
        if self.floor is None:
            room = np.maximum(self._top - theta[:, 0], 1e-300)
            theta[:, 1] = (theta[:, 1] - theta[:, 0]) / room
        theta[:, -2] = self._unplace(theta[:, -2])
        return theta

    def _place(self, middle: Array) -> Array:
        """Return the half-way point in the units of the data."""
        return np.asarray(np.exp(middle))

    def _unplace(self, x0: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(x0))

    def uncentre(self, theta: Array, centre: Array) -> Array:
        """Move x0 to ln x = 0."""
        moved = theta.copy()
        moved[:, -2] += centre[0]
        return moved

    def invert(self, y: Array, parameters: Array) -> Array:
        """Return x = x0 ((y - floor) / (ceiling - y))^(1/k) of each curve (k, p).

        It is inf at or above the ceiling, 0 at or below the floor, and NaN where y is both.
        """
        ceiling, x0, k = parameters[:, -3:].T
        floor = parameters[:, 0] if self.floor is None else self.floor
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            odds = np.log(np.maximum(y - floor, 0.0)) - np.log(np.maximum(ceiling - y, 0.0))
            return np.asarray(np.exp(np.log(x0) + odds / k))

    def starts(self, problem: LawProblem) -> Array:
        """Return points of a grid over x0 and k, each with its least-squares levels.

        Floor and ceiling enter linearly, so for every (x0, k) they have a closed form (variable
        projection, Golub and Pereyra 1973).
        """
        x0, k = np.meshgrid(
            np.linspace(problem.lower[-2], problem.upper[-2], _N_GRID_X0),
            np.geomspace(*K_RANGE, _N_GRID_K),
            indexing="ij",
        )
        share = _logistic(k.reshape(-1, 1) * (problem.features[0] - x0.reshape(-1, 1)))
        y = problem.y * problem.y_unit
        floor = self._best_floor(share, y)
        room = self._top - floor[:, 0]
        target = y - floor
        s2, t1 = (share**2).sum(axis=1), (share * target).sum(axis=1)
        lowest = 0.0 if self.fixed_ceiling is None else room
        height = np.clip(t1 / np.maximum(s2, 1e-300), lowest, room)
        loss = height**2 * s2 - 2 * height * t1 + (target**2).sum(axis=1)
        levels = [height + floor[:, 0]]
        if self.floor is None:
            levels = [floor[:, 0], height / np.maximum(room, 1e-300)]
        chosen = grid_starts(loss.reshape(x0.shape), _N_MINIMA, _N_SPREAD)
        return np.column_stack([*levels, x0.ravel(), k.ravel()])[chosen]

    def _best_floor(self, share: Array, y: Array) -> Array:
        """Return the floor (B, 1) of least squares for each curve's share of the way up (B, n)."""
        if self.floor is not None:
            return np.full((len(share), 1), self.floor)
        if self.fixed_ceiling is not None:
            rest = 1 - share
            slope = ((y - self.fixed_ceiling * share) * rest).sum(axis=1)
            floor = slope / np.maximum((rest**2).sum(axis=1), 1e-300)
        else:
            away = share - share.mean(axis=1, keepdims=True)
            height = np.maximum(away @ y / np.maximum((away**2).sum(axis=1), 1e-300), 0.0)
            floor = y.mean() - height * share.mean(axis=1)
        return np.asarray(np.clip(floor, 0.0, self._top)[:, None])


def _logistic(z: Array) -> Array:
    share: Array = 0.5 * (1 + np.tanh(0.5 * z))  # the form that does not overflow
    return share
