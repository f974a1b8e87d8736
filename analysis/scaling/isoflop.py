"""IsoFLOP profiles: the optimal size of each budget, and the line through the optima.

    parabola   loss = c0 + c1 ln x + c2 (ln x)^2 per budget, x parameters or tokens
               (Hoffmann et al. 2022, approach 2)
    akima      Akima's interpolation of the mean losses, its lowest point
               (Porian et al. 2024, section 3)
    line       optimum = G C^a over the budgets

Both are biased when a budget's sizes are not centred on the optimum or alpha differs from beta,
even without noise. So the answer of the parametric law (`analysis/laws/chinchilla.py`) on the same
runs stands beside them. A budget whose curve opens downward, or whose lowest point is not between
its runs, has no optimum: it is named, and left out of the line.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.fitting.bootstrap import percentile_interval, resample_clusters
from analysis.fitting.fit_law import fit_law
from analysis.fitting.interval_calibration import (
    SimulatedFits,
    covering_level,
    simulate_fits,
    weighted_sum,
)
from analysis.fitting.objective import Objective
from analysis.fitting.result import FitStatus, LawFit
from analysis.laws.chinchilla import CHINCHILLA, compute_optimum
from analysis.loading.columns import LOSS_ADVICE, Runs, column, equal_rows, labels, numbers
from analysis.loading.validation import check_size_units, refuse_bad_units
from analysis.scaling.isoflop_minima import akima_minima, parabola_minima

Array = NDArray[np.float64]
Method = Literal["parabola", "akima"]

SAME_BUDGET = 1.2
"""Runs whose FLOPs are within this factor of the next are of one budget, if none are given."""

MOST_LOST = 0.5
"""Share of resamples without an optimum from which on a budget counts as having none."""

FEWEST_BUDGETS = 3
"""A line through two points has no error to judge it by."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Budget:
    """The runs of one budget."""

    compute: float
    """FLOPs, geometric mean of the runs."""
    status: FitStatus
    sentence: str
    optimum: float | None
    """Size of lowest loss; None without one."""
    interval: tuple[float, float] | None
    loss: float | None
    """At the optimum."""
    x: Array
    y: Array
    coefficients: tuple[float, float, float] | None
    """c0, c1, c2 of the parabola in ln(x); None for Akima or without numbers."""
    draws: Array
    """(n_draws,) ln of the optimum; NaN where a resample has none."""
    imagined: SimulatedFits | None
    """ln of the optimum of a linear fit to imagined errors.

    None for Akima, whose intervals are plain percentiles."""

    @property
    def usable(self) -> bool:
        """Whether there is an optimum."""
        return self.optimum is not None


@dataclass(frozen=True, kw_only=True, eq=False)
class OptimumLine:
    """optimum = G C^exponent for one size over the budgets."""

    size: str
    """params or tokens."""
    method: Method
    status: FitStatus
    sentence: str
    exponent: float | None
    interval: tuple[float, float] | None
    coefficient: float | None
    """G."""
    budgets: Sequence[Budget]
    draws: Array
    """(n_draws, 2): ln G and exponent."""
    level: float
    drawn_level: float
    """Percentiles of the draws that intervals of `level` are made of.

    Source: `analysis/fitting/interval_calibration.py`."""

    @property
    def usable(self) -> bool:
        """Whether there is a line."""
        return self.exponent is not None

    def at(self, compute: float) -> tuple[float, float, float]:
        """Return the optimum at a budget with its interval.

        Raises:
            ValueError: If there is no line.
        """
        if self.exponent is None or self.coefficient is None:
            raise ValueError(f"isoFLOP: no line ({self.status}); {self.sentence}")
        value = self.coefficient * compute**self.exponent
        if not len(self.draws):
            return value, float("nan"), float("nan")
        low, high = percentile_interval(
            self.draws[:, 0] + self.draws[:, 1] * np.log(compute), level=self.drawn_level
        )
        return value, float(np.exp(low)), float(np.exp(high))


