"""Quartic isoFLOP curves: for budgets whose losses over ln(size) are no parabola.

At fixed compute a law A/N^alpha + B/D^beta is a sum of two exponentials in ln N. Four octaves from
its lowest point it leaves its parabola by several times the usual noise, and the parabola's lowest
point moves with the place of the sizes. A quartic follows it closely enough for the line through
the optima (`benchmarks/isoflop_exponent.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.scaling.isoflop_minima import parabola_minima

Array = NDArray[np.float64]

DEGREE = 4
SIZES_NEEDED = DEGREE + 2

P_REJECTED = 0.05
"""p-value of the F-test below which curves are no parabolas."""

ROUNDING = 1e-18
"""Share of the losses' sum of squares below which residuals are rounding."""

_N_GRID, _N_NEWTON = 129, 4


@dataclass(frozen=True, kw_only=True)
class CurveNoise:
    """Scatter of mean losses about their curves, pooled over budgets."""

    scale: float
    degrees_of_freedom: int

    def drawn(self, n_draws: int) -> Array:
        """Return scales that agree with this one (n_draws,), the same for all budgets."""
        freedom = self.degrees_of_freedom
        chi2 = np.random.default_rng(0).chisquare(freedom, size=n_draws)
        return np.asarray(self.scale * np.sqrt(freedom / chi2))


def size_means(u: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return the distinct sizes, their mean losses, and their numbers of runs."""
    sizes, member = np.unique(u, return_inverse=True)
    counts = np.bincount(member.reshape(-1)).astype(np.float64)
    return sizes, np.bincount(member.reshape(-1), weights=y) / counts, counts


def pooled_noise(curves: Sequence[tuple[Array, Array]], degree: int = DEGREE) -> CurveNoise:
    """Return the scatter of the mean losses of curves (u, y) about polynomials."""
    squares, freedom = 0.0, 0
    for u, y in curves:
        sizes, means, counts = size_means(u, y)
        c = _weighted_inverse(sizes, counts, degree) @ means
        squares += float(np.sum((_powers(sizes, degree) @ c - means) ** 2))
        freedom += len(sizes) - degree - 1
    return CurveNoise(scale=float(np.sqrt(squares / freedom)), degrees_of_freedom=freedom)


def rejects_parabolas(curves: Sequence[tuple[Array, Array]]) -> bool:
    """Return whether quartics describe curves (u, y) better than parabolas do, by an F-test.

    All curves count together. It is False if one has fewer sizes than a quartic needs.
    """
    if not curves or min(len(np.unique(u)) for u, _ in curves) < SIZES_NEEDED:
        return False
    from scipy.special import fdtrc  # slow to import

    parabolas, quartics = (pooled_noise(curves, degree) for degree in (2, DEGREE))
    left, right = (n.scale**2 * n.degrees_of_freedom for n in (parabolas, quartics))
    total = sum(float(np.sum((y - y.mean()) ** 2)) for _, y in curves)
    if left <= ROUNDING * total:
        return False
    more = parabolas.degrees_of_freedom - quartics.degrees_of_freedom
    ratio = (left - right) / more / max(quartics.scale**2, ROUNDING * total)
    return bool(fdtrc(more, quartics.degrees_of_freedom, ratio) < P_REJECTED)


def quartic_minima(u: Array, y: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Return where each weighted quartic is lowest (B,), its value there, and c0 to c4 (B, 5).

    A lowest end is no optimum: the place is then outside, where the parabola's is, or -inf if that
    opens downward.
    """
    X = _powers(u)
    c = np.stack([np.linalg.pinv(X * r[:, None]) @ (y * r) for r in np.sqrt(weights)])
    place, lowest = lowest_points(c, float(u.min()), float(u.max()))
    of_parabola = parabola_minima(u, y, weights)[0]
    inside = (of_parabola > u.min()) & (of_parabola < u.max())
    return np.where(np.isinf(place) & ~inside, of_parabola, place), lowest, c


def lowest_points(c: Array, low: float, high: float) -> tuple[Array, Array]:
    """Return where polynomials c (B, degree + 1) are lowest between two ends (B,), and the value.

    A lowest end is +inf or, on the left, -1e9; its value is NaN.
    """
    grid = np.linspace(low, high, _N_GRID)
    degree = c.shape[1] - 1
    best = (c @ _powers(grid, degree).T).argmin(axis=1)
    place = grid[best]
    first = c[:, 1:] * np.arange(1, degree + 1)
    second = first[:, 1:] * np.arange(1, degree)
    step = grid[1] - grid[0]
    for _ in range(_N_NEWTON):
        slope = np.einsum("bi,bi->b", _powers(place, degree - 1), first)
        bend = np.einsum("bi,bi->b", _powers(place, degree - 2), second)
        moved = place - slope / np.where(bend > 0, bend, np.inf)
        place = np.clip(moved, grid[best] - step, grid[best] + step)
    value = np.einsum("bi,bi->b", _powers(place, degree), c)
    ends = (best == 0) | (best == _N_GRID - 1)
    outside = np.where(best == 0, -1e9, np.inf)
    return np.where(ends, outside, place), np.where(ends, np.nan, value)


def drawn_minima(u: Array, y: Array, noise: CurveNoise, *, n_draws: int, seed: int) -> Array:
    """Return the places (n_draws,) of quartics fitted to simulated mean losses; NaN at an end.

    Errors are normal, of the scale `noise.drawn`: so percentiles are those of Student's t.
    """
    sizes, means, counts = size_means(u, y)
    inverse = _weighted_inverse(sizes, counts)
    errors = np.random.default_rng(seed).standard_normal((n_draws, len(sizes)))
    errors *= noise.drawn(n_draws)[:, None]
    place, _ = lowest_points((means + errors) @ inverse.T, float(u.min()), float(u.max()))
    return np.where(np.abs(place) < 1e9, place, np.nan)


def _powers(u: Array, degree: int = DEGREE) -> Array:
    return np.asarray(u[:, None] ** np.arange(degree + 1))


def _weighted_inverse(u: Array, counts: Array, degree: int = DEGREE) -> Array:
    """Return what takes mean losses (n,) to coefficients (degree + 1,): (degree + 1, n)."""
    root = np.sqrt(counts)
    return np.asarray(np.linalg.pinv(_powers(u, degree) * root[:, None]) * root)
