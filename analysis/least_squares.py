"""Bounded nonlinear least squares for many starts, or many resamples, in one array program.

Projected Levenberg-Marquardt with exact Jacobians (Marquardt 1963; box bounds by freezing the parameters whose
gradient points outward, as in Bertsekas 1982). All problems share points and model; each has its own weights and
start. A Python loop over a thousand resamples takes seconds, this takes tens of milliseconds.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Minimum:
    """Where each of B problems with p parameters came to rest."""

    parameters: Array
    """(B, p), inside the bounds."""
    objective: Array
    """(B,): sum of weight x rho(residual); rho(r) = r^2 / 2, linear beyond the Huber threshold."""
    gradient: Array
    """(B,): largest |cosine| between the residuals and a column of the Jacobian, over parameters free to move. 0 is a minimum."""
    converged: NDArray[np.bool_]
    """(B,): gradient below the tolerance."""


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
    tolerance: float = 1e-7,
) -> Minimum:
    """Minimise B weighted sums of squared (or Huber) residuals from B starts.

    Args:
        values: Parameters (B, p) to predictions (B, n).
        jacobian: Parameters (B, p) to derivatives (B, n, p).
        y: (n,), scaled so that its spread is of the order of one.
        weights: (B, n), not negative.
        starts: (B, p); clipped to the bounds.
        lower: (p,). Equal to `upper` where a parameter is fixed.
        upper: (p,).
        huber: Residual beyond which the objective grows linearly, in units of y; None is least squares.
        iterations: Most steps per problem.
        tolerance: On the gradient, see `Minimum.gradient`.
    """
    theta = np.clip(starts, lower, upper).astype(np.float64)
    n_problems, n_parameters = theta.shape
    damping = np.full(n_problems, 1e-3)
    residual = values(theta) - y
    objective = _objective(residual, weights, huber)
    cosine = np.full(n_problems, np.inf)
    active = np.arange(n_problems)

    for _ in range(iterations):
        w, r, at = weights[active], residual[active], theta[active]
        J = jacobian(at)
        slope, curvature = _influence(r, huber)
        gradient = np.einsum("bnp,bn->bp", J, w * slope)
        hessian = np.einsum("bnp,bn,bnq->bpq", J, w * curvature, J)
        diagonal = np.einsum("bpp->bp", hessian)
        # A parameter at its bound whose gradient points outward is frozen: its row and column leave the system.
        frozen = (
            ((at <= lower) & (gradient > 0)) | ((at >= upper) & (gradient < 0)) | (lower == upper)
        )
        gradient = np.where(frozen, 0.0, gradient)
        # The floor stands for rounding: with residuals of exactly zero the cosine has no meaning.
        reach = np.sqrt(diagonal) * (np.sqrt(2 * objective[active]) + 1e-7)[:, None]
        cosine[active] = np.max(
            np.abs(gradient) / np.where(reach > 0, reach, 1.0), axis=1, initial=0.0
        )

        unfinished = (cosine[active] > tolerance) & (damping[active] < 1e12)
        if not unfinished.any():
            break
        active = active[unfinished]
        frozen, gradient, hessian, diagonal = (
            frozen[unfinished],
            gradient[unfinished],
            hessian[unfinished],
            diagonal[unfinished],
        )
        system = np.where(frozen[:, :, None] | frozen[:, None, :], 0.0, hessian)
        ridge = damping[active, None] * np.maximum(diagonal, 1e-12)
        system += np.eye(n_parameters) * np.where(frozen, 1.0, ridge)[:, None, :]
        step = np.linalg.solve(system, -gradient[:, :, None])[:, :, 0]
        trial = np.clip(theta[active] + step, lower, upper)
        trial_residual = values(trial) - y
        trial_objective = _objective(trial_residual, weights[active], huber)
        better = trial_objective < objective[active]
        moved = active[better]
        theta[moved] = trial[better]
        residual[moved] = trial_residual[better]
        objective[moved] = trial_objective[better]
        damping[active] = np.where(
            better, np.maximum(damping[active] / 10, 1e-14), damping[active] * 10
        )

    # Damping that overflowed means that rounding hides any further descent: a looser test tells that from failure.
    return Minimum(
        parameters=theta, objective=objective, gradient=cosine, converged=cosine <= 100 * tolerance
    )


def _objective(residual: Array, weights: Array, huber: float | None) -> Array:
    size = np.abs(residual)
    if huber is None:
        loss = 0.5 * size**2
    else:
        loss = np.where(size <= huber, 0.5 * size**2, huber * (size - 0.5 * huber))
    total: Array = np.einsum("bn,bn->b", weights, loss)
    return total


def _influence(residual: Array, huber: float | None) -> tuple[Array, Array]:
    """Return d rho / d r and the weight of r^2 in the Gauss-Newton matrix (reweighted least squares)."""
    if huber is None:
        return residual, np.ones_like(residual)
    slope = np.clip(residual, -huber, huber)
    return slope, huber / np.maximum(np.abs(residual), huber)
