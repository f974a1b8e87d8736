"""Mixture test: one curve, or two of them some distance apart.

At equal sizes two kinds of runs are seen at once (`analysis/loading/validation.py`). At sizes of
their own, in equal numbers, the curve goes between them and nothing looks odd by itself. So the
runs are split. Over all assignments of configurations to two groups, a search minimises the squares
that remain of

    ln(loss) = curve + offset * (0 or 1)

with the curve linear in its coefficients, as it nearly is around the fit. The statistic is the
offset in units of the spread that remains. Among so many assignments one always fits well. What the
statistic is for runs of one kind is therefore simulated: the same design, the same search, normal
noise. A law that is wrong leaves smooth residuals, and their best split is smooth too: small models
against large ones. A split that a quadratic in the logs of the sizes predicts is no second kind.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

N_STARTS = 24
"""Assignments that the search begins with."""

SIMULATED_UP_TO = 60
"""Configurations up to which the ratio for one kind is simulated. With more of them it depends on
little else than their number (`_rare`), and simulating takes seconds."""

MAX_CONFIGURATIONS = 1000
"""Configurations beyond which nothing is searched."""

AT_ONCE = 200_000
"""Numbers in the arrays of the search."""

N_SIMULATED = 399
"""Simulated tables of one kind."""

FALSE_ALARM = 0.005
"""Share of simulated tables with a split as good, up to which the runs are called two."""

SMALLEST_SHARE = 0.25
"""Of the configurations in the smaller group; a smaller one is found by its residuals alone."""

FEWEST_SPARE = 8
"""Configurations beyond the coefficients below which any table falls into two."""

SMOOTH = 0.4
"""Share of the split's variance (adjusted for the number of terms) that sizes may foretell."""


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """A split that noise of one kind does not make."""

    upper: Mask
    """(n,) configurations with the larger loss."""
    offset: float
    """Of ln(loss) between the two."""


def find_mixture(residuals: Array, jacobian: Array, log_sizes: Array) -> Mixture | None:
    """Return the split of configurations into two kinds, None if noise of one kind explains them.

    Args:
        residuals: Of ln(loss), one per configuration (n,): the mean of its seeds.
        jacobian: Of the fitted curve (n, p).
        log_sizes: The law's inputs as logarithms (n, d).
    """
    n = len(residuals)
    basis = orthonormal(np.column_stack([np.ones(n), jacobian]))
    spare = n - basis.shape[1] - 1
    if spare < FEWEST_SPARE or n > MAX_CONFIGURATIONS or not residuals.any():
        return None
    generator = np.random.default_rng(0)
    # Halves of equal size, drawn at random.
    starts = np.argsort(generator.random((N_STARTS, n)), axis=1) < n // 2
    left = residuals - basis @ (basis.T @ residuals)
    (ratio,), (upper,), (offset,) = _best_split(left[None, :], basis, starts, spare)
    if ratio < _common_ratio(n, spare) or _smooth(upper, log_sizes):
        return None
    if n > SIMULATED_UP_TO:
        if ratio < _rare_ratio(n, spare):
            return None
    else:
        noise = generator.standard_normal((N_SIMULATED, n))
        ratios, _, _ = _best_split(noise - (noise @ basis) @ basis.T, basis, starts, spare)
        if (1 + np.sum(ratios >= ratio)) / (1 + N_SIMULATED) > FALSE_ALARM:
            return None
    if offset < 0:
        upper, offset = ~upper, -offset
    return Mixture(upper=upper, offset=float(offset))


def _common_ratio(n: int, spare: int) -> float:
    """Return about the ratio that one in ten tables of one kind exceeds.

    Below it nothing needs to be simulated.

    Found by simulation for 12 to 200 configurations and 3 to 6 coefficients, where it is off by 15
    % of what it adds to 2.3.
    """
    return float(2.3 + 2.5 * n**2.1 / spare**2.35)


def _rare_ratio(n: int, spare: int) -> float:
    """Return a ratio that fewer than one in 200 tables of one kind exceed.

    For more than SIMULATED_UP_TO configurations.

    Found like `_common`, a quarter of what it adds to 2.3 put on top; never below 4, since noise
    that is even, not normal, has 3.5 when it is cut in its middle.
    """
    return float(max(4.0, 2.3 + 5.0 * n**2.5 / spare**2.8))


