"""Conditions that a fit pools: columns that sort the runs into a few groups.

The verdict asks of each whether its groups differ (`lack_of_fit.py`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.loading.columns import Runs

Array = NDArray[np.float64]

ROUNDING = 1e-4
"""Share of the variance of a column's logarithm below which what the inputs leave is rounding."""


def pooled_conditions(
    runs: Runs, used: Collection[str], inputs: Mapping[str, Array]
) -> Mapping[str, Sequence[Any]]:
    """Return the columns, but those used, that sort the runs into a few groups.

    A column that sorts them as an input does, or follows from the inputs, is no condition; of
    columns that sort them alike the first stands for all.
    """
    n = len(next(iter(inputs.values())))
    found: dict[str, Sequence[Any]] = {}
    known = {_grouping(values) for values in inputs.values()}
    for name in runs:
        if name in used or np.shape(runs[name]) != (n,):
            continue
        values = tuple(str(value) for value in runs[name])
        grouping = _grouping(values)
        if not 1 < max(grouping) + 1 <= n / 4 or grouping in known:
            continue
        known.add(grouping)
        if not _follows(runs[name], inputs):
            found[str(name)] = values
    return MappingProxyType(found)


def _grouping(values: Iterable[Any]) -> tuple[int, ...]:
    """Return a number per row, the same for equal values, counted in order of appearance."""
    seen: dict[Any, int] = {}
    return tuple(seen.setdefault(value, len(seen)) for value in values)


def _follows(values: Sequence[Any], inputs: Mapping[str, Array]) -> bool:
    """Return whether a column is a product of powers of the inputs, up to rounding, as 6·N·D is."""
    try:
        numeric = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    positive = [v for v in inputs.values() if (v > 0).all()]
    if not positive or not (np.isfinite(numeric) & (numeric > 0)).all():
        return False
    logs = np.log(numeric) - np.log(numeric).mean()
    powers = np.stack([np.log(v) - np.log(v).mean() for v in positive], axis=1)
    rest = logs - powers @ np.linalg.lstsq(powers, logs)[0]
    return bool(rest @ rest <= ROUNDING * (logs @ logs))
