"""Fits of a scaling law to runs.

The unit of resampling is the configuration (`clusters`): its seeds and its checkpoints share more
than the law, so they are drawn together. Every law goes through this file: laws of several sizes,
curves of one size, and links from loss to accuracy.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.fitting.bootstrap import percentile_interval
from analysis.fitting.interval_calibration import Levels
from analysis.fitting.law import Law, LawProblem, as_law
from analysis.fitting.multistart import (
    Draws,
    Optimum,
    find_optimum,
    levels_for,
    no_draws,
    refit,
    resample,
)
from analysis.fitting.objective import Objective
from analysis.fitting.outliers import scale_of
from analysis.fitting.pooled_conditions import pooled_conditions
from analysis.fitting.result import FitStatus, HoldOut, LawFit, inputs_of
from analysis.fitting.verdict import outliers_of, too_few_for_intervals
from analysis.loading.columns import (
    LOSS_ADVICE,
    OURS,
    HasTable,
    as_columns,
    column,
    equal_rows,
    in_words,
    labels,
    numbers,
)
from analysis.loading.columns import Runs as Runs
from analysis.loading.validation import (
    ALL_KINDS,
    SIZES,
    DataWarning,
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
"""Most resamples behind the band of a held-out prediction; it needs less precision than a
report."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FitControls:
    """Settings of a fit that are seldom changed."""

    starts: ArrayLike | None = None
    """(S, p) in the units of the data; None lets the law spread its own."""
    resamples: ArrayLike | None = None
    """(n_draws, n): how often each row occurs in each resample, in place of drawing them."""
    weights: ArrayLike | None = None
    """(n,): how much each row counts in the objective; None is one each."""
    calibrate: bool = True
    """Whether percentiles of the draws are taken where they hold the truth at `level`
    (`analysis/fitting/interval_calibration.py`); False takes those at `level`."""
    rows: NDArray[np.int64] | None = None
    """(n,): what warnings call the rows, where they are a part of a table; None counts from 0."""


_DEFAULT = FitControls()


def fit_law(
    law: Law | str,
    runs: Runs | HasTable,
    *,
    outcome: str = "loss",
    columns: Mapping[str, str] | None = None,
    clusters: Sequence[Any] | NDArray[Any] | str | None = None,
    objective: Objective | None = None,
    sigma: ArrayLike | str | None = None,
    fixed: Mapping[str, float] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    n_draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    hold_out: bool | ArrayLike = True,
    accept: Collection[str] = (),
    controls: FitControls = _DEFAULT,
) -> LawFit:
    """Fit `law` to runs.

    Args:
        law: Of `analysis/laws`, or its name there.
        runs: Columns, one row per run: a DataFrame, a dict, or what `analysis.load` returns.
        outcome: Column to explain; positive, unless the objective is in the outcome's own units.
        columns: The law's input names to the columns that hold them, where they differ.
        clusters: Configuration (or run, for checkpoints) per row, or the column that holds it; rows
            of one are resampled together. None makes rows of equal inputs one configuration.
        objective: What is minimised. None is the law's own: mostly Huber(1e-3) of log errors.
        sigma: (n,) standard deviations of residuals, or their column: relative ones (0.01 is one
            per cent) where residuals are of logs. A run counts 1 / sigma^2.
        fixed: Known parameters and their values, in the units of the data.
        bounds: Parameters and the two values that they lie between.
        n_draws: Resamples behind the intervals; 0 for none.
        seed: Of the resampling.
        level: Of the intervals.
        hold_out: Whether to predict the largest quarter of the configurations from the smaller
            ones, too; or a mask (n,) of the runs to predict.
        accept: Kinds of warning that were looked into (`analysis/loading/validation.py`).
        controls: Settings that are seldom changed.

    Raises:
        ValueError: If a column is missing, or a value cannot be: the message names the row.

    Example:
        >>> runs = {"size": [1e6, 4e6, 1.6e7, 6.4e7, 2.56e8], "loss": [5.0, 4.0, 3.5, 3.25, 3.125]}
        >>> fit = fit_law("power", runs, columns={"x": "size"}, n_draws=0)
        >>> round(fit.parameters["alpha"], 3), round(fit.parameters["E"], 3)
        (0.5, 3.0)
        >>> fit.predict([1.024e9]).y.round(4).tolist()
        [3.0625]
    """
    _check_draws(level, n_draws)
    law, runs = _within(as_law(law), fixed, bounds), as_columns(runs)
    objective = objective or law.default_objective
    # Before the search: impossible units are refused at once, and a fit without numbers has its
    # warnings, too.
    data = _read(law, runs, outcome, columns, clusters, objective, sigma)
    controls, stated_sd = _weighted(controls, runs, sigma, len(data.y))
    warnings = _check_table(law, runs, data, outcome, clusters is not None, accept, controls.rows)
    # Too few or equal runs are a status, not an error: of many fits one may have no numbers.
    problem, found = _optimise(law, data, objective, controls)
    fit = _without_numbers(law, data, objective, outcome, level, found, warnings, controls.weights)
    fit = replace(fit, stated_sd=stated_sd)
    if problem is None or found.theta is None:
        return fit
    drawn, note = _resample(problem, found, data, controls, n_draws=n_draws, seed=seed)
    fit = _with_numbers(fit, problem, found, drawn, data, controls)
    # What is wrong with the table shows in the residuals again; it is said once.
    groups: list[str] = []
    if not warnings and "architectures" not in accept:
        groups = _check_groups(problem, found.theta, fit.residuals, data, controls.rows)
    if not groups and "outliers" not in accept:
        groups = _check_outliers(fit, controls.rows)
    warnings += groups
    options = {"objective": objective, "n_draws": n_draws, "seed": seed, "level": level}
    held, held_note = _hold_out(law, data, hold_out, fit.weights, options)
    sentence = _with_warnings(found.sentence + note, warnings)
    fit = replace(fit, sentence=sentence, warnings=tuple(warnings))
    return replace(fit, hold_out=held, hold_out_note=held_note)


