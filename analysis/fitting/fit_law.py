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
from analysis.fitting.fit_data import FitData, read_fit_data
from analysis.fitting.hold_out import held_out
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
from analysis.fitting.result import FitStatus, HoldOut, LawFit
from analysis.fitting.run_warnings import check_groups, check_outliers, check_table
from analysis.fitting.verdict import too_few_for_intervals
from analysis.loading.columns import HasTable, Runs, as_columns, numbers, seeds_of
from analysis.loading.validation import ALL_KINDS

Array = NDArray[np.float64]

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
    """(n,), positive: how much each row counts in the objective; None is one each."""
    calibrate: bool = True
    """Whether percentiles of the draws are taken where they hold the truth at `level`
    (`analysis/fitting/interval_calibration.py`); False takes those at `level`."""
    rows: NDArray[np.int64] | None = None
    """(n,): what warnings call the rows, where they are a part of a table; None counts from 0."""
    configurations: NDArray[np.int64] | None = None
    """(n,): of which each run is a seed, for warnings alone; None leaves it to `clusters` and the
    columns of the table."""


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
        columns: The law's input names to the columns that hold them. An input that is not named is
            the column of its name; else, of `analysis.load`'s columns, `active_params` is the size
            and `training_tokens` the tokens (`analysis/loading/columns.py: OURS`).
        clusters: Configuration (or run, for checkpoints) per row, or the column that holds it; rows
            of one are resampled together. None makes rows of equal inputs one configuration.
        objective: What is minimised. None is the law's own: mostly Huber(1e-3) of log errors.
        sigma: (n,) standard deviations of residuals, one for all, or their column: relative ones
            (0.01 is one per cent) where residuals are of logs. A run counts 1 / sigma^2.
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
    law, runs = restricted(as_law(law), fixed, bounds), as_columns(runs)
    objective = objective or law.default_objective
    # Before the search: impossible units are refused at once, and a fit without numbers has its
    # warnings, too.
    data = read_fit_data(law, runs, outcome, columns, clusters, objective, sigma)
    controls, stated_sd = _weighted(controls, runs, sigma, len(data.y))
    seeds = controls.configurations
    if seeds is None:
        seeds = seeds_of(runs, clusters, data.places)
    named = clusters is not None
    warnings = check_table(law, runs, data, outcome, named, seeds, accept, controls.rows)
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
        groups = check_groups(problem, found.theta, fit.residuals, data, controls.rows)
    if not groups and "outliers" not in accept:
        groups = check_outliers(fit, controls.rows)
    warnings += groups
    options = {"objective": objective, "n_draws": n_draws, "seed": seed, "level": level}
    mask, held_note = held_out(law, data, hold_out)
    held = None
    if mask is not None:
        held, failed = _predict_held_out(law, data, mask, fit.weights, options)
        held_note = failed or held_note
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


def restricted(
    law: Law, fixed: Mapping[str, float] | None, bounds: Mapping[str, tuple[float, float]] | None
) -> Law:
    """Return the law with parameters fixed or bounded, as `fit_law` takes them.

    Raises:
        ValueError: If the law has no such parameter, or it cannot have such values.
    """
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
        if controls.weights is not None:
            given = numbers({"controls.weights": controls.weights}, "controls.weights")
            if len(given) != n:
                raise ValueError(
                    f"controls.weights: {len(given)} values for {n} runs; give one per run"
                )
        return controls, float("nan")
    if controls.weights is not None:
        raise ValueError("sigma: controls.weights are given, too; give one of the two")
    if not isinstance(sigma, str) and np.ndim(sigma) == 0:
        sigma = np.full(n, sigma)
    named = {"sigma": sigma} if not isinstance(sigma, str) else runs
    values = numbers(named, sigma if isinstance(sigma, str) else "sigma")
    if len(values) != n:
        raise ValueError(f"sigma: {len(values)} values for {n} runs; give one per run")
    weights = values**-2.0
    mean = float(weights.mean())
    return replace(controls, weights=weights / mean), mean**-0.5


def _optimise(
    law: Law, data: FitData, objective: Objective, controls: FitControls
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
    data: FitData,
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


def _without_numbers(
    law: Law,
    data: FitData,
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
        columns=data.columns,
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
    data: FitData,
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
    _check_kept(fit.law, best)
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


def _check_kept(law: Law, parameters: Array) -> None:
    """Raise unless parameters (p,) are where `fixed` and `bounds` keep them."""
    for name, value in zip(law.parameter_names, parameters.tolist(), strict=True):
        low, high = law.bounds.get(name, (value, value))
        if not np.isclose(value, np.clip(value, low, high), rtol=1e-6, atol=1e-7):
            raise ValueError(
                f"{name}: given as {low:g}..{high:g}, but {value:g} after the fit; {law.name} must "
                "name in `Parameter.coupled_to` what else its internal value depends on"
            )


def _with_warnings(sentence: str, warnings: Sequence[str]) -> str:
    return f"{sentence}. Look at: {'; '.join(warnings)}" if warnings else sentence


def _predict_held_out(
    law: Law, data: FitData, mask: NDArray[np.bool_], weights: Array, options: Mapping[str, Any]
) -> tuple[HoldOut | None, str]:
    """Return the runs of the mask with predictions by the others, or why these have no fit."""
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
    # Weights are relative to a run of weight one, so its sigma counts as one.
    fit = replace(fit, stated_sd=1.0)
    result = HoldOut(
        rows=np.flatnonzero(mask),
        places=data.places[mask],
        observed=data.y[mask],
        prediction=fit.predict(
            {k: v[mask] for k, v in data.inputs.items()}, sigma=weights[mask] ** -0.5
        ),
        n_fitted=int((~mask).sum()),
    )
    return result, ""


def _constant_names(inputs: Mapping[str, Array]) -> str:
    names = [name for name, values in inputs.items() if np.ptp(values) <= 1e-12 * values.max()]
    return f"{' and '.join(names)} is" if names else "what one exponent acts on is"
