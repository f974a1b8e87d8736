"""Optimum of one isoFLOP budget: the minimum of a curve through its losses.

It comes with its draws.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.bootstrap import n_distinct_drawn, percentile_interval, resample_clusters
from analysis.fitting.interval_calibration import SimulatedFits, covering_level, simulate_fits
from analysis.fitting.result import FitStatus
from analysis.loading.columns import equal_rows
from analysis.scaling.isoflop_minima import akima_minima, parabola_minima
from analysis.scaling.isoflop_quartic import (
    SIZES_NEEDED,
    CurveNoise,
    drawn_minima,
    quartic_minima,
)

Array = NDArray[np.float64]
Method = Literal["parabola", "quartic", "akima"]

PARABOLA_SIZES = 4
"""Distinct sizes that a parabola's budget must have."""

SAME_BUDGET = 1.2
"""Runs whose FLOPs are within this factor of the next are of one budget, if none are given."""

WIDEST_BUDGET = 3.0
"""Factor between the FLOPs of a group's runs above which such a chain is no budget.

At a factor of 3, 59 of 60 intervals held the exponent of simulated tables (five budgets of 15
sizes, noise 0.3 %), but its error was six times that of even budgets."""

CHAINED = (
    "these are runs of several budgets, chained because each is within a factor of"
    f" {SAME_BUDGET:g} of the next; say with budgets= which are of one"
)

MOST_LOST = 0.5
"""Share of resamples without an optimum from which on a budget counts as having none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Budget:
    """The runs of one budget."""

    compute: float
    """FLOPs: as stated, or the geometric mean of the runs."""
    status: FitStatus
    sentence: str
    x: Array
    y: Array
    optimum: float | None = None
    """Size of lowest loss; None without one."""
    interval: tuple[float, float] | None = None
    loss: float | None = None
    """At the optimum."""
    coefficients: tuple[float, ...] | None = None
    """c0, c1, ... of the polynomial in ln(x); None for Akima or without numbers."""
    draws: Array = field(default_factory=lambda: np.empty(0))
    """(n_draws,) ln of the optimum; NaN where a resample has none."""
    flops: tuple[float, float] = (float("nan"), float("nan"))
    """Smallest and largest of its runs."""
    chained: bool = False
    """Whether it was found by neighbouring FLOPs, and spans more than WIDEST_BUDGET."""
    imagined: SimulatedFits | None = None
    """ln of the optimum of a linear fit to imagined errors.

    None for Akima and quartics, whose intervals are plain percentiles."""

    @property
    def usable(self) -> bool:
        """Whether there is an optimum."""
        return self.optimum is not None


@dataclass(frozen=True, kw_only=True)
class ProfileSettings:
    """Settings of the fits to budgets; most are arguments of `isoflop.fit_isoflop`."""

    method: Method
    within: float | None
    n_draws: int
    level: float
    noise: Mapping[str, CurveNoise]
    """Of each size's curves, for quartics."""

    @property
    def sizes_needed(self) -> int:
        """Distinct sizes that a budget must have."""
        return {"parabola": PARABOLA_SIZES, "quartic": SIZES_NEEDED, "akima": 5}[self.method]

    def minima(self, u: Array, y: Array, weights: Array) -> tuple[Array, Array, Array]:
        """Return place, loss and coefficients of the minimum for each row of weights."""
        solve = {"parabola": parabola_minima, "quartic": quartic_minima, "akima": akima_minima}
        return solve[self.method](u, y, weights)


