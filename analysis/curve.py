"""What a fitted curve is: parameters with intervals, a status with a sentence, predictions with a band.

A fit never raises because the data are poor: it says so in `status` and then has no parameters at all, so that no
number can be mistaken for a result. Only bad arguments, and predictions from a fit without numbers, raise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.bootstrap import percentile_interval

Array = NDArray[np.float64]


class FitStatus(StrEnum):
    """How far a fit can be trusted."""

    CONVERGED = "converged"
    """The gradient vanishes inside the bounds."""
    HIT_BOUND = "hit_bound"
    """The best curve has a parameter at its bound: the data do not determine it. Numbers are given."""
    FLAT = "flat"
    """No curve of this form is better than a constant. No numbers."""
    UNDERDETERMINED = "underdetermined"
    """Fewer distinct x than parameters + 1. No numbers."""
    NOT_CONVERGED = "not_converged"
    """No start came to rest. No numbers."""


class Law(Protocol):
    """A family of curves in the units of the data; `analysis/fitting.py` fits any of them."""

    @property
    def name(self) -> str:
        """One word: power_law."""

    @property
    def equation(self) -> str:
        """As people write it, with the parameter names."""

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """All parameters in order, fixed ones included."""

    @property
    def n_free(self) -> int:
        """Parameters that are fitted."""

    def evaluate(self, x: Array, parameters: Array) -> Array:
        """Return y (..., n) at x (n,) for parameters (..., p)."""

    def invert(self, y: Array, parameters: Array) -> Array:
        """Return the x where each curve (k, p) reaches y (k,); inf or 0 where it never does."""

    def scaled(self, x: Array, y: Array) -> "ScaledProblem":
        """Return the same family in units in which x and y are of the order of one."""


class ScaledProblem(Protocol):
    """A law in the units of one data set's spread, as the optimiser sees it."""

    y: Array
    """(n,) scaled."""
    y_unit: float
    """Units of y per scaled unit."""
    lower: Array
    upper: Array

    def values(self, theta: Array) -> Array:
        """Return predictions (B, n) for parameters (B, p)."""

    def jacobian(self, theta: Array) -> Array:
        """Return derivatives (B, n, p)."""

    def starts(self) -> Array:
        """Return starting points (S, p) for all data: local minima of the profile, and points spread over its range."""

    def best_on_grid(self, weights: Array) -> Array:
        """Return, for each row of weights (B, n), the best point (B, p) of the profile grid."""

    def unscale(self, theta: Array) -> Array:
        """Return parameters (B, p) in the units of the data."""

    def bounds_met(self, theta: Array) -> list[str]:
        """Return a phrase for every free parameter of theta (p,) that rests on its bound."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """A curve at some x, with the interval of the curve itself (not of a new run)."""

    x: Array
    y: Array
    low: Array
    high: Array
    level: float
    extrapolated: NDArray[np.bool_]
    """Where x lies outside the fitted runs."""


@dataclass(frozen=True, kw_only=True)
class HoldOut:
    """The largest runs, predicted from the smaller ones only."""

    x: tuple[float, ...]
    """Sizes held out, ascending."""
    observed: tuple[float, ...]
    """Mean over the runs of that size."""
    predicted: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    mean_absolute_error: float
    """In the units of y."""
    mean_relative_error: float | None
    """mean |predicted - observed| / |observed|; None where an observation is 0."""
    n_fitted_x: int
    """Distinct sizes left to fit."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CurveFit:
    """One curve fitted to one set of runs."""

    law: Law
    status: FitStatus
    sentence: str
    """What the status means for these data, for people."""
    parameters: Mapping[str, float]
    """In the order of the equation; empty without a usable fit."""
    intervals: Mapping[str, tuple[float, float]]
    """Percentile intervals over resampled configurations; empty without a usable fit."""
    level: float
    draws: Array
    """(n_draws, p): the parameters of every resample, columns as in `parameters`."""
    x: Array
    y: Array
    clusters: Sequence[Any]
    """Configuration of each run."""
    residuals: Array
    """y - curve per run, in the order given; empty without a usable fit."""
    n_configurations: int
    n_distinct_x: int
    objective: float
    """sum rho(residual) in the units of y squared; rho(r) = r^2 / 2 (Huber: linear beyond the threshold). NaN without a fit."""
    gradient_norm: float
    """Largest |cosine| between residuals and a Jacobian column; near 0 at a minimum. NaN without a fit."""
    n_starts: int
    n_agreeing: int
    """Starts that reached the best objective to one part in a million."""
    n_optima: int
    """Distinct minima that the starts came to rest in."""
    share_refused: float
    """Share of resamples redrawn because they held too few distinct x. Large: read the intervals with caution."""
    share_unsettled: float
    """Share of resamples whose refit still moved when it was stopped; their parameters count as they were."""
    hold_out: HoldOut | None
    hold_out_note: str
    """Why there is no hold-out error, or what was held out."""

    @property
    def usable(self) -> bool:
        """Whether there are numbers."""
        return bool(self.parameters)

    @property
    def n_points(self) -> int:
        """Runs fitted."""
        return len(self.x)

    def predict(self, x: ArrayLike) -> Prediction:
        """Return the curve at x with its pointwise confidence band.

        Raises:
            ValueError: If the fit has no numbers, or an x is not positive.
        """
        at = np.atleast_1d(np.asarray(x, dtype=np.float64))
        if not (at > 0).all():
            raise ValueError(f"x: must be positive, got {at[~(at > 0)][0]}; sizes and FLOPs are")
        best = self._vector()
        low, high = at * np.nan, at * np.nan
        if len(self.draws):
            curves = self.law.evaluate(at, self.draws)
            low, high = np.quantile(curves, [(1 - self.level) / 2, (1 + self.level) / 2], axis=0)
        return Prediction(
            x=at,
            y=self.law.evaluate(at, best),
            low=low,
            high=high,
            level=self.level,
            extrapolated=(at < self.x.min()) | (at > self.x.max()),
        )

    def x_reaching(self, y: float, *, y_draws: Array | None = None) -> tuple[float, float, float]:
        """Return (x, low, high) where the curve reaches y; inf where it never does.

        Args:
            y: Value to reach.
            y_draws: Uncertain y, one per draw of this fit; None takes y as exact.

        Raises:
            ValueError: If the fit has no numbers.
        """
        best = self.law.invert(np.asarray([y]), self._vector()[None, :])[0]
        if not len(self.draws):
            return float(best), float("nan"), float("nan")
        wanted = np.full(len(self.draws), y) if y_draws is None else y_draws
        reached = self.law.invert(wanted, self.draws)
        # Infinite draws are real (that curve never gets there), and percentiles between two of them would be NaN.
        low, high = percentile_interval(np.log(np.clip(reached, 1e-300, 1e300)), level=self.level)
        return float(best), _un_log(low), _un_log(high)

    def _vector(self) -> Array:
        if not self.usable:
            raise ValueError(f"fit: no numbers to predict from ({self.status}); {self.sentence}")
        return np.asarray(list(self.parameters.values()), dtype=np.float64)


def _un_log(value: float) -> float:
    if value > np.log(1e250):
        return float("inf")
    return 0.0 if value < np.log(1e-250) else float(np.exp(value))
