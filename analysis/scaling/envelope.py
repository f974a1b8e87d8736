"""Envelope of training curves: the size of lowest loss per amount of compute.

For budgets between the shortest and the longest run, the run with the lowest loss so far gives the
optimal size; a line through ln(size) against ln(compute) gives the exponent (Hoffmann et al. 2022,
approach 1). Budgets at which the smallest or the largest model wins only bound the optimum and are
left out. Every point of a curve is taken for a finished run, which it is not where the learning
rate still had to fall. So the optimum is biased: read isoFLOP or the parametric law beside it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.bootstrap import percentile_interval, resample_clusters
from analysis.fitting.result import FitStatus
from analysis.loading.columns import HasTable, Runs, as_columns, column, numbers
from analysis.loading.size_units import check_size_units
from analysis.loading.validation import refuse_bad_units

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
    """Percentiles over resampled runs: what hangs on the choice of sizes.

    Where noise is small it is several times the error."""
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
    lines: Array
    """(n_draws, 2): ln G and exponent; NaN where a resample has no line."""
    warnings: Sequence[str] = ()
    """What is odd about the curves; also at the end of the sentence."""
    outcome: str = "loss"
    """Name of the column of the loss."""

    def __repr__(self) -> str:
        return f"<Envelope of {len(self.compute)} budgets: {self.status}; see sentence>"

    @property
    def usable(self) -> bool:
        """Whether there is a line."""
        return self.exponent is not None


def fit_envelope(
    curves: Runs | HasTable,
    *,
    run: str = "run",
    params: str = "params",
    flops: str = "flops",
    loss: str = "loss",
    n_budgets: int = 1500,
    n_draws: int = 200,
    seed: int = 0,
    level: float = 0.95,
    accept: Collection[str] = (),
) -> Envelope:
    """Return the envelope of training curves.

    Args:
        curves: One row per run and checkpoint, or what `analysis.load` returns.
        run: Column that says which run a row is of: what is resampled.
        params: Column of the model's size.
        flops: Column of the compute spent so far.
        loss: Column of the loss then (smoothed; single batches jump).
        n_budgets: Budgets, evenly spaced in ln(compute).
        n_draws: Resamples of runs.
        seed: Of the resampling.
        level: Of the interval.
        accept: Doubts that were looked into (`analysis/loading/validation.py`).

    Raises:
        ValueError: If a column is missing or holds an impossible value, sizes are of mixed units,
            a run has two sizes, or no run has two checkpoints.

    Example:
        >>> import numpy as np
        >>> N, D = (
        ...     v.ravel()
        ...     for v in np.meshgrid(np.geomspace(1e7, 1e10, 20), np.geomspace(1e7, 1e13, 200))
        ... )
        >>> curves = {"run": N, "params": N, "flops": 6 * N * D}
        >>> curves["loss"] = 1.8 + 500 * N**-0.35 + 500 * D**-0.35
        >>> round(fit_envelope(curves, n_draws=0).exponent, 1)
        0.5
    """
    curves = as_columns(curves)
    columns = {name: numbers(curves, name) for name in (params, flops, loss)}
    labels = np.asarray([str(r) for r in column(curves, run)])
    size, spent = columns[params], columns[flops]
    warnings = _check_curves(size, spent, labels, (run, params, flops), accept)
    names, rows_of_run = _rows_with_curves(labels, run, warnings)
    log_c = _budget_grid([spent[rows] for rows in rows_of_run], n_budgets)
    losses = np.stack([_interpolate(log_c, spent[r], columns[loss][r]) for r in rows_of_run])
    sizes = np.asarray([size[rows[0]] for rows in rows_of_run])
    winner, edge, line = _envelope(losses, sizes, log_c, np.ones(len(names)))
    # The interval is of the line through all runs; without that line nothing is drawn.
    drawn = n_draws if line is not None else 0
    lines = _drawn_lines(losses, sizes, log_c, n_draws=drawn, seed=seed, names=names)
    # Runs need not overlap: at some budgets of the grid there may be none.
    lowest = losses.min(axis=0)
    seen = np.isfinite(lowest)
    return Envelope(
        status=FitStatus.EDGE if line is None else FitStatus.CONVERGED,
        sentence=_sentence(edge[seen], warnings, has_line=line is not None),
        exponent=None if line is None else line[1],
        interval=_interval(lines[:, 1], level),
        coefficient=None if line is None else float(np.exp(line[0])),
        compute=np.exp(log_c[seen]),
        params=sizes[winner[seen]],
        loss=lowest[seen],
        at_edge=edge[seen],
        draws=lines[:, 1],
        lines=lines,
        warnings=tuple(warnings),
        outcome=loss,
    )


def _check_curves(
    params: Array,
    flops: Array,
    runs: NDArray[Any],
    names: tuple[str, str, str],
    accept: Collection[str],
) -> list[str]:
    """Return what is odd about the curves; refuse units that cannot be."""
    run, of, total = names
    refuse_bad_units(check_size_units({"params": params}), accept=accept)
    warnings = []
    for one in dict.fromkeys(runs.tolist()):
        rows = np.flatnonzero(runs == one)
        if np.ptp(params[rows]) > 1e-6 * params[rows].max() and "architectures" not in accept:
            other = int(rows[np.flatnonzero(params[rows] != params[rows[0]])[0]])
            raise ValueError(
                f"{run}, row {other}: {one} has {of} {params[other]:.6g}, in row {rows[0]} it has "
                f"{params[rows[0]]:.6g}; two runs under one name, give each its own"
            )
        if len(np.unique(flops[rows])) < len(rows) and "duplicates" not in accept:
            _, first, count = np.unique(flops[rows], return_index=True, return_counts=True)
            again = rows[first[count > 1]]
            warnings.append(
                f"{one} has two rows at the same {total} (row {again[0]}); a checkpoint twice, or "
                "two runs under one name: keep one"
            )
    return warnings


def _rows_with_curves(
    labels: NDArray[Any], run: str, warnings: list[str]
) -> tuple[NDArray[Any], list[NDArray[np.int64]]]:
    """Return name and rows of each run with a curve; append a warning about the others."""
    names, member, counts = np.unique(labels, return_inverse=True, return_counts=True)
    member = member.reshape(-1)
    if counts.max() < 2:
        raise ValueError(f"{run}: no run has two checkpoints; the envelope needs training curves")
    single = np.flatnonzero(counts < 2)
    if len(single):
        row = int(np.flatnonzero(member == single[0])[0])
        warnings.append(
            f"{len(single)} {run}s of one checkpoint have no curve and do not count "
            f"(row {row}: {names[single[0]]}); add checkpoints"
        )
    kept = np.flatnonzero(counts >= 2)
    return names[kept], [np.flatnonzero(member == i) for i in kept]


def _budget_grid(flops: list[Array], n_budgets: int) -> Array:
    """Return ln of the budgets (n_budgets,), from the first checkpoint of any run to the last."""
    low, high = min(f.min() for f in flops), max(f.max() for f in flops)
    return np.linspace(np.log(low), np.log(high), n_budgets)


def _interpolate(log_c: Array, flops: Array, loss: Array) -> Array:
    """Return the loss of one run at each budget, infinite beyond its checkpoints."""
    order = np.argsort(flops)
    at = np.log(flops[order])
    inside = (log_c >= at[0]) & (log_c <= at[-1])
    losses = np.full(len(log_c), np.inf)
    losses[inside] = np.interp(log_c[inside], at, loss[order])
    return losses


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


def _drawn_lines(
    losses: Array, sizes: Array, log_c: Array, *, names: NDArray[Any], n_draws: int, seed: int
) -> Array:
    """Return (ln G, a) of every resample of runs (n_draws, 2), NaN where it has no line."""
    if not n_draws:
        return np.empty((0, 2))
    weights = resample_clusters(names, n_draws=n_draws, seed=seed).weights
    drawn = (_envelope(losses, sizes, log_c, w)[2] for w in weights)
    return np.asarray([one or (np.nan, np.nan) for one in drawn])


def _interval(exponents: Array, level: float) -> tuple[float, float] | None:
    """Return the percentiles of the drawn exponents, None if most draws have no line."""
    there = np.isfinite(exponents)
    if not len(exponents) or there.mean() <= 0.5:
        return None
    return percentile_interval(exponents[there], level=level)


def _sentence(edge: NDArray[np.bool_], warnings: Sequence[str], *, has_line: bool) -> str:
    """Return how many budgets only bound the optimum, why there is no line, and the warnings."""
    said = (
        f"{int(edge.sum())} of {len(edge)} budgets are won by the smallest or largest model "
        "and left out"
    )
    if not has_line:
        said = (
            f"fewer than {FEWEST_SIZES} sizes win between the smallest and the largest; "
            f"train more sizes. {said}"
        )
    return said if not warnings else f"{said}. Look at: {'; '.join(warnings)}"
