"""Bootstrap intervals over configurations, and Student's t over the seeds of one.

Seeds of one configuration are not independent evidence about the curve. A resample therefore draws
whole configurations (cluster bootstrap; Efron and Tibshirani 1993, chapter 8; Cameron, Gelbach and
Miller 2008). Two to five seeds are too few to resample: there the interval of a mean is Student's
t.

Percentiles of few resampled clusters hold the truth too seldom or too often, depending on the runs:
`analysis/fitting/interval_calibration.py` says which to take. Five configurations for three
parameters are too few for that, too. All of 200 draws, from the smallest to the largest, held the
truth in 79 to 94 % of 100 simulated sweeps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MOST_FREEDOM = 1e9
"""Degrees of freedom from which on Student's t is taken for normal."""


@dataclass(frozen=True, kw_only=True)
class MeanEstimate:
    """A number with its interval, None where one run gives none."""

    value: float
    low: float | None
    high: float | None
    n: int
    """Runs behind it."""
    method: str
    """How the interval was made, for the note below a table."""
    p: float | None = None
    """Of a difference: the two-sided p-value that it is zero, before any correction."""
    seed_sds: tuple[float, ...] = ()
    """Of a difference: per configuration, its weight times the standard deviation over seeds."""
    n_seeds: tuple[int, ...] = ()
    """Of a difference: seeds of each configuration, also where one gives no interval."""
    extra_sd: float = 0.0
    """Of a difference: standard deviation of an error that more seeds do not lower."""
    extra_freedom: float = math.inf
    """Degrees of freedom with which it was estimated; infinite if it is known."""

    @property
    def why_no_interval(self) -> str:
        """Of a difference without an interval: the reason, in a few words."""
        return "one seed" if min(self.n_seeds, default=1) < 2 else "seeds do not differ"


