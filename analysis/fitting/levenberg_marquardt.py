"""Bounded Levenberg-Marquardt for many starts or resamples at once.

Projected, with exact Jacobians (Marquardt 1963). Box bounds are kept by freezing the parameters
whose gradient points outward (Bertsekas 1982). All problems share points and model; each has its
own weights and start. A Python loop over a thousand resamples takes seconds, this takes tens of
milliseconds.

Huber's loss offers two curvatures. Its own is 1 within the threshold and 0 beyond: steps end after
a few once the points within the threshold are known. That of reweighted least squares (Huber 1981,
section 7.8) always descends on a linear model, but only creeps. A step uses the first plus the
damping times the second. A near-absolute error (a threshold far below the residuals) then converges
as fast as least squares.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

BLOCK_NUMBERS = 32_768
"""Numbers (problems x points) worked on at once: a block's arrays stay in a core's cache."""

MAX_THREADS = 4
"""NumPy lets go of the interpreter inside its loops, so blocks of problems share the cores."""

_MOST_DAMPING = 1e10
"""Damping at which no step can help any more."""

_MOST_AHEAD, _NUMBERS_AHEAD = 8, 4096
"""Most dampings that a problem tries at once, and numbers (problems x dampings x points) up to
which more of them hardly take longer: below, calls of NumPy take longer than what they compute."""

_FREED_BYTES = 30_000_000
"""Size of an array that is made and freed before the first step. glibc then keeps freed arrays up
to this size for the next block (mallopt(3), M_MMAP_THRESHOLD). Otherwise it gives them back to the
system, and page faults took four fifths of the time."""


@dataclass(frozen=True, kw_only=True)
class Minimum:
    """Where each of B problems with p parameters came to rest."""

    parameters: Array
    """(B, p), inside the bounds."""
    objective: Array
    """(B,): sum of weight x rho(residual); rho(r) = r^2 / 2, linear beyond the Huber threshold."""
    gradient: Array
    """(B,): largest |cosine| between the residuals and a column of the Jacobian, over parameters
    free to move. 0 is a minimum."""
    converged: NDArray[np.bool_]
    """(B,): gradient below the tolerance."""
    iterations: NDArray[np.int64]
    """(B,): steps tried."""

    @classmethod
    def joined(cls, parts: Sequence["Minimum"]) -> "Minimum":
        """Return the problems of all parts, one after the other."""
        names = [field.name for field in fields(cls)]
        return cls(**{n: np.concatenate([getattr(part, n) for part in parts]) for n in names})

    def chosen(self, rows: NDArray[np.int64]) -> "Minimum":
        """Return some problems, some of them perhaps repeatedly."""
        return Minimum(**{name: values[rows] for name, values in vars(self).items()})


def minimise(
    values: Callable[[Array], Array],
    jacobian: Callable[[Array], Array],
    y: Array,
    weights: Array,
    starts: Array,
    *,
    lower: Array,
    upper: Array,
    huber: float | None = None,
    iterations: int = 300,
    tolerance: float = 1e-9,
) -> Minimum:
    """Minimise B weighted sums of squared (or Huber) residuals from B starts.

    Args:
        values: Parameters (B, p) to predictions (B, n).
        jacobian: Parameters (B, p) to derivatives (B, n, p); fastest as a transposed view of
            (B, p, n).
        y: (n,), scaled so that its spread is of the order of one.
        weights: (B, n), not negative.
        starts: (B, p); clipped to the bounds.
        lower: (p,). Equal to `upper` where a parameter is fixed.
        upper: (p,).
        huber: Residual beyond which the objective grows linearly, in units of y; None is least
            squares.
        iterations: Most steps per problem.
        tolerance: On the gradient, see `Minimum.gradient`.
    """
    starts = np.clip(starts, lower, upper).astype(np.float64)
    model = _Model(values=values, jacobian=jacobian, y=y, lower=lower, upper=upper, huber=huber)
    block = max(1, BLOCK_NUMBERS // len(y))
    np.empty(_FREED_BYTES, dtype=np.int8)  # never touched, so it costs no memory

    def solve(first: int) -> Minimum:
        rows = slice(first, first + block)
        return _minimise_block(model, weights[rows], starts[rows], iterations, tolerance)

    firsts = range(0, len(starts), block)
    if len(firsts) <= 1:
        return solve(0)
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1, len(firsts))) as pool:
        parts = list(pool.map(solve, firsts))
    return Minimum.joined(parts)


def rho(residual: Array, huber: float | None) -> Array:
    """Return r^2 / 2, or Huber's loss: linear with slope `huber` beyond it."""
    if huber is None:
        return 0.5 * residual**2
    within = np.clip(residual, -huber, huber)
    loss: Array = within * (residual - 0.5 * within)
    return loss