def _check_draws(level: float, n_draws: int) -> None:
    """Raise unless intervals of `level` can be made of `n_draws` resamples."""
    if not 0 < level < 1:
        raise ValueError(f"level: must lie between 0 and 1, got {level}; 0.95 is 95 %")
    if not isinstance(n_draws, int | np.integer) or n_draws < 0:
        raise ValueError(
            f"n_draws: must be a whole number, got {n_draws}; 1000 is usual, and 0 draws none"
        )


def _within(
    law: Law, fixed: Mapping[str, float] | None, bounds: Mapping[str, tuple[float, float]] | None
) -> Law:
    """Return the law with parameters fixed or bounded."""
    twice = sorted(set(fixed or {}) & set(bounds or {}))
    if twice:
        raise ValueError(f"fixed: {twice[0]} has bounds, too; give one of the two")
    unknown = [name for name in fixed or {} if name not in law.parameter_names]
    if unknown:
        raise ValueError(
            f"fixed: {law.name} has no parameter {unknown[0]}; it has "
            f"{', '.join(law.parameter_names)}"
        )
    given = {**(bounds or {}), **{name: (value, value) for name, value in (fixed or {}).items()}}
    return law.within(given) if given else law


def _weighted(
    controls: FitControls, runs: Runs, sigma: ArrayLike | str | None, n: int
) -> tuple[FitControls, float]:
    """Return the controls with weights 1 / sigma^2, one on average, and sigma at weight one.

    Without sigma the controls are as they were, and the latter NaN.
    """
    if sigma is None:
        return controls, float("nan")
    if controls.weights is not None:
        raise ValueError("sigma: controls.weights are given, too; give one of the two")
    named = {"sigma": sigma} if not isinstance(sigma, str) else runs
    values = numbers(named, sigma if isinstance(sigma, str) else "sigma")
    if len(values) != n:
        raise ValueError(f"sigma: {len(values)} values for {n} runs; give one per run")
    weights = values**-2.0
    mean = float(weights.mean())
    return replace(controls, weights=weights / mean), mean**-0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class _Data:
    """The runs of a fit, read and checked; all in the order given."""

    inputs: dict[str, Array]
    y: Array
    labels: NDArray[Any]
    """(n,): configuration."""
    places: NDArray[np.int64]
    """(n,): the same number for runs of equal inputs."""
    order: NDArray[np.int64]
    """(n,): sorts the rows, so that results do not depend on the order given."""
    conditions: Mapping[str, Sequence[Any]]
    """Columns that the law does not use and whose runs form groups."""

    @property
    def n_distinct(self) -> int:
        """Runs with different inputs."""
        return int(self.places.max()) + 1

    @property
    def n_clusters(self) -> int:
        """Configurations: what is resampled."""
        return len(np.unique(self.labels))

    def chosen(self, rows: NDArray[np.bool_]) -> dict[str, Any]:
        """Return some rows as a table with the column `outcome`."""
        return {**{k: v[rows] for k, v in self.inputs.items()}, "outcome": self.y[rows]}