class _NoOptimumError(Exception):
    """A budget without an optimum: the status, and why."""

    def __init__(self, status: FitStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


def fit_budget(
    x: Array,
    y: Array,
    labels: NDArray[Any],
    *,
    flops: Array,
    compute: float,
    grouped: bool,
    settings: ProfileSettings,
    noise: CurveNoise | None,
    seed: int,
) -> Budget:
    """Return the optimum of one budget's runs (n,), or why it has none.

    Args:
        x: Sizes.
        y: Losses.
        labels: Configurations.
        flops: Of the runs.
        compute: FLOPs of the budget.
        grouped: Whether nobody named the budgets: the runs are those of neighbouring FLOPs.
        settings: Of the fit.
        noise: Of the curves, for quartics.
        seed: Of the resampling.
    """
    rows = rows_near_lowest(x, y, settings.within)
    x, y, labels = x[rows], y[rows], labels[rows]
    low, high = float(flops[rows].min()), float(flops[rows].max())
    # The margin keeps groups that are exactly as wide but for rounding.
    chained = grouped and high > WIDEST_BUDGET * low * (1 + 1e-9)
    # Powers of ln x are nearly collinear unless they are centred.
    middle = float(np.log(x).mean())
    u = np.log(x) - middle
    name = f"budget {compute:.3g}"
    if high > SAME_BUDGET * low:
        name += f" (runs of {low:.3g} to {high:.3g} FLOPs, a factor of {high / low:.3g})"
    shared: dict[str, Any] = {"compute": compute, "x": x, "y": y}
    shared |= {"flops": (low, high), "chained": chained}
    n_sizes = len(np.unique(x))
    try:
        place, loss, coefficients = _minimum(u, y, n_sizes, settings)
        if noise is None:
            places, level, imagined = _resampled_places(
                x,
                u,
                y,
                labels,
                place=place,
                curvature=coefficients[2],
                settings=settings,
                seed=seed,
            )
        else:
            places = drawn_minima(u, y, noise, n_draws=settings.n_draws, seed=seed)
            level, imagined = settings.level, None
            _refuse_if_lost(places)
    except _NoOptimumError as none:
        # More runs do not mend a group that is none.
        why = f"{str(none).partition(';')[0]}; {CHAINED}" if chained else str(none)
        return Budget(status=none.status, sentence=f"{name}: {why}", **shared)
    interval = None
    if len(places):
        low_end, high_end = percentile_interval(places[np.isfinite(places)], level=level)
        interval = (float(np.exp(low_end + middle)), float(np.exp(high_end + middle)))
    said = f"optimum between {len(x)} runs of {n_sizes} sizes"
    return Budget(
        status=FitStatus.CONVERGED,
        sentence=f"{name}: {said}; {CHAINED}" if chained else f"{name}: {said}",
        optimum=float(np.exp(place + middle)),
        interval=interval,
        loss=loss,
        coefficients=None if settings.method == "akima" else _in_log_x(coefficients, middle),
        draws=places + middle,
        imagined=imagined,
        **shared,
    )


def rows_near_lowest(x: Array, y: Array, within: float | None) -> NDArray[np.int64]:
    """Return the rows within the factor of the size of lowest loss, in order of size and loss."""
    order = np.asarray(np.lexsort((y, x)))
    if within is None:
        return order
    lowest = x[y.argmin()]
    # The margin keeps sizes that are exactly at the factor but for rounding.
    near = np.maximum(x / lowest, lowest / x) <= within * (1 + 1e-9)
    return np.asarray(order[near[order]])


def _minimum(
    u: Array, y: Array, n_sizes: int, settings: ProfileSettings
) -> tuple[float, float, Array]:
    """Return place, loss and coefficients of the minimum of all runs.

    Raises:
        _NoOptimumError: If there are too few sizes, or the minimum is not between the runs.
    """
    if n_sizes < settings.sizes_needed:
        raise _NoOptimumError(
            FitStatus.UNDERDETERMINED,
            f"{n_sizes} distinct sizes; the {settings.method} needs {settings.sizes_needed}",
        )
    place, low, coefficients = (part[0] for part in settings.minima(u, y, np.ones((1, len(u)))))
    if np.isneginf(place):
        raise _NoOptimumError(
            FitStatus.DOWNWARD,
            "the parabola opens downward: no optimum; add sizes on both sides of the lowest loss",
        )
    if not u.min() < place < u.max():
        side = "larger" if place >= u.max() else "smaller"
        raise _NoOptimumError(
            FitStatus.EDGE, f"the lowest loss is not between the runs; add {side} sizes"
        )
    return place, float(low), coefficients


def _resampled_places(
    x: Array,
    u: Array,
    y: Array,
    labels: NDArray[Any],
    *,
    place: float,
    curvature: float,
    settings: ProfileSettings,
    seed: int,
) -> tuple[Array, float, SimulatedFits | None]:
    """Return drawn places in u (n_draws,), the level of their percentiles, and imagined fits.

    Raises:
        _NoOptimumError: If more than MOST_LOST of the resamples have no optimum between the runs.
    """
    if not settings.n_draws:
        return np.empty(0), settings.level, None
    sizes = equal_rows(x)
    drawn = resample_clusters(
        labels,
        n_draws=settings.n_draws,
        seed=seed,
        # One size fewer than the fit to all runs needs still determines the curve.
        accept=lambda weights: n_distinct_drawn(weights, sizes) >= settings.sizes_needed - 1,
    )
    places = settings.minima(u, y, drawn.weights)[0]
    places = np.where((places > u.min()) & (places < u.max()), places, np.nan)
    _refuse_if_lost(places)
    # Levels are calibrated on linear fits. Akima's curve is none: plain percentiles.
    if settings.method == "akima":
        return places, settings.level, None
    # The place is -c1 / (2 c2).
    slopes = np.asarray([[0.0, -0.5, -place]]) / curvature
    powers = np.stack([u**k for k in range(3)], axis=1)
    imagined = simulate_fits(powers, drawn.weights, labels, slopes, seed=seed)
    return places, covering_level(settings.level, imagined), imagined


def _refuse_if_lost(places: Array) -> None:
    """Refuse a budget most of whose draws (n_draws,) have no optimum, which percentiles would hide.

    Raises:
        _NoOptimumError: If there are more than MOST_LOST.
    """
    lost = float(np.isnan(places).mean()) if len(places) else 0.0
    if lost > MOST_LOST:
        raise _NoOptimumError(
            FitStatus.EDGE,
            f"{lost:.0%} of the resamples have no optimum between the runs; add sizes or seeds",
        )


def _in_log_x(c: Array, middle: float) -> tuple[float, ...]:
    """Return the coefficients in ln(x) of those in ln(x) - middle."""
    polynomial = np.polynomial.Polynomial(c)
    shifted = polynomial(np.polynomial.Polynomial([-middle, 1.0]))
    return tuple(float(v) for v in shifted.coef)
