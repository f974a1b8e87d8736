"""Multi-start optimisation of a law, and the refits of its resamples.

What is fitted is a `LawProblem` (centred parameters, bounds, derivatives). Nothing here knows an
equation.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.bootstrap import n_distinct_drawn, resample_clusters
from analysis.fitting.interval_calibration import Levels, calibrated
from analysis.fitting.law import LawProblem
from analysis.fitting.levenberg_marquardt import Minimum, minimise, rho
from analysis.fitting.objective import robust_scale
from analysis.fitting.result import FitStatus

Array = NDArray[np.float64]

NEGLIGIBLE = 1e-7
"""Share of the constant's objective below which differences mean nothing: residuals of 0.03 % of
the spread."""

SCREEN_ABOVE = 512
SCREENS = ((8, 0.3), (12, 0.1))
"""More starts than this get 8 steps each; the lowest 30 % get 12 more; the lowest tenth, without
repetitions, goes on to its end."""

ABSOLUTE = 1e-8
"""Threshold, in robust scales of the residuals, that stands for the absolute error."""

N_RAW = 16
"""Starts that an absolute-error fit takes as they are, beside what least squares made of all."""

POOL = 256
"""Points kept from the starts, among which a resample finds its own beginning."""

N_LONG, LONG = 8, 3000
"""Where no start comes to rest, that many of the lowest go on, for that many steps."""

SINGULAR = 1e9
"""Condition number from which on the runs do not tell two parameters apart: the normal matrix has
no digit left."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Optimum:
    """The best point for all runs, or why there is none."""

    status: FitStatus
    sentence: str
    theta: Array | None = None
    """(p,) scaled; None without a usable fit."""
    pool: Array | None = None
    """(k, p): other places worth starting from."""
    huber: float | None = None
    """Threshold that was used, in scaled units."""
    objective: float = float("nan")
    """Scaled units."""
    gradient: float = float("nan")
    moved: float = float("nan")
    condition_number: float = float("nan")
    n_starts: int = 0
    n_agreeing: int = 0
    n_optima: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Draws:
    """Every resample refitted."""

    theta: Array
    """(n_draws, p) scaled."""
    objective: Array
    """(n_draws,) scaled."""
    weights: Array
    """(n_draws, n) how often each run occurs."""
    share_refused: float = 0.0
    share_unsettled: float = 0.0


def find_optimum(
    problem: LawProblem,
    *,
    huber: float | None,
    huber_scales: float | None = None,
    starts: Array | None = None,
    allow_singular: bool = False,
) -> Optimum:
    """Fit all runs from many starts.

    Args:
        problem: What to fit.
        huber: Threshold in scaled units; None is least squares, 0 the absolute error.
        huber_scales: Threshold in units of the residuals' robust scale; replaces `huber`.
        starts: (S, p) scaled; None takes the law's own.
        allow_singular: Whether a fit is usable when its parameters cannot be told apart.
    """
    begin = problem.starts() if starts is None else starts
    begin = np.clip(begin, problem.lower, problem.upper)
    n_given = len(begin)
    if n_given > SCREEN_ABOVE:
        begin = _screen(problem, begin, huber)
    if huber == 0 or huber_scales is not None:
        huber, begin = _threshold(problem, begin, huber_scales)
    found = _fit_distinct(problem, begin, huber)
    constant = _constant_objective(problem, huber)
    best = _best_at_rest(found, constant)
    if best is None:
        found = _continue_lowest(problem, found, huber)
        best = _best_at_rest(found, constant)
    counts: dict[str, Any] = {"n_starts": n_given, "huber": huber}
    rejection = _rejection(problem, found, best, constant, n_given, allow_singular)
    if rejection is not None or best is None:
        status, sentence = rejection or (FitStatus.NOT_CONVERGED, "")
        return Optimum(status=status, sentence=sentence, **counts)
    return _accepted(problem, found, best, begin, NEGLIGIBLE * constant, counts)