def _read(
    law: Law,
    runs: Runs,
    outcome: str,
    columns: Mapping[str, str] | None,
    clusters: Sequence[Any] | NDArray[Any] | str | None,
    objective: Objective,
    sigma: ArrayLike | str | None,
) -> _Data:
    names = columns or {}
    given = {name: column(runs, names.get(name, name)) for name in law.inputs}
    inputs = inputs_of(law, given, names)
    y = numbers(
        runs,
        outcome,
        why=LOSS_ADVICE,
        zero=objective.offset > 0,
        negative=objective.residual == "value",
    )
    for name, values in inputs.items():
        if len(values) != len(y):
            raise ValueError(f"{name}: {len(values)} values for {len(y)} runs; give one per run")
    wrong = y[(y < 0) | (y > 1)]
    if law.outcome_is_share and len(wrong):
        raise ValueError(
            f"{outcome}: accuracies lie in [0, 1], got {wrong[0]}; give shares, not per cent"
        )
    sizes = [inputs[name] for name in law.inputs]
    places = equal_rows(*sizes)
    found = labels(runs, clusters, places)
    order = np.lexsort((found, y, *sizes[::-1]))
    used = {outcome, "seed", *SIZES, *(names.get(name, name) for name in law.inputs)}
    used |= {name for ours in OURS.values() for name in ours}
    used |= {sigma} if isinstance(sigma, str) else set()
    conditions = pooled_conditions(runs, used, inputs)
    return _Data(
        inputs=inputs, y=y, labels=found, places=places, order=order, conditions=conditions
    )


def _optimise(
    law: Law, data: _Data, objective: Objective, controls: FitControls
) -> tuple[LawProblem | None, Optimum]:
    """Return the optimiser's view of the runs and the optimum, or why there can be none."""
    inputs, y, n = data.inputs, data.y, data.n_distinct
    needed = law.n_free + 1
    if n < needed:
        what = "size" if len(law.inputs) == 1 else "run"
        return None, Optimum(
            status=FitStatus.UNDERDETERMINED,
            sentence=f"{n} distinct {what}{'' if n == 1 else 's'} for {law.n_free} parameters; "
            f"a fit needs at least {needed}, so add {needed - n}",
        )
    if float(np.ptp(y)) <= 1e-12 * float(np.max(np.abs(y))):
        return None, Optimum(
            status=FitStatus.FLAT,
            sentence=f"every run has the value {y[0]:.6g}; there is no curve to fit",
        )
    order = data.order
    weights = None if controls.weights is None else np.asarray(controls.weights)[order]
    sorted_inputs = {k: v[order] for k, v in inputs.items()}
    problem = LawProblem(law, sorted_inputs, y[order], objective, weights)
    if problem.constant_inputs():
        return None, Optimum(
            status=FitStatus.UNDERDETERMINED,
            sentence=f"{_constant_names(inputs)} the same in all runs; "
            "vary it, or fit a law without it",
        )
    starts = controls.starts
    return problem, find_optimum(
        problem,
        huber=None if objective.huber is None else objective.huber / problem.y_unit,
        huber_scales=objective.huber_scales,
        starts=None if starts is None else problem.scale(np.asarray(starts, dtype=np.float64)),
        allow_singular=law.allow_singular,
    )


def _resample(
    problem: LawProblem,
    found: Optimum,
    data: _Data,
    controls: FitControls,
    *,
    n_draws: int,
    seed: int,
) -> tuple[Draws, str]:
    """Return the refitted resamples, and a note if there are none for want of runs."""
    n_free = problem.law.n_free
    few = too_few_for_intervals(
        problem.law.n_free,
        min_spare=problem.law.min_spare,
        n_distinct=data.n_distinct,
        n_clusters=data.n_clusters,
    )
    if few:
        return no_draws(problem), f"; {few}"
    if controls.resamples is not None:
        weights = np.asarray(controls.resamples, dtype=np.float64)[:, data.order]
        return refit(problem, found, weights), ""
    drawn = resample(
        problem,
        found,
        labels=data.labels[data.order],
        places=data.places[data.order],
        n_free=n_free,
        n_draws=n_draws,
        seed=seed,
    )
    return drawn, ""


