"""Fit a law of several sizes to runs, and what comes of it.

    from analysis.fitting.fit_law import fit_law
    from analysis.laws.chinchilla import CHINCHILLA
    fit = fit_law(CHINCHILLA, table, outcome="loss", columns={"params": "total_params"})
    fit.parameters, fit.intervals, fit.predict({"params": 7e10, "tokens": 1.4e12})

The unit of resampling is the configuration (`clusters`): its seeds and its checkpoints share more than the law, so
they are drawn together, never apart.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.fitting.bootstrap import percentile_interval
from analysis.fitting.interval_calibration import Levels
from analysis.fitting.law import Law, LogProblem
from analysis.fitting.multistart import (
    Optimum,
    find_optimum,
    levels_for,
    no_draws,
    refit,
    resample,
    search_summary,
)
from analysis.fitting.objective import Objective
from analysis.fitting.result import Band, FitResult, FitStatus, confidence_band, prediction_band
from analysis.loading.columns import LOSS_ADVICE, column, equal_rows, labels, numbers
from analysis.loading.columns import Runs as Runs
from analysis.loading.validation import (
    SIZES,
    DataWarning,
    WarningKind,
    check_architecture_names,
    check_flops,
    check_mixture,
    check_residual_groups,
    check_runs,
    check_size_units,
    refuse_bad_units,
)

Array = NDArray[np.float64]

HOLD_OUT_SHARE = 0.25
"""Share of the configurations held out, the largest."""

HOLD_OUT_DRAWS = 300
"""Resamples behind the band of a held-out prediction."""

FEWEST_SPARE = 2
"""Degrees of freedom below which resampling says nothing about the error, so no interval is given."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LawPrediction(Band):
    """A law at given inputs."""

    inputs: Mapping[str, Array]
    distance: Array
    """Largest factor by which an input lies outside the fitted runs; 1 inside."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LargestRuns:
    """The largest runs, predicted by the law fitted to the smaller ones only."""

    rows: NDArray[np.int64]
    """Row numbers, in the order given."""
    observed: Array
    predicted: Array
    new_low: Array
    new_high: Array
    """Prediction interval of each run."""
    n_fitted: int
    """Runs left to fit."""

    @property
    def log_errors(self) -> Array:
        """ln(predicted) - ln(observed) per run."""
        return np.asarray(np.log(self.predicted) - np.log(self.observed))

    @property
    def mean_absolute_log_error(self) -> float:
        """0.01 is one per cent."""
        return float(np.abs(self.log_errors).mean())

    @property
    def rms_log_error(self) -> float:
        """Root mean square of the log errors."""
        return float(np.sqrt(np.mean(self.log_errors**2)))

    @property
    def bias(self) -> float:
        """Mean log error: above 0 the law promises too high a loss."""
        return float(self.log_errors.mean())

    @property
    def relative_errors(self) -> Array:
        """|predicted - observed| / observed per run."""
        return np.asarray(np.abs(self.predicted - self.observed) / self.observed)

    @property
    def covered(self) -> float:
        """Share of runs inside their prediction interval."""
        return float(np.mean((self.observed >= self.new_low) & (self.observed <= self.new_high)))


@dataclass(frozen=True, kw_only=True, eq=False)
class LawFit(FitResult):
    """A law fitted to runs."""

    law: Law
    inputs: Mapping[str, Array]
    """In the order given, under the law's names."""
    objective_of: Objective
    huber: float | None
    """Threshold in use, in the units of the residuals; None is least squares."""
    draw_objectives: Array
    """(n_draws,): objective of every resample's refit."""
    hold_out: LargestRuns | None
    hold_out_note: str
    outcome: str = "loss"
    """Name of the column that was explained."""

    @property
    def n_free(self) -> int:
        """Fitted parameters."""
        return self.law.n_free

    def predict(self, inputs: Mapping[str, ArrayLike]) -> LawPrediction:
        """Return the law at `inputs` (n,) with its confidence band and the wider one of a new run.

        Raises:
            ValueError: If the fit has no numbers, or an input is missing or not positive.
        """
        best = self._vector()
        at = _inputs_of(self.law, inputs)
        y = self.law.evaluate(at, best)
        curves = self.law.evaluate(at, self.draws) if len(self.draws) else np.empty((0, len(y)))
        low, high = confidence_band(curves, self.levels.curve)
        new_low, new_high = prediction_band(
            curves,
            self.residuals,
            n_free=self.n_free,
            level=self.levels.new_run,
            relative=self.objective_of.residual == "log",
        )
        distance = np.ones(len(y))
        with np.errstate(divide="ignore", invalid="ignore"):
            for name in self.law.inputs:
                seen = self.inputs[name]
                beyond = np.maximum(at[name] / seen.max(), seen.min() / at[name])
                distance = np.fmax(distance, np.where(at[name] == 0, 1.0, beyond))
        return LawPrediction(
            inputs=at,
            y=y,
            low=low,
            high=high,
            new_low=new_low,
            new_high=new_high,
            level=self.level,
            extrapolated=distance > 1 + 1e-9,
            distance=distance,
        )

    def problem(self) -> LogProblem:
        """Return the optimiser's view of the runs, for a profile likelihood (`analysis/fitting/profile_likelihood.py`)."""
        return LogProblem(self.law, self.inputs, self.y, self.objective_of)


