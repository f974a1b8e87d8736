"""Hold-out: which runs a fit to the others predicts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.fitting.fit_data import FitData
from analysis.fitting.law import COMPUTE_FACTORS, Law

HOLD_OUT_SHARE = 0.25
"""Share of the configurations held out, the largest."""

FEWEST_SHARED = 2
"""Configurations that laws are ranked on at least: errors on one have no spread, so that none is
as good as the best."""


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
    ranks = _ranks(law, data)
    n = int(ranks.max()) + 1
    n_held = min(_quarter(n), n - law.n_free - 1)
    if n_held < 1:
        kind = "distinct sizes" if one_size else "configurations"
        needed = law.n_free + 2
        return None, f"not possible: {n} {kind}, {needed} are needed to hold one out"
    mask = ranks >= n - n_held
    if one_size:
        return mask, f"largest {n_held} of {n} sizes predicted from the rest"
    return mask, _runs_predicted(mask)


def shared_hold_out(candidates: Sequence[tuple[Law, FitData]]) -> NDArray[np.bool_] | None:
    """Return the largest runs (n,), the same for several laws, so that errors can be compared.

    They are a quarter of the configurations, or fewer where a law could not be fitted to the rest.
    They are not fewer than `FEWEST_SHARED` for that: laws that could not be fitted without these
    are not asked. They are fewer where a quarter is, or where no law could be fitted otherwise.
    None if no law can be held out.

    Args:
        candidates: The laws, and the same runs as each of them reads them.
    """
    alone = [one for one in candidates if _largest(*one)[0] is not None]
    if not alone:
        return None
    # The law that knows most of what makes a run large orders the runs for all; by name, so that
    # the order of the candidates does not matter.
    measure = max(
        alone,
        key=lambda c: (len({*c[0].inputs} & {*COMPUTE_FACTORS}), len(c[0].inputs), c[0].name),
    )
    ranks = _ranks(*measure)
    n = int(ranks.max()) + 1

    def fitted(n_held: int) -> list[bool]:
        rest = ranks < n - n_held
        return [len(np.unique(_units(law, data)[rest])) > law.n_free for law, data in candidates]

    least = next(k for k in range(min(FEWEST_SHARED, _quarter(n)), 0, -1) if any(fitted(k)))
    asked = fitted(least)
    n_held = next(k for k in range(_quarter(n), 0, -1) if fitted(k) == asked)
    return np.asarray(ranks >= n - n_held)


def _quarter(n: int) -> int:
    return max(1, round(HOLD_OUT_SHARE * n))


def _units(law: Law, data: FitData) -> NDArray[Any]:
    """Return what is held out as a whole (n,): a curve's sizes, else configurations."""
    return data.places if len(law.inputs) == 1 else data.labels


def _ranks(law: Law, data: FitData) -> NDArray[np.int64]:
    """Return the place (n,) of each run's unit by its largest size, from 0."""
    # Rounded, so that equal budgets reached by different sizes stay together.
    sizes = np.asarray(law.size(data.inputs)).round(9)
    names, member = np.unique(_units(law, data), return_inverse=True)
    largest_of = np.asarray([sizes[member == i].max() for i in range(len(names))])
    order = np.argsort(largest_of, kind="stable")
    return np.argsort(order)[member]


def _runs_predicted(mask: NDArray[np.bool_]) -> str:
    return f"{int(mask.sum())} of {len(mask)} runs, the largest, predicted from the rest"
