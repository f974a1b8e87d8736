"""Minima of isoFLOP curves: of weighted parabolas, and of Akima's interpolation."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def parabola_minima(u: Array, y: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Return where each weighted parabola is lowest (B,), its value there, and c0, c1, c2 (B, 3).

    The place is -inf for a parabola that opens downward.
    """
    powers = np.stack([u**k for k in range(3)])
    system = np.einsum("in,bn,jn->bij", powers, weights, powers)
    size = np.sqrt(np.einsum("bii->bi", system))
    scaled = system / (size[:, :, None] * size[:, None, :]) + 1e-13 * np.eye(3)
    right = np.einsum("in,bn->bi", powers, weights * y) / size
    c = np.linalg.solve(scaled, right[:, :, None])[:, :, 0] / size
    upward = c[:, 2] > 1e-12 * float(np.ptp(y)) / float(np.ptp(u)) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        place = np.where(upward, -c[:, 1] / (2 * c[:, 2]), -np.inf)
        lowest = np.where(upward, c[:, 0] - c[:, 1] ** 2 / (4 * c[:, 2]), np.nan)
    return place, lowest, c


def akima_minima(u: Array, y: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Return where each curve of weighted mean losses is lowest (B,), and its value there.

    The slopes at the points are those of Akima 1970. A cubic between two neighbours turns where
    its derivative, a parabola, is zero. A lowest end is no optimum: it is put outside.
    """
    sizes, member = np.unique(u, return_inverse=True)
    member = (member.reshape(-1)[None, :] == np.arange(len(sizes))[:, None]).astype(np.float64)
    counts, sums = weights @ member.T, (weights * y) @ member.T
    place, lowest = np.full(len(weights), np.inf), np.full(len(weights), np.nan)
    n_seeds_done = (counts > 0).sum(axis=1)
    for n in np.unique(n_seeds_done[n_seeds_done >= 3]):
        rows = np.flatnonzero(n_seeds_done == n)
        there = np.argsort(counts[rows] == 0, axis=1, kind="stable")[:, :n]
        x = sizes[there]
        total, count = (np.take_along_axis(v[rows], there, axis=1) for v in (sums, counts))
        v = total / count
        at, value = _lowest_of_cubics(x, v, _akima_slopes(x, v))
        best = v.argmin(axis=1)
        end = (v.min(axis=1) <= value) & ((best == 0) | (best == n - 1))
        place[rows] = np.where(end, np.where(best == 0, -1e9, 1e9), at)
        lowest[rows] = np.minimum(value, v.min(axis=1))
    return place, lowest, np.full((len(weights), 3), np.nan)


def _akima_slopes(x: Array, y: Array) -> Array:
    """Return the slopes (B, n) at points (B, n), at least three each."""
    m = np.diff(y, axis=1) / np.diff(x, axis=1)
    left, right = 2 * m[:, :1] - m[:, 1:2], 2 * m[:, -1:] - m[:, -2:-1]
    m = np.concatenate([2 * left - m[:, :1], left, m, right, 2 * right - m[:, -1:]], axis=1)
    turn = np.abs(np.diff(m, axis=1))
    before, after = turn[:, :-2], turn[:, 2:]
    total = before + after
    even = 0.5 * (m[:, 3:] + m[:, :-3])
    known = total > 1e-9 * total.max(axis=1, keepdims=True)
    weighed = (after * m[:, 1:-2] + before * m[:, 2:-1]) / np.where(known, total, 1.0)
    return np.where(known, weighed, even)


def _lowest_of_cubics(x: Array, y: Array, slopes: Array) -> tuple[Array, Array]:
    """Return where piecewise cubics (B, n) have their lowest turn (B,), and its value.

    Both are inf where none turns.
    """
    h = np.diff(x, axis=1)
    rise = np.diff(y, axis=1) / h
    s0, s1 = slopes[:, :-1], slopes[:, 1:]
    c2, c3 = (3 * rise - 2 * s0 - s1) / h, (s0 + s1 - 2 * rise) / h**2
    # s0 + 2 c2 t + 3 c3 t^2 = 0, the root where it goes up, without cancellation.
    with np.errstate(divide="ignore", invalid="ignore"):
        t = -s0 / (c2 + np.sqrt(c2**2 - 3 * c3 * s0))
    inside = (t >= 0) & (t <= h)
    t = np.where(inside, t, 0.0)
    value = np.where(inside, y[:, :-1] + t * (s0 + t * (c2 + t * c3)), np.inf)
    best = value.argmin(axis=1)[:, None]
    at = np.where(inside, x[:, :-1] + t, np.inf)
    return np.take_along_axis(at, best, axis=1)[:, 0], np.take_along_axis(value, best, axis=1)[:, 0]