def fit_law(
    law: Law,
    runs: Runs,
    *,
    outcome: str = "loss",
    columns: Mapping[str, str] | None = None,
    clusters: Sequence[Any] | NDArray[Any] | str | None = None,
    objective: Objective | None = None,
    n_draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    calibrate: bool = True,
    hold_out: bool = True,
    held: ArrayLike | None = None,
    starts: ArrayLike | None = None,
    resamples: ArrayLike | None = None,
    accept: Collection[str] = (),
    rows: NDArray[np.int64] | None = None,
) -> LawFit:
    """Fit `law` to runs.

    Args:
        law: Of `analysis/laws`.
        runs: Columns, one row per run.
        outcome: Column to explain; positive.
        columns: The law's input names to the columns that hold them, where they differ.
        clusters: Configuration (or run, for checkpoints) per row, or the column that holds it; rows of one are
            resampled together. None makes rows of equal inputs one configuration.
        objective: What is minimised; Huber(1e-3) of log errors if None, as Hoffmann et al. 2022.
        n_draws: Resamples behind the intervals; 0 for none.
        seed: Of the resampling.
        level: Of the intervals.
        calibrate: Whether percentiles of the draws are taken where they hold the truth at `level`
            (`analysis/fitting/interval_calibration.py`); False takes those at `level`.
        hold_out: Whether to predict the largest runs from the smaller ones, too.
        held: Mask (n,) of the runs to hold out; None takes the largest quarter of the configurations.
        starts: (S, p) in the units of the data; None lets the law spread its own.
        resamples: (n_draws, n) how often each row occurs in each resample, in place of drawing them.
        accept: Doubts about the table that were looked into (`analysis/loading/validation.py`): sizes of mixed units are refused
            otherwise, the others are said in the sentence and listed in `warnings`.
        rows: What doubts call the rows (n,), where `runs` is a part of a table; None counts them from 0.

    Raises:
        ValueError: If a column is missing, or a value cannot be: the message names the row.
    """
    objective = objective or Objective()
    names = columns or {}
    given = {name: column(runs, names.get(name, name)) for name in law.inputs}
    inputs = _inputs_of(law, given, names)
    y = numbers(runs, outcome, why=LOSS_ADVICE)
    n = len(y)
    for name, values in inputs.items():
        if len(values) != n:
            raise ValueError(f"{name}: {len(values)} values for {n} runs; give one per run")
    sizes = [inputs[name] for name in law.inputs]
    places = equal_rows(*sizes)
    clustered = labels(runs, clusters, places)
    warnings = _doubts(law, runs, inputs, y, outcome, clusters, accept, rows)
    # One order for every caller: results do not depend on the order of the rows.
    order = np.lexsort((clustered, y, *sizes[::-1]))
    back = np.argsort(order)
    facts: dict[str, Any] = {
        "law": law,
        "outcome": outcome,
        "inputs": MappingProxyType(inputs),
        "objective_of": objective,
        "level": level,
        "y": y,
        "clusters": tuple(clustered.tolist()),
        "n_configurations": len(np.unique(clustered)),
        "degrees_of_freedom": int(places.max()) + 1 - law.n_free,
    }
    n_distinct = int(places.max()) + 1
    needed = law.n_free + 1
    if n_distinct < needed:
        return _without_numbers(
            Optimum(
                status=FitStatus.UNDERDETERMINED,
                sentence=f"{n_distinct} distinct {'run' if n_distinct == 1 else 'runs'} for {law.n_free} parameters; a fit needs at least {needed}, so add {needed - n_distinct}",
            ),
            facts,
            warnings,
        )
    if float(np.ptp(y)) <= 1e-12 * float(np.max(y)):
        return _without_numbers(
            Optimum(
                status=FitStatus.FLAT,
                sentence=f"every run has the value {y[0]:.6g}; there is no curve to fit",
            ),
            facts,
            warnings,
        )
    problem = LogProblem(law, {k: v[order] for k, v in inputs.items()}, y[order], objective)
    if problem.constant_inputs():
        return _without_numbers(
            Optimum(
                status=FitStatus.UNDERDETERMINED,
                sentence=f"{_constant_names(inputs)} the same in all runs; vary it, or fit a law without it",
            ),
            facts,
            warnings,
        )
    found = find_optimum(
        problem,
        huber=None if objective.huber is None else objective.huber / problem.y_unit,
        huber_scales=objective.huber_scales,
        starts=None if starts is None else problem.scale(np.asarray(starts, dtype=np.float64)),
    )
    if found.theta is None:
        return _without_numbers(found, facts, warnings)
    best = problem.unscale(found.theta[None, :])[0]
    sentence = found.sentence
    if facts["degrees_of_freedom"] < FEWEST_SPARE:
        drawn = no_draws(problem)
        sentence += f"; {n_distinct} distinct runs for {law.n_free} parameters are too few for an interval"  # fmt: skip
    elif resamples is not None:
        drawn = refit(problem, found, np.asarray(resamples, dtype=np.float64)[:, order])
    else:
        drawn = resample(
            problem,
            found,
            labels=clustered[order],
            places=places[order],
            n_free=law.n_free,
            n_draws=n_draws,
            seed=seed,
        )
    draws = problem.unscale(drawn.theta)
    fitted = problem.values(found.theta[None, :])[0]
    residuals = ((fitted - problem.y) * problem.y_unit)[back]
    unit = problem.y_unit
    largest, note = (None, "not asked for")
    if hold_out:
        largest, note = _largest_runs(
            law, inputs, y, clustered, held,
            objective=objective, seed=seed, level=level, n_draws=min(n_draws, HOLD_OUT_DRAWS),
        )  # fmt: skip
    levels = levels_for(level, problem, found, drawn, clustered[order]) if calibrate else Levels.plain(level)  # fmt: skip
    absolute = objective.huber == 0 and objective.huber_scales is None
    at_runs = residuals if objective.residual == "log" else np.log1p(residuals / y)
    apart = None
    if "architectures" not in accept and not warnings:
        jacobian = problem.law.log_jacobian(problem.features, found.theta[None, :])[0].T[back]
        apart = check_residual_groups(at_runs, rows=rows) or check_mixture(at_runs, jacobian, inputs, places, rows=rows)  # fmt: skip
    if apart is not None:
        warnings = [apart.sentence]
    return LawFit(
        sentence=_with_warnings(sentence, warnings),
        warnings=tuple(warnings),
        parameters=MappingProxyType(dict(zip(law.parameter_names, best.tolist(), strict=True))),
        intervals=MappingProxyType(
            {
                name: percentile_interval(draws[:, i], level=levels.coefficient)
                for i, name in enumerate(law.parameter_names)
            }
            if len(draws)
            else {}
        ),
        draws=draws,
        draw_objectives=drawn.objective * unit**2,
        residuals=residuals,
        objective=float(np.abs(residuals).sum()) if absolute else found.objective * unit**2,
        huber=None if found.huber is None else found.huber * unit,
        **search_summary(found, drawn),
        levels=levels,
        hold_out=largest,
        hold_out_note=note,
        **facts,
    )


