"""Per-architecture scaling laws: a loss law for each, and the cost of its sizes.

    laws = analysis.fit_families(runs)                              # one Chinchilla law each
    laws = analysis.fit_families(runs, shared=("E", "B", "beta"))
    laws = analysis.fit_families(runs, law="sparse_effective")      # knows memory: one for all
    laws = analysis.fit_families(runs, law="routed_joint")          # knows experts: one for all

Multipliers, the frontier and the next runs are functions of these laws; their bands are the same
functions over the draws. A draw resamples the configurations of every architecture, seeds
together, and refits laws and costs on the same runs, so the errors of both are in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.fitting.fit_law import FitControls, fit_law
from analysis.fitting.law import Law, as_law
from analysis.fitting.objective import Objective
from analysis.fitting.result import LawFit
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.shared_coefficients import SharedCoefficients
from analysis.laws.sum_of_powers import SumOfPowers
from analysis.loading.columns import HasTable, Runs, taken
from analysis.scaling.cost_measures import (
    COST_MEASURES,
    CostMeasure,
    cost_at,
    cost_terms,
    fit_cost,
    largest_error,
)
from analysis.scaling.run_columns import SIZE_INPUTS, RunColumns

Array = NDArray[np.float64]

AT_ONCE = 2_000_000
"""Losses that are worked out in one array."""

MOST_RATIOS = 8
"""Memory-to-parameter ratios that are tried for an architecture.

