"""Saturating curve from a chance floor to a ceiling: accuracy against parameters or FLOPs.

    accuracy = floor + (ceiling - floor) / (1 + (x0 / x)^k)

the Hill curve (Hill 1910), which is the four-parameter logistic of dose-response work (DeLean, Munson and Rodbard
1978) in log x: bounded, monotone, and half-way at x0. A power law in x would leave [0, 1]. The floor is known (0 for
an open answer, 1/choices for a closed one) and is not fitted; the ceiling is, unless the caller knows it.
Ceiling - floor enters linearly: for every (x0, k) of a grid it has a closed form, and that profile gives the starts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.fitting.curve import CurveFit
from analysis.fitting.curve_fit import fit_curve

Array = NDArray[np.float64]

K_RANGE = (0.05, 20.0)
"""Steepness. Above, the curve is a step between two sizes."""

X0_MARGIN = 3 * np.log(10)
"""How far (in ln x) the half-way point may lie outside the runs: a thousandfold."""

_N_GRID_X0, _N_GRID_K, _N_SPREAD_STARTS = 31, 17, 12


@dataclass(frozen=True, kw_only=True)
class Saturating:
    """floor + (ceiling - floor) / (1 + (x0/x)^k)."""

    floor: float = 0.0
    """Accuracy of a guess."""
    fixed_ceiling: float | None = None
    """Accuracy at any size, where it is known; None fits it in (floor, 1]."""
    name: str = "saturating"
    parameter_names: tuple[str, ...] = ("ceiling", "x0", "k")

    def __post_init__(self) -> None:
        if not 0 <= self.floor < 1:
            raise ValueError(f"floor must lie in [0, 1), got {self.floor}")
        if self.fixed_ceiling is not None and not self.floor < self.fixed_ceiling <= 1:
            raise ValueError(
                f"ceiling must lie in (floor, 1] with floor {self.floor}, got {self.fixed_ceiling}"
            )

    @property
    def equation(self) -> str:
        """The equation with the floor's value written in."""
        if self.floor == 0:
            return "y = ceiling / (1 + (x0/x)^k)"
        return f"y = {self.floor:g} + (ceiling - {self.floor:g}) / (1 + (x0/x)^k)"

    @property
    def n_free(self) -> int:
        """2 with a known ceiling, else 3."""
        return 3 if self.fixed_ceiling is None else 2

    def evaluate(self, x: Array, parameters: Array) -> Array:
        """Return the accuracy at x."""
        ceiling, x0, k = (parameters[..., i, None] for i in range(3))
        curve: Array = self.floor + (ceiling - self.floor) * _logistic(k * (np.log(x) - np.log(x0)))
        return curve

    def invert(self, y: Array, parameters: Array) -> Array:
        """Return x = x0 ((y - floor) / (ceiling - y))^(1/k); inf at or above the ceiling, 0 at or below the floor."""
        ceiling, x0, k = parameters[:, 0], parameters[:, 1], parameters[:, 2]
        with np.errstate(divide="ignore", over="ignore"):
            odds = np.log(np.maximum(y - self.floor, 0.0)) - np.log(np.maximum(ceiling - y, 0.0))
            x: Array = np.exp(np.log(x0) + odds / k)
        return x

    def scaled(self, x: Array, y: Array) -> "_Scaled":
        """Return the law with parameters ceiling, ln(x0 / geometric mean of x) and k, y over its spread."""
        return _Scaled(self, x, y)


def _logistic(z: Array) -> Array:
    share: Array = 0.5 * (1 + np.tanh(0.5 * z))  # the form that does not overflow
    return share


