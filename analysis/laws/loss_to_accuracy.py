"""From loss to what people ask for, the second of two steps: accuracy, error or answer NLL as a function of loss.

    sigmoid       accuracy = chance + (ceiling - chance) / (1 + exp(k (L - L0)))
    exponential   y = eps - k exp(-gamma L)

The sigmoid is that of Bhagia et al. 2024 (task ladders), equation 2, with the chance level known instead of fitted: 0
for an open answer, 1/choices for a closed one. The exponential is Gadre et al. 2024, equation 5, for an error; with
gamma and k negative it is an answer NLL that levels off at small loss.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.curve import CurveLaw
from analysis.fitting.multistart import FitProblem
from analysis.laws.saturating import Saturating

Array = NDArray[np.float64]

GAMMA_RANGE = (-8.0, 12.0)
"""Per nat. Zero is a straight line; beyond, the curve is a step."""

_N_GRID, _N_SPREAD_STARTS = 81, 9


@dataclass(frozen=True, kw_only=True)
class Sigmoid:
    """chance + (ceiling - chance) / (1 + exp(k (L - L0))): `analysis/laws/saturating.py` at x = exp(-L)."""

    chance: float = 0.0
    fixed_ceiling: float | None = None
    name: str = "sigmoid"
    parameter_names: tuple[str, ...] = ("ceiling", "L0", "k")

    def __post_init__(self) -> None:
        _ = self._curve  # checks the levels

    @property
    def equation(self) -> str:
        """With the chance level written in."""
        return f"accuracy = {self.chance:g} + (ceiling - {self.chance:g}) / (1 + exp(k·(L - L0)))"

    @property
    def n_free(self) -> int:
        """2 with a known ceiling, else 3."""
        return self._curve.n_free

    def evaluate(self, x: Array, parameters: Array) -> Array:
        """Return the accuracy at loss x."""
        return self._curve.evaluate(np.exp(-x), _exp_middle(parameters))

    def invert(self, y: Array, parameters: Array) -> Array:
        """Return the loss at which each curve reaches y; -inf at or above the ceiling, inf at or below chance."""
        with np.errstate(divide="ignore"):
            loss: Array = -np.log(self._curve.invert(y, _exp_middle(parameters)))
        return loss

    def scaled(self, x: Array, y: Array) -> FitProblem:
        """Return the saturating curve's problem, its half-way point as a loss."""
        return _WithLoss(self._curve.scaled(np.exp(-x), y))

    @property
    def _curve(self) -> Saturating:
        return Saturating(floor=self.chance, fixed_ceiling=self.fixed_ceiling)


def _exp_middle(parameters: Array) -> Array:
    moved = np.array(parameters, dtype=np.float64)
    moved[..., 1] = np.exp(-moved[..., 1])
    return moved


class _WithLoss:
    def __init__(self, problem: FitProblem) -> None:
        self._problem = problem
        self.y, self.y_unit = problem.y, problem.y_unit
        self.lower, self.upper = problem.lower, problem.upper
        self.values, self.jacobian = problem.values, problem.jacobian
        self.starts, self.best_on_grid = problem.starts, problem.best_on_grid

    def unscale(self, theta: Array) -> Array:
        parameters = self._problem.unscale(theta)
        parameters[:, 1] = -np.log(parameters[:, 1])
        return parameters

    def bounds_met(self, theta: Array) -> list[str]:
        return [
            phrase.replace("x0 is at its bound, a thousandfold", "L0 is at its bound, 6.9 nats")
            .replace("over these sizes", "over these losses")
            .replace("between two neighbouring sizes", "between two neighbouring losses")
            for phrase in self._problem.bounds_met(theta)
        ]


@dataclass(frozen=True, kw_only=True)
class Exponential:
    """eps - k exp(-gamma L), rising with the loss."""

    fixed_eps: float | None = None
    """Value at infinite loss where it is known: the error of a guess, 1 - chance. None fits it."""
    name: str = "exponential"
    equation: str = "y = eps - k·exp(-gamma·L)"
    parameter_names: tuple[str, ...] = ("eps", "k", "gamma")

    @property
    def n_free(self) -> int:
        """2 with a known eps, else 3."""
        return 3 if self.fixed_eps is None else 2

    def evaluate(self, x: Array, parameters: Array) -> Array:
        """Return eps - k exp(-gamma x)."""
        eps, k, gamma = (parameters[..., i, None] for i in range(3))
        curve: Array = eps - k * np.exp(-gamma * x)
        return curve

    def invert(self, y: Array, parameters: Array) -> Array:
        """Return the loss at which each curve reaches y; infinite where it never does."""
        eps, k, gamma = parameters.T
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (eps - y) / k
            loss = np.where(share > 0, -np.log(share) / gamma, np.where(gamma > 0, np.inf, -np.inf))
        return np.asarray(loss)

    def scaled(self, x: Array, y: Array) -> FitProblem:
        """Return the law as level + slope (1 - exp(-gamma u)) / gamma with u = x - mean, which is a line at gamma 0."""
        return _ScaledExponential(self, x, y)