Of more, as many are taken, evenly spaced in the logarithm."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Domain:
    """The range of sizes, tokens and costs that the runs of an architecture cover."""

    params: tuple[float, float]
    tokens: tuple[float, float] | None
    """None where the law has no tokens."""
    ratios: Array
    """(r,) memory per parameter M/N of its models; (0,) if the law knows no memory."""
    memory: tuple[Array, Array] | None
    """ln N and M/N of its models, where the table has memory and the law does not know it."""
    experts: float | None
    """Of its models, where the law knows them."""
    amounts: Mapping[str, tuple[float, float]]
    """Cost measure to its smallest and largest run."""
    unpriced: Mapping[str, str]
    """Cost measure to the sentence that says why it is missing."""
    price_error: Mapping[str, float]
    """Largest relative error of the fitted cost among the runs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """Loss and costs of one architecture under k sets of coefficients.

    k is 1 for the fit to all runs, else the number of draws.
    """

    law: Law
    parameters: Array
    """(k, p) in the units of the data."""
    costs: Mapping[str, Array]
    """Measure to its coefficients (k, 5), of `analysis/scaling/cost_measures.py`."""
    domain: Domain

    @property
    def k(self) -> int:
        """Sets of coefficients."""
        return len(self.parameters)

    @property
    def has_tokens(self) -> bool:
        """Whether the loss depends on tokens."""
        return "tokens" in self.law.inputs

    def row(self, i: int) -> "Curve":
        """Return the curve of set i alone."""
        return replace(
            self,
            parameters=self.parameters[[i]],
            costs={name: rows[[i]] for name, rows in self.costs.items()},
        )

    def one_price(self, measure: CostMeasure) -> bool:
        """Whether a model costs the same under all sets: FLOPs and bytes do, seconds do not."""
        low, high = self.domain.params
        N = np.geomspace(low / 100, high * 100, 7)[:, None]
        costs = cost_at(self.costs[measure.name], N, self.memory_at(N, self.domain.ratios))
        return bool(np.allclose(costs, costs[0], rtol=1e-6, atol=0.0))

    def price(self, measure: CostMeasure, params: Array, memory: Array) -> Array:
        """Return the cost under the first set.

        It is per token of training where it grows with tokens and the law knows them, else per
        model.
        """
        return cost_at(self.costs[measure.name][0], params, memory)

    def prices(self, measure: CostMeasure, params: Array, memory: Array) -> Array:
        """Return the cost (r, m) of sizes (r, m), row i under set i; units as in `price`."""
        terms = cost_terms(params, memory)
        coefficients = self.costs[measure.name][: len(params)]
        return np.asarray(np.einsum("rp,prm->rm", coefficients, terms))

    def loss_each(self, params: Array, memory: Array, tokens: Array) -> Array:
        """Return the loss (k, m) of sizes (k, m), row i under set i; NaN where a size is NaN."""
        values = self._inputs(params, memory, tokens)
        inputs = {name: values[name] for name in self.law.inputs}
        loss = self.law.evaluate_each(inputs, self.parameters)
        return np.where(np.isfinite(params), loss, np.nan)

    def loss(self, params: Array, memory: Array, tokens: Array) -> Array:
        """Return the loss (k, ...) at sizes and tokens of one shape (...)."""
        shape = np.broadcast_shapes(params.shape, memory.shape, tokens.shape)
        values = self._inputs(params, memory, tokens)
        inputs = {name: np.broadcast_to(values[name], shape).ravel() for name in self.law.inputs}
        step = max(1, AT_ONCE // max(1, int(np.prod(shape))))
        parts = [
            self.law.evaluate(inputs, self.parameters[i : i + step]) for i in range(0, self.k, step)
        ]
        return np.concatenate(parts).reshape(self.k, *shape)

    def _inputs(self, params: Array, memory: Array, tokens: Array) -> dict[str, Array]:
        """Return what a law may take, by name; experts have the shape of params."""
        experts = np.full(params.shape, self.domain.experts or 1.0)
        return {
            **dict.fromkeys(SIZE_INPUTS, params),
            "n_memory": memory,
            "tokens": tokens,
            "experts": experts,
        }

    def memory_at(self, params: Array, ratio: Array | float) -> Array:
        """Return the memory of models: at that ratio, or as the runs of their size had it."""
        if self.domain.memory is not None:
            ratio = np.interp(np.log(params), *self.domain.memory)
        return np.asarray(params * ratio)


@dataclass(frozen=True, kw_only=True, eq=False)
class ArchitectureLaw:
    """The law of one architecture: its curve for all runs, and its draws."""

    name: str
    fit: LawFit
    """Of the law; shared with other architectures where coefficients are."""
    parameter_indices: NDArray[np.int64]
    """Which parameters of the fit are this architecture's, in the order of its law."""
    group: int | None
    """Its number in a fit of several architectures with coefficients of their own."""
    curve: Curve
    cost_draws: Mapping[str, Array]
    """Measure to the coefficients (k, 5) of every draw."""

    def __repr__(self) -> str:
        return f"<ArchitectureLaw of {self.name}; see fit>"

    def with_parameters(self, parameters: Array) -> Curve:
        """Return the curve under other parameters (k, p) of the whole fit, at unchanged costs."""
        k = len(parameters)
        costs = {name: np.repeat(rows, k, axis=0) for name, rows in self.curve.costs.items()}
        return replace(self.curve, parameters=parameters[:, self.parameter_indices], costs=costs)