@dataclass(frozen=True, kw_only=True, eq=False)
class IsoflopFit:
    """The lines for both sizes, and the parametric answer beside them."""

    lines: Mapping[str, OptimumLine]
    """params and tokens."""
    parametric: LawFit
    """Its `warnings` say what is odd about the runs."""
    exponents: Mapping[str, tuple[float, tuple[float, float] | None]]
    """Of the parametric law, with intervals; empty without a fit.

    params is beta/(alpha+beta), tokens alpha/(alpha+beta)."""

    def parametric_optimum(self, compute: float) -> tuple[float, float]:
        """Return parameters and tokens of lowest loss by the parametric law.

        Raises:
            ValueError: If it has no numbers.
        """
        if not self.parametric.usable:
            raise ValueError(f"parametric: {self.parametric.status}; {self.parametric.sentence}")
        return compute_optimum(dict(self.parametric.parameters), compute)


def fit_isoflop(
    runs: Runs,
    *,
    outcome: str = "loss",
    columns: Mapping[str, str] | None = None,
    budgets: ArrayLike | str | None = None,
    clusters: Sequence[Any] | NDArray[Any] | str | None = None,
    method: Method = "parabola",
    within: float | None = None,
    objective: Objective | None = None,
    n_draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    hold_out: bool = True,
    accept: Collection[str] = (),
) -> IsoflopFit:
    """Fit the optimum of every budget, the lines over budgets, and the parametric law.

    Args:
        runs: Columns `params`, `tokens`, `flops` and the outcome, one row per run; FLOPs as
            measured or counted.
        outcome: Column of the loss.
        columns: Those names to the columns that hold them, where they differ.
        budgets: Budget per run, or its column; None puts runs together whose FLOPs differ little
            (SAME_BUDGET).
        clusters: Configuration per run (its seeds are resampled together), or its column; None
            makes rows of equal sizes one.
        method: parabola or akima.
        within: Use only runs within this factor of the size of lowest loss in their budget: a
            parabola is a local form.
        objective: Of the parametric law.
        n_draws: Resamples.
        seed: Of the resampling.
        level: Of the intervals.
        hold_out: Whether the parametric law predicts the largest runs from the smaller ones, too.
        accept: Doubts that were looked into (`analysis/loading/validation.py`); units that cannot be are refused otherwise.

    Raises:
        ValueError: If a column is missing or holds an impossible value, the units cannot be right,
            or the method is unknown.
    """
    if method not in ("parabola", "akima"):
        raise ValueError(f"method: must be parabola or akima, got {method!r}")
    names = columns or {}
    table = {name: numbers(runs, names.get(name, name)) for name in ("params", "tokens", "flops")}
    loss = numbers(runs, outcome, why=LOSS_ADVICE)
    # Budgets are of equal FLOPs, so a row of another unit would make a budget of its own.
    refuse_bad_units(check_size_units(table), accept=accept)
    given = column(runs, budgets) if isinstance(budgets, str) else budgets
    groups = _groups(table["flops"])
    if given is not None:
        groups = np.unique(np.asarray(given), return_inverse=True)[1].reshape(-1)
    configurations = labels(runs, clusters, equal_rows(table["params"], table["tokens"]))
    lines = {}
    for size in ("params", "tokens"):
        found = [
            _budget(
                table[size][groups == g], loss[groups == g], configurations[groups == g],
                compute=float(np.exp(np.log(table["flops"][groups == g]).mean())),
                method=method, within=within, n_draws=n_draws, seed=seed + int(g), level=level,
            )
            for g in np.unique(groups)
        ]  # fmt: skip
        lines[size] = _line(size, method, sorted(found, key=lambda b: b.compute), level)
    kinds = {"architecture": runs["architecture"]} if "architecture" in runs else {}
    parametric = fit_law(
        CHINCHILLA, {"params": table["params"], "tokens": table["tokens"], "loss": loss} | kinds,
        clusters=configurations if clusters is not None else None, accept=accept, objective=objective, n_draws=n_draws, seed=seed, level=level,
        hold_out=hold_out,
    )  # fmt: skip
    return IsoflopFit(
        lines=MappingProxyType(lines),
        parametric=parametric,
        exponents=MappingProxyType(_parametric_exponents(parametric)),
    )


