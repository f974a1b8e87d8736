"""Profile-likelihood intervals of a fit's parameters and predictions.

Errors are taken as normal and of unknown size. theta_0 lies in the interval when n ln(SSR(theta_0)
/ SSR_min) is at most the chi-square quantile with one degree of freedom. SSR(theta_0) is the least
sum of squares with the number held there (Meeker and Escobar 1995; Seber and Wild 1989, section
5.2.3). The interval follows curved and one-sided likelihoods where a symmetric one cannot. It takes
runs as independent: for seeds of one configuration use the bootstrap.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.fitting.law import LawProblem
from analysis.fitting.levenberg_marquardt import minimise
from analysis.fitting.result import LawFit

Array = NDArray[np.float64]

_N_STEPS, _N_ROUNDS = 24, 4
_PULL = 1e4
"""Weight, in numbers of runs, of the wish that the number take a value."""


@dataclass(frozen=True, kw_only=True)
class ProfileInterval:
    """Where a number may lie."""

    value: float
    """At the best fit."""
    low: float
    high: float
    """Infinite where the fit never becomes too bad."""
    level: float


def profile_interval(
    fit: LawFit, parameter: str | Mapping[str, ArrayLike], *, level: float = 0.95
) -> ProfileInterval:
    """Return the profile-likelihood interval of a parameter, or of the outcome at given inputs.

    That of a fixed parameter is its value, and that of a bounded one lies within its bounds.

    Args:
        fit: Least squares, of `analysis.fitting.fit_law.fit_law`.
        parameter: A parameter's name; or one value per input of the law, for the outcome there.
        level: Of the interval.

    Raises:
        ValueError: If the fit has no numbers or is not least squares, or there is no such
            parameter.
    """
    if not fit.usable:
        raise ValueError(f"profile: no numbers ({fit.status}); {fit.sentence}")
    if not fit.objective_of.smooth:
        raise ValueError(
            f"profile: needs least squares, got {fit.objective_of.words}; pass objective=SQUARES"
        )
    if isinstance(parameter, str) and parameter not in fit.parameters:
        raise ValueError(f"parameter: no {parameter!r}; there are {', '.join(fit.parameters)}")
    problem = fit.problem()
    given = -np.inf, np.inf
    if isinstance(parameter, str):
        i = fit.law.parameter_names.index(parameter)
        given = fit.law.bounds.get(parameter, given)
        if problem.lower[i] == problem.upper[i]:
            known = fit.parameters[parameter]
            return ProfileInterval(value=known, low=known, high=known, level=level)
    best = problem.scale(fit.best[None, :])
    number = _number(fit, problem, parameter)
    value = float(number(best)[0])
    n = len(problem.y)
    ssr = float(np.sum(problem.weights * (problem.values(best)[0] - problem.y) ** 2))
    limit = _chi_square_quantile(level)
    step = _standard_error(problem, best, number, ssr)

    def badness(targets: Array) -> tuple[Array, Array]:
        """Return the number reached and n ln(SSR / SSR_min) for each target."""
        theta = _held(problem, best, number, targets)
        sums = np.sum(problem.weights * (problem.values(theta) - problem.y) ** 2, axis=1)
        return number(theta), n * np.log(np.maximum(sums / max(ssr, 1e-300), 1.0))

    ends = [_end(badness, value, side * step, limit) for side in (-1.0, 1.0)]
    transform = np.exp if _is_log(fit, parameter) else np.asarray
    low, high = (float(np.clip(transform(end), *given)) for end in ends)
    return ProfileInterval(value=float(transform(value)), low=low, high=high, level=level)


def _end(
    badness: Callable[[Array], tuple[Array, Array]], value: float, step: float, limit: float
) -> float:
    """Return where the badness reaches the limit in the direction of `step`, else infinity."""
    reach = 2.0 * np.sqrt(limit)
    for _ in range(_N_ROUNDS):
        numbers, bad = badness(value + step * reach * np.linspace(1 / _N_STEPS, 1, _N_STEPS))
        order = np.argsort(np.sign(step) * numbers)
        numbers = np.concatenate([[value], numbers[order]])
        root = np.sqrt(np.maximum.accumulate(np.concatenate([[0.0], bad[order]])))
        if root[-1] >= np.sqrt(limit):
            # The signed root is nearly a straight line, so few points place the end to five digits.
            after = int(np.searchsorted(root, np.sqrt(limit)))
            fine = np.linspace(numbers[after - 1], numbers[after], _N_STEPS)
            at, closer = badness(fine)
            closer = np.maximum.accumulate(np.sqrt(closer))
            return float(np.interp(np.sqrt(limit), closer, at))
        reach *= 4
    return float(np.sign(step) * np.inf)


def _held(
    problem: LawProblem, best: Array, number: Callable[[Array], Array], targets: Array
) -> Array:
    """Return the best parameters (B, p) for each target value, by a pull towards it.

    The pull is finite, so the number stops just short of its target; as it is read off afterwards,
    the pair of number and sum of squares is exact. A problem's target travels as one more parameter
    that nothing moves.
    """
    n, p = len(problem.y), best.shape[1]
    spread = float(np.max(np.abs(targets - number(best)[0])))
    scale = np.sqrt(_PULL * n) * max(float(np.ptp(problem.y)), 1e-12) / spread

    def values(both: Array) -> Array:
        pull = scale * (number(both[:, :p]) - both[:, p])
        return np.concatenate([problem.values(both[:, :p]), pull[:, None]], axis=1)

    def jacobian(both: Array) -> Array:
        J = np.zeros((len(both), n + 1, p + 1))
        J[:, :n, :p] = problem.jacobian(both[:, :p])
        J[:, n, :p] = scale * _slope(number, both[:, :p])
        return J

    result = minimise(
        values,
        jacobian,
        np.append(problem.y, 0.0),
        np.tile(np.append(problem.weights, 1.0), (len(targets), 1)),
        np.column_stack([np.tile(best, (len(targets), 1)), targets]),
        lower=np.append(problem.lower, -np.inf),
        upper=np.append(problem.upper, np.inf),
        tolerance=1e-11,
    )
    return result.parameters[:, :p]


def _number(
    fit: LawFit, problem: LawProblem, parameter: str | Mapping[str, ArrayLike]
) -> Callable[[Array], Array]:
    law = fit.law
    if isinstance(parameter, str):
        index = law.parameter_names.index(parameter)
        as_log = _is_log(fit, parameter)

        def one(theta: Array) -> Array:
            raw = problem.unscale(theta)[:, index]
            return np.log(np.maximum(raw, 1e-300)) if as_log else raw

        return one
    at = {name: np.atleast_1d(np.asarray(parameter[name], dtype=np.float64)) for name in law.inputs}
    return lambda theta: np.asarray(np.log(law.evaluate(at, problem.unscale(theta))[:, 0]))


def _is_log(fit: LawFit, parameter: str | Mapping[str, ArrayLike]) -> bool:
    if not isinstance(parameter, str):
        return True
    p = fit.law.parameters[fit.law.parameter_names.index(parameter)]
    return p.amplitude or p.log


def _slope(number: Callable[[Array], Array], theta: Array) -> Array:
    """Return the derivative of the number (B, p) by central differences: it is smooth."""
    slopes = np.empty_like(theta)
    for i in range(theta.shape[1]):
        step = np.zeros(theta.shape[1])
        step[i] = 1e-6
        slopes[:, i] = (number(theta + step) - number(theta - step)) / 2e-6
    return slopes


def _standard_error(
    problem: LawProblem, best: Array, number: Callable[[Array], Array], ssr: float
) -> float:
    """Return a first guess of the number's standard error, linearised."""
    J = problem.jacobian(best)[0] * np.sqrt(problem.weights)[:, None]
    slope = _slope(number, best)[0]
    spare = max(len(problem.y) - J.shape[1], 1)
    covariance = np.linalg.pinv(J.T @ J) * max(ssr, 1e-24) / spare
    return float(np.sqrt(max(slope @ covariance @ slope, 1e-24)))


def _chi_square_quantile(level: float) -> float:
    from scipy.special import ndtri  # scipy.stats takes most of a second to import

    return float(ndtri((1 + level) / 2) ** 2)