def _doubts(
    law: Law,
    runs: Runs,
    inputs: Mapping[str, Array],
    y: Array,
    outcome: str,
    clusters: object,
    accept: Collection[str],
    rows: NDArray[np.int64] | None,
) -> list[str]:
    """Return a sentence for everything odd about the table; refuse units that cannot be."""
    refuse_bad_units(
        check_size_units({k: v for k, v in inputs.items() if k in SIZES}, rows=rows), accept=accept
    )
    doubts: list[DataWarning | None] = [
        *check_runs(inputs, y, outcome=outcome, seeds_named=clusters is not None, rows=rows)
    ]
    if "flops" in runs and {"params", "tokens"} <= set(inputs):
        # The law does not use them, so it is no reason to refuse.
        flops = np.asarray(column(runs, "flops"))
        if flops.shape == y.shape and np.issubdtype(flops.dtype, np.number):
            active = numbers(runs, "active_params", zero=True) if "active_params" in runs else inputs["params"]  # fmt: skip
            doubts.append(
                check_flops(flops.astype(np.float64), active, inputs["tokens"], rows=rows)
            )
    if "architecture" in runs and "group" not in inputs:
        doubts.append(check_architecture_names(list(column(runs, "architecture"))))
    return [d.sentence for d in doubts if d is not None and d.kind not in accept]


