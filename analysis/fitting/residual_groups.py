"""Groups of residuals: runs of two kinds under one curve.

It goes through one kind, and the other lies off; or between the two.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from analysis.loading.columns import in_words
from analysis.loading.mixture_test import find_mixture
from analysis.loading.validation import DataWarning

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

GROUP_DISTANCE = 6.5
"""Distance of two groups of residuals, in units of the spread inside them. Of 20 residuals of one
kind it is above 5.1 (normal) or 6.0 (uniform) once in 1,000 times; 30 runs and 10 others 3 % below
them are 12 apart."""

SMALLEST_OFFSET = 0.01
"""Relative distance of two groups below which nobody would fit them separately."""

FEWEST_FOR_GROUPS = 20
"""Runs below which residuals fall into groups by chance."""


def check_residual_groups(residuals: Array, *, rows: Rows | None = None) -> DataWarning | None:
    """Return a warning if relative residuals of a fit are those of two kinds of runs, else None.

    A curve goes through the larger group, and the smaller one lies off. Of two groups of one size
    it goes between: then runs of equal sizes tell (`check_equal_sizes`), or `check_mixture`.
    """
    n = len(residuals)
    if n < FEWEST_FOR_GROUPS:
        return None
    order = np.argsort(residuals, kind="stable")
    r = residuals[order]
    least = max(4, round(0.2 * n))
    # The squares inside two groups, for every cut of the sorted residuals at once.
    cuts = np.arange(least, n - least + 1)
    sums, squares = np.cumsum(r), np.cumsum(r**2)
    left, right = sums[cuts - 1] / cuts, (sums[-1] - sums[cuts - 1]) / (n - cuts)
    inside = squares[-1] - cuts * left**2 - (n - cuts) * right**2
    best = int(inside.argmin())
    spread = float(np.sqrt(max(inside[best], 0.0) / (n - 2)))
    distance = float(right[best] - left[best])
    if distance < SMALLEST_OFFSET or distance < GROUP_DISTANCE * spread:
        return None
    return _two_groups(np.sort(order[cuts[best] :]), n, distance, rows)


def check_mixture(
    residuals: Array,
    jacobian: Array,
    inputs: Mapping[str, Array],
    places: Rows,
    *,
    rows: Rows | None = None,
) -> DataWarning | None:
    """Return a warning if the curve goes between two kinds of runs at different sizes, else None.

    Args:
        residuals: Relative, of the fit (n,).
        jacobian: Of the fitted ln(loss) by its coefficients (n, p).
        inputs: Of the law (n,) by name.
        places: A number per run, the same for runs of equal inputs (n,).
        rows: What the rows are called (n,); None counts from 0.
    """
    counts = np.bincount(places)
    first = np.unique(places, return_index=True)[1]
    sizes = np.log(np.maximum(np.stack([v[first] for v in inputs.values()], axis=1), 1.0))
    found = find_mixture(
        np.bincount(places, weights=residuals) / counts,
        np.stack([np.bincount(places, weights=c) / counts for c in jacobian.T], axis=1),
        sizes,
    )
    if found is None or found.offset < SMALLEST_OFFSET:
        return None
    return _two_groups(np.flatnonzero(found.upper[places]), len(residuals), found.offset, rows)


def _two_groups(upper: Rows, n: int, distance: float, rows: Rows | None) -> DataWarning:
    """Return the warning about runs (u,) of n that lie a distance above the others."""
    named = upper if rows is None else rows[upper]
    return DataWarning(
        kind="architectures",
        column="loss",
        rows=tuple(named.tolist()),
        sentence=f"the runs fall into two groups {distance:.1%} of the loss apart "
        f"({in_words(named)} against the other {n - len(upper)}), as two architectures under one "
        "name do; fit each on its own, or both with analysis.SharedCoefficients",
    )
