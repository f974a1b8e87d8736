"""Lack-of-fit tests: do residuals show that the law is wrong, or only noise?

Five questions, each with the share of tables of noise alone that would look as odd (a p-value).

* Curve: do residuals follow a polynomial in the logs of the sizes that the law cannot follow
  (Ramsey 1969)?
* Neighbours: do configurations that are near each other, or equal in one size, err alike?
* Spread: does the noise grow or shrink along an input?
* Seeds: do configurations miss the law by more than their seeds differ (F statistic of pure error;
  Draper and Smith 1998, section 2.1)?
* Conditions: does a column that the law does not use, as a learning rate, explain residuals (F
  statistic between groups)?

The law counts as linear near its optimum. All statistics are compared with the same ones of
simulated normal noise on the same design. Runs of one cluster share a part of that noise, as large
as these residuals show. The p-values are corrected for the number of tests (Westfall and Young
1993): with noise alone, the smallest of all lies below 0.05 in one table of twenty.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.covariance_tests import shared_noise, uneven_noise
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

MOST_PAIRED = 600
"""Configurations beyond which neighbours are not compared: a curve through so many says enough."""

SHARES = {"spread": 1.0, "neighbours": 1.0, "seeds": 0.5, "curve": 0.2, "conditions": 0.2}
"""How much of the false alarms each test may make, relative to the others. The first two need most:
the others notice what they look for with ease."""

LARGE_QUANTILE = 0.9
"""Of the curve's absolute values over configurations: the largest alone is mostly leverage."""

MOST_SHARED = 0.95
"""Most of the noise's variance that runs of one cluster share in a simulated table."""

_CONDITION = "conditions: "


@dataclass(frozen=True, kw_only=True)
class LackOfFit:
    """What residuals show; a p-value is NaN where the runs cannot answer."""

    curve: float
    """Corrected p-value of a smooth curve in the sizes."""
    neighbours: float
    """Corrected p-value of neighbours that err alike."""
    spread: float
    """Corrected p-value of noise that changes along an input."""
    seeds: float
    """Corrected p-value of configurations that miss by more than their seeds differ."""
    conditions: Mapping[str, float] = field(default_factory=dict)
    """Corrected p-value by column that is no input of the law."""
    uncorrected: Mapping[str, float] = field(default_factory=dict)
    """p-value of each test by itself, by its name or `conditions: COLUMN`."""
    systematic: float
    """What the smooth curve explains of a residual, exceeded in one configuration of ten."""
    shared: float
    """Standard deviation of what neighbours share over that of a run's own noise, at its
    likeliest; NaN where they were not compared."""
    noise: float
    """Standard deviation of one run: between seeds where there are any, else what the curve leaves
    of the residuals."""
    scale: float
    """Standard deviation of the residuals, n - p in the denominator."""
    seed_noise: float
    """Standard deviation between seeds of a configuration; NaN without."""
    n_spare: int
    """Configurations beyond the fitted parameters."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Design:
    """The runs of a fit, by run (n rows) and by configuration (k rows)."""

    log_sizes: Array
    """(n, d)."""
    tangent: Array
    """(n, p) orthonormal columns that span what the parameters can explain."""
    place: NDArray[np.int64]
    """(n,) configuration of each run."""
    first: NDArray[np.int64]
    """(k,) first run of each configuration."""
    n_seeds: NDArray[np.int64]
    """(k,)."""
    mean_tangent: Array
    """(k, p) as `tangent`, of `means`."""
    clusters: NDArray[np.int64]
    """(k,) number of each configuration's cluster."""

    @property
    def n_repeats(self) -> int:
        """Seeds beyond the first of each configuration."""
        return len(self.place) - len(self.first)

    @property
    def n_spare(self) -> int:
        """Configurations beyond the parameters."""
        return len(self.first) - int(self.mean_tangent.shape[1])

    def means(self, tables: Array) -> Array:
        """Return (B, k) means of residuals (B, n) over seeds, of equal variance, projected."""
        return _projected(self._sums(tables) / np.sqrt(self.n_seeds), self.mean_tangent)

    def within(self, tables: Array) -> Array:
        """Return (B,) sums of squares between the seeds of configurations."""
        if not self.n_repeats:
            return np.zeros(len(tables))
        mean = self._sums(tables) / self.n_seeds
        return np.asarray(((tables - mean[:, self.place]) ** 2).sum(axis=1))

    def _sums(self, tables: Array) -> Array:
        """Return (B, k) sums over seeds; a matrix that sums would be n x k."""
        order = np.argsort(self.place, kind="stable")
        begins = np.cumsum(self.n_seeds) - self.n_seeds
        return np.asarray(np.add.reduceat(tables[:, order], begins, axis=1))


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
    if len(first) < len(place) and (residuals == residuals[first][place]).all():
        # Equal to the last digit is a row given twice, not a seed.
        residuals, jacobian, log_sizes = residuals[first], jacobian[first], log_sizes[first]
        clusters = np.asarray(clusters)[first]
        conditions = {k: np.asarray(v)[first].tolist() for k, v in (conditions or {}).items()}
        first = place = np.arange(len(first))
    n_seeds = np.bincount(place)
    design = _Design(
        log_sizes=log_sizes,
        tangent=orthonormal(jacobian),
        place=place,
        first=first,
        n_seeds=n_seeds,
        mean_tangent=orthonormal(jacobian[first] * np.sqrt(n_seeds)[:, None]),
        clusters=np.unique(np.asarray(clusters)[first], return_inverse=True)[1].reshape(-1),
    )
    return _tested(residuals, design, conditions or {})