def _budget(
    x: Array, y: Array, labels: NDArray[Any], *, compute: float, method: Method, within: float | None,
    n_draws: int, seed: int, level: float,
) -> Budget:  # fmt: skip
    if within is not None:
        lowest = x[y.argmin()]
        near = np.maximum(x / lowest, lowest / x) <= within * (1 + 1e-9)
        x, y, labels = x[near], y[near], labels[near]
    order = np.lexsort((y, x))
    x, y, labels = x[order], y[order], labels[order]
    middle = float(np.log(x).mean())
    u = np.log(x) - middle
    name = f"budget {compute:.3g}"
    needed = 4 if method == "parabola" else 5
    n_sizes = len(np.unique(x))

    def without(status: FitStatus, sentence: str) -> Budget:
        return Budget(
            compute=compute, status=status, sentence=f"{name}: {sentence}", optimum=None, interval=None,
            loss=None, x=x, y=y, coefficients=None, draws=np.empty(0), imagined=None,
        )  # fmt: skip

    if n_sizes < needed:
        return without(FitStatus.UNDERDETERMINED, f"{n_sizes} distinct sizes; the {method} needs {needed}")  # fmt: skip
    solve = parabola_minima if method == "parabola" else akima_minima
    place, low, coefficients = (part[0] for part in solve(u, y, np.ones((1, len(x)))))
    if np.isneginf(place):
        return without(FitStatus.DOWNWARD, "the parabola opens downward: no optimum; add sizes on both sides of the lowest loss")  # fmt: skip
    if not u.min() < place < u.max():
        side = "larger" if place >= u.max() else "smaller"
        return without(FitStatus.EDGE, f"the lowest loss is not between the runs; add {side} sizes")
    places = np.empty(0)
    interval = None
    imagined = None
    if n_draws:
        drawn = resample_clusters(
            labels, n_draws=n_draws, seed=seed,
            accept=lambda w: np.asarray(((w @ (x[None, :] == np.unique(x)[:, None]).T) > 0).sum(axis=1) >= needed - 1),
        )  # fmt: skip
        places = solve(u, y, drawn.weights)[0]
        places = np.where((places > u.min()) & (places < u.max()), places, np.nan)
        lost = float(np.isnan(places).mean())
        if lost > MOST_LOST:
            return without(FitStatus.EDGE, f"{lost:.0%} of the resamples have no optimum between the runs; add sizes or seeds")  # fmt: skip
        if method == "parabola":
            # The place is -c1 / (2 c2).
            slopes = np.asarray([[0.0, -0.5, -place]]) / coefficients[2]
            imagined = simulate_fits(np.stack([u**k for k in range(3)], axis=1), drawn.weights, labels, slopes, seed=seed)  # fmt: skip
        drawn_level = level if imagined is None else covering_level(level, imagined)
        ends = percentile_interval(places[np.isfinite(places)], level=drawn_level)
        interval = (float(np.exp(ends[0] + middle)), float(np.exp(ends[1] + middle)))
    return Budget(
        compute=compute,
        status=FitStatus.CONVERGED,
        sentence=f"{name}: optimum between {len(x)} runs of {n_sizes} sizes",
        optimum=float(np.exp(place + middle)),
        interval=interval,
        loss=float(low),
        x=x,
        y=y,
        coefficients=_in_log_x(coefficients, middle) if method == "parabola" else None,
        draws=places + middle,
        imagined=imagined,
    )


