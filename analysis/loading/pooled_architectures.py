"""Runs of several architectures under one name, or under several in one fit."""

from collections.abc import Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.loading.validation import DataWarning

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

SEED_NOISE = 0.05
"""Relative difference of loss that no seed makes. Runs of equal sizes are not of one kind if they
are further apart, and five times further than most pairs of equal sizes (unless those are no seeds
either)."""


def check_architecture_names(
    architectures: Sequence[Any],
    told_by: Sequence[NDArray[Any]] = (),
    *,
    has_experts: bool = False,
) -> DataWarning | None:
    """Return a warning if runs of several named architectures would be fitted as one, else None.

    Args:
        architectures: Names (n,).
        told_by: Inputs of the law that are no sizes, as experts (n,). If each of their values is of
            one architecture, the law tells architectures apart.
        has_experts: Whether the table says how many experts its runs have.
    """
    names = [str(a) for a in architectures]
    kinds = list(dict.fromkeys(names))
    marks = list(zip(*(values.tolist() for values in told_by), strict=True)) or [()] * len(names)
    if len(kinds) < 2 or len(set(marks)) == len(set(zip(marks, names, strict=True))):
        return None
    together = (
        "a law of experts, analysis.laws.law_named('routed_joint')"
        if has_experts
        else "analysis.SharedCoefficients"
    )
    other = names.index(kinds[1])
    shown = ", ".join(kinds[:4]) + (f" and {len(kinds) - 4} more" if len(kinds) > 4 else "")
    return DataWarning(
        kind="architectures",
        column="architecture",
        rows=(other,),
        sentence=f"the runs are of {len(kinds)} architectures ({shown}; "
        f"row {other} is the first of {kinds[1]}); fit each on its own, or all with {together}",
    )


def check_equal_sizes(
    places: Rows,
    y: Array,
    outcome: str,
    diverged: Set[int],
    configurations: Rows | None,
    rows: Rows,
) -> DataWarning | None:
    """Return a warning about runs of equal sizes that are further apart than seeds are.

    Args:
        places: A number per run, the same for runs of equal sizes (n,).
        y: Outcome (n,).
        outcome: Its name.
        diverged: Runs that are no part of this.
        configurations: Of which each run is a seed (n,). Where they are known, the means over
            their seeds are compared.
        rows: What the rows are called (n,).
    """
    usable = np.asarray([i for i in range(len(y)) if i not in diverged], dtype=np.int64)
    places, y, rows = places[usable], y[usable], rows[usable]
    if configurations is not None:
        both = np.stack([places, configurations[usable]])
        _, first, of_run = np.unique(both, axis=1, return_index=True, return_inverse=True)
        of_run = of_run.ravel()
        y = np.bincount(of_run, weights=y) / np.bincount(of_run)
        places, rows, outcome = places[first], rows[first], f"mean {outcome}"
    pairs = _extremes_of_equal_sizes(places, y)
    if not pairs:
        return None
    usual = float(np.median([p[0] for p in pairs])) if len(pairs) > 2 else 0.0
    wide = [p for p in pairs if p[0] > SEED_NOISE and (usual > SEED_NOISE or p[0] > 5 * usual)]
    if not wide:
        return None
    ratio, low, high = max(wide)
    both_ends = sorted({i for _, *pair in wide for i in pair})
    return DataWarning(
        kind="architectures",
        column=outcome,
        rows=tuple(rows[both_ends].tolist()),
        sentence=f"rows {rows[low]} and {rows[high]} have equal sizes, and {outcome} is "
        f"{y[low]:.4g} and {y[high]:.4g}, {ratio:.0%} apart: two architectures or two recipes "
        "under one name, or a run that diverged; split them, or take the wrong one out",
    )


def _extremes_of_equal_sizes(places: Rows, y: Array) -> list[tuple[float, int, int]]:
    """Return for every size of several runs how far its extremes are apart, and which they are."""
    order = np.lexsort((y, places))
    groups = np.split(order, np.flatnonzero(np.diff(places[order])) + 1)
    ends = [(int(group[0]), int(group[-1])) for group in groups if len(group) > 1]
    return [(float(y[high] / y[low]) - 1, low, high) for low, high in ends]
