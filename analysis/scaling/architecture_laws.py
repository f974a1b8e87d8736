"""What the runs of several architectures say together: a law of the loss for each, and what its sizes cost.

    from analysis.scaling.architecture_laws import fit_families
    families = fit_families(runs.table)                      # one Chinchilla law per architecture
    families = fit_families(runs.table, shared=("E", "B", "beta"))
    families = fit_families(runs.table, law=law_named("sparse_effective"))     # dense and memory in one law

Whatever is asked of architectures (multipliers, a frontier, a next run) is a function of their curves; its band is that
function over the draws. A draw resamples the configurations of every architecture, seeds together, and refits
laws and costs on the same runs, so the errors of all of them are in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.bootstrap import resample_clusters
from analysis.fitting.fit_law import FitControls, Runs, fit_law
from analysis.fitting.law import Law
from analysis.fitting.objective import Objective
from analysis.fitting.result import LawFit
from analysis.laws.chinchilla import CHINCHILLA
from analysis.laws.shared_coefficients import SharedCoefficients
from analysis.laws.sum_of_powers import SumOfPowers
from analysis.loading.columns import numbers
from analysis.scaling.cost_measures import (
    BYTES_PER_PARAM,
    COST_MEASURES,
    CostMeasure,
    cost_at,
    fit_cost,
)

Array = NDArray[np.float64]

SIZE_INPUTS = ("params", "n_active", "x")
"""Names under which laws take a model's size; one of them."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "params": ("params", "active_params", "non_embedding_params", "total_params"),
    "n_active": ("n_active", "active_params", "non_embedding_params"),
    "x": ("x", "total_params", "params"),
    "tokens": ("tokens", "training_tokens"),
    "n_memory": ("n_memory", "memory_params"),
}
"""Where a law's input is looked for, in this order, unless `columns` says."""

AT_ONCE = 2_000_000
"""Losses that are worked out in one array."""

