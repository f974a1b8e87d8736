"""Lack-of-fit tests: do residuals show that the law is wrong, or only noise?

Five questions, each with the share of tables of noise alone that would look as odd (a p-value).

* Curve: do residuals follow a polynomial in the logs of the sizes that the law cannot follow
  (Ramsey 1969)?
* Neighbours: do runs that are next to each other along an input err alike (Moran 1950)?
* Spread: do residuals grow or shrink along an input (Glejser 1969)?
* Seeds: do configurations miss the law by more than their seeds differ (F test of pure error;
  Draper and Smith 1998, section 2.1)?
* Conditions: does a column that the law does not use, as a learning rate, explain residuals (F test
  between groups)?

The law counts as linear near its optimum. The first three are compared with the same statistic of
simulated normal noise on the same design. Runs of one cluster share a part of that noise, as large
as these residuals show.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.loading.mixture_test import orthonormal

Array = NDArray[np.float64]

N_SIMULATED = 999
"""Simulated tables of noise; a p-value is at least 1 / 1000."""

DEGREE = 4
"""Of the polynomial in the logs of the sizes."""

SPARE_PER_TERM = 4
"""Spare configurations that each term of the polynomial needs."""

FEWEST_SPARE = 4
"""Configurations beyond the parameters below which no pattern can be told from noise."""

FEWEST_REPEATS = 3
"""Seeds beyond the first of each configuration below which their spread is not known."""

MOST_PAIRED = 2000
"""Configurations beyond which neighbours are not compared: a curve through so many says enough."""

NEAR = 0.15
"""Distance, as a share of the inputs' range, over which neighbours are compared."""

LARGE_QUANTILE = 0.9
"""Of the curve's absolute values over configurations: the largest alone is mostly leverage."""

MOST_SHARED = 0.95
"""Most of the noise's variance that runs of one cluster share in a simulated table."""


@dataclass(frozen=True, kw_only=True)
class LackOfFit:
    """What residuals show; a p-value is NaN where the runs cannot answer."""

    curve: float
    """p-value of a smooth curve in the sizes."""
    neighbours: float
    """p-value of neighbours that err alike, times the number of ways to be neighbours."""
    spread: float
    """p-value of a spread that changes along an input, times the number of inputs."""
    seeds: float
    """p-value of configurations that miss by more than their seeds differ."""
    conditions: Mapping[str, float] = field(default_factory=dict)
    """p-value by column that is no input of the law, times the number of such columns."""
    systematic: float
    """What the smooth curve explains of a residual, exceeded in one configuration of ten."""
    noise: float
    """Standard deviation of one run: between seeds where there are any, else what the curve leaves
    of the residuals."""
    scale: float
    """Standard deviation of the residuals, n - p in the denominator."""
    seed_noise: float
    """Standard deviation between seeds of a configuration; NaN without."""
    n_spare: int
    """Configurations beyond the fitted parameters."""