@dataclass(frozen=True, kw_only=True, eq=False)
class ArchitectureLaws:
    """The laws of all architectures of a table, fitted and resampled together."""

    by_name: Mapping[str, ArchitectureLaw]
    left_out: Mapping[str, str]
    """Architectures without a usable law, and why."""
    outcome: str
    level: float
    drawn_level: float
    """Percentiles of the draws that bands of `level` are made of.

    Source: `analysis/fitting/interval_calibration.py`."""
    n_draws: int
    """Zero where the runs are too few for a band."""
    columns: Mapping[str, str]
    """The law's inputs to the columns that they were read from."""
    notes: tuple[str, ...] = field(default=())
    """What was assumed."""

    def __repr__(self) -> str:
        without = f", none of {', '.join(self.left_out)}" if self.left_out else ""
        return f"<ArchitectureLaws of {', '.join(self.by_name)}{without}; see summary()>"

    @property
    def fits(self) -> list[LawFit]:
        """The different fits, each once."""
        return list({id(f.fit): f.fit for f in self.by_name.values()}.values())

    def summary(self) -> str:
        """Return the summary of every fit, what was assumed, and what has no law."""
        parts = []
        for fit in self.fits:
            names = ", ".join(name for name, f in self.by_name.items() if f.fit is fit)
            parts.append(f"{names}\n{fit.summary()}")
        left_out = [f"{name} is left out: {why}" for name, why in self.left_out.items()]
        columns = taken(self.columns)
        said = [*([f"columns: {columns}"] if columns else []), *self.notes]
        return "\n\n".join([*parts, *said, *left_out])

    def to_frame(self) -> pd.DataFrame:
        """Return one row per architecture and coefficient: value, low, high."""
        frames: dict[str, pd.DataFrame] = {}
        for name, f in self.by_name.items():
            frame = f.fit.to_frame().iloc[f.parameter_indices]
            # Without the architecture in names such as `A[dense]`.
            frames[name] = frame.set_axis(list(f.curve.law.parameter_names))
        return pd.concat(frames, names=["architecture", "parameter"])

    def curves(self) -> dict[str, Curve]:
        """Return the curves of all runs, one set of coefficients each."""
        return {name: f.curve for name, f in self.by_name.items()}

    def drawn(self) -> dict[str, Curve]:
        """Return the curves of every draw; set i is of the same draw for all architectures."""
        return {
            name: replace(
                f.curve,
                parameters=f.fit.draws[: self.n_draws, f.parameter_indices],
                costs={m: rows[: self.n_draws] for m, rows in f.cost_draws.items()},
            )
            for name, f in self.by_name.items()
        }

    def named(self, name: str) -> ArchitectureLaw:
        """Return the architecture of that name.

        Raises:
            ValueError: If it is not there, or has no usable law; the message says which.
        """
        if name in self.by_name:
            return self.by_name[name]
        if name in self.left_out:
            raise ValueError(f"architecture {name}: {self.left_out[name]}")
        raise ValueError(f"architecture: no {name!r}; there are {', '.join(self.by_name)}")

    def require_cost(self, measure: CostMeasure, names: Sequence[str]) -> None:
        """Check that these architectures have a cost in this measure.

        Raises:
            ValueError: If one has not.
        """
        for name in names:
            why = self.named(name).curve.domain.unpriced.get(measure.name)
            if why is not None:
                raise ValueError(f"{measure.label} of {name}: {why}")