def _smooth(upper: Mask, log_sizes: Array) -> bool:
    """Return whether sizes foretell which group a configuration (n,) is in."""
    n, d = log_sizes.shape
    scale = log_sizes - log_sizes.mean(axis=0)
    scale = scale / np.maximum(np.abs(scale).max(axis=0), 1e-12)
    products = [scale[:, i] * scale[:, j] for i in range(d) for j in range(i, d)]
    basis = orthonormal(np.column_stack([np.ones(n), scale, *products]))
    spare = n - basis.shape[1]
    if spare < 1:
        return False
    centred = upper - upper.mean()
    left = centred - basis @ (basis.T @ centred)
    return bool(1 - (left @ left / spare) / (centred @ centred / (n - 1)) > SMOOTH)


def orthonormal(columns: Array) -> Array:
    """Return orthonormal columns (n, q) that span these (n, p).

    Directions that they hardly have are left out.
    """
    columns = columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    u, s, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(u[:, s > 1e-4 * s[0]])


def _best_split(left: Array, basis: Array, starts: Mask, spare: int) -> tuple[Array, Mask, Array]:
    """Return for each table the best |offset| / spread (k,), the split (k, n) and the offset (k,).

    From every start single configurations change sides, always the one that brings most, until none
    does.

    Args:
        left: Residuals (k, n), orthogonal to the basis.
        basis: (n, q), orthonormal.
        starts: Assignments to begin with (s, n).
        spare: Degrees of freedom that remain.
    """
    free = np.eye(left.shape[1]) - basis @ basis.T
    best = np.zeros(len(left))
    split, offset = np.zeros(left.shape, dtype=bool), np.zeros(len(left))
    for table in range(0, len(left), max(1, AT_ONCE // starts.size)):
        rows = slice(table, table + max(1, AT_ONCE // starts.size))
        of = np.repeat(left[rows], len(starts), axis=0)
        z = _hill_climb(np.tile(starts, (len(left[rows]), 1)), of, free)
        size = np.maximum(((z @ free) * z).sum(axis=1), 1e-12)
        by = (z * of).sum(axis=1) / size
        spread = np.sqrt(np.maximum((of**2).sum(axis=1) - by**2 * size, 1e-300) / spare)
        ratio = (np.abs(by) / spread).reshape(-1, len(starts))
        which = ratio.argmax(axis=1)
        at = np.arange(len(which)) * len(starts) + which
        best[rows], split[rows], offset[rows] = ratio.ravel()[at], z[at], by[at]
    return best, split, offset


def _hill_climb(z: Mask, left: Array, free: Array) -> Mask:
    """Return the assignments (r, n) that no change of one configuration improves.

    An assignment is better if it takes more of the squares of `left` (r, n).
    """
    n = z.shape[1]
    least = max(2, int(np.ceil(SMALLEST_SHARE * n)))
    z = z.copy()
    diagonal = np.diag(free)
    at, dot, members = z @ free, (z * left).sum(axis=1), z.sum(axis=1)
    size = (at * z).sum(axis=1)
    going = np.arange(len(z))
    for _ in range(2 * n):
        sign = np.where(z[going], -1.0, 1.0)
        new_size = size[going, None] + 2 * sign * at[going] + diagonal
        new_dot = dot[going, None] + sign * left[going]
        new_members = members[going, None] + sign
        fair = (new_members >= least) & (new_members <= n - least) & (new_size > 1e-6 * n)
        taken = np.where(fair, new_dot**2 / np.where(fair, new_size, 1.0), -1.0)
        i = taken.argmax(axis=1)
        row = np.arange(len(going))
        better = taken[row, i] > dot[going] ** 2 / np.maximum(size[going], 1e-12) * (1 + 1e-9)
        going, i, row = going[better], i[better], row[better]
        if not len(going):
            break
        size[going], dot[going] = new_size[row, i], new_dot[row, i]
        at[going] += sign[row, i][:, None] * free[i]
        members[going] += sign[row, i].astype(members.dtype)
        z[going, i] = ~z[going, i]
    return z
