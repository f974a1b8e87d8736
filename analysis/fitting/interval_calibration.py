"""Interval calibration: percentiles of resampled fits with the stated coverage.

Percentiles of resamples err in two ways that few configurations make large.

* Too narrow: residuals are smaller than errors, by (n - p) / n in variance. And a normal's
  percentiles stand where a t's belong.
* Too wide: a resample holds two thirds of the configurations, which determine p coefficients worse
  than all of them do.

One coefficient and evenly spread runs have only the first, for which there is a formula (Hesterberg
2015, section 3.5). With 18 configurations for five coefficients the second dominates: plain
percentiles are too wide by a fifth. With nine for three they are too wide by two thirds.

In a law made linear at its optimum both can be worked out (calibration, Loh 1987, by matrix
products instead of a second bootstrap). Errors are drawn. The linear law is fitted to them, and
refitted to the very resamples that were used. Then it is counted where the truth lies among the
refits. What a law's curvature adds is not in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

N_SIMULATED = 600
"""Simulated sets of errors; a level is then known to about one in a hundred."""

MOST_DRAWS = 300
"""Resamples that each set is refitted to, at most."""

MOST_PLACES = 12
"""Runs with different inputs at which the curve is compared with the truth, at most."""

RIDGE = 1e-8
"""Keeps a resample that cannot tell coefficients apart finite."""


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Percentiles of the draws to take for an interval of the level that was asked for."""

    coefficient: float
    """For coefficients and what follows from several of them."""
    curve: float
    """For where the curve lies."""
    new_run: float
    """For where a new run would lie."""

    @classmethod
    def plain(cls, level: float) -> "Levels":
        """Return percentiles that are taken as they are."""
        return cls(coefficient=level, curve=level, new_run=level)


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulatedFits:
    """A linear law fitted to simulated errors, of which the truth is zero."""

    refitted: Array
    """(k, draws, simulated): what each of k quantities is in a resample less what it is in the fit
    of all runs."""
    true: Array
    """(k, simulated): what it truly is less what it is in the fit of all runs."""


def simulate_fits(
    jacobian: Array,
    weights: Array,
    clusters: Sequence[Any] | NDArray[Any],
    quantities: Array,
    *,
    seed: int = 0,
) -> SimulatedFits:
    """Fit the linear law to simulated errors and to their resamples.

    Args:
        jacobian: (n, p) of the law at its optimum, per run.
        weights: (n_draws, n) how often each run occurs in each resample.
        clusters: Configuration per run; half of an error's variance is its configuration's.
        quantities: (k, p) derivatives by the coefficients.
        seed: Of the errors; laws whose quantities are summed need different ones.
    """
    return _Linear(jacobian, weights, clusters, seed).fits_of(quantities)


def weighted_sum(parts: Sequence[SimulatedFits], factors: Array) -> SimulatedFits:
    """Return the sum of factor x quantity over laws that share no run."""
    n = min(part.refitted.shape[1] for part in parts)
    each = list(zip(parts, factors.tolist(), strict=True))
    return SimulatedFits(
        refitted=np.sum([f * part.refitted[:, :n] for part, f in each], axis=0),
        true=np.sum([f * part.true for part, f in each], axis=0),
    )


def covering_level(level: float, simulated: SimulatedFits) -> float:
    """Return the percentiles between which a share `level` of the truths lies.

    All quantities count alike.
    """
    return float(np.quantile(_truth_depths(simulated), level))


def calibrated(
    level: float,
    *,
    jacobian: Array,
    coefficients: Array,
    weights: Array,
    clusters: Sequence[Any] | NDArray[Any],
) -> Levels:
    """Return what to take for intervals of `level`.

    Fitted values at the runs decide for the curve. For coefficients they and the coefficients count
    alike, half each: these alone ask for less, which the curvature of laws then lacks.

    Args:
        level: Asked for.
        jacobian: (n, p) of the law at its optimum, per run.
        coefficients: (k, p) derivatives of what is reported by what was fitted.
        weights: (n_draws, n) how often each run occurs in each resample; none gives `level` back.
        clusters: Configuration per run.
    """
    if not len(weights) or not jacobian.shape[1]:
        return Levels.plain(level)
    linear = _Linear(jacobian, weights, clusters, seed=0)
    places = np.unique(jacobian, axis=0)
    chosen = np.linspace(0, len(places) - 1, min(MOST_PLACES, len(places))).round().astype(int)
    at_runs = linear.fits_of(places[chosen])
    of_curve = _truth_depths(at_runs)
    kinds = [
        of_curve,
        *([_truth_depths(linear.fits_of(coefficients))] if len(coefficients) else []),
    ]
    both = np.quantile(
        np.concatenate([d.ravel() for d in kinds]),
        level,
        weights=np.concatenate([np.full(d.size, 1 / d.size) for d in kinds]),
        method="inverted_cdf",
    )
    return Levels(
        coefficient=float(both),
        curve=float(np.quantile(of_curve, level)),
        new_run=covering_level(level, linear.new_runs(at_runs)),
    )


