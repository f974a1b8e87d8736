"""IsoFLOP profiles: the optimal size of each budget, and the line through the optima.

    parabola   loss = c0 + c1 ln x + c2 (ln x)^2 per budget, x parameters or tokens
               (Hoffmann et al. 2022, approach 2)
    quartic    the same with (ln x)^3 and (ln x)^4
    akima      Akima's interpolation of the mean losses, its lowest point
               (Porian et al. 2024, section 3)
    line       optimum = G C^a over the budgets

By default the curves are parabolas, or quartics where an F-test over all budgets rejects parabolas
(`analysis/scaling/isoflop_quartic.py`): a parabola is biased when a budget's sizes are far from the
optimum or not centred on it, even without noise. The answer of the parametric law
(`analysis/laws/chinchilla.py`) on the same runs stands beside the lines. A budget whose curve opens
downward, or whose lowest point is not between its runs, has no optimum: it is named, and left out
of the line.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.fitting.bootstrap import n_distinct_drawn, percentile_interval, resample_clusters
from analysis.fitting.fit_law import fit_law
from analysis.fitting.interval_calibration import (
    SimulatedFits,
    covering_level,
    simulate_fits,
    weighted_sum,
)
from analysis.fitting.objective import Objective
from analysis.fitting.result import FitStatus, LawFit
from analysis.fitting.verdict import FitVerdict, VerdictStatus
from analysis.laws.chinchilla import CHINCHILLA, compute_optimum
from analysis.loading.columns import (
    LOSS_ADVICE,
    HasTable,
    Runs,
    as_columns,
    column,
    equal_rows,
    labels,
    numbers,
)
from analysis.loading.validation import check_size_units, refuse_bad_units
from analysis.scaling.isoflop_minima import akima_minima, parabola_minima
from analysis.scaling.isoflop_quartic import (
    SIZES_NEEDED,
    CurveNoise,
    drawn_minima,
    pooled_noise,
    quartic_minima,
    rejects_parabolas,
)

Array = NDArray[np.float64]
Method = Literal["parabola", "quartic", "akima"]

SAME_BUDGET = 1.2
"""Runs whose FLOPs are within this factor of the next are of one budget, if none are given."""

PARABOLA_SIZES = 4
"""Distinct sizes that a parabola's budget must have."""

MOST_LOST = 0.5
"""Share of resamples without an optimum from which on a budget counts as having none."""

FARTHEST_BUDGET = 10.0
"""A stated budget is within this factor of the FLOPs of its runs."""