def lack_of_fit(
    residuals: Array,
    jacobian: Array,
    log_sizes: Array,
    *,
    clusters: Sequence[Any] | NDArray[Any],
    conditions: Mapping[str, Sequence[Any]] | None = None,
) -> LackOfFit:
    """Test the residuals of a fit.

    Args:
        residuals: (n,) in the units in which their spread should be even, as log errors.
        jacobian: (n, p) of the law at its optimum, parameters at a bound left out.
        log_sizes: (n, d) the law's inputs as logarithms; equal rows are one configuration.
        clusters: Label per run; runs of one label share a part of their noise.
        conditions: Columns of the table that the law does not use.
    """
    _, first, place = np.unique(log_sizes, axis=0, return_index=True, return_inverse=True)
    place = place.reshape(-1)
    n_seeds = np.bincount(place)
    mean = np.bincount(place, residuals) / n_seeds
    between_seeds = float(((residuals - mean[place]) ** 2).sum())
    n_repeats = len(residuals) - len(mean)
    # Equal to the last digit is a row given twice, not a seed.
    seeds_known = n_repeats >= FEWEST_REPEATS and between_seeds > 0
    sizes, tangent = log_sizes[first], orthonormal(jacobian[first])
    n_spare = len(mean) - tangent.shape[1]
    left = mean - tangent @ (tangent.T @ mean)
    beyond = _beyond(sizes, tangent, n_spare)
    smooth = beyond @ (beyond.T @ left)
    rest = float(((left - smooth) ** 2).sum()) / max(n_spare - beyond.shape[1], 1)
    curve = neighbours = spread = float("nan")
    if n_spare >= FEWEST_SPARE and left.any():
        groups = np.unique(np.asarray(clusters)[first], return_inverse=True)[1].reshape(-1)
        curve, neighbours = _patterns(left, tangent, beyond, sizes, groups)
        spread = _spread(residuals, jacobian, log_sizes)
    seed_noise = float(np.sqrt(between_seeds / n_repeats)) if seeds_known else float("nan")
    freedom = max(len(residuals) - tangent.shape[1], 1)
    return LackOfFit(
        curve=curve,
        neighbours=neighbours,
        spread=spread,
        seeds=_f_test(
            float(n_seeds @ left**2), n_spare, between_seeds, n_repeats if seeds_known else 0
        ),
        conditions=_conditions(residuals, jacobian, place, conditions or {}),
        systematic=float(np.quantile(np.abs(smooth), LARGE_QUANTILE)),
        noise=seed_noise if seeds_known else float(np.sqrt(rest)),
        scale=float(np.sqrt((residuals**2).sum() / freedom)),
        seed_noise=seed_noise,
        n_spare=n_spare,
    )


def _patterns(
    left: Array, tangent: Array, beyond: Array, sizes: Array, groups: NDArray[np.int64]
) -> tuple[float, float]:
    """Return the p-values of curve and neighbours; all arguments by configuration."""
    generator = np.random.default_rng(0)
    shared = _shared(left, groups)
    noise = np.sqrt(1 - shared) * generator.standard_normal((N_SIMULATED, len(left)))
    noise += np.sqrt(shared) * generator.standard_normal((N_SIMULATED, groups.max() + 1))[:, groups]
    tables = _with_noise(left, noise, tangent)
    curve = ((tables @ beyond) ** 2).sum(axis=1)
    alike = [((tables @ near) * tables).sum(axis=1) for near in _neighbours(sizes)]
    return (
        _p_value(curve) if beyond.shape[1] else float("nan"),
        min([1.0, *(len(alike) * _p_value(s) for s in alike)]),
    )


def _spread(residuals: Array, jacobian: Array, log_sizes: Array) -> float:
    """Return the p-value of residuals whose size changes along an input; all arguments by run."""
    tangent = orthonormal(jacobian)
    left = residuals - tangent @ (tangent.T @ residuals)
    noise = np.random.default_rng(0).standard_normal((N_SIMULATED, len(left)))
    size = np.abs(_with_noise(left, noise, tangent))
    size -= size.mean(axis=1, keepdims=True)
    size /= np.sqrt((size**2).sum(axis=1, keepdims=True))
    grows = [size @ c for c in (log_sizes - log_sizes.mean(axis=0)).T if c.any()]
    return min([1.0, *(len(grows) * _p_value(np.abs(s - s[1:].mean())) for s in grows)])


def _with_noise(left: Array, noise: Array, tangent: Array) -> Array:
    """Return residuals and the same of simulated noise, (1 + N_SIMULATED, n), of equal squares."""
    tables = np.concatenate([left[None, :], noise - (noise @ tangent) @ tangent.T])
    return np.asarray(tables / np.sqrt((tables**2).mean(axis=1, keepdims=True)))


def _p_value(statistic: Array) -> float:
    """Return the share of tables whose statistic is at least that of the first one."""
    return float((statistic >= statistic[0]).mean())