def _rejection(
    problem: LawProblem,
    found: Minimum,
    best: int | None,
    constant: float,
    n_starts: int,
    allow_singular: bool,
) -> tuple[FitStatus, str] | None:
    """Return why the search gives no numbers, None if it does."""
    if best is None:
        gradient = found.gradient[found.objective.argmin()]
        return (
            FitStatus.NOT_CONVERGED,
            f"the best of {n_starts} starts did not come to rest (gradient {gradient:.1e}); "
            "look at the points for outliers",
        )
    if found.objective[best] >= constant * (1 - 1e-6):
        return (
            FitStatus.FLAT,
            "no curve of this form is better than a constant: the runs do not improve with size",
        )
    condition = condition_number(problem, found.parameters[best])
    if condition > SINGULAR and not allow_singular:
        met = problem.bounds_met(found.parameters[best])
        apart = f"the runs do not tell the parameters apart (condition number {condition:.0e})"
        # A flat term is a constant, and so is the floor: other sizes do not part the two.
        flat = any("does not fall" in phrase for phrase in met)
        advice = "look at these runs" if flat else "vary the sizes independently"
        return (
            FitStatus.UNDERDETERMINED,
            f"{'; '.join([*met, apart])}; {advice}, or fit a law with fewer parameters",
        )
    return None


def _accepted(
    problem: LawProblem,
    found: Minimum,
    best: int,
    begin: Array,
    floor: float,
    counts: dict[str, Any],
) -> Optimum:
    """Return the optimum with its diagnostics, and a pool of places for resamples to start from."""
    theta = found.parameters[best]
    met = problem.bounds_met(theta)
    # Starts agree when their objectives do, up to rounding and up to what is negligible.
    agreeing = int((found.objective <= found.objective[best] * (1 + 1e-6) + floor).sum())
    n_optima, representatives = _distinct(problem, found, floor)
    spread = np.unique(np.linspace(0, len(begin) - 1, min(POOL, len(begin))).round().astype(int))
    return Optimum(
        status=FitStatus.HIT_BOUND if met else FitStatus.CONVERGED,
        sentence=_sentence(met, agreeing, len(begin), counts["n_starts"], n_optima),
        theta=theta,
        pool=np.concatenate([representatives, begin[spread], _cloud(problem, theta)]),
        objective=float(found.objective[best]),
        gradient=float(found.gradient[best]),
        moved=float(np.max(np.abs(theta - begin[best]))),
        condition_number=condition_number(problem, theta),
        n_agreeing=agreeing,
        n_optima=n_optima,
        **counts,
    )


def refit(problem: LawProblem, optimum: Optimum, weights: Array) -> Draws:
    """Fit every row of weights (n_draws, n) in full.

    Each begins at the best, for its own weights, of a pool: the fit of all runs, the other minima,
    the starts, and points spread about the fit. Afterwards every resample is tried with the
    answers of all others, and goes on from the best of them where that is lower: a minimum that
    one resample found is then known to all.
    """
    if optimum.theta is None:
        raise ValueError("refit: the optimum has no parameters")
    if not len(weights):
        return no_draws(problem)
    huber = optimum.huber
    pool = optimum.theta[None, :]
    if optimum.pool is not None:
        pool = np.concatenate([pool, optimum.pool])
    # Few configurations give the same resample often: five have 126 different ones.
    weights_of_all = weights
    weights, same = np.unique(weights, axis=0, return_inverse=True)
    found = _fit(
        problem, weights, pool[_losses(problem, pool, huber, weights).argmin(axis=1)], huber
    )
    theta, objective, converged = found.parameters, found.objective, found.converged
    for _ in range(3):
        losses = _losses(problem, theta, huber, weights)
        better = np.flatnonzero(losses.min(axis=1) < objective * (1 - 1e-9))
        if not len(better):
            break
        again = _fit(problem, weights[better], theta[losses[better].argmin(axis=1)], huber)
        lower = again.objective < objective[better]
        rows = better[lower]
        theta[rows], objective[rows], converged[rows] = (
            again.parameters[lower],
            again.objective[lower],
            again.converged[lower],
        )
    settled = converged | (objective <= NEGLIGIBLE * _constant_objective(problem, huber))
    return Draws(
        theta=theta[same],
        objective=objective[same],
        weights=weights_of_all,
        share_unsettled=float(1 - settled[same].mean()),
    )