class _Linear:
    """The law's tangent, its columns made orthogonal so that no digit is lost."""

    def __init__(
        self, jacobian: Array, weights: Array, clusters: Sequence[Any] | NDArray[Any], seed: int
    ) -> None:
        size = np.linalg.norm(jacobian, axis=0)
        self._size = np.where(size > 0, size, 1.0)
        Q, R = np.linalg.qr(jacobian / self._size)
        self._from_Q = np.linalg.pinv(R)
        w = weights[:MOST_DRAWS]
        n, p = Q.shape
        normal = (w @ (Q[:, :, None] * Q[:, None, :]).reshape(n, p * p)).reshape(-1, p, p)
        generator = np.random.default_rng(seed)
        names, member = np.unique(np.asarray(clusters), return_inverse=True)
        # Errors of a configuration and errors of its seeds, equally large.
        shared = generator.standard_normal((len(names), N_SIMULATED))[member.reshape(-1)]
        errors = shared + generator.standard_normal((n, N_SIMULATED))
        fitted = Q.T @ errors
        self._residuals = errors - Q @ fitted
        self._generator, self._p, self._true = generator, p, -fitted
        self._n_draws = len(w)
        solved = np.linalg.solve(normal + RIDGE * np.eye(p), w[:, None, :] * Q.T)  # (draws, p, n)
        # One matrix (p, draws x simulated), so that quantities are one product with it.
        rows = solved.transpose(1, 0, 2).reshape(-1, n)
        self._refitted = (rows @ self._residuals).reshape(p, -1)

    def fits_of(self, quantities: Array) -> SimulatedFits:
        """Return the simulated fits of k quantities, given as derivatives (k, p)."""
        v = (quantities / self._size) @ self._from_Q
        refitted = (v @ self._refitted).reshape(len(v), self._n_draws, N_SIMULATED)
        return SimulatedFits(refitted=refitted, true=v @ self._true)

    def new_runs(self, at: SimulatedFits) -> SimulatedFits:
        """Return a new run at each place.

        Its own error joins the curve's, a resampled residual joins a refit's.
        """
        k, n_draws, n = at.refitted.shape
        residuals = widened(self._residuals, self._p)
        rows = self._generator.integers(len(residuals), size=(n_draws, n))
        own = np.sqrt(2.0) * self._generator.standard_normal((k, n))
        picked = residuals.ravel()[rows * n + np.arange(n)]  # one index is quicker than two
        return SimulatedFits(refitted=at.refitted + picked, true=at.true + own)


def widened(residuals: Array, n_free: int) -> Array:
    """Return residuals (n, ...) times sqrt(n / (n - p)).

    A fit of p parameters lies closer to its own runs than to new ones.
    """
    n = len(residuals)
    return np.asarray(residuals * np.sqrt(n / max(n - n_free, 1)))


def _truth_depths(simulated: SimulatedFits) -> Array:
    """Return (k, simulated) which central share of the refits just holds the truth."""
    n = simulated.refitted.shape[1]
    depths = np.empty(simulated.true.shape)
    # One quantity at a time stays in a core's cache: half the time of all at once.
    for i, (refitted, true) in enumerate(zip(simulated.refitted, simulated.true, strict=True)):
        below, reaching = (
            compare(refitted, true).view(np.uint8).sum(axis=0, dtype=np.uint32) / n
            for compare in (np.less, np.less_equal)
        )
        depths[i] = np.abs(below + reaching - 1)
    return depths