def _beyond(sizes: Array, tangent: Array, n_spare: int) -> Array:
    """Return orthonormal columns (n, q) of smooth functions of the sizes beyond the tangent."""
    scaled = sizes - sizes.mean(axis=0)
    scaled = scaled / np.maximum(np.abs(scaled).max(axis=0), 1e-12)
    most = max(n_spare // SPARE_PER_TERM, 0)
    found = np.empty((len(sizes), 0))
    powers = itertools.chain.from_iterable(
        itertools.combinations_with_replacement(range(scaled.shape[1]), degree)
        for degree in range(DEGREE + 1)
    )
    for chosen in powers:
        if found.shape[1] >= most:
            break
        column = scaled[:, list(chosen)].prod(axis=1)
        rest = column / max(float(np.linalg.norm(column)), 1e-300)
        for basis in (tangent, found, tangent, found):
            rest = rest - basis @ (basis.T @ rest)
        size = float(np.linalg.norm(rest))
        if size > 1e-3:
            found = np.column_stack([found, rest / size])
    return found


def _neighbours(sizes: Array) -> list[Array]:
    """Return symmetric weights (n, n) of pairs: near in all inputs, then those along each input.

    Along an input, of a grid, are configurations that follow each other and are equal in the
    others.
    """
    if len(sizes) > MOST_PAIRED:
        return []
    scaled = (sizes - sizes.min(axis=0)) / np.maximum(np.ptp(sizes, axis=0), 1e-12)
    distance = ((scaled[:, None] - scaled[None, :]) ** 2).sum(axis=2)
    near = np.exp(-distance / (2 * NEAR**2))
    np.fill_diagonal(near, 0.0)
    found = [near]
    for i in range(sizes.shape[1]):
        others = np.delete(sizes, i, axis=1)
        order = np.lexsort((sizes[:, i], *others.T[::-1]))
        a, b = order[:-1], order[1:]
        same = (others[a] == others[b]).all(axis=1)
        if same.sum() >= len(sizes) / 3:
            along = np.zeros_like(near)
            along[a[same], b[same]] = along[b[same], a[same]] = 1.0
            found.append(along)
    return found


def _shared(left: Array, groups: NDArray[np.int64]) -> float:
    """Return the share of the variance that configurations of one cluster have in common.

    The intraclass correlation of a one-way analysis of variance (Fisher 1925).
    """
    counts = np.bincount(groups)
    n, k = len(groups), len(counts)
    if k == n or k == 1:
        return 0.0
    means = np.bincount(groups, left) / counts
    within = float(((left - means[groups]) ** 2).sum()) / (n - k)
    between = float((counts * (means - left.mean()) ** 2).sum()) / (k - 1)
    size = (n - float((counts**2).sum()) / n) / (k - 1)
    found = (between - within) / max(between + (size - 1) * within, 1e-300)
    return float(np.clip(found, 0.0, MOST_SHARED))


def _conditions(
    residuals: Array,
    jacobian: Array,
    place: NDArray[np.int64],
    conditions: Mapping[str, Sequence[Any]],
) -> dict[str, float]:
    """Return the p-value of each column that splits the runs into groups."""
    tangent, n = orthonormal(jacobian), len(residuals)
    left = residuals - tangent @ (tangent.T @ residuals)
    found = {}
    for name, values in conditions.items():
        group = np.unique(np.asarray([str(v) for v in values]), return_inverse=True)[1].reshape(-1)
        k = int(group.max()) + 1
        # A name for each run or each size says nothing that the sizes do not say.
        by_place = len(np.unique(np.stack([group, place]), axis=1).T) == place.max() + 1
        if k < 2 or k > n / 4 or (by_place and k > (place.max() + 1) / 4):
            continue
        members = np.eye(k)[group]
        basis = orthonormal(members - tangent @ (tangent.T @ members))
        explained = float(((basis.T @ left) ** 2).sum())
        freedom = n - tangent.shape[1] - basis.shape[1]
        found[name] = _f_test(
            explained, basis.shape[1], float((left**2).sum()) - explained, freedom
        )
    return {name: min(1.0, len(found) * p) for name, p in found.items()}


def _f_test(squares: float, freedom: int, rest: float, rest_freedom: int) -> float:
    """Return the p-value of squares against those that remain; NaN if there is no such test."""
    from scipy.special import fdtrc  # slow to import

    if freedom < 1 or rest_freedom < 1 or not rest > 0:
        return float("nan")
    return float(fdtrc(freedom, rest_freedom, (squares / freedom) / (rest / rest_freedom)))
