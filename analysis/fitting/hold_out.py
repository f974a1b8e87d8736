"""Hold-out: which runs a fit to the others predicts."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.fitting.fit_data import FitData
from analysis.fitting.law import Law

HOLD_OUT_SHARE = 0.25
"""Share of the configurations held out, the largest."""


def held_out(
    law: Law, data: FitData, held: bool | ArrayLike
) -> tuple[NDArray[np.bool_] | None, str]:
    """Return the runs (n,) to predict from the others, None for none, and what or why.

    Args:
        law: Whose `size` orders the runs.
        data: The runs.
        held: True takes the largest configurations, False none; or a mask (n,).

    Raises:
        ValueError: If a mask marks no run, or all.
    """
    if not isinstance(held, bool):
        mask = np.asarray(held, dtype=bool)
        if mask.shape != data.y.shape or not mask.any() or mask.all():
            raise ValueError(
                f"hold_out: must mark some of the {len(data.y)} runs, and not all; "
                f"got {int(mask.sum())} of {len(mask)}"
            )
        return mask, _runs_predicted(mask)
    return _largest(law, data) if held else (None, "not asked for")


def _largest(law: Law, data: FitData) -> tuple[NDArray[np.bool_] | None, str]:
    """Return the runs of the largest configurations, or of the largest sizes of a curve."""
    one_size = len(law.inputs) == 1
    # Rounded, so that equal budgets reached by different sizes stay together.
    sizes = np.asarray(law.size(data.inputs)).round(9)
    names, member = np.unique(data.places if one_size else data.labels, return_inverse=True)
    largest_of = np.asarray([sizes[member == i].max() for i in range(len(names))])
    n_held = min(max(1, round(HOLD_OUT_SHARE * len(names))), len(names) - law.n_free - 1)
    if n_held < 1:
        kind = "distinct sizes" if one_size else "configurations"
        needed = law.n_free + 2
        return None, f"not possible: {len(names)} {kind}, {needed} are needed to hold one out"
    last = np.argsort(largest_of, kind="stable")[-n_held:]
    mask = np.isin(member, last)
    if one_size:
        return mask, f"largest {n_held} of {len(names)} sizes predicted from the rest"
    return mask, _runs_predicted(mask)


def _runs_predicted(mask: NDArray[np.bool_]) -> str:
    return f"{int(mask.sum())} of {len(mask)} runs, the largest, predicted from the rest"
