"""What a fitted curve of one size is: parameters with intervals, predictions with a band (status: `analysis/fitting/result.py`)."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.fitting.bootstrap import percentile_interval
from analysis.fitting.multistart import FitProblem
from analysis.fitting.result import Band, FitResult, confidence_band, prediction_band
from analysis.fitting.result import FitStatus as FitStatus

Array = NDArray[np.float64]


class CurveLaw(Protocol):
    """A family of curves in the units of the data; `analysis/fitting/curve_fit.py` fits any of them."""

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

    def scaled(self, x: Array, y: Array) -> FitProblem:
        """Return the same family in units in which x and y are of the order of one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction(Band):
    """A curve at some x."""

    x: Array


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
class CurveFit(FitResult):
    """One curve fitted to one set of runs."""

    law: CurveLaw
    x: Array
    n_distinct_x: int
    hold_out: HoldOut | None
    hold_out_note: str
    """Why there is no hold-out error, or what was held out."""

    def predict(self, x: ArrayLike) -> Prediction:
        """Return the curve at x with its pointwise bands.

        Raises:
            ValueError: If the fit has no numbers, or an x is not positive.
        """
        at = np.atleast_1d(np.asarray(x, dtype=np.float64))
        if not (at > 0).all():
            raise ValueError(f"x: must be positive, got {at[~(at > 0)][0]}; sizes and FLOPs are")
        best = self._vector()
        curves = self.law.evaluate(at, self.draws) if len(self.draws) else np.empty((0, len(at)))
        low, high = confidence_band(curves, self.levels.curve)
        new_low, new_high = prediction_band(
            curves,
            self.residuals,
            n_free=self.law.n_free,
            level=self.levels.new_run,
            relative=False,
        )
        return Prediction(
            x=at,
            y=self.law.evaluate(at, best),
            low=low,
            high=high,
            new_low=new_low,
            new_high=new_high,
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
        low, high = percentile_interval(
            np.log(np.clip(reached, 1e-300, 1e300)), level=self.levels.curve
        )
        return float(best), _un_log(low), _un_log(high)


def _un_log(value: float) -> float:
    if value > np.log(1e250):
        return float("inf")
    return 0.0 if value < np.log(1e-250) else float(np.exp(value))