FEWEST_BUDGETS = 3
"""A line through two points has no error to judge it by."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Budget:
    """The runs of one budget."""

    compute: float
    """FLOPs: as stated, or the geometric mean of the runs."""
    status: FitStatus
    sentence: str
    x: Array
    y: Array
    optimum: float | None = None
    """Size of lowest loss; None without one."""
    interval: tuple[float, float] | None = None
    loss: float | None = None
    """At the optimum."""
    coefficients: tuple[float, ...] | None = None
    """c0, c1, ... of the polynomial in ln(x); None for Akima or without numbers."""
    draws: Array = field(default_factory=lambda: np.empty(0))
    """(n_draws,) ln of the optimum; NaN where a resample has none."""
    imagined: SimulatedFits | None = None
    """ln of the optimum of a linear fit to imagined errors.

    None for Akima and quartics, whose intervals are plain percentiles."""

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
    budgets: Sequence[Budget]
    exponent: float | None = None
    interval: tuple[float, float] | None = None
    coefficient: float | None = None
    """G."""
    draws: Array = field(default_factory=lambda: np.empty((0, 2)))
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

    @cached_property
    def verdict(self) -> FitVerdict:
        """Whether lines and parametric law, which should agree, do within their intervals."""
        without = [line.sentence for line in self.lines.values() if not line.usable]
        if without:
            return FitVerdict(status=VerdictStatus.UNDERDETERMINED, sentence=without[0])
        apart = [text for size in self.lines if (text := self._disagreement(size))]
        parametric = self.parametric.verdict
        about_law = f"parametric law: {parametric.sentence}"
        if apart:
            return FitVerdict(
                status=VerdictStatus.DOUBTFUL, sentence="; ".join([*apart, about_law])
            )
        # Lines do not rest on the parametric law: if it is wrong, nothing confirms them.
        status = VerdictStatus.DOUBTFUL if parametric.is_misfit else parametric.status
        return FitVerdict(status=status, sentence=about_law)

    def _disagreement(self, size: str) -> str | None:
        """Return the two exponents if their intervals have nothing in common."""
        line, (exponent, interval) = self.lines[size], self.exponents.get(size, (0.0, None))
        if line.interval is None or interval is None:
            return None
        if max(line.interval[0], interval[0]) <= min(line.interval[1], interval[1]):
            return None
        return (
            f"the exponent of the optimal {size} is {line.exponent:.3f}"
            f" [{line.interval[0]:.3f}, {line.interval[1]:.3f}] by the budgets and {exponent:.3f}"
            f" [{interval[0]:.3f}, {interval[1]:.3f}] by the parametric law"
        )

    def parametric_optimum(self, compute: float) -> tuple[float, float]:
        """Return parameters and tokens of lowest loss by the parametric law.

        Raises:
            ValueError: If it has no numbers.
        """
        if not self.parametric.usable:
            raise ValueError(f"parametric: {self.parametric.status}; {self.parametric.sentence}")
        return compute_optimum(dict(self.parametric.parameters), compute)


def fit_isoflop(
    runs: Runs | HasTable,
    *,
    outcome: str = "loss",
    columns: Mapping[str, str] | None = None,
    budgets: ArrayLike | str | None = None,
    clusters: Sequence[Any] | NDArray[Any] | str | None = None,
    method: Method | Literal["auto"] = "auto",
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
        budgets: Budget per run, or its column. Numbers are the FLOPs that lines use; other labels
            only group. None groups runs whose FLOPs differ little (SAME_BUDGET).
        clusters: Configuration per run, or its column; None makes rows of equal sizes one.
        method: parabola, quartic or akima; auto is parabola unless the runs reject it.
        within: Use only runs within this factor of the size of lowest loss in their budget.
        objective: Of the parametric law.
        n_draws: Resamples.
        seed: Of the resampling.
        level: Of the intervals.
        hold_out: Whether the parametric law predicts the largest runs from the smaller ones, too.
        accept: Kinds of warning that were looked into; units that cannot be are refused otherwise.

    Raises:
        ValueError: If a column is missing or holds an impossible value, the units cannot be right,
            or the method is unknown.

    Example:
        >>> import numpy as np
        >>> flops = np.repeat([1e18, 1e19, 1e20], 7)
        >>> params = np.sqrt(flops / 120) * np.tile(2.0 ** np.arange(-3, 4), 3)  # 20 tokens each
        >>> loss = 100 * flops**-0.1 + 0.05 * np.log(params**2 * 120 / flops) ** 2
        >>> runs = {"params": params, "tokens": flops / 6 / params, "flops": flops, "loss": loss}
        >>> round(fit_isoflop(runs, n_draws=0).lines["params"].exponent, 3)
        0.5
    """
    table = _read(runs, outcome, columns or {}, budgets, clusters, accept)
    profile = _profile(table, method, within=within, n_draws=n_draws, level=level)
    lines = {
        size: _line(size, profile.method, _budgets(table, size, profile, seed), level)
        for size in ("params", "tokens")
    }
    options: dict[str, Any] = {"accept": accept, "objective": objective, "n_draws": n_draws}
    options |= {"seed": seed, "level": level, "hold_out": hold_out}
    parametric = fit_law(CHINCHILLA, table.parametric, clusters=table.named_clusters, **options)
    return IsoflopFit(
        lines=MappingProxyType(lines),
        parametric=parametric,
        exponents=MappingProxyType(_parametric_exponents(parametric)),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Table:
    """The runs, read and checked; columns (n,)."""

    sizes: Mapping[str, Array]
    """params and tokens."""
    loss: Array
    groups: NDArray[np.int64]
    """Budget of each run, counted from 0."""
    compute: Array
    """FLOPs of each budget."""
    labels: NDArray[Any]
    """Configurations."""
    parametric: Mapping[str, Any]
    """What the parametric law is fitted to."""
    named_clusters: NDArray[Any] | None
    """Clusters that the caller named: rows of equal sizes could be duplicates, which `fit_law`
    warns of."""

    def curves(self, size: str, within: float | None) -> list[tuple[Array, Array]]:
        """Return ln(size) less its mean and loss of every budget that could have an optimum."""
        found = []
        for g in np.unique(self.groups):
            x, y = self.sizes[size][self.groups == g], self.loss[self.groups == g]
            rows = _rows_near_lowest(x, y, within)
            if len(np.unique(x[rows])) >= PARABOLA_SIZES:
                found.append((np.log(x[rows]) - np.log(x[rows]).mean(), y[rows]))
        return found


def _read(
    runs: Runs | HasTable,
    outcome: str,
    names: Mapping[str, str],
    budgets: ArrayLike | str | None,
    clusters: Sequence[Any] | NDArray[Any] | str | None,
    accept: Collection[str],
) -> _Table:
    runs = as_columns(runs)
    table = {name: numbers(runs, names.get(name, name)) for name in ("params", "tokens", "flops")}
    loss = numbers(runs, outcome, why=LOSS_ADVICE)
    # Budgets are of equal FLOPs, so a row of another unit would make a budget of its own.
    refuse_bad_units(check_size_units(table), accept=accept)
    flops = table.pop("flops")
    groups, compute = _groups(flops, column(runs, budgets) if isinstance(budgets, str) else budgets)
    configurations = labels(runs, clusters, equal_rows(*table.values()))
    kinds = {"architecture": runs["architecture"]} if "architecture" in runs else {}
    return _Table(
        sizes=table,
        loss=loss,
        groups=groups,
        compute=compute,
        labels=configurations,
        parametric=table | {"loss": loss} | kinds,
        named_clusters=None if clusters is None else configurations,
    )


@dataclass(frozen=True, kw_only=True)
class _Profile:
    """Settings of the fits to budgets; the fields are arguments of `fit_isoflop`."""

    method: Method
    within: float | None
    n_draws: int
    level: float
    noise: Mapping[str, CurveNoise]
    """Of each size's curves, for quartics."""

    @property
    def sizes_needed(self) -> int:
        """Distinct sizes that a budget must have."""
        return {"parabola": PARABOLA_SIZES, "quartic": SIZES_NEEDED, "akima": 5}[self.method]

    def minima(self, u: Array, y: Array, weights: Array) -> tuple[Array, Array, Array]:
        """Return place, loss and coefficients of the minimum for each row of weights."""
        solve = {"parabola": parabola_minima, "quartic": quartic_minima, "akima": akima_minima}
        return solve[self.method](u, y, weights)


def _profile(
    table: _Table,
    method: Method | Literal["auto"],
    *,
    within: float | None,
    n_draws: int,
    level: float,
) -> _Profile:
    """Return the settings, the method chosen if it is auto.

    Raises:
        ValueError: If the method is unknown.
    """
    if method not in ("auto", "parabola", "quartic", "akima"):
        raise ValueError(f"method: must be auto, parabola, quartic or akima, got {method!r}")
    curves = {size: table.curves(size, within) for size in table.sizes}
    if method == "auto":
        # Tokens are budget over parameters, so both curves have one shape: one choice for both.
        method = "quartic" if rejects_parabolas(curves["params"]) else "parabola"
    noise = {}
    if method == "quartic":
        enough = {
            size: [(u, y) for u, y in pairs if len(np.unique(u)) >= SIZES_NEEDED]
            for size, pairs in curves.items()
        }
        noise = {size: pooled_noise(pairs) for size, pairs in enough.items() if pairs}
    return _Profile(method=method, within=within, n_draws=n_draws, level=level, noise=noise)


def _budgets(table: _Table, size: str, profile: _Profile, seed: int) -> list[Budget]:
    """Return the budgets of one size, smallest first."""
    found = []
    for g in np.unique(table.groups):
        rows = table.groups == g
        mine = {"x": table.sizes[size][rows], "y": table.loss[rows], "labels": table.labels[rows]}
        # Budgets are independent samples, so each draws with a seed of its own.
        budget = _budget(
            **mine,
            compute=float(table.compute[g]),
            profile=profile,
            noise=profile.noise.get(size),
            seed=seed + int(g),
        )
        found.append(budget)
    return sorted(found, key=lambda b: b.compute)


class _NoOptimumError(Exception):
    """A budget without an optimum: the status, and why."""

    def __init__(self, status: FitStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


def _budget(
    x: Array,
    y: Array,
    labels: NDArray[Any],
    *,
    compute: float,
    profile: _Profile,
    noise: CurveNoise | None,
    seed: int,
) -> Budget:
    """Return the optimum of one budget's runs (n,), or why it has none."""
    rows = _rows_near_lowest(x, y, profile.within)
    x, y, labels = x[rows], y[rows], labels[rows]
    # Powers of ln x are nearly collinear unless they are centred.
    middle = float(np.log(x).mean())
    u = np.log(x) - middle
    name = f"budget {compute:.3g}"
    n_sizes = len(np.unique(x))
    try:
        place, low, coefficients = _minimum(u, y, n_sizes, profile)
        if noise is None:
            places, level, imagined = _resampled_places(
                x, u, y, labels, place=place, curvature=coefficients[2], profile=profile, seed=seed
            )
        else:
            places = drawn_minima(u, y, noise, n_draws=profile.n_draws, seed=seed)
            level, imagined = profile.level, None
            _refuse_if_lost(places)
    except _NoOptimumError as none:
        sentence = f"{name}: {none}"
        return Budget(compute=compute, status=none.status, sentence=sentence, x=x, y=y)
    interval = None
    if len(places):
        low_end, high_end = percentile_interval(places[np.isfinite(places)], level=level)
        interval = (float(np.exp(low_end + middle)), float(np.exp(high_end + middle)))
    return Budget(
        compute=compute,
        status=FitStatus.CONVERGED,
        sentence=f"{name}: optimum between {len(x)} runs of {n_sizes} sizes",
        optimum=float(np.exp(place + middle)),
        interval=interval,
        loss=low,
        x=x,
        y=y,
        coefficients=None if profile.method == "akima" else _in_log_x(coefficients, middle),
        draws=places + middle,
        imagined=imagined,
    )


def _rows_near_lowest(x: Array, y: Array, within: float | None) -> NDArray[np.int64]:
    """Return the rows within the factor of the size of lowest loss, in order of size and loss."""
    order = np.asarray(np.lexsort((y, x)))
    if within is None:
        return order
    lowest = x[y.argmin()]
    # The margin keeps sizes that are exactly at the factor but for rounding.
    near = np.maximum(x / lowest, lowest / x) <= within * (1 + 1e-9)
    return np.asarray(order[near[order]])


def _minimum(u: Array, y: Array, n_sizes: int, profile: _Profile) -> tuple[float, float, Array]:
    """Return place, loss and coefficients of the minimum of all runs.

    Raises:
        _NoOptimumError: If there are too few sizes, or the minimum is not between the runs.
    """
    if n_sizes < profile.sizes_needed:
        raise _NoOptimumError(
            FitStatus.UNDERDETERMINED,
            f"{n_sizes} distinct sizes; the {profile.method} needs {profile.sizes_needed}",
        )
    place, low, coefficients = (part[0] for part in profile.minima(u, y, np.ones((1, len(u)))))
    if np.isneginf(place):
        raise _NoOptimumError(
            FitStatus.DOWNWARD,
            "the parabola opens downward: no optimum; add sizes on both sides of the lowest loss",
        )
    if not u.min() < place < u.max():
        side = "larger" if place >= u.max() else "smaller"
        raise _NoOptimumError(
            FitStatus.EDGE, f"the lowest loss is not between the runs; add {side} sizes"
        )
    return place, float(low), coefficients


def _resampled_places(
    x: Array,
    u: Array,
    y: Array,
    labels: NDArray[Any],
    *,
    place: float,
    curvature: float,
    profile: _Profile,
    seed: int,
) -> tuple[Array, float, SimulatedFits | None]:
    """Return drawn places in u (n_draws,), the level of their percentiles, and imagined fits.

    Raises:
        _NoOptimumError: If more than MOST_LOST of the resamples have no optimum between the runs.
    """
    if not profile.n_draws:
        return np.empty(0), profile.level, None
    sizes = equal_rows(x)
    drawn = resample_clusters(
        labels,
        n_draws=profile.n_draws,
        seed=seed,
        # One size fewer than the fit to all runs needs still determines the curve.
        accept=lambda weights: n_distinct_drawn(weights, sizes) >= profile.sizes_needed - 1,
    )
    places = profile.minima(u, y, drawn.weights)[0]
    places = np.where((places > u.min()) & (places < u.max()), places, np.nan)
    _refuse_if_lost(places)
    # Levels are calibrated on linear fits. Akima's curve is none: plain percentiles.
    if profile.method == "akima":
        return places, profile.level, None
    # The place is -c1 / (2 c2).
    slopes = np.asarray([[0.0, -0.5, -place]]) / curvature
    powers = np.stack([u**k for k in range(3)], axis=1)
    imagined = simulate_fits(powers, drawn.weights, labels, slopes, seed=seed)
    return places, covering_level(profile.level, imagined), imagined


def _refuse_if_lost(places: Array) -> None:
    """Refuse a budget most of whose draws (n_draws,) have no optimum, which percentiles would hide.

    Raises:
        _NoOptimumError: If there are more than MOST_LOST.
    """
    lost = float(np.isnan(places).mean()) if len(places) else 0.0
    if lost > MOST_LOST:
        raise _NoOptimumError(
            FitStatus.EDGE,
            f"{lost:.0%} of the resamples have no optimum between the runs; add sizes or seeds",
        )


def _in_log_x(c: Array, middle: float) -> tuple[float, ...]:
    """Return the coefficients in ln(x) of those in ln(x) - middle."""
    polynomial = np.polynomial.Polynomial(c)
    shifted = polynomial(np.polynomial.Polynomial([-middle, 1.0]))
    return tuple(float(v) for v in shifted.coef)


def _line(size: str, method: Method, budgets: list[Budget], level: float) -> OptimumLine:
    good = [b for b in budgets if b.optimum is not None]
    left_out = [b.sentence for b in budgets if b.optimum is None]
    said = f"; left out: {'; '.join(left_out)}" if left_out else ""
    if len(good) < FEWEST_BUDGETS:
        return OptimumLine(
            size=size,
            method=method,
            status=FitStatus.UNDERDETERMINED,
            sentence=f"{len(good)} budgets with an optimum of {len(budgets)}; "
            f"a line with an error needs {FEWEST_BUDGETS}{said}",
            budgets=tuple(budgets),
            level=level,
            drawn_level=level,
        )
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
    if not len(fit.draws):
        return {"params": (a, None), "tokens": (1 - a, None)}
    drawn = share(fit.draws[:, 3], fit.draws[:, 4])
    low, high = percentile_interval(drawn, level=fit.levels.coefficient)
    return {"params": (a, (low, high)), "tokens": (1 - a, (1 - high, 1 - low))}


def _groups(flops: Array, budgets: ArrayLike | None) -> tuple[NDArray[np.int64], Array]:
    """Return the budget of each run as a number from 0, and the FLOPs of each budget.

    Raises:
        ValueError: If a stated budget is far from the FLOPs of its runs.
    """
    if budgets is None:
        order = np.argsort(flops)
        steps = np.diff(np.log(flops[order])) > np.log(SAME_BUDGET)
        groups = np.empty(len(flops), dtype=np.int64)
        groups[order] = np.concatenate([[0], np.cumsum(steps)])
    else:
        stated, groups = np.unique(np.asarray(budgets), return_inverse=True)
        groups = groups.reshape(-1)
    means = np.exp(np.bincount(groups, weights=np.log(flops)) / np.bincount(groups))
    if budgets is None or not np.issubdtype(stated.dtype, np.number):
        return groups, means
    with np.errstate(divide="ignore"):
        far = np.abs(np.log(np.maximum(stated, 0.0) / means)) > np.log(FARTHEST_BUDGET)
    if far.any():
        raise ValueError(
            f"budgets: {stated[far][0]:g} for runs of {means[far][0]:.3g} FLOPs; give budgets in "
            "FLOPs, or names as text"
        )
    return groups, stated.astype(np.float64)
