"""Likelihood-ratio tests of a fit's noise covariance.

Is the noise uneven, or shared by neighbouring runs? Each statistic is the mean, over some
alternatives, of the likelihood ratio of that covariance to even, independent noise. Such a mean has
the best average power against them (Andrews and Ploberger 1994). The likelihood is that of what the
fitted parameters leave of the residuals (restricted maximum likelihood; Patterson and Thompson
1971), with the noise's scale profiled out. Statistics come for many tables at once, because their
null distribution is simulated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

GROWTH = 4.0
"""Factor between the standard deviations at the two ends of an input, of the alternatives."""

REACHES = (0.1, 0.3, 1.0)
"""Distances, as shares of the inputs' range, at which half of a shared error is left."""

RATIOS = (0.5, 1.0, 2.0)
"""Variance of the shared error over that of a run's own noise, of the alternatives."""

ESTIMATED_RATIOS = np.geomspace(1e-3, 1e3, 61)
"""Ratios among which the likeliest is looked for."""


def uneven_noise(tables: Array, tangent: Array, log_sizes: Array) -> Array:
    """Return the log of the mean likelihood ratio of noise that grows or shrinks along an input.

    Args:
        tables: (B, n) residuals, without what the parameters could explain.
        tangent: (n, p) orthonormal columns that span what the parameters can explain.
        log_sizes: (n, d) the inputs as logarithms.
    """
    n, p = tangent.shape
    squares = tables**2
    total = np.log(squares.sum(axis=1))
    ratios = []
    for place in _unit(log_sizes).T:
        for sign in (1.0, -1.0):
            log_variance = 2 * sign * np.log(GROWTH) * (place - 0.5)
            weight = np.exp(-log_variance)
            # Generalised least squares of what is left: n x n matrices are not needed.
            information = tangent.T @ (weight[:, None] * tangent)
            score = (tables * weight) @ tangent
            explained = (score * np.linalg.solve(information, score.T).T).sum(axis=1)
            log_det = log_variance.sum() + np.linalg.slogdet(information)[1]
            rest = np.log(np.maximum(squares @ weight - explained, 1e-300))
            ratios.append(-0.5 * log_det - (n - p) / 2 * (rest - total))
    return _log_mean(ratios)


@dataclass(frozen=True, kw_only=True)
class SharedNoise:
    """How likely it is that neighbours share an error."""

    log_ratio: Array
    """(B,) log of the mean likelihood ratio; larger is likelier."""
    size: float
    """Standard deviation of the likeliest shared error over that of a run's own noise, in the first
    table."""


def shared_noise(
    means: Array, within: Array, n_seeds: NDArray[np.int64], tangent: Array, log_sizes: Array
) -> SharedNoise:
    """Test whether configurations that are near each other, or equal in one input, err alike.

    Args:
        means: (B, k) residuals of each configuration, the mean over its seeds times the root of
            their number, without what the parameters could explain.
        within: (B,) sum of squares between the seeds of configurations.
        n_seeds: (k,).
        tangent: (k, p) orthonormal columns that span what the parameters can explain of `means`.
        log_sizes: (k, d) the inputs as logarithms.
    """
    root = np.sqrt(n_seeds)
    contrasts = np.linalg.svd(tangent, full_matrices=True)[0][:, tangent.shape[1] :]
    left = means @ contrasts
    total = np.log((left**2).sum(axis=1) + within)
    freedom = contrasts.shape[1] + int(n_seeds.sum()) - len(n_seeds)
    ratios, best, size = [], 0.0, 0.0
    for correlation in _correlations(log_sizes):
        covariance = contrasts.T @ (root[:, None] * correlation * root) @ contrasts
        values, axes = np.linalg.eigh(covariance)
        values, squares = np.maximum(values, 0.0), (left @ axes) ** 2

        def log_ratio(ratio: float, rows: slice, v: Array = values, s: Array = squares) -> Array:
            rest = np.log(s[rows] @ (1 / (1 + ratio * v)) + within[rows]) - total[rows]
            return np.asarray(-0.5 * np.log1p(ratio * v).sum() - freedom / 2 * rest)

        ratios += [log_ratio(ratio, slice(None)) for ratio in RATIOS]
        for ratio in ESTIMATED_RATIOS:
            found = float(log_ratio(ratio, slice(1))[0])
            if found > best:
                best, size = found, float(np.sqrt(ratio))
    return SharedNoise(log_ratio=_log_mean(ratios), size=size)


def _correlations(log_sizes: Array) -> list[Array]:
    """Return the correlations (k, k) of shared errors that are looked for."""
    place = _unit(log_sizes)
    distance = np.linalg.norm(place[:, None] - place[None, :], axis=2)
    found = [np.exp2(-distance / reach) for reach in REACHES]
    for column in log_sizes.T:
        same = column[:, None] == column[None, :]
        # Of a grid: every value of this input is met at least twice, and others vary.
        if same.sum() >= 2 * len(same) and not same.all():
            found.append(same.astype(np.float64))
    return found


def _unit(columns: Array) -> Array:
    """Return columns (n, d) over their range, from 0 to 1."""
    span = np.ptp(columns, axis=0)
    return np.asarray((columns - columns.min(axis=0)) / np.where(span > 0, span, 1.0))


def _log_mean(logs: Sequence[Array]) -> Array:
    return np.asarray(np.logaddexp.reduce(np.stack(logs), axis=0) - np.log(len(logs)))