def fit_families(
    runs: Runs | HasTable,
    *,
    law: Law | str = CHINCHILLA,
    outcome: str = "loss",
    architecture: str = "architecture",
    columns: Mapping[str, str] | None = None,
    clusters: str | None = None,
    shared: Sequence[str] = (),
    objective: Objective | None = None,
    n_draws: int = 500,
    seed: int = 0,
    level: float = 0.95,
    hold_out: bool = True,
) -> ArchitectureLaws:
    """Fit a law to each architecture of a table, and what its sizes cost.

    A law that knows memory or experts (`sparse_effective`, `routed_joint` and the like) contains
    the dense law, so it is fitted to the runs of all architectures at once.

    Args:
        runs: Of `analysis.load`, or columns with one row per run.
        law: Of a model's size, of tokens, of memory, of experts, or some of them; or its name. With
            experts, each architecture has one number of them, dense ones 1.
        outcome: Column that falls with size.
        architecture: Column that names the architecture.
        columns: The law's input names to columns, where not of `run_columns.COLUMNS`.
        clusters: Column of the configuration; `configuration` if there, else equal inputs are one.
        shared: Coefficients that all architectures have in common; none makes every fit its own.
        objective: As `fit_law`.
        n_draws: Resamples behind every band.
        seed: Of the resampling.
        level: Of the bands.
        hold_out: Whether every fit also predicts its largest runs.

    Raises:
        ValueError: If a column is missing, a value cannot be (the row is named), or no
            architecture has a usable law.

    Example:
        >>> import numpy as np
        >>> N, D = (v.ravel() for v in np.meshgrid([1e7, 3e7, 1e8, 3e8], [1e9, 4e9, 1.6e10]))
        >>> dense = 1.8 + 400 * N**-0.35 + 2000 * D**-0.37
        >>> memory = 1.8 + 400 * (2 * N) ** -0.35 + 2000 * D**-0.37  # as a dense one twice as large
        >>> runs = {"params": [*N, *N], "tokens": [*D, *D], "loss": [*dense, *memory]}
        >>> runs["architecture"] = ["dense"] * 12 + ["memory"] * 12
        >>> laws = fit_families(runs, n_draws=0)
        >>> [round(laws.named(name).fit.parameters["A"]) for name in ("dense", "memory")]
        [400, 314]
    """
    law = as_law(law)
    table = RunColumns(
        runs,
        law,
        outcome=outcome,
        architecture=architecture,
        columns=columns or {},
        clusters=clusters,
    )
    for name in table.names:
        table.experts_of(name)  # refuses several, before anything is fitted
    options = {"objective": objective, "level": level, "hold_out": hold_out}
    found: dict[str, ArchitectureLaw] = {}
    left_out: dict[str, str] = {}
    together = _fitted_together(table, law, shared)
    for names, joint in together:
        # A resample of one architecture has to determine its part of the coefficients.
        needed = -(-joint.n_free // len(names)) + (len(names) > 1)
        weights = table.resampled(names, n_draws=n_draws, seed=seed, needed=needed)
        fit = _fit_together(table, joint, names, weights, options, outcome)
        fit = replace(fit, n_judged=len(together))
        if not fit.usable:
            left_out |= dict.fromkeys(names, f"its law is {fit.status}: {fit.sentence}")
            continue
        found |= {name: _architecture_law(table, name, fit, law, weights) for name in names}
    return _together(found, left_out, table, law, outcome=outcome, level=level)


def _fitted_together(
    table: RunColumns, law: Law, shared: Sequence[str]
) -> list[tuple[list[str], Law]]:
    """Return the architectures of each fit, and its law.

    One architecture without a usable law must not cost the others theirs, so each is fitted, and
    left out, by itself. A law of memory or experts holds the dense law as a special case, so
    splitting it would leave those coefficients open.
    """
    one_for_all = bool({"n_memory", "experts"} & set(law.inputs))
    if one_for_all and shared:
        raise ValueError(
            f"shared: {law.name} is one law for all architectures already; leave shared out"
        )
    if one_for_all:
        return [(table.names, law)]
    if shared and len(table.names) > 1:
        return [(table.names, _joint_law(law, shared, table.names))]
    return [([name], law) for name in table.names]


def _together(
    found: Mapping[str, ArchitectureLaw],
    left_out: Mapping[str, str],
    table: RunColumns,
    law: Law,
    *,
    outcome: str,
    level: float,
) -> ArchitectureLaws:
    if not found:
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise ValueError(f"families: no architecture has a usable law; {why}")
    fits = [f.fit for f in found.values()]
    return ArchitectureLaws(
        by_name=found,
        left_out=left_out,
        outcome=outcome,
        level=level,
        drawn_level=max(f.levels.coefficient for f in fits),
        n_draws=min(len(f.draws) for f in fits),
        columns={name: table.column_of(name) for name in law.inputs},
        notes=tuple(table.notes),
    )


def _joint_law(law: Law, shared: Sequence[str], names: Sequence[str]) -> SharedCoefficients:
    """Return the law of several architectures that have some coefficients in common."""
    if not isinstance(law, SumOfPowers):
        raise ValueError(
            f"shared: {law.name} is no sum of powers, so its coefficients cannot be shared;"
            " leave shared out"
        )
    unknown = set(shared) - set(law.parameter_names)
    if unknown:
        raise ValueError(
            f"shared: must name parameters of {law.name} ({', '.join(law.parameter_names)}),"
            f" got {', '.join(sorted(unknown))}"
        )
    own = [p for p in law.parameter_names if p not in shared]
    return SharedCoefficients(law, own=own, groups=names)


def _fit_together(
    table: RunColumns,
    law: Law,
    names: Sequence[str],
    weights: Array,
    options: Mapping[str, Any],
    outcome: str,
) -> LawFit:
    rows = table.rows_of(*names)
    data = {name: values[rows] for name, values in table.inputs.items()}
    data["outcome"] = table.outcome[rows]
    if isinstance(law, SharedCoefficients):
        members = [names.index(a) for a in table.architectures[rows]]
        data["group"] = np.asarray(members, dtype=float)
    fit = fit_law(
        law,
        data,
        outcome="outcome",
        clusters=table.clusters[rows],
        controls=FitControls(resamples=weights[:, rows], rows=table.rows[rows]),
        **options,
    )
    return replace(fit, outcome=outcome)


def _architecture_law(
    table: RunColumns, name: str, fit: LawFit, law: Law, weights: Array
) -> ArchitectureLaw:
    """Return one architecture of a fit, its costs fitted to all its runs and to every draw."""
    grouped = isinstance(fit.law, SharedCoefficients)
    indices = [
        fit.law.parameter_names.index(
            own if grouped and (own := f"{p}[{name}]") in fit.law.parameter_names else p
        )
        for p in law.parameter_names
    ]
    rows = table.rows_of(name)
    N, M = table.size[rows], table.memory[rows]
    costs = _fitted_costs(table, rows, weights)
    knows_memory = "n_memory" in law.inputs
    domain = Domain(
        params=_span(N),
        tokens=None if table.tokens is None else _span(table.tokens[rows]),
        ratios=_ratios(M / N) if knows_memory else np.zeros(1),
        memory=None if knows_memory or not M.any() else _memory_profile(N, M),
        experts=table.experts_of(name),
        amounts=costs.amounts,
        unpriced=costs.unpriced,
        price_error=costs.errors,
    )
    parameters = np.asarray(list(fit.parameters.values()))[None, indices]
    first = {measure: fitted[:1] for measure, fitted in costs.coefficients.items()}
    return ArchitectureLaw(
        name=name,
        fit=fit,
        parameter_indices=np.asarray(indices),
        group=fit.law.groups.index(name) if isinstance(fit.law, SharedCoefficients) else None,
        curve=Curve(law=law, parameters=parameters, costs=first, domain=domain),
        cost_draws={measure: fitted[1:] for measure, fitted in costs.coefficients.items()},
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Costs:
    """Costs of one architecture by measure; each is among the amounts, the unpriced, or both."""

    coefficients: dict[str, Array] = field(default_factory=dict)
    """(1 + k, 5): of all runs, then of every draw."""
    amounts: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Smallest and largest of the runs."""
    unpriced: dict[str, str] = field(default_factory=dict)
    """Why a measure has no fitted cost."""
    errors: dict[str, float] = field(default_factory=dict)
    """Largest relative error of the fitted cost among the runs."""


def _fitted_costs(table: RunColumns, rows: NDArray[np.int64], weights: Array) -> _Costs:
    """Return the costs of these runs as functions of size, for all of them and for every draw."""
    N, M = table.size[rows], table.memory[rows]
    found = _Costs()
    for measure in COST_MEASURES.values():
        amount = table.cost(measure, rows)
        if isinstance(amount, str):
            found.unpriced[measure.name] = amount
            continue
        found.amounts[measure.name] = _span(amount)
        if measure.with_tokens and table.tokens is not None:
            amount = amount / table.tokens[rows]
        fitted = fit_cost(N, M, amount, np.vstack([np.ones(len(rows)), weights[:, rows]]))
        if not fitted[0, 1:].any() and np.ptp(N) > 0:
            found.unpriced[measure.name] = "it does not grow with size in these runs"
            continue
        found.coefficients[measure.name] = fitted
        found.errors[measure.name] = largest_error(fitted[0], N, M, amount)
    return found


def _span(values: Array) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def _ratios(ratios: Array) -> Array:
    """Return the memory per parameter that models are built with; those within 1 % are one."""
    found = np.unique(ratios)
    distinct = found[found > 0]
    if len(distinct):
        distinct = distinct[np.concatenate([[True], np.diff(np.log(distinct)) > 0.01])]
    if len(distinct) > MOST_RATIOS:
        distinct = np.geomspace(distinct[0], distinct[-1], MOST_RATIOS)
    return np.concatenate([found[found == 0], distinct])


def _memory_profile(params: Array, memory: Array) -> tuple[Array, Array]:
    """Return ln N, increasing, and the mean M/N of the runs of that size."""
    sizes, member = np.unique(params, return_inverse=True)
    total = np.bincount(member.reshape(-1), weights=memory / params)
    return np.log(sizes), np.asarray(total / np.bincount(member.reshape(-1)))