def _check_table(
    law: Law,
    runs: Runs,
    data: _Data,
    outcome: str,
    seeds_named: bool,
    accept: Collection[str],
    rows: NDArray[np.int64] | None,
) -> list[str]:
    """Return a sentence for everything odd about the table; refuse units that cannot be."""
    inputs, y = data.inputs, data.y
    sizes = {k: v for k, v in inputs.items() if k in SIZES}
    refuse_bad_units(check_size_units(sizes, rows=rows), accept=accept)
    found: list[DataWarning | None] = []
    if (y > 0).all():
        configurations = np.unique(data.labels, return_inverse=True)[1] if seeds_named else None
        found += check_runs(inputs, y, outcome=outcome, configurations=configurations, rows=rows)
    if "flops" in runs and {"params", "tokens"} <= set(inputs):
        # The law does not use them, so it is no reason to refuse.
        flops = np.asarray(column(runs, "flops"))
        if flops.shape == y.shape and np.issubdtype(flops.dtype, np.number):
            active = inputs["params"]
            if "active_params" in runs:
                active = numbers(runs, "active_params", zero=True)
            found.append(check_flops(flops.astype(np.float64), active, inputs["tokens"], rows=rows))
    if "architecture" in runs and "group" not in inputs:
        told_by = [values for name, values in inputs.items() if name not in (*SIZES, "x")]
        kinds = list(column(runs, "architecture"))
        found.append(check_architecture_names(kinds, told_by, has_experts="experts" in runs))
    return [w.sentence for w in found if w is not None and w.kind not in accept]


def _check_groups(
    problem: LawProblem,
    theta: Array,
    residuals: Array,
    data: _Data,
    rows: NDArray[np.int64] | None,
) -> list[str]:
    """Return a sentence if the residuals are those of two kinds of runs."""
    if (data.y <= 0).any():
        return []
    relative = residuals
    if problem.y is not problem.log_y:
        predicted = problem.law.evaluate(data.inputs, problem.unscale(theta[None, :])[0])
        relative = np.log(np.maximum(predicted, 1e-300) / data.y)
    found = check_residual_groups(relative, rows=rows)
    if found is None:
        jacobian = problem.log_jacobian(theta)[np.argsort(data.order)]
        found = check_mixture(relative, jacobian, data.inputs, data.places, rows=rows)
    return [] if found is None else [found.sentence]


def _check_outliers(fit: LawFit, rows: NDArray[np.int64] | None) -> list[str]:
    """Return a sentence that names the runs far from the curve."""
    found, residuals = outliers_of(fit), fit.standardised
    if not len(found):
        return []
    amount = fit.objective_of.amount
    rms = float(np.sqrt((residuals**2).sum() / (fit.n_points - fit.n_free)))
    scale = scale_of(residuals, fit.n_free)
    named = np.sort(found if rows is None else rows[found])
    lie, them = ("lies", "it") if len(found) == 1 else ("lie", "them")
    return [
        f"{in_words(named)} {lie} far from the curve, by up to "
        f"{amount(abs(residuals[found[0]]))}, where residuals are {amount(scale)} by a robust "
        f"scale ({amount(rms)} by root mean square); look at {them}, and leave out "
        "what was measured wrongly"
    ]


def _without_numbers(
    law: Law,
    data: _Data,
    objective: Objective,
    outcome: str,
    level: float,
    found: Optimum,
    warnings: Sequence[str],
    weights: ArrayLike | None,
) -> LawFit:
    """Return the fit as far as the runs and the search alone decide it."""
    return LawFit(
        law=law,
        outcome=outcome,
        inputs=MappingProxyType(data.inputs),
        y=data.y,
        clusters=tuple(data.labels.tolist()),
        conditions=data.conditions,
        objective_of=objective,
        level=level,
        levels=Levels.plain(level),
        n_configurations=data.n_clusters,
        degrees_of_freedom=data.n_distinct - law.n_free,
        weights=np.ones(len(data.y)) if weights is None else np.asarray(weights, dtype=np.float64),
        status=found.status,
        sentence=_with_warnings(found.sentence, warnings),
        warnings=tuple(warnings),
        draws=np.empty((0, len(law.parameters))),
        gradient_norm=found.gradient,
        moved=found.moved,
        condition_number=found.condition_number,
        n_starts=found.n_starts,
        n_agreeing=found.n_agreeing,
        n_optima=found.n_optima,
    )