def _tested(
    residuals: Array, design: _Design, conditions: Mapping[str, Sequence[Any]]
) -> LackOfFit:
    """Return what the tests say of residuals (n,)."""
    nan = float("nan")
    freedom = len(residuals) - design.tangent.shape[1]
    means = design.means(residuals[None, :])[0]
    between_seeds = float(design.within(residuals[None, :])[0])
    seeds_known = design.n_repeats >= FEWEST_REPEATS and between_seeds > 0
    seed_noise = float(np.sqrt(between_seeds / design.n_repeats)) if seeds_known else nan
    beyond = _beyond(design.log_sizes[design.first], design.mean_tangent, design.n_spare)
    smooth = beyond @ (beyond.T @ means)
    rest = float(((means - smooth) ** 2).sum()) / max(design.n_spare - beyond.shape[1], 1)
    found: dict[str, Array] = {}
    shared = nan
    if residuals.any() and freedom > 0:
        tables = _with_noise(residuals, means, design)
        found = _conditions(tables, design, conditions)
        if design.n_spare >= FEWEST_SPARE:
            patterns, shared = _patterns(tables, design, beyond, seeds_known=seeds_known)
            found |= patterns
    uncorrected, corrected = _p_values(found)
    return LackOfFit(
        **{name: corrected.get(name, nan) for name in ("curve", "neighbours", "spread", "seeds")},
        conditions={
            name: corrected[_CONDITION + name]
            for name in conditions
            if _CONDITION + name in corrected
        },
        uncorrected=uncorrected,
        systematic=float(np.quantile(np.abs(smooth / np.sqrt(design.n_seeds)), LARGE_QUANTILE)),
        shared=shared,
        noise=seed_noise if seeds_known else float(np.sqrt(rest)),
        scale=float(np.sqrt((residuals**2).sum() / max(freedom, 1))),
        seed_noise=seed_noise,
        n_spare=design.n_spare,
    )


def _with_noise(residuals: Array, means: Array, design: _Design) -> Array:
    """Return residuals and simulated noise, (1 + N_SIMULATED, n), projected and of equal squares.

    Configurations of one cluster share as large a part of the noise as their means do.
    """
    generator = np.random.default_rng(0)
    shared = shared_part(means, design.clusters)
    own = np.sqrt((1 - shared) * design.n_seeds.mean())
    noise = own * generator.standard_normal((N_SIMULATED, len(residuals)))
    if shared > 0:
        drawn = generator.standard_normal((N_SIMULATED, design.clusters.max() + 1))
        noise += np.sqrt(shared) * drawn[:, design.clusters[design.place]]
    tables = _projected(np.concatenate([residuals[None, :], noise]), design.tangent)
    return np.asarray(tables / np.sqrt((tables**2).mean(axis=1, keepdims=True)))


def _patterns(
    tables: Array, design: _Design, beyond: Array, *, seeds_known: bool
) -> tuple[dict[str, Array], float]:
    """Return the statistic of each pattern (1 + N_SIMULATED,), and how much neighbours share."""
    means, within = design.means(tables), design.within(tables)
    between = (means**2).sum(axis=1)
    sizes, shared = design.log_sizes[design.first], float("nan")
    found = {"spread": uneven_noise(tables, design.tangent, design.log_sizes)}
    if beyond.shape[1]:
        found["curve"] = ((means @ beyond) ** 2).sum(axis=1) / (between + within)
    if seeds_known:
        found["seeds"] = between / within
    if len(sizes) <= MOST_PAIRED:
        alike = shared_noise(means, within, design.n_seeds, design.mean_tangent, sizes)
        found["neighbours"], shared = alike.log_ratio, alike.size
    return found, shared


def _p_values(statistics: Mapping[str, Array]) -> tuple[dict[str, float], dict[str, float]]:
    """Return p-values of the first table, each by itself and corrected for the number of tests.

    A corrected one is the share of tables in which any test is as odd, each in units of its share
    of the false alarms.
    """
    n_conditions = sum(name.startswith(_CONDITION) for name in statistics)
    each, scaled = {}, {}
    for name, statistic in statistics.items():
        rank = np.searchsorted(np.sort(statistic), statistic, side="left")
        each[name] = 1 - rank / len(statistic)
        share = SHARES.get(name) or SHARES["conditions"] / n_conditions
        scaled[name] = each[name] / share
    oddest = np.min(list(scaled.values()), axis=0) if scaled else np.ones(1)
    return (
        {name: float(p[0]) for name, p in each.items()},
        {name: float((oddest <= p[0]).mean()) for name, p in scaled.items()},
    )


def _projected(tables: Array, tangent: Array) -> Array:
    """Return tables (B, n) without what columns (n, p) explain."""
    return np.asarray(tables - (tables @ tangent) @ tangent.T)


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


def shared_part(left: Array, groups: NDArray[np.int64]) -> float:
    """Return the share of the variance of values (n,) that those of one group have in common.

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
    tables: Array, design: _Design, conditions: Mapping[str, Sequence[Any]]
) -> dict[str, Array]:
    """Return the statistic (B,) of each column that splits the runs into groups."""
    n, k = len(design.place), len(design.first)
    total, found = (tables**2).sum(axis=1), {}
    for name, values in conditions.items():
        group = np.unique(np.asarray([str(v) for v in values]), return_inverse=True)[1].reshape(-1)
        n_groups = int(group.max()) + 1
        # A name for each run or each size says nothing that the sizes do not say.
        by_place = len(np.unique(np.stack([group, design.place]), axis=1).T) == k
        if n_groups < 2 or n_groups > n / 4 or (by_place and n_groups > k / 4):
            continue
        basis = orthonormal(_projected(np.eye(n_groups)[group].T, design.tangent).T)
        if n - design.tangent.shape[1] - basis.shape[1] >= 1:
            found[_CONDITION + name] = ((tables @ basis) ** 2).sum(axis=1) / total
    return found
