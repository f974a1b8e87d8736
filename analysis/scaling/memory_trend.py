"""Trends with memory size: change of an outcome per doubling of parameters.

At a fixed preset, data and tokens, an outcome is regressed on log2 of the memory's parameters, for
each seed apart: a seed shares data order and much of the initial weights among sizes, so its runs
lie high or low together. The mean of these slopes has an interval by Student's t over seeds, which
holds how far the means lie off the line, too. No law is assumed. What is measured is figure 1 of
"Memory Layers at Scale" (arXiv 2412.09764).
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.fitting.bootstrap import MeanEstimate, contrast_of_means
from analysis.fitting.multiple_comparisons import holm_corrected
from analysis.scaling.best_settings import best_of_every_size, size_names
from analysis.scaling.configuration_costs import TOKENS
from analysis.scaling.outcomes import main_outcome, told_apart
from analysis.scaling.series_curves import FEWEST_TABLES
from orchestrator.records.varied_settings import MATCH

MEMORY = "memory_params"


@dataclass(frozen=True, kw_only=True)
class MemoryTrend:
    """One architecture at one preset, over the sizes of its memory."""

    architecture: str
    preset: str
    outcome: str
    smallest: float
    """Memory parameters, keys and values."""
    largest: float
    n_sizes: int
    per_doubling: MeanEstimate
    """Change of the outcome, in its units, by twice as many memory parameters."""
    solved: tuple[str, ...] = ()
    """Fields of the model that `match` solved for, so they are not the preset's."""
    p_holm: float | None = None
    """p-value of no change, corrected for all trends of a sweep; None without one."""
    level: float = 0.95

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `not told apart` (from no change) or `no interval`."""
        return told_apart(self.per_doubling, self.p_holm, self.outcome, self.level)


def memory_trends(
    table: pd.DataFrame, *, outcome: str | None = None, level: float = 0.95
) -> list[MemoryTrend]:
    """Return the trend of every architecture and preset with three sizes of memory or more.

    The best settings of each size count, of those that were tried at every size.

    Args:
        table: Of `Runs`.
        outcome: Column; None is `main_outcome`.
        level: Of the intervals.
    """
    outcome = outcome or main_outcome(table)
    if outcome is None or MEMORY not in table or not (table[MEMORY] > 0).any():
        return []
    rows = table[table[MEMORY] > 0]
    data = [c for c in rows if str(c).startswith("data.") and rows[c].nunique(dropna=False) > 1]
    fixed = ["architecture", "preset", *data, *([TOKENS] if TOKENS in rows else [])]
    found = []
    for (architecture, preset, *_), group in rows.assign(preset=size_names(rows)).groupby(
        fixed, sort=False, dropna=False
    ):
        if group[MEMORY].nunique() < FEWEST_TABLES:
            continue  # the best of them are no more
        group = _tried_at_every_size(group)
        one_series = dict.fromkeys(group["configuration"], "")
        best = best_of_every_size(group, one_series, by_preset=True)
        if best[MEMORY].nunique() >= FEWEST_TABLES:
            found.append(_trend(best, str(architecture), str(preset), outcome, level))
    corrected = holm_corrected([trend.per_doubling for trend in found])
    return [replace(trend, p_holm=p) for trend, p in zip(found, corrected, strict=True)]


def _tried_at_every_size(group: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of settings that were tried at every size, or else at the most sizes.

    Settings are what varies at some size. One that was tried at some sizes alone would bend the
    line.
    """
    by_size = group.groupby(MEMORY)
    settings = [
        name
        for name in map(str, group)
        if name.startswith(("model.", "train.")) and (by_size[name].nunique(dropna=False) > 1).any()
    ]
    if not settings:
        return group
    tried = [repr(row) for row in group[settings].itertuples(index=False, name=None)]
    sizes: dict[str, set[float]] = {}
    for name, size in zip(tried, group[MEMORY], strict=True):
        sizes.setdefault(name, set()).add(size)
    most = max(sizes.values(), key=len)
    return group[[sizes[name] == most for name in tried]]


def _trend(
    rows: pd.DataFrame, architecture: str, preset: str, outcome: str, level: float
) -> MemoryTrend:
    params = rows.groupby("configuration")[MEMORY].first().sort_values()
    # Seeds that a size lacks say nothing of a slope.
    by_seed = rows.pivot_table(index="seed", columns="configuration", values=outcome)
    values = by_seed[params.index].dropna().to_numpy(dtype=np.float64)
    if not len(values):
        values = by_seed[params.index].mean().to_numpy(dtype=np.float64)[None, :]
    x = np.log2(params.to_numpy(dtype=np.float64))
    slope = slope_weights(x)
    sd, freedom = sd_about_line(x, values)
    solved = set(rows[f"{MATCH}solve"].dropna()) if f"{MATCH}solve" in rows else set()
    return MemoryTrend(
        architecture=architecture,
        preset=preset,
        outcome=outcome,
        smallest=float(params.min()),
        largest=float(params.max()),
        n_sizes=len(params),
        per_doubling=contrast_of_means(
            [(1.0, values @ slope)],
            level=level,
            extra_sd=sd * float(np.sqrt(slope @ slope)),
            extra_freedom=freedom,
        ),
        solved=tuple(sorted(solved - {"tokens"})),
        level=level,
    )


def slope_weights(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights (n,) with which values at x sum to the slope of least squares."""
    centred = x - x.mean()
    return np.asarray(centred / (centred @ centred))


def sd_about_line(x: NDArray[np.float64], values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the standard deviation of means about their line, beyond what seeds explain.

    With it come its degrees of freedom. It is the root of a difference of two mean squares, of
    which the second is known much better. So Satterthwaite's formula (1946) gives n - 2, less by
    the square of what the difference is to the first.

    Args:
        x: Places (n,), three or more.
        values: Of every seed at every place (seeds, n).
    """
    means = values.mean(axis=0)
    about_line = means - means.mean() - (slope_weights(x) @ means) * (x - x.mean())
    noise = 0.0
    n_seeds, n_places = values.shape
    if n_seeds > 1:
        # What is left of a run when its seed and its size are taken out.
        left = values - values.mean(axis=1, keepdims=True) - means + means.mean()
        noise = float((left**2).sum()) / ((n_seeds - 1) * (n_places - 1)) / n_seeds
    mean_square = float(about_line @ about_line) / (n_places - 2)
    beyond = mean_square - noise
    if beyond <= 0:
        return 0.0, math.inf
    return math.sqrt(beyond), (n_places - 2) * (beyond / mean_square) ** 2
