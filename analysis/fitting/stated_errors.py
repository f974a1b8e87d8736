"""Chi-squared test of residuals against the errors that `sigma` states."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.lack_of_fit import shared_part
from analysis.loading.mixture_test import orthonormal

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StatedErrors:
    """Residuals beside stated errors."""

    ratio: float
    """Size of the residuals over the size that stated errors leave."""
    larger: float
    """p-value of residuals at least so large."""
    smaller: float
    """p-value of residuals at most so large."""


def compare_with_stated(
    residuals: Array, jacobian: Array, clusters: Sequence[Any] | NDArray[Any]
) -> StatedErrors:
    """Compare the sum of (residual / sigma)^2 with its distribution.

    What the parameters can explain is projected out, so that the objective does not matter: of a
    robust fit as of least squares, n - p squares are left. Runs of one cluster share as large a
    part of their errors as these residuals show. The sum then counts as chi-squared with the
    degrees of freedom that its mean and its variance give (Satterthwaite 1946).

    Args:
        residuals: (n,) over their stated errors.
        jacobian: (n, p) of the law at its optimum, over the same; parameters at a bound left out.
        clusters: Label per run.
    """
    from scipy.special import chdtr, chdtrc

    tangent = orthonormal(jacobian)
    rest = residuals - tangent @ (tangent.T @ residuals)
    freedom = len(residuals) - tangent.shape[1]
    if freedom < 1:
        return StatedErrors(ratio=float("nan"), larger=float("nan"), smaller=float("nan"))
    group = np.unique(np.asarray(clusters), return_inverse=True)[1].reshape(-1)
    shared = shared_part(rest, group)
    mean, variance = float(freedom), 2.0 * freedom
    if shared > 0:
        # Traces of M V and (M V)^2: M projects, V = (1 - shared) I + shared Z Z', Z the clusters.
        sums = np.stack([np.bincount(group, column) for column in tangent.T])
        inner = np.diag(np.bincount(group)) - sums.T @ sums
        own = 1 - shared
        mean = own * freedom + shared * float(np.trace(inner))
        variance = 2 * (
            own**2 * freedom
            + 2 * own * shared * float(np.trace(inner))
            + shared**2 * float((inner**2).sum())
        )
    found = float(rest @ rest)
    of = 2 * mean**2 / variance
    return StatedErrors(
        ratio=float(np.sqrt(found / mean)),
        larger=float(chdtrc(of, found * of / mean)),
        smaller=float(chdtr(of, found * of / mean)),
    )