@dataclass(frozen=True, kw_only=True)
class _Model:
    """What all problems share."""

    values: Callable[[Array], Array]
    jacobian: Callable[[Array], Array]
    y: Array
    lower: Array
    upper: Array
    huber: float | None


@dataclass(frozen=True, kw_only=True)
class _NormalEquations:
    """The quadratic model of the objective of b problems around their parameters."""

    gradient: Array
    """(b, p); zero where a parameter is frozen."""
    hessian: Array
    """(b, p, p), without damping."""
    frozen: Mask
    """(b, p): parameters at a bound whose gradient points outward, and fixed ones."""
    cosine: Array
    """(b,): see `Minimum.gradient`."""

    def of_problems(self, rows: Mask) -> "_NormalEquations":
        """Return the equations of some of the problems."""
        return _NormalEquations(
            gradient=self.gradient[rows],
            hessian=self.hessian[rows],
            frozen=self.frozen[rows],
            cosine=self.cosine[rows],
        )


def _minimise_block(
    model: _Model, weights: Array, starts: Array, iterations: int, tolerance: float
) -> Minimum:
    """Step all problems of a block together until each is finished or `iterations` are used up."""
    theta = starts.copy()
    n_problems = len(theta)
    damping = np.full(n_problems, 1e-3)
    residual = model.values(theta) - model.y
    objective = np.einsum("bn,bn->b", weights, rho(residual, model.huber))
    cosine = np.full(n_problems, np.inf)
    tried = np.zeros(n_problems, dtype=np.int64)
    active = np.arange(n_problems)
    equations: _NormalEquations | None = None

    while True:
        # While all problems are active nothing is copied.
        rows = slice(None) if len(active) == n_problems else active
        if equations is None:
            equations = _normal_equations(
                model,
                theta[rows],
                weights[rows],
                residual[rows],
                objective[active],
                damping[active],
            )
            cosine[active] = equations.cosine
        unfinished = (
            (equations.cosine > tolerance)
            & (damping[active] < _MOST_DAMPING)
            & (tried[active] < iterations)
        )
        if not unfinished.any():
            break
        active = active[unfinished]
        if not unfinished.all():
            equations = equations.of_problems(unfinished)
        n_ahead = _n_ahead(model, len(active))
        dampings = damping[active, None] * 4.0 ** np.arange(n_ahead)
        step = _step(equations, dampings)
        trial = np.minimum(np.maximum(theta[active, None] + step, model.lower), model.upper)
        trial_residual = model.values(trial.reshape(-1, theta.shape[1])) - model.y
        rows = slice(None) if len(active) == n_problems else active
        trial_weights = weights[rows] if n_ahead == 1 else np.repeat(weights[rows], n_ahead, axis=0)
        loss = rho(trial_residual, model.huber)
        trial_objective = np.einsum("bn,bn->b", trial_weights, loss).reshape(-1, n_ahead)
        better = trial_objective < objective[active, None]
        # Those that would be tried, one after the other.
        due = (dampings < _MOST_DAMPING) & (tried[active, None] + np.arange(n_ahead) < iterations)
        better &= due
        descends = better.any(axis=1)
        taken = np.where(descends, better.argmax(axis=1), due.sum(axis=1) - 1)
        moved, place = active[descends], taken[descends]
        theta[moved] = trial[descends, place]
        residual[moved] = trial_residual.reshape(*better.shape, -1)[descends, place]
        objective[moved] = trial_objective[descends, place]
        tried[active] += taken + 1
        # Where nothing moved, the equations of least squares stay: only the damping has grown. With
        # a Huber threshold they contain the damping.
        if len(moved) or model.huber is not None:
            equations = None
        # Less damping after a step that descends, towards Gauss-Newton; more after one that fails.
        used = dampings[np.arange(len(active)), taken]
        damping[active] = np.where(descends, np.maximum(used / 8, 1e-14), used * 4)

    # Damping that overflowed means that rounding hides any further descent: a looser test tells
    # that from failure.
    return Minimum(
        parameters=theta,
        objective=objective,
        gradient=cosine,
        converged=cosine <= 1e4 * tolerance,
        iterations=tried,
    )


