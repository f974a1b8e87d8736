"""Outliers of a fit: runs further from the curve than heavy-tailed noise puts any.

Residuals are compared with a robust scale, which a few wild runs do not change, unlike their root
mean square. A run is named if Student's t with five degrees of freedom puts any run that far in at
most one table of a hundred. So the limit grows with the number of runs: 8 scales up to 28 runs, 12
for 240.
"""

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.objective import MAD_TO_SIGMA, robust_scale

Array = NDArray[np.float64]

FALSE_ALARMS = 0.01
"""Share of tables of t noise in which a run is named."""

TAIL_FREEDOM = 5
"""Degrees of freedom of the t distribution."""

FEWEST_SCALES = 8.0
"""Robust scales from which on a run is named, at least: in few runs the scale is itself uncertain.
"""


def scale_of(residuals: Array, n_free: int) -> float:
    """Return the robust scale of residuals (n,) that the fit did not make zero.

    A fit of absolute errors goes through as many runs as it has parameters; these are left out.
    """
    return robust_scale(np.sort(np.abs(residuals))[n_free:])


def find_outliers(residuals: Array, n_free: int, *, rounding: float) -> NDArray[np.int64]:
    """Return the rows of outliers, the furthest first.

    Args:
        residuals: (n,) of even noise.
        n_free: Fitted parameters.
        rounding: A scale below this is none of noise.
    """
    # scipy.special is quick to import; scipy.stats takes most of a second.
    from scipy.special import stdtrit

    n = len(residuals)
    upper_quartile = stdtrit(TAIL_FREEDOM, 0.75)
    furthest = stdtrit(TAIL_FREEDOM, 1 - FALSE_ALARMS / (2 * n))
    limit = max(float(furthest / (MAD_TO_SIGMA * upper_quartile)), FEWEST_SCALES)
    size = np.abs(residuals)
    order = np.argsort(-size, kind="stable")
    return order[size[order] > limit * max(scale_of(residuals, n_free), rounding)]