class _ScaledExponential:
    """Parameters: level at the mean loss, slope there (not negative), gamma. With eps known, the level follows."""

    def __init__(self, law: Exponential, x: Array, y: Array) -> None:
        self._middle = float(x.mean())
        self._u = x - self._middle
        self.y_unit = float(np.ptp(y))
        self.y = y / self.y_unit
        self._eps = None if law.fixed_eps is None else law.fixed_eps / self.y_unit
        level = (-np.inf, np.inf) if self._eps is None else (0.0, 0.0)
        low = GAMMA_RANGE[0] if self._eps is None else 1e-3  # a known end is approached from below
        self.lower = np.asarray([level[0], 0.0, low])
        self.upper = np.asarray([level[1], np.inf, GAMMA_RANGE[1]])
        self._gammas = np.linspace(low, GAMMA_RANGE[1], _N_GRID)
        self._basis = self._rise(self._gammas[:, None])[0]

    def values(self, theta: Array) -> Array:
        rise, _ = self._rise(theta[:, 2:])
        curve: Array = self._level(theta) + theta[:, 1:2] * rise
        return curve

    def jacobian(self, theta: Array) -> Array:
        slope, gamma = theta[:, 1:2], theta[:, 2:]
        rise, by_gamma = self._rise(gamma)
        if self._eps is None:
            columns = [np.ones_like(rise), rise, slope * by_gamma]
        else:
            columns = [
                np.zeros_like(rise),
                rise - 1 / gamma,
                slope * (by_gamma + 1 / gamma**2),
            ]
        return np.stack(columns, axis=1).transpose(0, 2, 1)

    def starts(self) -> Array:
        loss, linear = self._profile(np.ones((1, len(self.y))))
        padded = np.concatenate([[np.inf], loss[0], [np.inf]])
        minima = np.flatnonzero((padded[1:-1] <= padded[:-2]) & (padded[1:-1] <= padded[2:]))
        spread = np.linspace(0, _N_GRID - 1, _N_SPREAD_STARTS).round().astype(int)
        chosen = np.unique(np.concatenate([minima[:16], spread]))
        return np.column_stack([linear[0, chosen], self._gammas[chosen]])

    def best_on_grid(self, weights: Array) -> Array | None:
        loss, linear = self._profile(weights)
        best = loss.argmin(axis=1)
        return np.column_stack([linear[np.arange(len(best)), best], self._gammas[best]])

    def unscale(self, theta: Array) -> Array:
        slope, gamma = theta[:, 1], theta[:, 2]
        gamma = np.where(np.abs(gamma) < 1e-8, 1e-8, gamma)  # a straight line has no end to name
        k = slope / gamma
        eps = self._level(theta)[:, 0] + k if self._eps is None else np.full(len(theta), self._eps)
        return np.column_stack(
            [eps * self.y_unit, k * self.y_unit * np.exp(gamma * self._middle), gamma]
        )

    def bounds_met(self, theta: Array) -> list[str]:
        phrases = []
        if theta[1] <= 1e-9:
            phrases.append("k is at its bound 0: the outcome does not rise with the loss")
        if theta[2] <= self.lower[2] + 1e-9 or theta[2] >= self.upper[2] - 1e-9:
            phrases.append(
                f"gamma is at its bound {theta[2]:g}: these runs do not show how the curve bends"
            )
        return phrases

    def _level(self, theta: Array) -> Array:
        if self._eps is None:
            return theta[:, :1]
        level: Array = self._eps - theta[:, 1:2] / theta[:, 2:]
        return level

    def _rise(self, gamma: Array) -> tuple[Array, Array]:
        """Return (1 - exp(-gamma u)) / gamma and its derivative by gamma, by their series where gamma u is small."""
        u = self._u
        z = gamma * u
        small = np.abs(z) < 1e-4
        safe = np.where(np.abs(gamma) < 1e-300, 1.0, gamma)
        decay = np.exp(-z)
        rise = np.where(small, u * (1 - z / 2 + z**2 / 6), -np.expm1(-z) / safe)
        with np.errstate(over="ignore"):
            by_gamma = np.where(small, u**2 * (-0.5 + z / 3), (u * decay - rise) / safe)
        return rise, by_gamma

    def _profile(self, weights: Array) -> tuple[Array, Array]:
        """Return sum of squares (B, grid) and the best level and slope >= 0 (B, grid, 2) for every gamma."""
        if self._eps is None:
            basis, y = self._basis, self.y
            s0 = weights.sum(axis=1)[:, None]
            s1, s2 = weights @ basis.T, weights @ (basis**2).T
            t0, t1 = (weights @ y)[:, None], weights @ (basis * y).T
            determinant = np.maximum(s0 * s2 - s1**2, 1e-14 * s0 * s2)
            slope = np.maximum((s0 * t1 - s1 * t0) / determinant, 0.0)
            level = (t0 - slope * s1) / s0
            loss = (
                level**2 * s0 + 2 * level * slope * s1 + slope**2 * s2
                - 2 * level * t0 - 2 * slope * t1
            )  # fmt: skip
            return loss, np.stack([level, slope], axis=-1)
        basis = self._basis - 1 / self._gammas[:, None]
        target = self.y - self._eps
        s2, t1 = weights @ (basis**2).T, weights @ (basis * target).T
        slope = np.maximum(t1 / s2, 0.0)
        return slope**2 * s2 - 2 * slope * t1, np.stack([np.zeros_like(slope), slope], axis=-1)


LINKS: tuple[type[CurveLaw], ...] = (Sigmoid, Exponential)
