"""Links from loss to a task's outcome: accuracy, error or answer NLL.

    sigmoid       accuracy = chance + (ceiling - chance) / (1 + exp(k (L - L0)))
    exponential   y = eps - k exp(-gamma L)

The second of two stages. The sigmoid is that of Bhagia et al. 2024 (task ladders), equation 2. Its
chance level is known (0 for an open answer, 1/choices for a closed one), or fitted with
`chance=None`, as they do: a small model may stay above a guess, or below. Then a two-stage fit adds
their anchor, accuracy 1 at loss 0, as runs rarely show both levels. The exponential is Gadre et al.
2024, equation 5, for an error; with gamma and k negative it is an answer NLL that levels off at
small loss.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import LawProblem, LinearScaleLaw, Parameter, grid_starts
from analysis.laws.saturating import Saturating

Array = NDArray[np.float64]

GAMMA_RANGE = (-8.0, 12.0)
"""Per nat. Zero is a straight line; beyond, the curve is a step."""

KNOWN_GAMMA = 1e-3
"""Smallest gamma with eps known, which is then approached from below."""

STRAIGHT = 1e-8
"""|gamma| below which a straight line gets this one: a line has no end to name."""

_N_GRID, _N_MINIMA, _N_SPREAD = 81, 16, 9


class Sigmoid(Saturating):
    """chance + (ceiling - chance) / (1 + exp(k (L - L0))): the saturating curve at x = exp(-L)."""

    name = "sigmoid"
    source = "Bhagia et al. 2024, equation 2"
    inputs = ("loss",)
    outcome_is_share = False  # a measured accuracy may be noisy, or normalised
    levels_are_shares = True

    def __init__(self, *, chance: float | None = 0.0, fixed_ceiling: float | None = None) -> None:
        """Fix the levels that are known, as those of `Saturating`."""
        super().__init__(floor=chance, fixed_ceiling=fixed_ceiling)
        self.chance = chance
        if chance is None and fixed_ceiling is None:
            self.anchor = (0.0, 1.0)
        self.parameters = self._parameters("L0", "losses", "6.9 nats")
        self.example = self._example(L0=2.9, k=4.0)
        floor, ceiling = self._floor_name, self._ceiling_name
        self.equation = f"accuracy = {floor} + ({ceiling} - {floor}) / (1 + exp(k·(L - L0)))"

    def features(self, inputs: Mapping[str, Array]) -> Array:
        """Return -L, the logarithm of x."""
        return -inputs["loss"][None, :]

    def _place(self, middle: Array) -> Array:
        return np.asarray(-middle)

    def _unplace(self, x0: Array) -> Array:
        return np.asarray(-x0)

    def invert(self, y: Array, parameters: Array) -> Array:
        """Return the loss at which each curve (k, p) reaches y (k,).

        It is -inf at or above the ceiling, inf at or below chance.
        """
        moved = np.array(parameters, dtype=np.float64)
        moved[:, -2] = np.exp(-moved[:, -2])
        with np.errstate(divide="ignore"):
            return np.asarray(-np.log(super().invert(y, moved)))


class Exponential(LinearScaleLaw):
    """eps - k exp(-gamma L), rising with the loss.

    Internal parameters: the level at the mean loss, the slope there (not negative), and gamma, as
    level + slope (1 - exp(-gamma u)) / gamma with u = L - mean, which is a line at gamma 0. With
    eps known, the level follows from the others and is fixed.
    """

    name = "exponential"
    equation = "y = eps - k·exp(-gamma·L)"
    source = "Gadre et al. 2024, equation 5"
    inputs = ("loss",)

    def __init__(self, *, fixed_eps: float | None = None) -> None:
        """Fix the value at infinite loss where it is known (the error of a guess, 1 - chance)."""
        self.fixed_eps = fixed_eps
        if fixed_eps is not None:
            self.equation = f"y = {fixed_eps:g} - k·exp(-gamma·L)"
        self.levels_are_shares = fixed_eps is not None and fixed_eps <= 1  # else it may be an NLL
        level = np.inf if fixed_eps is None else 0.0
        lowest = GAMMA_RANGE[0] if fixed_eps is None else KNOWN_GAMMA
        bend = "these runs do not show how the curve bends"
        self.parameters = (
            Parameter("eps", lower=-level, upper=level, linear=True, coupled_to=("k", "gamma")),
            Parameter(
                "k",
                upper=np.inf,
                linear=True,
                at_lower="the outcome does not rise with the loss",
                coupled_to=("gamma",),
            ),
            Parameter("gamma", lower=lowest, upper=GAMMA_RANGE[1], at_lower=bend, at_upper=bend),
        )
        eps = 0.85 if fixed_eps is None else fixed_eps
        self.example = MappingProxyType({"eps": eps, "k": 2.1, "gamma": 0.75})

    def features(self, inputs: Mapping[str, Array]) -> Array:
        """Return L."""
        return np.asarray(inputs["loss"])[None, :]

    def values(self, features: Array, theta: Array) -> Array:
        """Return the outcome."""
        return np.asarray(self._level(theta) + theta[:, 1:2] * _rise(features[0], theta[:, 2:])[0])

    def jacobian(self, features: Array, theta: Array) -> Array:
        """Return derivatives by the level, the slope and gamma."""
        slope, gamma = theta[:, 1:2], theta[:, 2:]
        rise, by_gamma = _rise(features[0], gamma)
        if self.fixed_eps is None:
            return np.stack([np.ones_like(rise), rise, slope * by_gamma], axis=1)
        columns = [np.zeros_like(rise), rise - 1 / gamma, slope * (by_gamma + 1 / gamma**2)]
        return np.stack(columns, axis=1)

    def uncentre(self, theta: Array, centre: Array) -> Array:
        """Return the level and slope at L = 0; digits are lost where exp(gamma L) is large."""
        return self.centred_internal(self.uncentred_external(theta, centre), np.zeros(1))

    def uncentred_external(self, theta: Array, centre: Array) -> Array:
        """Return eps, k and gamma, which do not pass through L = 0 where digits would be lost."""
        slope, gamma = theta[:, 1], theta[:, 2]
        gamma = np.where(np.abs(gamma) < STRAIGHT, STRAIGHT, gamma)
        k = slope / gamma
        eps = self._level(theta)[:, 0] + k if self.fixed_eps is None else self.fixed_eps + 0 * k
        return np.column_stack([eps, k * np.exp(gamma * centre[0]), gamma])

    def centred_internal(self, parameters: Array, centre: Array) -> Array:
        """The reverse of `uncentred_external`."""
        eps, k, gamma = parameters.T
        k = k * np.exp(-gamma * centre[0])
        level = eps - k if self.fixed_eps is None else np.zeros_like(eps)
        return np.column_stack([level, k * gamma, gamma])

    def external(self, theta: Array) -> Array:
        """Return eps, k and gamma of the level and slope at L = 0."""
        return self.uncentred_external(theta, np.zeros(1))

    def internal(self, parameters: Array) -> Array:
        """The reverse of `external`."""
        return self.centred_internal(parameters, np.zeros(1))

    def evaluate(self, inputs: Mapping[str, Array], parameters: Array) -> Array:
        """Return eps - k exp(-gamma L)."""
        eps, k, gamma = (np.asarray(parameters)[..., i, None] for i in range(3))
        return np.asarray(eps - k * np.exp(-gamma * inputs["loss"]))

    def invert(self, y: Array, parameters: Array) -> Array:
        """Return the loss at which each curve (k, 3) reaches y; infinite where it never does."""
        eps, k, gamma = parameters.T
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (eps - y) / k
            loss = np.where(share > 0, -np.log(share) / gamma, np.where(gamma > 0, np.inf, -np.inf))
        return np.asarray(loss)

    def starts(self, problem: LawProblem) -> Array:
        """Return points of a grid over gamma, each with its least-squares level and slope >= 0."""
        gamma = np.linspace(problem.lower[2], problem.upper[2], _N_GRID)
        basis, y = _rise(problem.features[0], gamma[:, None])[0], problem.y * problem.y_unit
        if self.fixed_eps is None:
            # Weighted sums of the normal equations of a line in the basis.
            s0, s1, s2 = float(len(y)), basis.sum(axis=1), (basis**2).sum(axis=1)
            t0, t1 = y.sum(), basis @ y
            determinant = np.maximum(s0 * s2 - s1**2, 1e-14 * s0 * s2)
            slope = np.maximum((s0 * t1 - s1 * t0) / determinant, 0.0)
            level = (t0 - slope * s1) / s0
        else:
            basis, y = basis - 1 / gamma[:, None], y - self.fixed_eps
            slope = np.maximum(basis @ y / (basis**2).sum(axis=1), 0.0)
            level = np.zeros_like(slope)
        loss = ((level[:, None] + slope[:, None] * basis - y) ** 2).sum(axis=1)
        return np.column_stack([level, slope, gamma])[grid_starts(loss, _N_MINIMA, _N_SPREAD)]

    def _level(self, theta: Array) -> Array:
        if self.fixed_eps is None:
            return theta[:, :1]
        return np.asarray(self.fixed_eps - theta[:, 1:2] / theta[:, 2:])


def _rise(u: Array, gamma: Array) -> tuple[Array, Array]:
    """Return (1 - exp(-gamma u)) / gamma and its derivative by gamma, (B, n).

    u is (n,), gamma (B, 1). Where gamma u is small, their series are used.
    """
    z = gamma * u
    small = np.abs(z) < 1e-4
    safe = np.where(np.abs(gamma) < 1e-300, 1.0, gamma)
    decay = np.exp(-z)
    rise = np.where(small, u * (1 - z / 2 + z**2 / 6), -np.expm1(-z) / safe)
    with np.errstate(over="ignore"):
        by_gamma = np.where(small, u**2 * (-0.5 + z / 3), (u * decay - rise) / safe)
    return rise, by_gamma