def _normal_equations(
    model: _Model, theta: Array, weights: Array, residual: Array, objective: Array, damping: Array
) -> _NormalEquations:
    J = model.jacobian(theta).transpose(0, 2, 1)
    if model.huber is None:
        slope, curved = residual, weights
    else:
        slope, curvature = _influence(residual, model.huber, damping)
        curved = weights * curvature
    gradient = (J @ (weights * slope)[:, :, None])[:, :, 0]
    hessian = (J * curved[:, None, :]) @ J.transpose(0, 2, 1)
    outward = ((theta <= model.lower) & (gradient > 0)) | ((theta >= model.upper) & (gradient < 0))
    frozen = outward | (model.lower == model.upper)
    gradient = np.where(frozen, 0.0, gradient)
    # Lengths of a column of the Jacobian and of the residuals, multiplied. The floor stands for
    # rounding: with residuals of exactly zero the cosine has no meaning.
    diagonal = hessian.diagonal(axis1=1, axis2=2)
    lengths = np.sqrt(diagonal) * (np.sqrt(2 * objective) + 1e-7)[:, None]
    cosines = np.abs(gradient) / np.where(lengths > 0, lengths, 1.0)
    return _NormalEquations(
        gradient=gradient,
        hessian=hessian,
        frozen=frozen,
        cosine=cosines.max(axis=1, initial=0.0),
    )


def _n_ahead(model: _Model, n_active: int) -> int:
    """Return how many dampings each problem tries at once: those that failing steps would lead to.

    The first that descends is taken, so numbers are those of one after the other. Half of all steps
    fail, and a few problems take nearly as long as one.
    """
    if model.huber is not None:  # the equations contain the damping
        return 1
    return max(1, min(_MOST_AHEAD, _NUMBERS_AHEAD // (n_active * len(model.y))))


def _step(equations: _NormalEquations, dampings: Array) -> Array:
    """Return the steps (b, k, p) under dampings (b, k)."""
    frozen, hessian = equations.frozen, equations.hessian
    # A frozen parameter leaves the system with its row and column.
    diagonal = hessian.diagonal(axis1=1, axis2=2).copy()
    if frozen.any():
        hessian = np.where(frozen[:, :, None] | frozen[:, None, :], 0.0, hessian)
    # Marquardt's scaling by the diagonal, and a floor where a parameter has no influence.
    floor = 1e-15 * diagonal.max(axis=1, keepdims=True)
    ridge = dampings[:, :, None] * np.maximum(diagonal, 1e-12)[:, None] + floor[:, None]
    added = np.where(frozen[:, None], 1.0, ridge + 1e-300)[:, :, None, :]
    system = hessian[:, None] + np.eye(hessian.shape[1]) * added
    return np.asarray(np.linalg.solve(system, -equations.gradient[:, None, :, None])[..., 0])


def _influence(residual: Array, huber: float, damping: Array) -> tuple[Array, Array]:
    """Return d rho / d r, and the weight of r^2 in the Gauss-Newton matrix (module docstring)."""
    slope = np.clip(residual, -huber, huber)
    curvature = np.minimum(damping, 1.0)[:, None] * (huber / np.maximum(np.abs(residual), huber))
    curvature += slope == residual
    return slope, curvature