def _in_log_x(c: Array, middle: float) -> tuple[float, float, float]:
    """Return the coefficients in ln(x) of those in ln(x) - middle."""
    c0, c1, c2 = (float(v) for v in c)
    return c0 - c1 * middle + c2 * middle**2, c1 - 2 * c2 * middle, c2


def _line(size: str, method: Method, budgets: list[Budget], level: float) -> OptimumLine:
    good = [b for b in budgets if b.optimum is not None]
    left_out = [b.sentence for b in budgets if b.optimum is None]
    said = f"; left out: {'; '.join(left_out)}" if left_out else ""
    if len(good) < FEWEST_BUDGETS:
        return OptimumLine(
            size=size, method=method, status=FitStatus.UNDERDETERMINED,
            sentence=f"{len(good)} budgets with an optimum of {len(budgets)}; a line with an error needs {FEWEST_BUDGETS}{said}",
            exponent=None, interval=None, coefficient=None, budgets=tuple(budgets), draws=np.empty((0, 2)), level=level, drawn_level=level,
        )  # fmt: skip
    log_c = np.log([b.compute for b in good])
    middle = float(log_c.mean())
    targets = np.log(np.asarray([[b.optimum for b in good]], dtype=np.float64))
    intercept, slope = (part[0] for part in _lines(log_c - middle, targets))
    n_draws = min(len(b.draws) for b in good)
    draws = np.empty((0, 2))
    interval = None
    drawn_level = level
    if n_draws:
        parts = [b.imagined for b in good if b.imagined is not None]
        if len(parts) == len(good):
            away = log_c - middle
            drawn_level = covering_level(level, weighted_sum(parts, away / (away @ away)))
        drawn = np.stack([b.draws[:n_draws] for b in good], axis=1)
        enough = np.isfinite(drawn).sum(axis=1) >= FEWEST_BUDGETS
        intercepts, slopes = _lines(log_c - middle, drawn[enough])
        draws = np.column_stack([intercepts - slopes * middle, slopes])
        interval = percentile_interval(slopes, level=drawn_level)
    return OptimumLine(
        size=size,
        method=method,
        status=FitStatus.CONVERGED,
        sentence=f"{len(good)} of {len(budgets)} budgets have an optimum{said}",
        exponent=float(slope),
        interval=interval,
        coefficient=float(np.exp(intercept - slope * middle)),
        budgets=tuple(budgets),
        draws=draws,
        level=level,
        drawn_level=drawn_level,
    )


def _lines(x: Array, y: Array) -> tuple[Array, Array]:
    """Return intercepts and slopes (k,) of lines through y (k, n), points of NaN left out."""
    w = np.isfinite(y).astype(np.float64)
    filled = np.where(w > 0, y, 0.0)
    n = w.sum(axis=1)
    mean_x, mean_y = (w @ x) / n, filled.sum(axis=1) / n
    away = (x[None, :] - mean_x[:, None]) * w
    slope = (away * filled).sum(axis=1) / (away * away).sum(axis=1)
    return mean_y - slope * mean_x, slope


def _parametric_exponents(fit: LawFit) -> dict[str, tuple[float, tuple[float, float] | None]]:
    if not fit.usable:
        return {}

    def share(alpha: Any, beta: Any) -> Any:
        return beta / (alpha + beta)

    a = share(fit.parameters["alpha"], fit.parameters["beta"])
    interval = percentile_interval(share(fit.draws[:, 3], fit.draws[:, 4]), level=fit.levels.coefficient) if len(fit.draws) else None  # fmt: skip
    other = None if interval is None else (1 - interval[1], 1 - interval[0])
    return {"params": (a, interval), "tokens": (1 - a, other)}


def _groups(flops: Array) -> NDArray[np.int64]:
    order = np.argsort(flops)
    steps = np.diff(np.log(flops[order])) > np.log(SAME_BUDGET)
    groups = np.empty(len(flops), dtype=np.int64)
    groups[order] = np.concatenate([[0], np.cumsum(steps)])
    return groups
