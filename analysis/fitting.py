"""Fit a law to runs: several starts, exact gradients, resampled intervals, a hold-out, and a status.

The procedure is the same for every law (`analysis/curve.py: Law`); the laws are in files of their own.
Scaling: x is divided by its geometric mean and y by its spread before anything is fitted, because raw amplitudes
and exponents correlate near one.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.bootstrap import percentile_interval, resample_clusters
from analysis.curve import CurveFit, FitStatus, HoldOut, Law, ScaledProblem
from analysis.least_squares import Minimum, minimise

Array = NDArray[np.float64]

NEGLIGIBLE = 1e-7
"""Share of the constant's objective below which differences mean nothing: residuals of 0.03 % of the spread."""

HOLD_OUT_SHARE = 0.25
"""Share of the distinct sizes held out, the largest; at least one."""

HOLD_OUT_DRAWS = 300
"""Resamples behind the interval of a held-out prediction; it needs less precision than a reported interval."""


def fit_curve(
    law: Law,
    x: ArrayLike,
    y: ArrayLike,
    *,
    clusters: Sequence[Any] | None = None,
    huber: float | None = None,
    n_draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    hold_out: bool = True,
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
        hold_out: Whether to predict the largest sizes from the smaller ones, too.

    Raises:
        ValueError: If x and y differ in length, are not finite, or an x is not positive.
    """
    xs, ys, labels = _checked(x, y, clusters, huber)
    order = np.lexsort(
        (labels, ys, xs)
    )  # one order for every caller: results do not depend on the order of the rows
    xs, ys, labels = xs[order], ys[order], labels[order]
    n_distinct = len(np.unique(xs))
    empty = np.empty((0, len(law.parameter_names)))
    facts: dict[str, Any] = {
        "law": law,
        "level": level,
        "x": xs[np.argsort(order)],
        "y": ys[np.argsort(order)],
        "clusters": tuple(labels[np.argsort(order)].tolist()),
        "n_configurations": len(np.unique(labels)),
        "n_distinct_x": n_distinct,
    }
    nothing: dict[str, Any] = {
        "parameters": MappingProxyType({}),
        "intervals": MappingProxyType({}),
        "draws": empty,
        "residuals": np.empty(0),
        "objective": float("nan"),
        "gradient_norm": float("nan"),
        "n_starts": 0,
        "n_agreeing": 0,
        "n_optima": 0,
        "share_refused": 0.0,
        "share_unsettled": 0.0,
        "hold_out": None,
        "hold_out_note": "no fit, so nothing was held out",
    }
    needed = law.n_free + 1
    if n_distinct < needed:
        sizes = "size" if n_distinct == 1 else "sizes"
        return CurveFit(
            status=FitStatus.UNDERDETERMINED,
            sentence=f"{n_distinct} distinct {sizes} for {law.n_free} parameters; a fit needs at least {needed}, so add {needed - n_distinct}",
            **facts,
            **nothing,
        )
    if float(np.ptp(ys)) <= 1e-12 * float(np.max(np.abs(ys), initial=0.0)):
        return CurveFit(
            status=FitStatus.FLAT,
            sentence=f"every run has the value {ys[0]:.6g}; there is no curve to fit",
            **facts,
            **nothing,
        )

    problem = law.scaled(xs, ys)
    scaled_huber = None if huber is None else huber / problem.y_unit
    found = _minimise(problem, np.ones((1, len(xs))), problem.starts(), scaled_huber)
    nothing["n_starts"] = len(found.objective)
    constant = _constant_objective(problem.y, scaled_huber)
    best = _best_at_rest(found, constant)
    if best is None:
        return CurveFit(
            status=FitStatus.NOT_CONVERGED,
            sentence=f"the best of {len(found.objective)} starts did not come to rest (gradient {found.gradient[found.objective.argmin()]:.1e}); look at the points for outliers",
            **facts,
            **nothing,
        )
    theta = found.parameters[best]
    if found.objective[best] >= constant * (1 - 1e-6):
        return CurveFit(
            status=FitStatus.FLAT,
            sentence=f"no curve of this form is better than the constant {ys.mean():.6g}: the runs do not improve with size",
            **facts,
            **nothing,
        )

    floor = NEGLIGIBLE * constant
    agreeing = found.objective <= found.objective[best] * (1 + 1e-6) + floor
    met = problem.bounds_met(theta)
    n_optima = _count_optima(problem, found, floor)
    best_parameters = problem.unscale(theta[None, :])[0]
    draws, refused, unsettled = _resample(
        law, problem, xs, labels, theta, scaled_huber, n_draws, seed
    )
    residuals = (ys - law.evaluate(xs, best_parameters))[np.argsort(order)]
    held, note = (
        _hold_out(law, xs, ys, labels, huber, seed, level) if hold_out else (None, "not asked for")
    )
    names = law.parameter_names
    return CurveFit(
        status=FitStatus.HIT_BOUND if met else FitStatus.CONVERGED,
        sentence=_sentence(met, int(agreeing.sum()), len(found.objective), n_optima),
        parameters=MappingProxyType(dict(zip(names, best_parameters.tolist(), strict=True))),
        intervals=MappingProxyType(
            {name: percentile_interval(draws[:, i], level=level) for i, name in enumerate(names)}
            if len(draws)
            else {}
        ),
        draws=draws,
        residuals=residuals,
        objective=float(found.objective[best]) * problem.y_unit**2,
        gradient_norm=float(found.gradient[best]),
        n_starts=len(found.objective),
        n_agreeing=int(agreeing.sum()),
        n_optima=n_optima,
        share_refused=refused,
        share_unsettled=unsettled,
        hold_out=held,
        hold_out_note=note,
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


def _minimise(
    problem: ScaledProblem, weights: Array, starts: Array, huber: float | None
) -> Minimum:
    return minimise(
        problem.values,
        problem.jacobian,
        problem.y,
        np.broadcast_to(weights, (len(starts), len(problem.y))),
        starts,
        lower=problem.lower,
        upper=problem.upper,
        huber=huber,
    )


def _constant_objective(y: Array, huber: float | None) -> float:
    """Return the objective of the best constant (for Huber: of the better of mean and median, which bounds it)."""
    levels = np.asarray([y.mean(), np.median(y)])
    size = np.abs(y[None, :] - levels[:, None])
    loss = (
        0.5 * size**2
        if huber is None
        else np.where(size <= huber, 0.5 * size**2, huber * (size - 0.5 * huber))
    )
    return float(loss.sum(axis=1).min())


def _best_at_rest(found: Minimum, constant: float) -> int | None:
    """Return the start with the lowest objective, None if it still moves: a worse one at rest is no substitute.

    A curve through all points counts as resting: there the gradient is rounding.
    """
    floor = NEGLIGIBLE * constant
    resting = found.converged | (found.objective <= floor)
    lowest = float(found.objective.min())
    good = np.flatnonzero(resting & (found.objective <= lowest * (1 + 1e-6) + floor))
    return int(good[np.argmin(found.objective[good])]) if len(good) else None


def _count_optima(problem: ScaledProblem, found: Minimum, floor: float) -> int:
    """Count the minima that differ in their curve at the points, not merely in how a flat direction is cut."""
    resting = np.flatnonzero(found.converged | (found.objective <= floor))
    curves = problem.values(found.parameters[resting])
    distinct: list[int] = []
    for i in np.argsort(found.objective[resting]):
        same = [
            j
            for j in distinct
            if np.max(np.abs(curves[i] - curves[j])) < 1e-3
            and abs(found.objective[resting][i] - found.objective[resting][j])
            <= 1e-3 * found.objective[resting][j] + floor
        ]
        if not same:
            distinct.append(int(i))
    return len(distinct)


def _resample(
    law: Law,
    problem: ScaledProblem,
    x: Array,
    labels: NDArray[Any],
    theta: Array,
    huber: float | None,
    n_draws: int,
    seed: int,
) -> tuple[Array, float, float]:
    """Return the refitted parameters of every resample (n_draws, p), the share refused and the share not at rest.

    Each resample is fitted in full, from the best point of its own profile grid and from the fit of all runs; the better one counts.
    """
    if n_draws == 0:
        return np.empty((0, len(law.parameter_names))), 0.0, 0.0
    sizes = (x[None, :] == np.unique(x)[:, None]).astype(np.float64)

    def has_enough_sizes(weights: Array) -> NDArray[np.bool_]:
        enough: NDArray[np.bool_] = ((weights @ sizes.T) > 0).sum(axis=1) >= law.n_free
        return enough

    drawn = resample_clusters(labels, n_draws=n_draws, seed=seed, accept=has_enough_sizes)
    starts = np.concatenate([problem.best_on_grid(drawn.weights), np.tile(theta, (n_draws, 1))])
    found = _minimise(problem, np.concatenate([drawn.weights, drawn.weights]), starts, huber)
    second = found.objective[n_draws:] < found.objective[:n_draws]
    chosen = np.where(second[:, None], found.parameters[n_draws:], found.parameters[:n_draws])
    settled = np.where(second, found.converged[n_draws:], found.converged[:n_draws])
    settled |= np.minimum(
        found.objective[n_draws:], found.objective[:n_draws]
    ) <= NEGLIGIBLE * _constant_objective(problem.y, huber)
    return problem.unscale(chosen), drawn.share_refused, float(1 - settled.mean())


def _hold_out(
    law: Law, x: Array, y: Array, labels: NDArray[Any], huber: float | None, seed: int, level: float
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


def _sentence(met: list[str], n_agreeing: int, n_starts: int, n_optima: int) -> str:
    agree = f"{n_agreeing} of {n_starts} starts agree"
    if n_optima > 1:
        agree += (
            f", the others rest in {n_optima - 1} worse {'minimum' if n_optima == 2 else 'minima'}"
        )
    return f"{'; '.join(met)}; {agree}" if met else f"minimum inside the bounds; {agree}"