def no_draws(problem: LawProblem) -> Draws:
    """Return no resamples."""
    return Draws(
        theta=np.empty((0, len(problem.lower))),
        objective=np.empty(0),
        weights=np.empty((0, len(problem.y))),
    )


def resample(
    problem: LawProblem,
    optimum: Optimum,
    *,
    labels: NDArray[Any],
    places: NDArray[np.int64],
    n_free: int,
    n_draws: int,
    seed: int,
) -> Draws:
    """Draw whole clusters of runs and refit each draw.

    Args:
        problem: What was fitted.
        optimum: Of `find_optimum`.
        labels: (n,), runs of one label are drawn together.
        places: (n,), runs of one number have equal inputs; a resample needs `n_free` different
            ones.
        n_free: Fitted parameters.
        n_draws: Resamples.
        seed: Of the generator.
    """
    if n_draws == 0:
        return no_draws(problem)
    drawn = resample_clusters(
        labels,
        n_draws=n_draws,
        seed=seed,
        accept=lambda weights: n_distinct_drawn(weights, places) >= n_free,
    )
    refitted = refit(problem, optimum, drawn.weights)
    return replace(refitted, share_refused=drawn.share_refused)


def levels_for(
    level: float, problem: LawProblem, optimum: Optimum, drawn: Draws, labels: NDArray[Any]
) -> Levels:
    """Return the percentiles of the draws between which the truth lies as often as `level` says.

    Args:
        level: Of the intervals.
        problem: What was fitted.
        optimum: Of `find_optimum`.
        drawn: Of `resample` or `refit`.
        labels: (n,) configurations.
    """
    assert optimum.theta is not None
    theta = optimum.theta
    free = _free(problem, theta)
    # Central differences of what is reported by what is fitted.
    steps = 1e-6 * np.eye(len(theta))[free]
    slopes = (problem.unscale(theta + steps) - problem.unscale(theta - steps)).T
    scale = np.abs(slopes).max(axis=1, initial=0.0)
    moving = (scale > 0) & np.isfinite(scale)
    return calibrated(
        level,
        jacobian=_whitened(problem, theta)[:, free],
        coefficients=slopes[moving] / scale[moving, None],
        weights=drawn.weights,
        clusters=labels,
    )


def condition_number(problem: LawProblem, theta: Array) -> float:
    """Return the condition number of the Jacobian at theta.

    Its columns have length one; those of parameters at a bound are left out.
    """
    free = _free(problem, theta)
    J = _whitened(problem, theta)[:, free]
    size = np.linalg.norm(J, axis=0)
    if not free.any():
        return 1.0
    if (size == 0).any() or len(J) < int(free.sum()):
        return float("inf")
    values = np.linalg.svd(J / size, compute_uv=False)
    return float(values[0] / values[-1]) if values[-1] > 0 else float("inf")


def _whitened(problem: LawProblem, theta: Array) -> Array:
    """Return the Jacobian (n, p) at theta, each run times the root of its weight."""
    slopes = problem.jacobian(theta[None, :])[0]
    return np.asarray(slopes * np.sqrt(problem.weights)[:, None])


def _free(problem: LawProblem, theta: Array) -> NDArray[np.bool_]:
    """Return which parameters do not rest on a bound."""
    slack = 1e-9 * np.maximum(1.0, np.minimum(problem.upper - problem.lower, 1e6))
    return (theta > problem.lower + slack) & (theta < problem.upper - slack)


