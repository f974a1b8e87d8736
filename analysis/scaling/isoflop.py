"""IsoFLOP profiles: the optimal size per budget, and the line through the optima.

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
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from analysis.fitting.bootstrap import percentile_interval
from analysis.fitting.fit_law import FitControls, fit_law
from analysis.fitting.law import without_views
from analysis.fitting.objective import Objective
from analysis.fitting.result import LawFit
from analysis.fitting.verdict import FitVerdict, VerdictStatus
from analysis.laws.chinchilla import CHINCHILLA, compute_optimum
from analysis.loading.columns import (
    LOSS_ADVICE,
    HasTable,
    Runs,
    as_columns,
    column,
    column_of,
    equal_rows,
    labels,
    numbers,
    seeds_of,
    taken,
)
from analysis.loading.size_units import check_size_units
from analysis.loading.validation import refuse_bad_units
from analysis.scaling.isoflop_budget import (
    PARABOLA_SIZES,
    SAME_BUDGET,
    Array,
    Budget,
    Method,
    ProfileSettings,
    fit_budget,
    rows_near_lowest,
)
from analysis.scaling.isoflop_line import OptimumLine, fit_line
from analysis.scaling.isoflop_quartic import (
    SIZES_NEEDED,
    pooled_noise,
    rejects_parabolas,
)

FARTHEST_BUDGET = 10.0
"""A stated budget is within this factor of the FLOPs of its runs."""


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
    outcome: str = "loss"
    """Name of the column of the loss."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """params, tokens and flops to the columns that they were read from."""

    def __repr__(self) -> str:
        n = len(next(iter(self.lines.values())).budgets)
        return f"<IsoflopFit of {n} budgets; see summary()>"

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled; the verdict is found again."""
        return without_views({k: v for k, v in vars(self).items() if k != "verdict"})

    def summary(self) -> str:
        """Return the fit as text: the verdict, both lines, and the optimum of every budget."""
        lines = [
            f"isoFLOP profiles ({line.method}): optimal {size} = G C^a, {_line_words(line)};"
            f" a by the parametric law {_with_interval(*self.exponents.get(size, (None, None)))}"
            for size, line in self.lines.items()
        ]
        columns = taken(self.columns)
        lines += [f"columns: {columns}"] if columns else []
        verdict = f"verdict: {self.verdict}"
        table = self.to_frame().to_string(index=False, float_format=lambda v: f"{v:.4g}")
        budgets = [b for line in self.lines.values() for b in line.budgets]
        without = [b.sentence for b in budgets if not b.usable and b.sentence not in verdict]
        return "\n".join([*lines, verdict, "", table, *dict.fromkeys(without)])

    def to_frame(self) -> pd.DataFrame:
        """Return one row per size and budget: its optimum with the ends of its interval."""
        nothing = (np.nan, np.nan)
        return pd.DataFrame(
            [
                {
                    "size": size,
                    "budget_flops": b.compute,
                    "n_runs": len(b.x),
                    "optimum": np.nan if b.optimum is None else b.optimum,
                    "low": (b.interval or nothing)[0],
                    "high": (b.interval or nothing)[1],
                    self.outcome: np.nan if b.loss is None else b.loss,
                    "status": str(b.status),
                }
                for size, line in self.lines.items()
                for b in line.budgets
            ]
        )

    @cached_property
    def verdict(self) -> FitVerdict:
        """Whether lines and parametric law, which should agree, do within their intervals."""
        # The runs are of one group for both sizes, so one of the lines says it.
        chained = [b.sentence for b in next(iter(self.lines.values())).budgets if b.chained]
        without = [line.sentence for line in self.lines.values() if not line.usable]
        if without:
            said = [s for s in chained if s not in without[0]]
            return FitVerdict(
                status=VerdictStatus.UNDERDETERMINED, sentence="; ".join([*said, without[0]])
            )
        apart = [text for size in self.lines if (text := self._disagreement(size))]
        apart = [*chained, *apart]
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


def _line_words(line: OptimumLine) -> str:
    if line.coefficient is None:
        return f"no line ({line.status})"
    return f"G = {line.coefficient:.4g}, a = {_with_interval(line.exponent, line.interval)}"


