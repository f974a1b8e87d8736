"""What every fit hands back: a status with a sentence, numbers only where they mean something, and how it was found.

A fit never raises because the data are poor: it says so in `status` and then has no parameters at all, so that no
number can be mistaken for a result. Only bad arguments, and predictions from a fit without numbers, raise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.interval_calibration import Levels, widened

Array = NDArray[np.float64]

DRAWS_PER_CURVE = 8
"""Residuals joined with each resampled curve for the interval of a new run."""


class FitStatus(StrEnum):
    """How far a fit can be trusted."""

    CONVERGED = "converged"
    """The gradient vanishes inside the bounds."""
    HIT_BOUND = "hit_bound"
    """The best curve has a parameter at its bound: the data do not determine it. Numbers are given."""
    FLAT = "flat"
    """No curve of this form is better than a constant. No numbers."""
    UNDERDETERMINED = "underdetermined"
    """Fewer distinct runs than parameters + 1, or runs that cannot tell two parameters apart. No numbers."""
    NOT_CONVERGED = "not_converged"
    """No start came to rest. No numbers."""
    DOWNWARD = "downward"
    """A parabola that opens downward has no optimum. No numbers."""
    EDGE = "edge"
    """The optimum lies at or beyond the smallest or largest run. No numbers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FitResult:
    """What a fit of any law knows about itself."""

    status: FitStatus
    sentence: str
    """What the status means for these data, for people."""
    parameters: Mapping[str, float]
    """In the order of the equation; empty without a usable fit."""
    intervals: Mapping[str, tuple[float, float]]
    """Percentile intervals over resampled configurations; empty without a usable fit."""
    level: float
    levels: Levels
    """Percentiles of the draws that intervals of `level` are made of (`analysis/fitting/interval_calibration.py`)."""
    draws: Array
    """(n_draws, p): the parameters of every resample, columns as in `parameters`."""
    y: Array
    clusters: Sequence[Any]
    """Configuration of each run: what was resampled together."""
    residuals: Array
    """Per run, in the order given; empty without a usable fit."""
    n_configurations: int
    objective: float
    """sum rho(residual), rho(r) = r^2 / 2 (Huber: linear beyond the threshold), in the units of the residual squared. NaN without a fit."""
    gradient_norm: float
    """Largest |cosine| between residuals and a Jacobian column; near 0 at a minimum. NaN without a fit."""
    moved: float
    """Largest change of an internal parameter from the winning start to its end: 0 is a start handed back untouched. NaN without a fit."""
    condition_number: float
    """Of the Jacobian at the optimum, columns of length one, parameters at a bound left out. Above 1e4 parameters trade off; the curve may still be well determined. NaN without a fit."""
    degrees_of_freedom: int
    """Distinct runs minus fitted parameters."""
    n_starts: int
    n_agreeing: int
    """Starts that reached the best objective to one part in a million."""
    n_optima: int
    """Distinct minima that the starts came to rest in."""
    share_refused: float
    """Share of resamples redrawn because they held too few distinct runs. Large: read the intervals with caution."""
    share_unsettled: float
    """Share of resamples whose refit still moved when it was stopped; their parameters count as they were."""
    warnings: Sequence[str] = ()
    """What is odd about the runs (`analysis/loading/validation.py`); also at the end of the sentence."""

    @property
    def usable(self) -> bool:
        """Whether there are numbers."""
        return bool(self.parameters)

    @property
    def n_points(self) -> int:
        """Runs fitted."""
        return len(self.y)

    def _vector(self) -> Array:
        if not self.usable:
            raise ValueError(f"fit: no numbers to predict from ({self.status}); {self.sentence}")
        return np.asarray(list(self.parameters.values()), dtype=np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Band:
    """What is predicted at some sizes, with the two intervals that must not be confused."""

    y: Array
    low: Array
    high: Array
    """Confidence: where the curve itself lies, at `level`."""
    new_low: Array
    new_high: Array
    """Prediction: where one new run would lie."""
    level: float
    extrapolated: NDArray[np.bool_]
    """Where a size lies outside the fitted runs."""


def confidence_band(curves: Array, level: float) -> tuple[Array, Array]:
    """Return where the curve itself lies: percentiles (m,) over resampled curves (k, m); NaN without draws."""
    if not len(curves):
        nothing = np.full(curves.shape[1], np.nan)
        return nothing, nothing.copy()
    low, high = np.quantile(curves, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def prediction_band(
    curves: Array, residuals: Array, *, n_free: int, level: float, relative: bool
) -> tuple[Array, Array]:
    """Return where one new run would lie: resampled curves joined with resampled residuals (Davison and Hinkley 1997, section 6.3.3).

    Args:
        curves: (k, m).
        residuals: Of the fit, all runs.
        n_free: Fitted parameters.
        level: Of the interval.
        relative: Whether residuals are ln(predicted) - ln(observed) instead of differences.
    """
    k, m = curves.shape
    if not k or len(residuals) <= n_free:
        nothing = np.full(m, np.nan)
        return nothing, nothing.copy()
    picked = np.random.default_rng(0).choice(widened(residuals, n_free), size=(DRAWS_PER_CURVE * k, 1))  # fmt: skip
    repeated = np.tile(curves, (DRAWS_PER_CURVE, 1))
    new = repeated * np.exp(picked) if relative else repeated + picked
    return confidence_band(new, level)