def _threshold(
    problem: LawProblem, begin: Array, huber_scales: float | None
) -> tuple[float, Array]:
    """Return the threshold in use, and where to go on from.

    The threshold is the one that stands for the absolute error, or `huber_scales` robust scales of
    that fit's residuals. Minimising goes on from what the starts reached by least squares, and from
    some of the starts as they were.
    """

    def scale_of(found: Minimum) -> float:
        theta = found.parameters[[found.objective.argmin()]]
        return robust_scale(problem.values(theta)[0] - problem.y)

    squares = _fit_distinct(problem, begin, None)
    begin = np.concatenate([squares.parameters, begin[:: max(1, len(begin) // N_RAW)]])
    smallest = ABSOLUTE * max(scale_of(squares), 1e-6)
    if huber_scales is None:
        return smallest, begin
    absolute = _fit_distinct(problem, begin, smallest)
    return max(huber_scales * scale_of(absolute), smallest), begin


def _fit_distinct(problem: LawProblem, starts: Array, huber: float | None) -> Minimum:
    """Minimise from each start; starts that meet on the way to a small threshold go on as one."""
    ones = np.ones((1, len(problem.y)))
    member = np.arange(len(starts))
    points = starts
    for threshold in [None] if huber is None else _ladder(problem, starts, huber):
        _, first, inverse = np.unique(
            points.round(6), axis=0, return_index=True, return_inverse=True
        )
        member = inverse.reshape(-1)[member]
        found = _minimise(problem, ones, points[first], threshold)
        points = found.parameters
    return found.chosen(member)


def _continue_lowest(problem: LawProblem, found: Minimum, huber: float | None) -> Minimum:
    """Return `found` with its lowest points followed further.

    Towards a bound, a valley can be long and bent.
    """
    low = np.argsort(found.objective, kind="stable")[:N_LONG]
    ones = np.ones((1, len(problem.y)))
    further = _minimise(problem, ones, found.parameters[low], huber, iterations=LONG)
    place = np.arange(len(found.objective))
    place[low] = len(place) + np.arange(len(low))
    return Minimum.joined([found, further]).chosen(place)


def _fit(problem: LawProblem, weights: Array, starts: Array, huber: float | None) -> Minimum:
    """Minimise from each start with its own weights (S, n)."""
    found: Minimum | None = None
    for threshold in [None] if huber is None else _ladder(problem, starts, huber):
        begin = starts if found is None else found.parameters
        found = _minimise(problem, weights, begin, threshold)
    assert found is not None
    return found


def _ladder(problem: LawProblem, starts: Array, huber: float) -> list[float]:
    """Return thresholds down to `huber`, each a tenth of the last.

    They begin at a tenth of the residuals' scale.

    With a threshold far below the residuals nearly all curvature is hidden, so the way there is
    made in steps.
    """
    residuals = problem.values(starts) - problem.y
    scale = robust_scale(residuals[np.abs(residuals).sum(axis=1).argmin()])
    ladder = [huber]
    while ladder[0] * 10 < 0.1 * scale:
        ladder.insert(0, ladder[0] * 10)
    return ladder


def _minimise(
    problem: LawProblem, weights: Array, starts: Array, huber: float | None, iterations: int = 300
) -> Minimum:
    return minimise(
        problem.values,
        problem.jacobian,
        problem.y,
        np.broadcast_to(weights * problem.weights, (len(starts), len(problem.y))),
        starts,
        lower=problem.lower,
        upper=problem.upper,
        huber=huber,
        iterations=iterations,
    )


def _screen(problem: LawProblem, begin: Array, huber: float | None) -> Array:
    threshold = huber if huber != 0 else 1e-3
    ones = np.ones((1, len(problem.y)))
    n_given = len(begin)
    for iterations, share in SCREENS:
        found = _minimise(problem, ones, begin, threshold, iterations=iterations)
        n_kept = max(64, int(share * n_given))
        begin = found.parameters[np.argsort(found.objective, kind="stable")[:n_kept]]
    _, first = np.unique(begin.round(6), axis=0, return_index=True)
    return np.asarray(begin[np.sort(first)])


def _losses(problem: LawProblem, theta: Array, huber: float | None, weights: Array) -> Array:
    """Return the objective (n_draws, k) of every row of weights at every theta (k, p)."""
    parts = []
    for first in range(0, len(theta), 512):
        parts.append(rho(problem.values(theta[first : first + 512]) - problem.y, huber))
    losses: Array = (weights * problem.weights) @ np.concatenate(parts).T
    return losses


def _constant_objective(problem: LawProblem, huber: float | None) -> float:
    """Return the objective of the best constant; for Huber an upper bound, by mean or median."""
    y = problem.y
    levels = np.asarray([np.average(y, weights=problem.weights), np.median(y)])
    residual = y[None, :] - levels[:, None]
    return float((rho(residual, huber) @ problem.weights).min())


def _best_at_rest(found: Minimum, constant: float) -> int | None:
    """Return the start with the lowest objective, None if it still moves.

    A worse one at rest is no substitute.

    A curve through all points counts as resting: there the gradient is rounding.
    """
    floor = NEGLIGIBLE * constant
    resting = found.converged | (found.objective <= floor)
    lowest = float(found.objective.min())
    good = np.flatnonzero(resting & (found.objective <= lowest * (1 + 1e-6) + floor))
    return int(good[np.argmin(found.objective[good])]) if len(good) else None


def _distinct(problem: LawProblem, found: Minimum, floor: float) -> tuple[int, Array]:
    """Return how many minima differ, and one of each.

    They differ in their curves at the points, not merely in how a flat direction is cut.
    """
    resting = np.flatnonzero(found.converged | (found.objective <= floor))
    curves = problem.values(found.parameters[resting])
    objective = found.objective[resting]
    distinct: list[int] = []
    for i in np.argsort(objective):
        same = [
            j
            for j in distinct
            if np.max(np.abs(curves[i] - curves[j])) < 1e-3
            and abs(objective[i] - objective[j]) <= 1e-3 * objective[j] + floor
        ]
        if not same:
            distinct.append(int(i))
    return len(distinct), found.parameters[resting][distinct]


def _cloud(problem: LawProblem, theta: Array) -> Array:
    """Return POOL points (k, p) about theta, spread as fits of a linear law, and wider."""
    J = problem.jacobian(theta[None, :])[0]
    scale = robust_scale(problem.values(theta[None, :])[0] - problem.y)
    size = np.maximum(np.linalg.norm(J, axis=0), 1e-300)
    values, vectors = np.linalg.eigh((J / size).T @ (J / size))
    steps = vectors / np.sqrt(np.maximum(values, 1e-12 * values[-1]))
    generator = np.random.default_rng(0)
    away = generator.standard_normal((POOL, len(theta))) @ steps.T / size
    away *= 1.5 * scale * generator.choice([0.5, 1.0, 2.0], (POOL, 1))
    return np.asarray(np.clip(theta + away, problem.lower, problem.upper))


def _sentence(
    met: list[str], n_agreeing: int, n_polished: int, n_starts: int, n_optima: int
) -> str:
    agree = f"{n_agreeing} of {n_polished} starts agree"
    if n_polished < n_starts:
        agree += f" (the lowest of {n_starts} after {sum(n for n, _ in SCREENS)} steps)"
    if n_optima > 1:
        agree += (
            f", the others rest in {n_optima - 1} worse {'minimum' if n_optima == 2 else 'minima'}"
        )
    return f"{'; '.join(met)}; {agree}" if met else f"minimum inside the bounds; {agree}"