class _Scaled:
    def __init__(self, law: Saturating, x: Array, y: Array) -> None:
        log_x = np.log(x)
        self._log_unit = float(log_x.mean())
        self._log_u = log_x - self._log_unit
        self.y_unit = float(np.ptp(y))
        self.y = y / self.y_unit
        self._floor = law.floor / self.y_unit
        self._span = (1 - law.floor) / self.y_unit
        self._known = law.fixed_ceiling
        self._fixed = (
            None if law.fixed_ceiling is None else (law.fixed_ceiling - law.floor) / self.y_unit
        )
        x0_range = (float(self._log_u.min()) - X0_MARGIN, float(self._log_u.max()) + X0_MARGIN)
        height = (0.0, self._span) if self._fixed is None else (self._fixed, self._fixed)
        self.lower = np.asarray([height[0], x0_range[0], K_RANGE[0]])
        self.upper = np.asarray([height[1], x0_range[1], K_RANGE[1]])
        x0, k = np.meshgrid(
            np.linspace(*x0_range, _N_GRID_X0), np.geomspace(*K_RANGE, _N_GRID_K), indexing="ij"
        )
        self._grid = np.column_stack([x0.ravel(), k.ravel()])
        self._basis = _logistic(self._grid[:, 1:] * (self._log_u - self._grid[:, :1]))  # (grid, n)

    def values(self, theta: Array) -> Array:
        height, x0, k = theta[:, :1], theta[:, 1:2], theta[:, 2:]
        curve: Array = self._floor + height * _logistic(k * (self._log_u - x0))
        return curve

    def jacobian(self, theta: Array) -> Array:
        height, x0, k = theta[:, :1], theta[:, 1:2], theta[:, 2:]
        share = _logistic(k * (self._log_u - x0))
        slope = height * share * (1 - share)
        return np.stack([share, -slope * k, slope * (self._log_u - x0)], axis=-1)

    def starts(self) -> Array:
        loss, height = self._profile(np.ones((1, len(self.y))))
        surface = loss[0].reshape(_N_GRID_X0, _N_GRID_K)
        padded = np.pad(surface, 1, constant_values=np.inf)
        neighbours = [
            padded[1 + i : 1 + i + _N_GRID_X0, 1 + j : 1 + j + _N_GRID_K]
            for i in (-1, 0, 1)
            for j in (-1, 0, 1)
            if (i, j) != (0, 0)
        ]
        minima = np.flatnonzero(np.all([surface <= other for other in neighbours], axis=0))
        spread = np.linspace(0, surface.size - 1, _N_SPREAD_STARTS).round().astype(int)
        # A plateau of equal values (a basis of zeros) would count every cell as a minimum.
        chosen = np.unique(
            np.concatenate([minima[np.argsort(surface.ravel()[minima])][:8], spread])
        )
        return np.column_stack([height[0, chosen], self._grid[chosen]])

    def best_on_grid(self, weights: Array) -> Array:
        loss, height = self._profile(weights)
        best = loss.argmin(axis=1)
        return np.column_stack([height[np.arange(len(best)), best], self._grid[best]])

    def unscale(self, theta: Array) -> Array:
        ceiling = (self._floor + theta[:, 0]) * self.y_unit
        if self._known is not None:
            ceiling = np.full_like(ceiling, self._known)  # exactly, not through two roundings
        return np.column_stack([ceiling, np.exp(theta[:, 1] + self._log_unit), theta[:, 2]])

    def bounds_met(self, theta: Array) -> list[str]:
        phrases = []
        if self._fixed is None and theta[0] >= self._span * (1 - 1e-9):
            phrases.append(
                "the ceiling is at its bound 1: these runs do not show where accuracy levels off"
            )
        if not self.lower[1] + 1e-9 < theta[1] < self.upper[1] - 1e-9:
            phrases.append(
                "x0 is at its bound, a thousandfold outside the runs: only the start or the end of the curve is seen"
            )
        if theta[2] <= K_RANGE[0] * (1 + 1e-9):
            phrases.append(
                f"k is at its bound {K_RANGE[0]:g}: accuracy hardly changes over these sizes"
            )
        if theta[2] >= K_RANGE[1] * (1 - 1e-9):
            phrases.append(
                f"k is at its bound {K_RANGE[1]:g}: a step between two neighbouring sizes"
            )
        return phrases

    def _profile(self, weights: Array) -> tuple[Array, Array]:
        """Return sum of squares (B, grid) and the best height (B, grid) for every (x0, k) of the grid."""
        target = self.y - self._floor
        s2 = weights @ (self._basis**2).T
        t1 = weights @ (self._basis * target).T
        if self._fixed is None:
            height = np.clip(t1 / np.maximum(s2, 1e-300), 0.0, self._span)
        else:
            height = np.full_like(t1, self._fixed)
        return height**2 * s2 - 2 * height * t1, height


def fit_saturating(
    x: ArrayLike,
    y: ArrayLike,
    *,
    floor: float = 0.0,
    ceiling: float | None = None,
    clusters: Sequence[Any] | None = None,
    huber: float | None = None,
    n_draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    hold_out: bool = True,
) -> CurveFit:
    """Fit accuracies in [0, 1]. Other arguments: `analysis.fitting.curve_fit.fit_curve`.

    Args:
        x: Size per run, positive.
        y: Accuracy per run.
        floor: Accuracy of a guess; known, not fitted.
        ceiling: Accuracy at any size where it is known; None fits it, at most 1.
        clusters: Configuration per run.
        huber: Threshold in units of accuracy; None is least squares.
        n_draws: Resamples for intervals.
        seed: Of the resampling.
        level: Of the intervals.
        hold_out: Whether to predict the largest sizes from the smaller ones, too.

    Raises:
        ValueError: As `fit_curve`, and if an accuracy lies outside [0, 1].
    """
    accuracy = np.asarray(y, dtype=np.float64)
    if not ((accuracy >= 0) & (accuracy <= 1)).all():
        raise ValueError(
            f"y: accuracies lie in [0, 1], got {accuracy[~((accuracy >= 0) & (accuracy <= 1))][0]}; give shares, not per cent"
        )
    return fit_curve(
        Saturating(floor=floor, fixed_ceiling=ceiling),
        x,
        accuracy,
        clusters=clusters,
        huber=huber,
        n_draws=n_draws,
        seed=seed,
        level=level,
        hold_out=hold_out,
    )
