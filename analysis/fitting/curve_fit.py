"""Fit a curve of one size to runs: several starts, exact gradients, resampled intervals, a hold-out, and a status.

The procedure is the same for every fit (`analysis/fitting/multistart.py`); the curves are in files of their own.
Scaling: x is divided by its geometric mean and y by its spread before anything is fitted, because raw amplitudes
and exponents correlate near one.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.fitting.bootstrap import percentile_interval
from analysis.fitting.curve import CurveFit, CurveLaw, HoldOut
from analysis.fitting.interval_calibration import Levels
from analysis.fitting.multistart import (
    Optimum,
    find_optimum,
    levels_for,
    refit,
    resample,
    search_summary,
)
from analysis.fitting.result import FitStatus

Array = NDArray[np.float64]

HOLD_OUT_SHARE = 0.25
"""Share of the distinct sizes held out, the largest; at least one."""

HOLD_OUT_DRAWS = 300
"""Resamples behind the interval of a held-out prediction; it needs less precision than a reported interval."""


def fit_curve(
    law: CurveLaw,
    x: ArrayLike,
    y: ArrayLike,
    *,
    clusters: Sequence[Any] | None = None,
    huber: float | None = None,
    n_draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    calibrate: bool = True,
    hold_out: bool = True,
    resamples: ArrayLike | None = None,
) -> CurveFit:
    """Fit `law` to runs (x, y).

    Args:
        law: Family of curves.
        x: Size per run, positive.
        y: Outcome per run.
        clusters: Configuration per run; runs of one configuration (its seeds) are resampled together.
            None makes every distinct x a configuration.
        huber: Residual, in units of y, beyond which a run pulls with constant force; None is least squares.
        n_draws: Resamples for intervals; 0 for none.
        seed: Of the resampling.
        level: Of the intervals.
        calibrate: Whether percentiles of the draws are taken where they hold the truth at `level`
            (`analysis/fitting/interval_calibration.py`); False takes those at `level`.
        hold_out: Whether to predict the largest sizes from the smaller ones, too.
        resamples: (n_draws, n) how often each run occurs in each resample, in place of drawing them.

    Raises:
        ValueError: If x and y differ in length, are not finite, or an x is not positive.
    """
    xs, ys, labels = _checked(x, y, clusters, huber)
    order = np.lexsort(
        (labels, ys, xs)
    )  # one order for every caller: results do not depend on the order of the rows
    xs, ys, labels = xs[order], ys[order], labels[order]
    n_distinct = len(np.unique(xs))
    facts: dict[str, Any] = {
        "law": law,
        "level": level,
        "x": xs[np.argsort(order)],
        "y": ys[np.argsort(order)],
        "clusters": tuple(labels[np.argsort(order)].tolist()),
        "n_configurations": len(np.unique(labels)),
        "n_distinct_x": n_distinct,
        "degrees_of_freedom": n_distinct - law.n_free,
    }
    needed = law.n_free + 1
    if n_distinct < needed:
        sizes = "size" if n_distinct == 1 else "sizes"
        return _without_numbers(
            Optimum(
                status=FitStatus.UNDERDETERMINED,
                sentence=f"{n_distinct} distinct {sizes} for {law.n_free} parameters; a fit needs at least {needed}, so add {needed - n_distinct}",
            ),
            facts,
        )
    if float(np.ptp(ys)) <= 1e-12 * float(np.max(np.abs(ys), initial=0.0)):
        return _without_numbers(
            Optimum(
                status=FitStatus.FLAT,
                sentence=f"every run has the value {ys[0]:.6g}; there is no curve to fit",
            ),
            facts,
        )

    problem = law.scaled(xs, ys)
    found = find_optimum(
        problem, huber=None if huber is None else huber / problem.y_unit, singular=False
    )
    if found.theta is None:
        return _without_numbers(found, facts)
    best_parameters = problem.unscale(found.theta[None, :])[0]
    if resamples is not None:
        drawn = refit(problem, found, np.asarray(resamples, dtype=np.float64)[:, order])
    else:
        drawn = resample(
            problem,
            found,
            labels=labels,
            places=np.unique(xs, return_inverse=True)[1],
            n_free=law.n_free,
            n_draws=n_draws,
            seed=seed,
        )
    draws = problem.unscale(drawn.theta)
    levels = levels_for(level, problem, found, drawn, labels) if calibrate else Levels.plain(level)
    residuals = (ys - law.evaluate(xs, best_parameters))[np.argsort(order)]
    held, note = (
        _hold_out(law, xs, ys, labels, huber, seed, level) if hold_out else (None, "not asked for")
    )
    names = law.parameter_names
    return CurveFit(
        sentence=found.sentence,
        parameters=MappingProxyType(dict(zip(names, best_parameters.tolist(), strict=True))),
        intervals=MappingProxyType(
            {
                name: percentile_interval(draws[:, i], level=levels.coefficient)
                for i, name in enumerate(names)
            }
            if len(draws)
            else {}
        ),
        draws=draws,
        residuals=residuals,
        objective=found.objective * problem.y_unit**2,
        **search_summary(found, drawn),
        levels=levels,
        hold_out=held,
        hold_out_note=note,
        **facts,
    )


def _without_numbers(found: Optimum, facts: Mapping[str, Any]) -> CurveFit:
    return CurveFit(
        sentence=found.sentence,
        parameters=MappingProxyType({}),
        intervals=MappingProxyType({}),
        draws=np.empty((0, len(facts["law"].parameter_names))),
        residuals=np.empty(0),
        objective=float("nan"),
        hold_out=None,
        hold_out_note="no fit, so nothing was held out",
        **search_summary(found),
        levels=Levels.plain(facts["level"]),
        **facts,
    )


def _checked(
    x: ArrayLike, y: ArrayLike, clusters: Sequence[Any] | None, huber: float | None
) -> tuple[Array, Array, NDArray[Any]]:
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if xs.ndim != 1 or xs.shape != ys.shape or not len(xs):
        raise ValueError(
            f"x and y: must be lists of one length, got shapes {xs.shape} and {ys.shape}; pass one value per run"
        )
    if not (np.isfinite(xs).all() and np.isfinite(ys).all()):
        raise ValueError(
            "x and y: must be finite; exclude runs without a value first (analysis.load does)"
        )
    if not (xs > 0).all():
        raise ValueError(f"x: must be positive, got {xs.min()}; sizes and FLOPs are")
    if huber is not None and not huber > 0:
        raise ValueError(f"huber: must be positive, got {huber}; None is least squares")
    if clusters is None:
        return xs, ys, xs
    labels = np.asarray([str(label) for label in clusters])
    if labels.shape != xs.shape:
        raise ValueError(
            f"clusters: must name one configuration per run ({len(xs)}), got {len(labels)}"
        )
    return xs, ys, labels


def _hold_out(
    law: CurveLaw,
    x: Array,
    y: Array,
    labels: NDArray[Any],
    huber: float | None,
    seed: int,
    level: float,
) -> tuple[HoldOut | None, str]:
    sizes = np.unique(x)
    n_held = min(max(1, round(HOLD_OUT_SHARE * len(sizes))), len(sizes) - law.n_free - 1)
    if n_held < 1:
        return (
            None,
            f"not possible: {len(sizes)} distinct sizes, {law.n_free + 2} are needed to hold one out",
        )
    held = sizes[-n_held:]
    small = ~np.isin(x, held)
    fit = fit_curve(
        law,
        x[small],
        y[small],
        clusters=list(labels[small]),
        huber=huber,
        n_draws=HOLD_OUT_DRAWS,
        seed=seed,
        level=level,
        hold_out=False,
    )
    if not fit.usable:
        return None, f"not possible: the smaller runs alone are {fit.status} ({fit.sentence})"
    prediction = fit.predict(held)
    observed = np.asarray([y[x == size].mean() for size in held])
    error = np.abs(prediction.y - observed)
    relative = float(np.mean(error / np.abs(observed))) if (observed != 0).all() else None
    result = HoldOut(
        x=tuple(held.tolist()),
        observed=tuple(observed.tolist()),
        predicted=tuple(prediction.y.tolist()),
        low=tuple(prediction.low.tolist()),
        high=tuple(prediction.high.tolist()),
        mean_absolute_error=float(error.mean()),
        mean_relative_error=relative,
        n_fitted_x=len(sizes) - n_held,
    )
    return result, f"largest {n_held} of {len(sizes)} sizes predicted from the rest"