MOST_RATIOS = 8
"""Amounts of memory per parameter that are tried for an architecture; of more, as many evenly spaced in the logarithm."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Domain:
    """What the runs of an architecture cover."""

    params: tuple[float, float]
    tokens: tuple[float, float] | None
    """None where the law has no tokens."""
    ratios: Array
    """(r,) memory per parameter M/N that its models are built with; (0,) if the law knows no memory."""
    memory: tuple[Array, Array] | None
    """ln N and M/N of its models, where the table has memory that the law does not know; otherwise None."""
    amounts: Mapping[str, tuple[float, float]]
    """Per measure, the smallest and largest run."""
    unpriced: Mapping[str, str]
    """Measure to the sentence that says why it is missing."""
    price_error: Mapping[str, float]
    """Largest relative error of the fitted cost among the runs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """One architecture under k sets of coefficients: one, that of all runs; or those of the resamples."""

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
        """Whether a measure costs the same under all sets: FLOPs and bytes do, measured seconds do not."""
        low, high = self.domain.params
        N = np.geomspace(low / 100, high * 100, 7)[:, None]
        costs = cost_at(self.costs[measure.name], N, self.memory_at(N, self.domain.ratios))
        return bool(np.allclose(costs, costs[0], rtol=1e-6, atol=0.0))

    def price(self, measure: CostMeasure, params: Array, memory: Array) -> Array:
        """Return the cost under the first set: per token of training if it grows with tokens and the law knows them, else per model."""
        return cost_at(self.costs[measure.name][0], params, memory)

    def loss(self, params: Array, memory: Array, tokens: Array) -> Array:
        """Return the loss (k, ...) at sizes and tokens of one shape (...)."""
        shape = np.broadcast_shapes(params.shape, memory.shape, tokens.shape)
        values = {"n_memory": memory, "tokens": tokens} | dict.fromkeys(SIZE_INPUTS, params)
        inputs = {name: np.broadcast_to(values[name], shape).ravel() for name in self.law.inputs}
        step = max(1, AT_ONCE // max(1, int(np.prod(shape))))
        parts = [
            self.law.evaluate(inputs, self.parameters[i : i + step]) for i in range(0, self.k, step)
        ]
        return np.concatenate(parts).reshape(self.k, *shape)

    def memory_at(self, params: Array, ratio: Array | float) -> Array:
        """Return the memory of models: by the ratio that the law was asked for, or as its runs of that size had it."""
        if self.domain.memory is not None:
            ratio = np.interp(np.log(params), *self.domain.memory)
        return np.asarray(params * ratio)


@dataclass(frozen=True, kw_only=True, eq=False)
class ArchitectureLaw:
    """One architecture: its curve for all runs, and what resamples make of it."""

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

    def with_parameters(self, parameters: Array) -> Curve:
        """Return the curve under other parameters (k, p) of the whole fit, at unchanged costs."""
        k = len(parameters)
        costs = {name: np.repeat(rows, k, axis=0) for name, rows in self.curve.costs.items()}
        return replace(self.curve, parameters=parameters[:, self.parameter_indices], costs=costs)


@dataclass(frozen=True, kw_only=True, eq=False)
class ArchitectureLaws:
    """Architectures fitted together."""

    by_name: Mapping[str, ArchitectureLaw]
    left_out: Mapping[str, str]
    """Architectures without a usable law, and why."""
    outcome: str
    level: float
    drawn_level: float
    """Percentiles of the draws that bands of `level` are made of (`analysis/fitting/interval_calibration.py`)."""
    n_draws: int
    """Zero where the runs are too few for a band."""
    columns: Mapping[str, str]
    """The law's inputs to the columns that they were read from."""
    notes: tuple[str, ...] = field(default=())
    """What was assumed."""

    @property
    def fits(self) -> list[LawFit]:
        """The different fits, each once."""
        return list({id(f.fit): f.fit for f in self.by_name.values()}.values())

    def curves(self) -> dict[str, Curve]:
        """Return the curves of all runs, one set of coefficients each."""
        return {name: f.curve for name, f in self.by_name.items()}

    def drawn(self) -> dict[str, Curve]:
        """Return the curves of every draw; set i of one architecture is of the same draw as set i of another."""
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

    def priced(self, measure: CostMeasure, names: Sequence[str]) -> None:
        """Check that the architectures have this measure.

        Raises:
            ValueError: If one has not.
        """
        for name in names:
            why = self.named(name).curve.domain.unpriced.get(measure.name)
            if why is not None:
                raise ValueError(f"{measure.label} of {name}: {why}")


def fit_families(
    runs: Runs,
    *,
    law: Law = CHINCHILLA,
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

    A law that knows memory (`sparse_effective` and the like) contains the dense law, so it is fitted to the runs of all
    architectures at once.

    Args:
        runs: Columns, one row per run.
        law: Of a model's size, of tokens, of memory, or some of them.
        outcome: Column that falls with size.
        architecture: Column that names the architecture.
        columns: The law's input names to the columns that hold them, where they differ from COLUMNS.
        clusters: Column that names the configuration; `configuration` if there, else runs of equal inputs are one.
        shared: Coefficients that all architectures have in common; none makes every fit its own.
        objective: As `fit_law`.
        n_draws: Resamples behind every band.
        seed: Of the resampling.
        level: Of the bands.
        hold_out: Whether every fit also predicts its largest runs.

    Raises:
        ValueError: If a column is missing, a value cannot be (the row is named), or no architecture has a usable law.
    """
    table = _Table(runs, law, outcome, architecture, columns or {}, clusters)
    knows_memory = "n_memory" in law.inputs
    if knows_memory and shared:
        raise ValueError(f"shared: {law.name} is one law for all architectures already; leave shared out")  # fmt: skip
    names = table.names
    together = [names] if knows_memory or (shared and len(names) > 1) else [[n] for n in names]
    options: dict[str, Any] = {"outcome": "outcome", "objective": objective, "level": level, "hold_out": hold_out}  # fmt: skip
    families: dict[str, ArchitectureLaw] = {}
    left_out: dict[str, str] = {}
    for members in together:
        grouped = not knows_memory and len(members) > 1
        fitted: Law = law
        if grouped:
            fitted = _grouped(law, shared, members)
        rows = np.flatnonzero(np.isin(table.labels, members))
        weights = table.resampled(
            members, n_draws=n_draws, seed=seed,
            needed=-(-fitted.n_free // len(members)) + (len(members) > 1),
        )  # fmt: skip
        data = {name: values[rows] for name, values in table.inputs.items()}
        data["outcome"] = table.outcome[rows]
        if grouped:
            data["group"] = np.asarray([members.index(m) for m in table.labels[rows]], dtype=float)
        fit = fit_law(
            fitted,
            data,
            clusters=table.clusters[rows],
            controls=FitControls(resamples=weights[:, rows], rows=table.rows[rows]),
            **options,
        )
        for number, name in enumerate(members):
            if not fit.usable:
                left_out[name] = f"its law is {fit.status}: {fit.sentence}"
                continue
            parameter_indices = [
                fitted.parameter_names.index(f"{p}[{name}]" if grouped and p not in shared else p)
                for p in law.parameter_names
            ]
            families[name] = table.family(
                name, fit, np.asarray(parameter_indices), law, number if grouped else None, weights
            )
    if not families:
        raise ValueError("families: no architecture has a usable law; " + "; ".join(f"{k}: {v}" for k, v in left_out.items()))  # fmt: skip
    fits = [f.fit for f in families.values()]
    return ArchitectureLaws(
        by_name=families,
        left_out=left_out,
        outcome=outcome,
        level=level,
        drawn_level=max(f.levels.coefficient for f in fits),
        n_draws=min(len(f.draws) for f in fits),
        columns={name: table.home(name) for name in law.inputs},
        notes=tuple(table.notes),
    )


def _grouped(law: Law, shared: Sequence[str], members: Sequence[str]) -> SharedCoefficients:
    if not isinstance(law, SumOfPowers):
        raise ValueError(f"shared: {law.name} is no sum of powers, so its coefficients cannot be shared; leave shared out")  # fmt: skip
    unknown = set(shared) - set(law.parameter_names)
    if unknown:
        raise ValueError(f"shared: must name parameters of {law.name} ({', '.join(law.parameter_names)}), got {', '.join(sorted(unknown))}")  # fmt: skip
    own = [p for p in law.parameter_names if p not in shared]
    return SharedCoefficients(law, own=own, groups=members)


class _Table:
    """The columns that are needed, checked row by row before they are taken apart by architecture."""

    def __init__(
        self, runs: Runs, law: Law, outcome: str, architecture: str,
        columns: Mapping[str, str], clusters: str | None,
    ) -> None:  # fmt: skip
        unknown = set(law.inputs) - {*SIZE_INPUTS, "tokens", "n_memory"}
        if unknown:
            raise ValueError(f"law: {law.name} needs {', '.join(sorted(unknown))}; architectures are compared by laws of size, tokens and memory")  # fmt: skip
        self.runs, self.law, self.notes = runs, law, list[str]()
        self.rows = _row_numbers(runs, len(self._raw(architecture)))
        self.columns = columns
        self.labels = np.asarray([str(a) for a in self._raw(architecture)])
        self.names = sorted(set(self.labels.tolist()))
        self.outcome = self._numbers(outcome)
        self.inputs = {
            name: self._numbers(self.home(name), zero=name in law.may_be_zero)
            for name in law.inputs
        }
        self.size = next(self.inputs[n] for n in SIZE_INPUTS if n in self.inputs)
        n = len(self.labels)
        memory = next((c for c in COLUMNS["n_memory"] if c in runs), None)
        self.memory = np.zeros(n) if memory is None else self._numbers(memory, zero=True)
        self.tokens = self.inputs.get("tokens")
        chosen = clusters or ("configuration" if "configuration" in runs else None)
        if chosen is None:
            matrix = np.stack(list(self.inputs.values()), axis=1)
            place = np.unique(matrix, axis=0, return_inverse=True)[1].reshape(-1)
            configurations = [f"{p:09d}" for p in place]
        else:
            configurations = [str(c) for c in self._raw(chosen)]
        # Architectures never share a configuration, whatever somebody's labels say.
        self.clusters = np.asarray(
            [f"{a} {c}" for a, c in zip(self.labels, configurations, strict=True)]
        )

    def resampled(self, members: Sequence[str], *, n_draws: int, seed: int, needed: int) -> Array:
        """Return (n_draws, n) how often each run counts; each architecture is resampled by itself."""
        weights = np.zeros((n_draws, len(self.labels)))
        if not n_draws:
            return weights
        for name in members:
            rows = np.flatnonzero(self.labels == name)
            matrix = np.stack([v[rows] for v in self.inputs.values()], axis=1)
            place = np.unique(matrix, axis=0, return_inverse=True)[1].reshape(-1)
            member = (place[None, :] == np.arange(place.max() + 1)[:, None]).astype(np.float64)
            least = min(needed, len(member))

            def accept(w: Array, m: Array = member, least: int = least) -> NDArray[np.bool_]:
                enough: NDArray[np.bool_] = ((w @ m.T) > 0).sum(axis=1) >= least
                return enough

            # Its own stream of random numbers, so that another architecture changes nothing here.
            own_seed = int(np.random.SeedSequence([seed, *name.encode()]).generate_state(1)[0])
            drawn = resample_clusters(
                self.clusters[rows], n_draws=n_draws, seed=own_seed, accept=accept
            )
            weights[:, rows] = drawn.weights
        return weights

    def family(
        self, name: str, fit: LawFit, parameter_indices: NDArray[np.int64], law: Law,
        group: int | None, weights: Array,
    ) -> ArchitectureLaw:  # fmt: skip
        """Return the architecture with its costs, fitted to all its runs and to every draw."""
        rows = np.flatnonzero(self.labels == name)
        N, M = self.size[rows], self.memory[rows]
        costs: dict[str, Array] = {}
        cost_draws: dict[str, Array] = {}
        amounts: dict[str, tuple[float, float]] = {}
        unpriced: dict[str, str] = {}
        errors: dict[str, float] = {}
        for measure in COST_MEASURES.values():
            amount = self._amount(measure, rows)
            if isinstance(amount, str):
                unpriced[measure.name] = amount
                continue
            amounts[measure.name] = (float(amount.min()), float(amount.max()))
            if measure.with_tokens and self.tokens is not None:
                amount = amount / self.tokens[rows]
            both = np.vstack([np.ones(len(rows)), weights[:, rows]])
            fitted = fit_cost(N, M, amount, both)
            if not fitted[0, 1:].any() and np.ptp(N) > 0:
                unpriced[measure.name] = "it does not grow with size in these runs"
                continue
            costs[measure.name], cost_draws[measure.name] = fitted[:1], fitted[1:]
            errors[measure.name] = float(np.abs(cost_at(fitted[0], N, M) / amount - 1).max())
        knows = "n_memory" in law.inputs
        domain = Domain(
            params=(float(N.min()), float(N.max())),
            tokens=None
            if self.tokens is None
            else (float(self.tokens[rows].min()), float(self.tokens[rows].max())),
            ratios=_ratios(M / N) if knows else np.zeros(1),
            memory=None if knows or not M.any() else _profile(N, M),
            amounts=amounts,
            unpriced=unpriced,
            price_error=errors,
        )
        vector = np.asarray(list(fit.parameters.values()))[None, parameter_indices]
        curve = Curve(law=law, parameters=vector, costs=costs, domain=domain)
        return ArchitectureLaw(
            name=name,
            fit=fit,
            parameter_indices=parameter_indices,
            group=group,
            curve=curve,
            cost_draws=cost_draws,
        )

    def _amount(self, measure: CostMeasure, rows: NDArray[np.int64]) -> Array | str:
        if measure.column in self.runs:
            values = np.asarray(self.runs[measure.column], dtype=np.float64)[rows]
            if not (np.isfinite(values) & (values > 0)).all():
                return f"column {measure.column} has an empty or impossible cell among its runs"
            return values
        if measure.name == "flops" and self.tokens is not None:
            self._note("no column training_flops: C = 6 N D")
            return np.asarray(6.0 * self.size[rows] * self.tokens[rows])
        if measure.name == "stored_bytes" and "total_params" in self.runs:
            self._note(f"no column stored_bytes: {BYTES_PER_PARAM:g} bytes a stored parameter")
            return BYTES_PER_PARAM * np.asarray(self.runs["total_params"], dtype=np.float64)[rows]
        if measure.name in ("active_params", "total_params") and not self.memory.any():
            return self.size[rows]
        return f"the table has no column {measure.column}"

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def home(self, name: str) -> str:
        """Return the column that holds an input of the law."""
        if name in self.columns:
            return self.columns[name]
        return next((c for c in COLUMNS[name] if c in self.runs), name)

    def _raw(self, name: str) -> Any:
        if name not in self.runs:
            raise ValueError(f"{name}: no such column; there are {', '.join(map(str, self.runs))}; rename it, or say which one it is")  # fmt: skip
        return self.runs[name]

    def _numbers(self, name: str, *, zero: bool = False) -> Array:
        try:
            values = np.asarray(self._raw(name), dtype=np.float64)
        except (TypeError, ValueError):
            values = numbers(self.runs, name, zero=zero)  # names the cell
        bad = ~np.isfinite(values) | (values < 0 if zero else values <= 0)
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            must = "must not be negative" if zero else "must be positive"
            raise ValueError(f"{name}, row {self.rows[first]}: {must} and finite, got {values[first]}; correct the row or take it out")  # fmt: skip
        return values


def _row_numbers(runs: Runs, n: int) -> NDArray[np.int64]:
    """Return what the rows are called: as `analysis.load` numbered them in the file, some of which may be left out; else from 0."""
    named = np.asarray(runs["row"]) if "row" in runs else np.empty(0)
    if named.shape == (n,) and np.issubdtype(named.dtype, np.integer):
        return named.astype(np.int64)
    return np.arange(n)


def _ratios(ratios: Array) -> Array:
    """Return the memory per parameter that models are built with; those within 1 % are one."""
    found = np.unique(ratios)
    positive = found[found > 0]
    distinct = positive[np.concatenate([[True], np.diff(np.log(positive)) > 0.01])] if len(positive) else positive  # fmt: skip
    if len(distinct) > MOST_RATIOS:
        distinct = np.geomspace(distinct[0], distinct[-1], MOST_RATIOS)
    return np.concatenate([found[found == 0], distinct])


def _profile(params: Array, memory: Array) -> tuple[Array, Array]:
    """Return ln N, increasing, and the mean M/N of the runs of that size."""
    sizes, member = np.unique(params, return_inverse=True)
    total = np.bincount(member.reshape(-1), weights=memory / params)
    return np.log(sizes), np.asarray(total / np.bincount(member.reshape(-1)))
