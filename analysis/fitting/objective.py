"""Objectives of a fit: sums over runs of a loss of the residuals.

A mean divides the gradient by the number of runs, and optimisers that stop at a fixed gradient then
stop early (the slip in Hoffmann et al. 2022, found by Besiroglu et al. 2024).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MAD_TO_SIGMA = 1.482602218505602
"""1 / the upper quartile of the standard normal: the median absolute deviation times this estimates
a standard deviation."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """sum of weight x rho(residual)."""

    residual: Literal["log", "value"] = "log"
    """log: ln(predicted) - ln(observed), a relative error. value: in the units of the outcome."""
    huber: float | None = 1e-3
    """Residual beyond which rho is linear; None is least squares, 0 the absolute error (rho =
    |r|)."""
    huber_scales: float | None = None
    """The same in units of the residuals' own robust scale: 1.4826 x median |r| of the
    absolute-error fit to all runs (Huber 1981: 1.345 loses 5 % efficiency on normal errors).
    Replaces `huber`."""
    offset: float = 0.0
    """c of ln(predicted + c) - ln(observed + c), in the units of the outcome: relative errors far
    above c, plain ones far below. For outcomes near zero."""

    def __post_init__(self) -> None:
        if self.residual not in ("log", "value"):
            raise ValueError(f"residual: must be log or value, got {self.residual!r}")
        if self.huber is not None and not self.huber >= 0:
            raise ValueError(
                f"huber: must not be negative, got {self.huber}; None is least squares"
            )
        if self.huber_scales is not None and not self.huber_scales > 0:
            raise ValueError(f"huber_scales: must be positive, got {self.huber_scales}")
        if not 0 <= self.offset < float("inf") or (self.offset and self.residual == "value"):
            raise ValueError(
                f"offset: must not be negative, and 0 with residual='value', got {self.offset}"
            )

    @property
    def smooth(self) -> bool:
        """Whether it is least squares, on which likelihood theory rests."""
        return self.huber is None and self.huber_scales is None

    def observed(self, predicted: Array, residuals: Array) -> Array:
        """Return the observations that have these residuals (predicted - observed)."""
        if self.residual == "value":
            return predicted - residuals
        if not self.offset:
            return predicted * np.exp(-residuals)
        return (predicted + self.offset) * np.exp(-residuals) - self.offset

    def amount(self, residual: float) -> str:
        """Return a residual with its unit."""
        return f"{100 * residual:.2g} %" if self.residual == "log" else f"{residual:.2g}"

    @property
    def words(self) -> str:
        """As a table's note says it."""
        of = "log outcome" if self.residual == "log" else "outcome"
        if self.offset:
            of = f"log(outcome + {self.offset:g})"
        if self.huber_scales is not None:
            return f"Huber({self.huber_scales:g} residual scales) on {of}, sum"
        if self.huber is None:
            return f"least squares on {of}, sum"
        return (
            f"absolute error on {of}, sum"
            if self.huber == 0
            else f"Huber({self.huber:g}) on {of}, sum"
        )


SQUARES = Objective(huber=None)
"""Least squares of relative errors."""

SQUARED_ERROR = Objective(residual="value", huber=None)
"""Least squares in the units of the outcome."""


def robust_scale(residuals: Array) -> float:
    """Return 1.4826 x the median absolute residual: the standard deviation, were they normal."""
    return MAD_TO_SIGMA * float(np.median(np.abs(residuals)))
