"""Compute-optimal sizes from training curves: which run has the lowest loss after each amount of compute.

For budgets between the shortest and the longest run, the run with the lowest loss so far gives the optimal size; a
line through ln(size) against ln(compute) gives the exponent (Hoffmann et al. 2022, approach 1). Budgets at which the
smallest or the largest model wins only bound the optimum and are left out. It takes every point of a curve for a
finished run, which it is not where the learning rate still had to fall: its optimum is biased, and isoFLOP or the
parametric law should be read beside it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.bootstrap import percentile_interval, resample_clusters
from analysis.law_fit import Runs
from analysis.result import FitStatus

Array = NDArray[np.float64]

FEWEST_SIZES = 3
"""Distinct optimal sizes, the smallest and largest left out, that a line needs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Envelope:
    """The lower envelope of training curves."""

    status: FitStatus
    sentence: str
    exponent: float | None
    """a of params = G C^a; None without a line."""
    interval: tuple[float, float] | None
    """Percentiles over resampled runs."""
    coefficient: float | None
    """G."""
    compute: Array
    """Budgets of the grid (n,)."""
    params: Array
    """Size of the run with the lowest loss at each (n,)."""
    loss: Array
    """That loss (n,)."""
    at_edge: NDArray[np.bool_]
    """Where the smallest or largest model wins: left out of the line."""
    draws: Array
    """(n_draws,) exponents; NaN where a resample has no line."""

    @property
    def usable(self) -> bool:
        """Whether there is a line."""
        return self.exponent is not None


def fit_envelope(
    curves: Runs,
    *,
    run: str = "run",
    params: str = "params",
    flops: str = "flops",
    loss: str = "loss",
    n_budgets: int = 1500,
    n_draws: int = 200,
    seed: int = 0,
    level: float = 0.95,
) -> Envelope:
    """Return the envelope of training curves.

    Args:
        curves: One row per run and checkpoint.
        run: Column that says which run a row is of: what is resampled.
        params: Column of the model's size.
        flops: Column of the compute spent so far.
        loss: Column of the loss then (smoothed; single batches jump).
        n_budgets: Budgets, evenly spaced in ln(compute).
        n_draws: Resamples of runs.
        seed: Of the resampling.
        level: Of the interval.

    Raises:
        ValueError: If a column is missing or holds an impossible value, or no run has two checkpoints.
    """
    columns = {}
    for name in (params, flops, loss):
        if name not in curves:
            raise ValueError(f"{name}: no such column; there are {', '.join(map(str, curves))}")
        values = np.asarray(curves[name], dtype=np.float64)
        bad = ~np.isfinite(values) | (values <= 0)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise ValueError(f"{name}, row {row}: must be positive and finite, got {values[row]}; correct the row or take it out")  # fmt: skip
        columns[name] = values
    labels = np.asarray([str(r) for r in curves[run]])
    names, member = np.unique(labels, return_inverse=True)
    member = member.reshape(-1)
    counts = np.bincount(member)
    if counts.max() < 2:
        raise ValueError(f"{run}: no run has two checkpoints; the envelope needs training curves")
    kept = np.flatnonzero(counts >= 2)
    spans = [columns[flops][member == i] for i in kept]
    log_c = np.linspace(
        np.log(min(s.min() for s in spans)), np.log(max(s.max() for s in spans)), n_budgets
    )
    losses = np.full((len(kept), n_budgets), np.inf)
    sizes = np.empty(len(kept))
    for k, i in enumerate(kept):
        rows = np.flatnonzero(member == i)
        rows = rows[np.argsort(columns[flops][rows])]
        at = np.log(columns[flops][rows])
        inside = (log_c >= at[0]) & (log_c <= at[-1])
        losses[k, inside] = np.interp(log_c[inside], at, columns[loss][rows])
        sizes[k] = columns[params][rows[0]]
    winner, edge, line = _envelope(losses, sizes, log_c, np.ones(len(kept)))
    draws = np.empty(0)
    if n_draws and line is not None:
        weights = resample_clusters(names[kept], n_draws=n_draws, seed=seed).weights
        lines = [_envelope(losses, sizes, log_c, w)[2] for w in weights]
        draws = np.asarray([np.nan if drawn is None else drawn[1] for drawn in lines])
    seen = np.isfinite(losses.min(axis=0))
    left_out = f"{int(edge[seen].sum())} of {int(seen.sum())} budgets are won by the smallest or largest model and left out"  # fmt: skip
    enough = np.isfinite(draws).mean() > 0.5 if len(draws) else False
    return Envelope(
        status=FitStatus.EDGE if line is None else FitStatus.CONVERGED,
        sentence=left_out if line is not None else f"fewer than {FEWEST_SIZES} sizes win between the smallest and the largest; train more sizes. {left_out}",
        exponent=None if line is None else line[1],
        interval=percentile_interval(draws[np.isfinite(draws)], level=level) if enough else None,
        coefficient=None if line is None else float(np.exp(line[0])),
        compute=np.exp(log_c[seen]),
        params=sizes[winner[seen]],
        loss=losses.min(axis=0)[seen],
        at_edge=edge[seen],
        draws=draws,
    )  # fmt: skip


def _envelope(
    losses: Array, sizes: Array, log_c: Array, weights: Array
) -> tuple[NDArray[np.int64], NDArray[np.bool_], tuple[float, float] | None]:
    """Return the winner of each budget, where it is at the edge, and the line (ln G, a) or None."""
    there = np.where(weights[:, None] > 0, losses, np.inf)
    winner = there.argmin(axis=0)
    won = sizes[winner]
    drawn = sizes[weights > 0]
    edge = (won <= drawn.min()) | (won >= drawn.max()) | ~np.isfinite(there.min(axis=0))
    if len(np.unique(won[~edge])) < FEWEST_SIZES:
        return winner, edge, None
    slope, intercept = np.polyfit(log_c[~edge], np.log(won[~edge]), 1)
    return winner, edge, (float(intercept), float(slope))