def _with_warnings(sentence: str, warnings: Sequence[str]) -> str:
    return f"{sentence}. Look at: {'; '.join(warnings)}" if warnings else sentence


def _without_numbers(found: Optimum, facts: Mapping[str, Any], warnings: Sequence[str]) -> LawFit:
    return LawFit(
        sentence=_with_warnings(found.sentence, warnings),
        warnings=tuple(warnings),
        parameters=MappingProxyType({}),
        intervals=MappingProxyType({}),
        draws=np.empty((0, len(facts["law"].parameters))),
        draw_objectives=np.empty(0),
        residuals=np.empty(0),
        objective=float("nan"),
        huber=None,
        **search_summary(found),
        levels=Levels.plain(facts["level"]),
        hold_out=None,
        hold_out_note="no fit, so nothing was held out",
        **facts,
    )


def _largest_runs(
    law: Law,
    inputs: Mapping[str, Array],
    y: Array,
    labels: NDArray[Any],
    held: ArrayLike | None,
    *,
    objective: Objective,
    seed: int,
    level: float,
    n_draws: int,
) -> tuple[LargestRuns | None, str]:
    if held is None:
        # Rounded, so that equal budgets reached by different sizes stay together.
        sizes = np.asarray(law.size(inputs)).round(9)
        names, member = np.unique(labels, return_inverse=True)
        largest_of = np.asarray([sizes[member == i].max() for i in range(len(names))])
        spare = len(names) - law.n_free - 1
        n_held = min(max(1, round(HOLD_OUT_SHARE * len(names))), spare)
        if n_held < 1:
            return None, f"not possible: {len(names)} configurations, {law.n_free + 2} are needed to hold one out"  # fmt: skip
        last = np.argsort(largest_of, kind="stable")[-n_held:]
        mask = np.isin(member, last)
    else:
        mask = np.asarray(held, dtype=bool)
        if mask.shape != y.shape or not mask.any() or mask.all():
            raise ValueError(f"held: must mark some of the {len(y)} runs, and not all; got {int(mask.sum())} of {len(mask)}")  # fmt: skip
    fit = fit_law(
        law, {**{k: v[~mask] for k, v in inputs.items()}, "outcome": y[~mask]},
        outcome="outcome", clusters=labels[~mask], objective=objective,
        n_draws=n_draws, seed=seed, level=level, hold_out=False, accept=get_args(WarningKind),
    )  # fmt: skip
    if not fit.usable:
        return None, f"not possible: the smaller runs alone are {fit.status} ({fit.sentence})"
    forecast = fit.predict({k: v[mask] for k, v in inputs.items()})
    result = LargestRuns(
        rows=np.flatnonzero(mask),
        observed=y[mask],
        predicted=forecast.y,
        new_low=forecast.new_low,
        new_high=forecast.new_high,
        n_fitted=int((~mask).sum()),
    )
    return result, f"{int(mask.sum())} of {len(y)} runs, the largest, predicted from the rest"


def _inputs_of(
    law: Law, given: Mapping[str, Any], names: Mapping[str, str] | None = None
) -> dict[str, Array]:
    """Return the law's inputs as positive numbers (n,)."""
    inputs = {}
    for name in law.inputs:
        theirs = (names or {}).get(name, name)
        shown = name if theirs == name else f"{name} (column {theirs})"
        values = np.atleast_1d(np.asarray(column(given, name)))
        inputs[name] = numbers({shown: values}, shown, zero=name in law.may_be_zero)
    n = max(len(v) for v in inputs.values())
    return {k: np.broadcast_to(v, n).copy() if len(v) == 1 else v for k, v in inputs.items()}


def _constant_names(inputs: Mapping[str, Array]) -> str:
    names = [name for name, values in inputs.items() if np.ptp(values) <= 1e-12 * values.max()]
    return f"{' and '.join(names)} is" if names else "what one exponent acts on is"
