"""Inverse of a fitted law: which size has a given outcome, all others held.

The curve of every resample is followed along the size and read off where it first crosses the
outcome (inverse regression; Draper and Smith 1998, section 3.2). Curves that lead away from it at
the smallest sizes count as zero, others that never reach it as infinite. So an interval may lack
either end.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.bootstrap import percentile_interval

if TYPE_CHECKING:
    from analysis.fitting.result import LawFit

Array = NDArray[np.float64]

REACH = 1e3
"""Factor beyond the smallest and largest run up to which a curve is followed."""

N_POINTS = 600
"""Sizes along a curve."""

N_REFINED = 3
"""How often the best curve is followed again between the two points around its crossing."""


def size_reaching(
    fit: "LawFit", y: float, of: str, at: Mapping[str, float]
) -> tuple[float, float, float]:
    """Return the size at which the law first has the outcome y, with the ends of its interval.

    Args:
        fit: With numbers.
        y: Outcome to reach, in its own units.
        of: Input that is looked for; it is followed from a thousandth of the smallest run's to a
            thousand times the largest one's.
        at: All other inputs, in their own units.

    Returns:
        The size, low and high: 0 where smaller sizes than the first on the way come closer to that
        outcome or have passed it, infinite where none has it, NaN for an interval without draws.

    Raises:
        ValueError: If the fit has no numbers, or an input is missing or not the law's.
    """
    inputs = fit.law.inputs
    others = [name for name in inputs if name != of]
    if of not in inputs:
        raise ValueError(f"of: {fit.law.name} has no input {of}; it has {', '.join(inputs)}")
    if set(at) != set(others):
        raise ValueError(
            f"at: must give {', '.join(others) or 'nothing'}, got {', '.join(at) or 'nothing'}"
        )
    seen = fit.inputs[of][fit.inputs[of] > 0]
    sizes = np.geomspace(seen.min() / REACH, seen.max() * REACH, N_POINTS)

    def crossings(parameters: Array, sizes: Array) -> Array:
        given = {name: np.full(len(sizes), float(value)) for name, value in at.items()}
        return _first_crossing(fit.law.evaluate({of: sizes, **given}, parameters), y, sizes)

    best = float(crossings(fit.best[None, :], sizes)[0])
    around = sizes
    for _ in range(N_REFINED):
        if not 0 < best < np.inf:
            break
        i = int(np.clip(np.searchsorted(around, best), 1, len(around) - 1))
        around = np.geomspace(around[i - 1], around[i], N_POINTS)
        best = float(crossings(fit.best[None, :], around)[0])
    if not len(fit.draws):
        return best, float("nan"), float("nan")
    # Between two infinite draws a percentile would be NaN.
    logs = np.log(np.clip(crossings(fit.draws, sizes), 1e-300, 1e300))
    ends = np.exp(percentile_interval(logs, level=fit.levels.curve))
    # A percentile between a crossing and none lies outside the sizes followed.
    ends[ends < sizes[0] * (1 - 1e-9)] = 0.0
    ends[ends > sizes[-1] * (1 + 1e-9)] = np.inf
    return best, float(ends[0]), float(ends[1])


def _first_crossing(curves: Array, y: float, sizes: Array) -> Array:
    """Return where each curve (k, m) first crosses y, linear in the log of the size.

    A curve that begins at y crosses it there. One that never crosses y gives 0 if it leads away
    from y at first, so that smaller sizes come closer, else inf.
    """
    above = curves > y
    crosses = above[:, 1:] != above[:, :-1]
    i = crosses.argmax(axis=1)
    row = np.arange(len(curves))
    before, after = curves[row, i], curves[row, i + 1]
    logs = np.log(sizes)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (y - before) / (after - before)
    found = np.exp(logs[i] + share * (logs[i + 1] - logs[i]))
    slopes = np.sign(np.diff(curves))
    first_slope = slopes[row, (slopes != 0).argmax(axis=1)]
    start = curves[:, 0]
    without = np.where((first_slope != 0) & (first_slope == np.sign(start - y)), 0.0, np.inf)
    return np.where(crosses.any(axis=1), found, np.where(start == y, sizes[0], without))
