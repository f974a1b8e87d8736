"""FLOPs of runs beside six per active parameter and token."""

import numpy as np
from numpy.typing import NDArray

from analysis.loading.columns import in_words
from analysis.loading.validation import DataWarning

Array = NDArray[np.float64]

FLOPS_PER_PARAM_TOKEN = (1.0, 60.0)
"""What training can cost: 2 is a forward pass alone, 6 the usual count; small models with long
sequences or large vocabularies, counted without embeddings, come to some tens."""


def check_flops(
    flops: Array,
    params: Array,
    tokens: Array,
    *,
    name: str = "params",
    rows: NDArray[np.int64] | None = None,
) -> DataWarning | None:
    """Return a warning if FLOPs cannot be those of active parameters and tokens, else None.

    Args:
        flops: (n,), as the other two.
        params: Active parameters.
        tokens: Trained on.
        name: Column of the parameters.
        rows: What the rows are called (n,); None counts from 0.
    """
    rows = np.arange(len(flops)) if rows is None else rows
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = flops / (params * tokens)
    low, high = FLOPS_PER_PARAM_TOKEN
    bad = np.flatnonzero((ratio < low) | (ratio > high))
    if not len(bad):
        return None
    named = rows[bad]
    left_out = flops / (6 * tokens) - params
    if low <= ratio.min() and _grows_like_width(left_out, params):
        return DataWarning(
            kind="embeddings",
            column="flops",
            rows=tuple(named.tolist()),
            sentence=f"flops: up to {ratio.max():.3g} per active parameter and token, as if {name} "
            f"left {left_out.min():.2g} to {left_out.max():.2g} out that every token passes "
            "(embeddings); Kaplan et al. 2020 fit N without them, Hoffmann et al. 2022 with them",
        )
    typical = float(np.exp(np.median(np.log(ratio[bad]))))
    every = len(bad) > 1 and len(bad) == int(np.isfinite(ratio).sum())
    which = f"all {len(bad)} rows" if every else in_words(named)
    reason = f"{name} may leave out parameters that every token passes"
    if typical < low:
        reason = f"{name} may hold total instead of active parameters"
    unit = power_of_1000(6 / typical)
    if every and unit != 1:
        reason = f"with units={{'flops': {unit:g}}} it would be {typical * unit:.2g}; or {reason}"
    return DataWarning(
        kind="flops",
        column="flops",
        rows=tuple(named.tolist()),
        sentence=f"flops: {which} (row {named[0]} has {ratio[bad[0]]:.3g} FLOPs per active "
        "parameter and token, training takes about 6): the unit of flops, "
        f"{name} or tokens is wrong; {reason}",
    )


def _grows_like_width(left_out: Array, params: Array) -> bool:
    """Return whether every model has what FLOPs count beyond `params`, growing with its width.

    Embeddings grow as the width does, more slowly than the size.
    """
    sizes = np.unique(params)
    if len(sizes) < 3 or not np.isfinite(left_out).all() or left_out.min() <= 0:
        return False
    each = np.asarray([np.median(left_out[params == size]) for size in sizes])
    steady = bool((each[1:] > 0.9 * each[:-1]).all())
    return steady and float(np.ptp(np.log(left_out))) < 0.75 * float(np.log(sizes[-1] / sizes[0]))


def power_of_1000(factor: float) -> float:
    """Return the power of 1,000 that is nearest to a factor: the step from k to M to B."""
    return float(1000.0 ** round(np.log(factor) / np.log(1000.0)))
