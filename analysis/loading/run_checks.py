"""Runs that cannot all be right: duplicates, and those that diverged."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from analysis.loading.columns import equal_rows, in_words
from analysis.loading.pooled_architectures import check_equal_sizes
from analysis.loading.validation import DataWarning

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

DIVERGED = 1.5
"""Factor above the loss of a run with fewer parameters and fewer tokens."""

MORE_IS_BETTER = frozenset({"params", "tokens", "n_active", "n_memory", "experts", "compute"})


def check_runs(
    inputs: Mapping[str, Array],
    y: Array,
    *,
    outcome: str,
    seeds_named: bool = False,
    configurations: NDArray[np.int64] | None = None,
    rows: Rows | None = None,
) -> list[DataWarning]:
    """Return warnings about single runs: repeated ones, diverged ones, and those of another kind.

    Args:
        inputs: (n,) by name.
        y: Outcome (n,).
        outcome: Its name.
        seeds_named: Whether the caller said which rows are seeds of one configuration: equal rows
            are then no mistake.
        configurations: Which configuration each run is a seed of, where the caller knows (n,). Its
            seeds are of one kind, however far apart; only configurations of equal sizes may be of
            two.
        rows: What the rows are called (n,); None counts from 0.
    """
    if not len(y) or not inputs:
        return []
    rows = np.arange(len(y)) if rows is None else rows
    places = equal_rows(*inputs.values())
    diverged = _far_above_smaller(inputs, y)
    found = [
        None if seeds_named else _repeated(places, y, outcome, rows),
        _diverged(diverged, y, outcome, rows) if diverged else None,
        check_equal_sizes(places, y, outcome, set(diverged), configurations, rows),
    ]
    return [w for w in found if w is not None]


def _repeated(places: Rows, y: Array, outcome: str, rows: Rows) -> DataWarning | None:
    """Return a warning about runs that are equal to an earlier one."""
    same = equal_rows(places.astype(np.float64), y)
    first = np.unique(same, return_index=True)[1][same]
    twice = np.flatnonzero(first != np.arange(len(y)))
    if not len(twice):
        return None
    again, earlier = rows[twice], rows[first[twice[0]]]
    one = len(twice) == 1
    return DataWarning(
        kind="duplicates",
        column=outcome,
        rows=tuple(again.tolist()),
        sentence=f"duplicate runs: {in_words(again)} {'repeats' if one else 'repeat'} an earlier "
        f"row to the last digit (row {again[0]} is row {earlier} again); "
        f"take {'it' if one else 'them'} out, or name the configurations in clusters= "
        f"if {'it is a seed' if one else 'they are seeds'}",
    )


def _far_above_smaller(inputs: Mapping[str, Array], y: Array) -> dict[int, int]:
    """Return the runs far above one that is smaller in every way, each with that run."""
    if not set(inputs) <= MORE_IS_BETTER or not 3 <= len(y) <= 3000:
        return {}
    sizes = np.stack(list(inputs.values()))
    if not _falls(sizes, y):
        return {}
    found = {}
    for i in range(len(y)):
        beaten = np.all(sizes <= sizes[:, [i]] * (1 + 1e-9), axis=0) & (y * DIVERGED < y[i])
        if beaten.any():
            found[i] = int(np.flatnonzero(beaten)[y[beaten].argmin()])
    return found


def _diverged(bad: Mapping[int, int], y: Array, outcome: str, rows: Rows) -> DataWarning:
    """Return a warning about runs (keys) far above a smaller one (values)."""
    n = len(bad)
    better = list(bad.values())
    one = max(set(better), key=better.count)
    if n > 2 and n > len(y) // 3 and better.count(one) > n // 2:
        # One run that is far too good makes all larger ones look bad: then that run is odd.
        name = int(rows[one])
        return DataWarning(
            kind="diverged",
            column=outcome,
            rows=(name,),
            sentence=f"row {name}: {y[one]:.4g} is far below {n} larger runs; another unit "
            "(bits, per byte) or another evaluation? correct the row or take it out",
        )
    named = rows[list(bad)]
    i, j = next(iter(bad.items()))
    more = f" (likewise {in_words(named[1:])})" if n > 1 else ""
    return DataWarning(
        kind="diverged",
        column=outcome,
        rows=tuple(named.tolist()),
        sentence=f"row {named[0]}: {y[i]:.4g} is far above the {y[j]:.4g} of row "
        f"{rows[j]}, a run that is smaller in every way{more}; "
        "if it diverged, or is in another unit, take it out by its row",
    )


def _falls(sizes: Array, y: Array) -> bool:
    with np.errstate(divide="ignore"):
        log = np.log(np.maximum(sizes, 1.0)).sum(axis=0)
    if np.ptp(log) == 0 or np.ptp(y) == 0:
        return False
    # Ranks: one diverged run must not turn the sign.
    a, b = np.argsort(np.argsort(log)), np.argsort(np.argsort(y))
    return bool(np.corrcoef(a, b)[0, 1] < 0)
