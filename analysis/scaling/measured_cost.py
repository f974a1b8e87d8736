"""Measured costs: whether seconds follow size.

A neighbour in seconds has to be a neighbour in size. Else what is compared at equal seconds are
sizes that the noise of the clock brought together.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from analysis.formatting import some_of
from analysis.scaling.configuration_costs import (
    MEASURED,
    Configuration,
    of_same_data,
    plainest_series,
    read_configurations,
)
from analysis.scaling.cost_measures import CostMeasure, fit_cost, largest_error, why_rough
from analysis.scaling.equal_compute import FLOP_TOLERANCE


def that_follow_size(
    measure: CostMeasure,
    reference: str,
    theirs: Sequence[Configuration],
    candidates: Mapping[str, Sequence[Configuration]],
) -> tuple[list[str], list[str]]:
    """Return the candidates that can be compared in a measured cost, and why others cannot."""
    why = _why_not_rising(measure, reference, theirs) or why_rough(
        reference, _cost_error(measure, theirs)
    )
    if why is not None:
        return [], [f"at equal {measure.label} nothing is compared: {why}"]
    errors = {name: _cost_error(measure, members) for name, members in candidates.items()}
    rough = [name for name, error in errors.items() if why_rough(name, error) is not None]
    smooth = [name for name in candidates if name not in rough]
    if not rough:
        return smooth, []
    names, are = some_of(rough), "is" if len(rough) == 1 else "are"
    why = why_rough(names, max(errors[name] for name in rough))
    return smooth, [f"at equal {measure.label} {names} {are} not compared: {why}"]


def why_not_rising(
    measure: CostMeasure,
    table: pd.DataFrame,
    *,
    reference: str,
    outcome: str,
    series: Mapping[str, str] | None,
) -> str | None:
    """Return why a measured cost cannot order the reference's sizes, None where it rises.

    Arguments are those of `equal_cost`; a cost that is counted always rises.
    """
    if measure.name not in MEASURED:
        return None
    theirs = plainest_series(read_configurations(table, outcome, series), reference)
    return _why_not_rising(measure, reference, theirs)


def _why_not_rising(
    measure: CostMeasure, reference: str, theirs: Sequence[Configuration]
) -> str | None:
    """Return why the reference's mean cost cannot order its sizes, None where it rises."""
    for alike in of_same_data(theirs, tokens=True):
        if any("training_flops" not in c.costs for c in alike):
            continue
        in_order = sorted(alike, key=lambda c: c.costs["training_flops"])
        took = np.asarray([c.costs[measure.column] for c in in_order])
        most = np.maximum.accumulate(took)
        worst = int(np.argmax(most / took))
        what = f"what {reference} takes does not rise with its training FLOPs"
        if most[worst] / took[worst] > 1 + FLOP_TOLERANCE:
            return f"{what} ({most[worst]:.3g} s, then {took[worst]:.3g} s with more)"
        # Equal at all sizes: every size is a match of every other.
        if len(took) > 1 and most[-1] / took[0] <= 1 + FLOP_TOLERANCE:
            return f"{what} ({took[0]:.3g} s at every size)"
    return None


def _cost_error(measure: CostMeasure, members: Sequence[Configuration]) -> float:
    """Return how far runs lie from a smooth cost of their sizes, at most; 0 without sizes."""
    errors = [0.0]
    for alike in of_same_data(members, tokens=False):
        if any(math.isnan(c.params) for c in alike):
            continue
        runs = [(c, amount) for c in alike for amount in c.taken[measure.column]]
        amount = np.asarray([amount / (c.tokens or 1.0) for c, amount in runs])
        params, memory = np.asarray([(c.params, c.memory) for c, _ in runs]).T
        fitted = fit_cost(params, memory, amount, np.ones((1, len(runs))))
        errors.append(largest_error(fitted[0], params, memory, amount))
    return max(errors)