def mean_over_seeds(
    values: Sequence[float] | Array,
    *,
    level: float = 0.95,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> MeanEstimate:
    """Return the mean over seeds with Student's t interval (n - 1 degrees of freedom).

    One seed has no interval.

    Args:
        values: One per seed.
        level: Of the interval.
        bounds: What the quantity can be at all; the interval is cut there.

    Raises:
        ValueError: If there is no value, or one is not finite.
    """
    data = _finite(values)
    mean = float(data.mean())
    if len(data) == 1:
        return MeanEstimate(value=mean, low=None, high=None, n=1, method="one seed: no interval")
    half = _t_quantile(level, len(data) - 1) * float(data.std(ddof=1)) / math.sqrt(len(data))
    return MeanEstimate(
        value=mean,
        low=max(mean - half, bounds[0]),
        high=min(mean + half, bounds[1]),
        n=len(data),
        method=f"{level:.0%} Student's t over seeds",
    )


def difference_of_means(
    first: Sequence[float] | Array, second: Sequence[float] | Array, *, level: float = 0.95
) -> MeanEstimate:
    """Return mean(first) - mean(second) with Welch's t interval.

    There is none when either side has a single seed.

    Seeds of different architectures share no weights, so they are not treated as pairs.

    Raises:
        ValueError: If a side is empty, or a value is not finite.
    """
    a, b = _finite(first), _finite(second)
    return contrast_of_means([(1.0, a), (-1.0, b)], level=level)


def contrast_of_means(
    terms: Sequence[tuple[float, Sequence[float] | Array]],
    *,
    level: float = 0.95,
    extra_sd: float = 0.0,
    extra_freedom: float = math.inf,
) -> MeanEstimate:
    """Return a weighted sum of means over seeds, with its interval and its p-value.

    Variances of the configurations are not pooled; degrees of freedom are Satterthwaite's (1946).
    There is no interval when a term that counts has a single seed. Nor is there one when the seeds
    of each term are equal and no other error is known, as where recall is at its floor or ceiling:
    they say nothing of the noise.

    Args:
        terms: Weight, and values over seeds, of each configuration.
        level: Of the interval.
        extra_sd: Standard deviation of an error beside that of the seeds.
        extra_freedom: Degrees of freedom with which it was estimated; infinite if it is known.

    Raises:
        ValueError: If a configuration has no value, or one is not finite.
    """
    sides = [(weight, _finite(values)) for weight, values in terms if weight != 0]
    value = float(sum(weight * side.mean() for weight, side in sides))
    n_seeds = tuple(len(side) for _, side in sides)
    n = sum(n_seeds)
    if min(n_seeds) < 2:
        return MeanEstimate(
            value=value,
            low=None,
            high=None,
            n=n,
            method="one seed on a side: no interval",
            n_seeds=n_seeds,
        )
    # The mean of equal numbers can be off by rounding, and so their standard deviation.
    seed_sds = tuple(
        abs(weight) * float(side.std(ddof=1)) if np.ptp(side) else 0.0 for weight, side in sides
    )
    if not any(seed_sds) and extra_sd == 0:
        return MeanEstimate(
            value=value,
            low=None,
            high=None,
            n=n,
            method="seeds of a configuration do not differ: no interval",
            n_seeds=n_seeds,
        )
    sd, freedom = _standard_error(seed_sds, n_seeds, extra_sd, extra_freedom)
    half = _t_quantile(level, freedom) * sd
    return MeanEstimate(
        value=value,
        low=value - half,
        high=value + half,
        n=n,
        method=f"{level:.0%} Welch's t over seeds",
        p=_p_value(value, sd, freedom),
        seed_sds=seed_sds,
        n_seeds=n_seeds,
        extra_sd=extra_sd,
        extra_freedom=extra_freedom,
    )


def p_value_with_seeds(difference: MeanEstimate, n: float) -> float | None:
    """Return the p-value if each configuration had at least `n` seeds; infinity is allowed.

    Those that have more keep them. The difference, the spread of seeds and the error beside it are
    taken as they are. None without a p-value now.
    """
    if difference.p is None:
        return None
    then = [max(n, had) for had in difference.n_seeds]
    sd, freedom = _standard_error(
        difference.seed_sds, then, difference.extra_sd, difference.extra_freedom
    )
    return _p_value(difference.value, sd, freedom)


@dataclass(frozen=True, kw_only=True)
class Resamples:
    """How often each run occurs in each resample."""

    weights: Array
    """(n_draws, n_runs), whole numbers."""
    share_refused: float
    """Share of the resamples drawn that `accept` refused; others were drawn in their place."""


def resample_clusters(
    clusters: Sequence[Any] | NDArray[Any],
    *,
    n_draws: int,
    seed: int,
    accept: Callable[[Array], NDArray[np.bool_]] | None = None,
) -> Resamples:
    """Draw whole clusters with replacement, `n_draws` times.

    The draws depend on the set of cluster names and the seed, not on the order of the runs.

    Args:
        clusters: One label per run; runs of one label are drawn together.
        n_draws: Resamples wanted.
        seed: Of the random generator.
        accept: Weights (k, n_runs) to (k,): resamples that a curve can be fitted to. Refused ones
            are redrawn.

    Raises:
        ValueError: If nearly every resample is refused.
    """
    names, member = np.unique(np.asarray(clusters), return_inverse=True)
    generator = np.random.default_rng(seed)
    kept: list[Array] = []
    n_good = n_drawn = 0
    while n_good < n_draws:
        counts = generator.multinomial(
            len(names), np.full(len(names), 1 / len(names)), size=n_draws
        )
        weights = counts[:, member].astype(np.float64)
        good = weights if accept is None else weights[accept(weights)]
        kept.append(good)
        n_good += len(good)
        n_drawn += n_draws
        if n_drawn >= 1000 * n_draws and n_good < n_draws:
            raise ValueError(
                f"clusters: {n_good} of {n_drawn} resamples of {len(names)} clusters can be used; "
                "add configurations"
            )
    return Resamples(weights=np.concatenate(kept)[:n_draws], share_refused=1 - n_good / n_drawn)


def n_distinct_drawn(weights: Array, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many of the distinct places (n,) occur in each row of weights (k, n)."""
    member = (places[None, :] == np.unique(places)[:, None]).astype(np.float64)
    return np.asarray(((weights @ member.T) > 0).sum(axis=1))


def percentile_interval(draws: Array, *, level: float = 0.95) -> tuple[float, float]:
    """Return the central `level` of the draws."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def draws_with_interval(half_width: float, n_draws: int, *, level: float) -> Array:
    """Return normal draws (n_draws,) about 0 whose `percentile_interval` is ±half_width.

    They are evenly spaced quantiles in random order, so this holds for few draws, too.

    Args:
        half_width: In the units of the draws.
        n_draws: Two or more.
        level: Of the interval.
    """
    from scipy.special import ndtri

    ranks = np.random.default_rng(0).permutation(n_draws)
    scores = np.asarray(ndtri((ranks + 0.5) / n_draws))
    return scores * (half_width / percentile_interval(scores, level=level)[1])


def _finite(values: Sequence[float] | Array) -> Array:
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        raise ValueError("values: a mean needs at least one run, got none")
    if not np.isfinite(data).all():
        raise ValueError(
            f"values: must be finite, got {data[~np.isfinite(data)][0]}; exclude that run first"
        )
    return data


def _standard_error(
    seed_sds: Sequence[float], n_seeds: Sequence[float], extra_sd: float, extra_freedom: float
) -> tuple[float, float]:
    """Return the standard error of a contrast, and Satterthwaite's degrees of freedom."""
    variances = [sd**2 / n for sd, n in zip(seed_sds, n_seeds, strict=True)]
    sd = math.sqrt(sum(variances) + extra_sd**2)
    squares = sum(v**2 / (n - 1) for v, n in zip(variances, n_seeds, strict=True))
    squares += extra_sd**4 / extra_freedom
    return sd, min(sd**4 / squares if squares > 0 else math.inf, MOST_FREEDOM)


def _t_quantile(level: float, freedom: float) -> float:
    # scipy.special is quick to import; scipy.stats takes most of a second.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


def _p_value(value: float, sd: float, freedom: float) -> float:
    from scipy.special import stdtr

    if sd == 0:
        return 1.0 if value == 0 else 0.0
    return float(2 * stdtr(freedom, -abs(value) / sd))
