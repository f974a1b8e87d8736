"""Line through isoFLOP optima: optimum = G C^a, with draws and intervals."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.fitting.bootstrap import percentile_interval
from analysis.fitting.interval_calibration import covering_level, weighted_sum
from analysis.fitting.result import FitStatus
from analysis.scaling.isoflop_budget import Array, Budget, Method

FEWEST_BUDGETS = 3
"""A line through two points has no error to judge it by."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OptimumLine:
    """optimum = G C^exponent for one size over the budgets."""

    size: str
    """params or tokens."""
    method: Method
    status: FitStatus
    sentence: str
    budgets: Sequence[Budget]
    exponent: float | None = None
    interval: tuple[float, float] | None = None
    coefficient: float | None = None
    """G."""
    draws: Array = field(default_factory=lambda: np.empty((0, 2)))
    """(n_draws, 2): ln G and exponent."""
    level: float
    drawn_level: float
    """Percentiles of the draws that intervals of `level` are made of.

    Source: `analysis/fitting/interval_calibration.py`."""

    @property
    def usable(self) -> bool:
        """Whether there is a line."""
        return self.exponent is not None

    def at(self, compute: float) -> tuple[float, float, float]:
        """Return the optimum at a budget with its interval.

        Raises:
            ValueError: If there is no line.
        """
        if self.exponent is None or self.coefficient is None:
            raise ValueError(f"isoFLOP: no line ({self.status}); {self.sentence}")
        value = self.coefficient * compute**self.exponent
        if not len(self.draws):
            return value, float("nan"), float("nan")
        low, high = percentile_interval(
            self.draws[:, 0] + self.draws[:, 1] * np.log(compute), level=self.drawn_level
        )
        return value, float(np.exp(low)), float(np.exp(high))


def fit_line(size: str, method: Method, budgets: list[Budget], level: float) -> OptimumLine:
    """Return the line through the optima of budgets, smallest first; of `level` its interval."""
    good = [b for b in budgets if b.optimum is not None]
    # First the groups that are no budgets: what is wrong there is not the runs.
    without = sorted((b for b in budgets if b.optimum is None), key=lambda b: not b.chained)
    left_out = [b.sentence for b in without]
    said = f"; left out: {'; '.join(left_out)}" if left_out else ""
    if len(good) < FEWEST_BUDGETS:
        return OptimumLine(
            size=size,
            method=method,
            status=FitStatus.UNDERDETERMINED,
            sentence=f"{len(good)} budgets with an optimum of {len(budgets)}; "
            f"a line with an error needs {FEWEST_BUDGETS}{said}",
            budgets=tuple(budgets),
            level=level,
            drawn_level=level,
        )
    log_c = np.log([b.compute for b in good])
    middle = float(log_c.mean())
    targets = np.log(np.asarray([[b.optimum for b in good]], dtype=np.float64))
    intercept, slope = (part[0] for part in _lines(log_c - middle, targets))
    n_draws = min(len(b.draws) for b in good)
    draws = np.empty((0, 2))
    interval = None
    drawn_level = level
    if n_draws:
        parts = [b.imagined for b in good if b.imagined is not None]
        if len(parts) == len(good):
            away = log_c - middle
            drawn_level = covering_level(level, weighted_sum(parts, away / (away @ away)))
        drawn = np.stack([b.draws[:n_draws] for b in good], axis=1)
        enough = np.isfinite(drawn).sum(axis=1) >= FEWEST_BUDGETS
        intercepts, slopes = _lines(log_c - middle, drawn[enough])
        draws = np.column_stack([intercepts - slopes * middle, slopes])
        interval = percentile_interval(slopes, level=drawn_level)
    return OptimumLine(
        size=size,
        method=method,
        status=FitStatus.CONVERGED,
        sentence=f"{len(good)} of {len(budgets)} budgets have an optimum{said}",
        exponent=float(slope),
        interval=interval,
        coefficient=float(np.exp(intercept - slope * middle)),
        budgets=tuple(budgets),
        draws=draws,
        level=level,
        drawn_level=drawn_level,
    )


def _lines(x: Array, y: Array) -> tuple[Array, Array]:
    """Return intercepts and slopes (k,) of lines through y (k, n), points of NaN left out."""
    w = np.isfinite(y).astype(np.float64)
    filled = np.where(w > 0, y, 0.0)
    n = w.sum(axis=1)
    mean_x, mean_y = (w @ x) / n, filled.sum(axis=1) / n
    away = (x[None, :] - mean_x[:, None]) * w
    slope = (away * filled).sum(axis=1) / (away * away).sum(axis=1)
    return mean_y - slope * mean_x, slope
