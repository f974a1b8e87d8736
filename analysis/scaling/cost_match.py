"""Matches: which sizes of a reference cost as much as a configuration."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from analysis.scaling.configuration_costs import BASE, Configuration
from analysis.scaling.cost_measures import CostMeasure
from analysis.scaling.counterparts import TIMED, counterpart, is_counterpart
from analysis.scaling.equal_compute import FLOP_TOLERANCE

Array = NDArray[np.float64]

FEWEST_SIZES = 3
"""Sizes of the reference from which on it is interpolated: fewer say nothing about its bend."""


@dataclass(frozen=True, kw_only=True)
class CostMatch:
    """Weights of the reference's configurations that stand for one candidate's cost."""

    weights: Mapping[str, float]
    amount: float
    error: float
    """Of the interpolation, in the units of the outcome."""
    by_match: bool = False
    """Whether `match` in the sweep file made the two equal."""


class NoMatch(StrEnum):
    """Why nothing of the reference stands for a candidate's cost."""

    COUNTERPART = "counterpart"
    """What `match` named is not there, or not at that preset and tokens."""
    DATA = "data"
    """No size of it is on the same data."""
    TOKENS = "tokens"
    """No size of it has the same training tokens."""
    FEW = "few"
    """Fewer than `FEWEST_SIZES` have, and none costs the same."""
    TIED = "tied"
    """Several sizes cost the same, so between them is no curve."""
    OUTSIDE = "outside"
    """All cost more, or all cost less."""


def match_cost(
    one: Configuration, there: Sequence[Configuration], measure: CostMeasure
) -> CostMatch | NoMatch:
    """Return what of the reference costs as much as a configuration, or why nothing does.

    Args:
        one: Of the candidate.
        there: Those of the reference on the same data.
        measure: In which both are to be equal.
    """
    if measure in TIMED:
        made = counterpart(one, there, measure)
        if made is None:
            return NoMatch.COUNTERPART
        # Says which size is the largest, and is no cost that was compared.
        size = one.costs.get(measure.column, one.params)
        return CostMatch(weights={made.name: 1.0}, amount=size, error=0.0, by_match=True)
    if not there:
        return NoMatch.DATA
    column, amount = measure.column, one.costs[measure.column]
    if measure == BASE:
        same = [
            c
            for c in there
            if c.preset == one.preset and c.tokens == one.tokens and not c.solved_model
        ]
        if not same or one.preset is None or one.solved_model:
            return NoMatch.COUNTERPART
        return CostMatch(weights={same[0].name: 1.0}, amount=amount, error=0.0)
    same_tokens = sorted(
        (c for c in there if c.tokens == one.tokens), key=lambda c: c.costs[column]
    )
    equal = [
        c
        for c in (there if measure.name == "flops" else same_tokens)
        if abs(math.log(amount / c.costs[column])) <= math.log1p(FLOP_TOLERANCE)
    ]
    if equal:
        # Of several the one that `match` made equal, of the same tokens, then of the same FLOPs:
        # small models take equal seconds whatever their size.
        made_equal = {c.name for c in equal if is_counterpart(one, c, measure)}
        best = min(
            equal,
            key=lambda c: (c.name not in made_equal, c.tokens != one.tokens, _gap(c, one), c.name),
        )
        by_match = best.name in made_equal
        return CostMatch(weights={best.name: 1.0}, amount=amount, error=0.0, by_match=by_match)
    if not same_tokens:
        return NoMatch.TOKENS
    x = np.log([c.costs[column] for c in same_tokens])
    if len(x) < FEWEST_SIZES:
        return NoMatch.FEW
    if not x[0] <= math.log(amount) <= x[-1]:
        return NoMatch.OUTSIDE
    if np.diff(x).min() <= 1e-9:
        return NoMatch.TIED
    y = np.asarray([c.values.mean() for c in same_tokens])
    weights, error = interpolation_weights(x, math.log(amount), y)
    chosen = {c.name: float(w) for c, w in zip(same_tokens, weights, strict=True) if w != 0}
    return CostMatch(weights=chosen, amount=amount, error=error)


def _gap(first: Configuration, second: Configuration) -> float:
    """Return how far two configurations are apart in training FLOPs, in ln; 0 if not known."""
    pair = [c.costs.get("training_flops", math.nan) for c in (first, second)]
    return abs(math.log(pair[0] / pair[1])) if np.all(np.isfinite(pair)) else 0.0


def interpolation_weights(x: Array, at: float, y: Array) -> tuple[Array, float]:
    """Return the weights (n,) of values at x for the value at a place between them, and an error.

    Quadratic through three neighbours; between two places that both have a further neighbour, the
    mean of the two quadratics. The error is half of how far they differ; where there is one
    quadratic alone, half of how far it differs from the straight line.

    Args:
        x: Increasing places (n,), three or more.
        at: Place within them.
        y: Values at x, for the error alone.
    """
    left = int(np.clip(np.searchsorted(x, at, side="right") - 1, 0, len(x) - 2))
    line = _lagrange(x, at, [left, left + 1])
    triples = [
        _lagrange(x, at, [start, start + 1, start + 2])
        for start in (left - 1, left)
        if start >= 0 and start + 2 < len(x)
    ]
    weights = sum(triples) / len(triples)
    other = triples[0] if len(triples) > 1 else line
    spread = float(abs((triples[-1] - other) @ y)) / 2
    return np.asarray(weights), spread


def _lagrange(x: Array, at: float, places: Sequence[int]) -> Array:
    """Return the weights (n,) of Lagrange's polynomial through some of the places."""
    weights = np.zeros(len(x))
    for i in places:
        others = [x[j] for j in places if j != i]
        weights[i] = np.prod([(at - other) / (x[i] - other) for other in others])
    return weights