def _with_numbers(
    fit: LawFit,
    problem: LawProblem,
    found: Optimum,
    drawn: Draws,
    data: _Data,
    controls: FitControls,
) -> LawFit:
    """Return the fit with its numbers: fitted in scaled units, reported in those of the data."""
    assert found.theta is not None
    # Rows were sorted for the optimiser; residuals go back to the order given.
    residuals = (problem.values(found.theta[None, :])[0] - problem.y) * problem.y_unit
    residuals = residuals[np.argsort(data.order)]
    levels = fit.levels
    if controls.calibrate:
        levels = levels_for(fit.level, problem, found, drawn, data.labels[data.order])
    unit, draws = problem.y_unit, problem.unscale(drawn.theta)
    best = problem.unscale(found.theta[None, :])[0]
    objective = fit.objective_of
    absolute = objective.huber == 0 and objective.huber_scales is None
    names = fit.law.parameter_names
    ends = [percentile_interval(d, level=levels.coefficient) for d in draws.T] if len(draws) else []
    return replace(
        fit,
        parameters=MappingProxyType(dict(zip(names, best.tolist(), strict=True))),
        intervals=MappingProxyType(dict(zip(names, ends, strict=False))),
        levels=levels,
        draws=draws,
        draw_objectives=drawn.objective * unit**2,
        residuals=residuals,
        objective=float((np.abs(residuals) * fit.weights).sum())
        if absolute
        else found.objective * unit**2,
        huber=None if found.huber is None else found.huber * unit,
        share_refused=drawn.share_refused,
        share_unsettled=drawn.share_unsettled,
    )


def _with_warnings(sentence: str, warnings: Sequence[str]) -> str:
    return f"{sentence}. Look at: {'; '.join(warnings)}" if warnings else sentence


def _hold_out(
    law: Law,
    data: _Data,
    held: bool | ArrayLike,
    weights: Array,
    options: Mapping[str, Any],
) -> tuple[HoldOut | None, str]:
    """Return the held-out runs with their predictions, and what was held out or why nothing was."""
    if isinstance(held, bool) and not held:
        return None, "not asked for"
    one_size = len(law.inputs) == 1
    kind = "sizes" if one_size else "configurations"
    groups = data.places if one_size else data.labels
    if isinstance(held, bool):
        # Rounded, so that equal budgets reached by different sizes stay together.
        sizes = np.asarray(law.size(data.inputs)).round(9)
        names, member = np.unique(groups, return_inverse=True)
        largest_of = np.asarray([sizes[member == i].max() for i in range(len(names))])
        n_held = min(max(1, round(HOLD_OUT_SHARE * len(names))), len(names) - law.n_free - 1)
        if n_held < 1:
            distinct = f"{len(names)} {'distinct ' if one_size else ''}{kind}"
            return None, f"not possible: {distinct}, {law.n_free + 2} are needed to hold one out"
        last = np.argsort(largest_of, kind="stable")[-n_held:]
        mask = np.isin(member, last)
        note = f"largest {n_held} of {len(names)} sizes predicted from the rest"
    else:
        mask, one_size = np.asarray(held, dtype=bool), False
        if mask.shape != data.y.shape or not mask.any() or mask.all():
            raise ValueError(
                f"hold_out: must mark some of the {len(data.y)} runs, and not all; "
                f"got {int(mask.sum())} of {len(mask)}"
            )
    if not one_size:
        n = int(mask.sum())
        note = f"{n} of {len(data.y)} runs, the largest, predicted from the rest"
    fit = fit_law(
        law,
        data.chosen(~mask),
        outcome="outcome",
        clusters=data.labels[~mask],
        hold_out=False,
        accept=ALL_KINDS,
        controls=FitControls(weights=weights[~mask]),
        **{**options, "n_draws": min(options["n_draws"], HOLD_OUT_DRAWS)},
    )
    if not fit.usable:
        return None, f"not possible: the smaller runs alone are {fit.status} ({fit.sentence})"
    result = HoldOut(
        rows=np.flatnonzero(mask),
        places=data.places[mask],
        observed=data.y[mask],
        prediction=fit.predict({k: v[mask] for k, v in data.inputs.items()}),
        n_fitted=int((~mask).sum()),
    )
    return result, note


def _constant_names(inputs: Mapping[str, Array]) -> str:
    names = [name for name, values in inputs.items() if np.ptp(values) <= 1e-12 * values.max()]
    return f"{' and '.join(names)} is" if names else "what one exponent acts on is"
