"""Weights of candidates by how far to the side of the way to the target they lie.

A law that is a little wrong is most wrong in the corners: at a fraction of a token per parameter,
or at hundreds. There runs have the most leverage, so a design by variance asks for them, and the
fit then bends to them and misses the target. Where bias outweighs variance a design has to look
like the region that is asked about (Box and Draper 1959). Along the way from the runs to the target
no distance counts, because all runs are smaller than the target; across it a Gaussian kernel does,
as in local regression (Cleveland 1979).
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BANDWIDTH = 0.1
"""Standard deviation of the kernel, in ranges of an input."""


def local_weights(targets: Array, candidates: Array, *, box: Array) -> Array:
    """Return weights (c,) in 0..1, by the distance to the nearest target across the way to them.

    Args:
        targets: (m, d) logarithms of inputs.
        candidates: (c, d) logarithms of inputs.
        box: (k, d) places whose range is the unit of each input, and from whose mean the way leads.
    """
    span = np.ptp(box, axis=0)
    unit = np.where(span > 0, span, 1.0)
    way = (targets.mean(axis=0) - box.mean(axis=0)) / unit
    way /= max(float(np.linalg.norm(way)), 1e-300)
    across = np.eye(len(way)) - np.outer(way, way)
    apart = (candidates[:, None, :] - targets[None, :, :]) / unit @ across
    nearest = (apart**2).sum(axis=-1).min(axis=1)
    return np.asarray(np.exp(-0.5 * nearest / BANDWIDTH**2))