def _with_interval(value: float | None, interval: tuple[float, float] | None) -> str:
    """Return `0.490 [0.470, 0.510]`."""
    if value is None:
        return "unknown"
    return f"{value:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


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
            only group. None sorts the runs by FLOPs and begins a new budget where the next has
            more than SAME_BUDGET times as many. The verdict says where that chained runs of
            different budgets.
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
    # One choice of curve for all budgets and both sizes: lines through optima that were found in
    # different ways would bend where the way changes.
    table = _read(runs, outcome, columns or {}, budgets, clusters, accept)
    settings = _settings(table, method, within=within, n_draws=n_draws, level=level)
    lines = {
        size: fit_line(size, settings.method, _budgets(table, size, settings, seed), level)
        for size in ("params", "tokens")
    }
    # A second way to the same exponents, of the same runs: what differs between the two is the
    # method.
    options: dict[str, Any] = {"accept": accept, "objective": objective, "n_draws": n_draws}
    options |= {"seed": seed, "level": level, "hold_out": hold_out}
    options["controls"] = FitControls(configurations=table.seeds)
    parametric = fit_law(CHINCHILLA, table.parametric, clusters=table.named_clusters, **options)
    return IsoflopFit(
        lines=MappingProxyType(lines),
        parametric=parametric,
        exponents=MappingProxyType(_parametric_exponents(parametric)),
        outcome=outcome,
        columns=table.columns,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Table:
    """The runs, read and checked; columns (n,)."""

    sizes: Mapping[str, Array]
    """params and tokens."""
    columns: Mapping[str, str]
    """params, tokens and flops to the columns that they were read from."""
    loss: Array
    flops: Array
    groups: NDArray[np.int64]
    """Budget of each run, counted from 0."""
    compute: Array
    """FLOPs of each budget."""
    grouped: bool
    """Whether nobody named the budgets."""
    labels: NDArray[Any]
    """Configurations."""
    parametric: Mapping[str, Any]
    """What the parametric law is fitted to."""
    named_clusters: NDArray[Any] | None
    """Clusters that the caller named: rows of equal sizes could be duplicates, which `fit_law`
    warns of."""
    seeds: NDArray[np.int64] | None
    """Configuration of which each run is a seed, where the table or the caller says it."""

    def curves(self, size: str, within: float | None) -> list[tuple[Array, Array]]:
        """Return ln(size) less its mean and loss of every budget that could have an optimum."""
        found = []
        for g in np.unique(self.groups):
            x, y = self.sizes[size][self.groups == g], self.loss[self.groups == g]
            rows = rows_near_lowest(x, y, within)
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
    columns = {name: column_of(runs, name, names) for name in ("params", "tokens", "flops")}
    table = {name: numbers(runs, theirs) for name, theirs in columns.items()}
    loss = numbers(runs, outcome, why=LOSS_ADVICE)
    # Budgets are of equal FLOPs, so a row of another unit would make a budget of its own.
    refuse_bad_units(check_size_units(table), accept=accept)
    flops = table.pop("flops")
    groups, compute = _groups(flops, column(runs, budgets) if isinstance(budgets, str) else budgets)
    places = equal_rows(*table.values())
    configurations = labels(runs, clusters, places)
    kinds = {"architecture": runs["architecture"]} if "architecture" in runs else {}
    return _Table(
        sizes=table,
        columns=columns,
        loss=loss,
        flops=flops,
        groups=groups,
        compute=compute,
        grouped=budgets is None,
        labels=configurations,
        parametric=table | {"loss": loss} | kinds,
        named_clusters=None if clusters is None else configurations,
        seeds=seeds_of(runs, clusters, places),
    )


def _settings(
    table: _Table,
    method: Method | Literal["auto"],
    *,
    within: float | None,
    n_draws: int,
    level: float,
) -> ProfileSettings:
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
    return ProfileSettings(method=method, within=within, n_draws=n_draws, level=level, noise=noise)


def _budgets(table: _Table, size: str, settings: ProfileSettings, seed: int) -> list[Budget]:
    """Return the budgets of one size, smallest first."""
    found = []
    for g in np.unique(table.groups):
        rows = table.groups == g
        mine = {"x": table.sizes[size][rows], "y": table.loss[rows], "labels": table.labels[rows]}
        # Budgets are independent samples, so each draws with a seed of its own.
        budget = fit_budget(
            **mine,
            flops=table.flops[rows],
            compute=float(table.compute[g]),
            grouped=table.grouped,
            settings=settings,
            noise=settings.noise.get(size),
            seed=seed + int(g),
        )
        found.append(budget)
    return sorted(found, key=lambda b: b.compute)


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
