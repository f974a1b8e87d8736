"""Differences between architectures at equal cost: FLOPs, seconds or bytes.

Bytes are those read, or those stored. A configuration is compared with the reference at its own
cost. Where a reference configuration costs the same (within FLOP_TOLERANCE), that is a difference
of two means over seeds. What no reference equals in FLOPs is compared at the same preset and
tokens, as papers compare what they add to a model. Elsewhere the reference's value is interpolated
in ln(cost) between its nearest sizes, and never extrapolated. All of it is linear in the means over
seeds, so intervals and p-values are those of a linear contrast. They hold the noise of seeds, and
an estimate of the interpolation's error; no fitted law enters.

They do not hold the noise of the cost itself. FLOPs and bytes are counted, and have none. Seconds
are measured: where they do not follow size nothing is compared at equal seconds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.fitting.bootstrap import MeanEstimate, contrast_of_means
from analysis.loading.schema import OUTCOMES
from analysis.scaling.cost_measures import (
    COST_MEASURES,
    CostMeasure,
    fit_cost,
    largest_error,
    why_rough,
)
from analysis.scaling.equal_compute import FLOP_TOLERANCE, holm_corrected, told_apart
from analysis.scaling.run_columns import COLUMNS

Array = NDArray[np.float64]

MEASURES = ("flops", "seconds", "bytes_moved", "total_params")
"""Cost measures that are held equal, those whose column the table has."""

MEASURED = frozenset({"seconds"})
"""Those that are measured, so that other work on the machine is in them; the others are counted."""

FEWEST_SIZES = 3
"""Sizes of the reference from which on it is interpolated: fewer say nothing about its bend."""

TOKENS = "training_tokens"

BASE = CostMeasure(name="base", column=TOKENS, label="preset and tokens", with_tokens=True)
"""Of what is added to a preset, such as a memory table, and has FLOPs of its own."""


@dataclass(frozen=True, kw_only=True)
class CostDifference:
    """An architecture against the reference at equal cost, over the sizes that have a match."""

    measure: CostMeasure
    candidate: str
    """Architecture, and what tells its series apart: `memory_plus (n_keys=64)`."""
    reference: str
    outcome: str
    n_sizes: int
    """Configurations of the candidate that were compared."""
    n_unmatched: int
    """Those at whose cost the reference has no runs on both sides."""
    interpolated: bool
    """Whether the reference was interpolated anywhere."""
    mean: MeanEstimate
    """Candidate minus reference, mean over the sizes compared; in the units of the outcome."""
    largest: MeanEstimate
    """The same at the largest size compared."""
    largest_amount: float
    """Its cost."""
    p_holm: float | None = None
    """p-value of `mean`, corrected for all of a sweep's comparisons; None without one."""
    level: float = 0.95

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `not told apart` or `no interval`, after the correction."""
        return told_apart(self.mean, self.p_holm, self.outcome, self.level)


@dataclass(frozen=True, kw_only=True)
class EqualCost:
    """All such differences of a sweep."""

    outcome: str
    differences: Sequence[CostDifference]
    """By cost measure, then by candidate."""
    unmatched: Sequence[str]
    """A sentence for every measure in which candidates have no match."""

    @property
    def n_corrected(self) -> int:
        """Number of comparisons that p-values are corrected for."""
        return sum(d.p_holm is not None for d in self.differences)


LEAST_RECALL = 0.01
"""Range of factual recall among all runs below which it compares nothing: all know none, or all."""


def main_outcome(table: pd.DataFrame) -> str | None:
    """Return the outcome that a sweep is about: the first that every run has, and that differs."""
    order = ("factual_recall", "answer_nll", "loss", *OUTCOMES)
    there = [o for o in order if len(table) and o in table and table[o].notna().all()]
    recall = table["factual_recall"] if "factual_recall" in there else None
    if recall is not None and len(there) > 1 and recall.max() - recall.min() < LEAST_RECALL:
        there = there[1:]
    return next(iter(there), None)


def equal_cost(
    table: pd.DataFrame,
    *,
    reference: str,
    series: Mapping[str, str] | None = None,
    outcome: str | None = None,
    level: float = 0.95,
) -> EqualCost:
    """Compare every architecture with the reference at equal cost.

    Configurations meet others on the same data only. Where training tokens vary, a reference is
    interpolated over its sizes at the same tokens.

    Args:
        table: Of `Runs`, one configuration per series, size, tokens and data set.
        reference: Architecture that others are compared with. Of several series of it, that with
            the most sizes is, the smallest of equals.
        series: Configuration to series, each of which is compared; None: architectures.
        outcome: Column; None is `main_outcome`.
        level: Of the intervals.
    """
    outcome = outcome or main_outcome(table)
    if outcome is None:
        return EqualCost(outcome="loss", differences=(), unmatched=())
    every = _configurations(table, outcome, series)
    theirs = _reference_configurations(every, reference)
    candidates: dict[str, list[_Configuration]] = {}
    in_order = sorted(every, key=lambda c: (c.architecture, c.costs.get("total_params", 0.0)))
    for one in in_order:
        if one.series not in {c.series for c in theirs}:
            candidates.setdefault(one.series, []).append(one)
    found: dict[str, list[CostDifference]] = {}
    unmatched = []
    for measure in (*(COST_MEASURES[name] for name in MEASURES), BASE):
        if measure.column not in table or table[measure.column].isna().any():
            continue
        compared = list(candidates) if measure != BASE else _added_to_presets(candidates, found)
        if measure.name in MEASURED:
            compared, refused = _follows_size(measure, reference, theirs, candidates)
            unmatched += refused
        pairs = {n: _compare(candidates[n], theirs, measure, outcome, level) for n in compared}
        found[measure.name] = [d for d in pairs.values() if d is not None]
        without = [name for name, pair in pairs.items() if pair is None]
        if without and measure != BASE:
            unmatched.append(
                f"at equal {measure.label} no {reference} runs on the same data on both sides of"
                f" the cost of {_in_words(without)}; add larger or smaller ones, or use match"
            )
    # First what the sweep held equal for most, then costs that it did not.
    held = sorted(("flops", BASE.name), key=lambda name: -len(found.get(name, ())))
    differences = [d for name in (*held, *MEASURES[1:]) for d in found.get(name, ())]
    corrected = holm_corrected([d.mean for d in differences])
    differences = [replace(d, p_holm=p) for d, p in zip(differences, corrected, strict=True)]
    return EqualCost(outcome=outcome, differences=differences, unmatched=unmatched)


MOST_NAMED = 3
"""Candidates that a sentence names; of more it says how many."""


def _in_words(names: Sequence[str]) -> str:
    """Return `a, b and c`, or `a, b and 4 more`."""
    if len(names) > MOST_NAMED:
        return f"{', '.join(names[: MOST_NAMED - 1])} and {len(names) - MOST_NAMED + 1} more"
    return " and ".join([*filter(None, [", ".join(names[:-1])]), names[-1]])


@dataclass(frozen=True, kw_only=True)
class _Configuration:
    """What one configuration took and reached."""

    name: str
    architecture: str
    series: str
    preset: str | None
    data: tuple[str, ...]
    """Settings of its data."""
    tokens: float | None
    values: Array
    """Of the outcome, over seeds."""
    costs: Mapping[str, float]
    """By column, mean over seeds."""
    taken: Mapping[str, Array]
    """By column of what is measured, over seeds."""
    params: float
    """NaN where the table has no column of sizes."""
    memory: float


@dataclass(frozen=True, kw_only=True)
class _Match:
    """Weights of the reference's configurations that stand for one candidate's cost."""

    weights: Mapping[str, float]
    amount: float
    error: float
    """Of the interpolation, in the units of the outcome."""


def _added_to_presets(
    candidates: Mapping[str, Sequence[_Configuration]],
    found: Mapping[str, Sequence[CostDifference]],
) -> list[str]:
    """Return the series of architectures of which not every size has equal FLOPs."""
    by_flops = {
        d.candidate for d in found.get("flops", ()) if not (d.interpolated or d.n_unmatched)
    }
    added = {candidates[name][0].architecture for name in candidates if name not in by_flops}
    return [name for name, members in candidates.items() if members[0].architecture in added]


def _follows_size(
    measure: CostMeasure,
    reference: str,
    theirs: Sequence[_Configuration],
    candidates: Mapping[str, Sequence[_Configuration]],
) -> tuple[list[str], list[str]]:
    """Return the candidates that can be compared in a measured cost, and why others cannot.

    A neighbour in seconds has to be a neighbour in size, else what is compared are sizes that the
    noise of the clock brought together.
    """
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
    names, are = _in_words(rough), "is" if len(rough) == 1 else "are"
    why = why_rough(names, max(errors[name] for name in rough))
    return smooth, [f"at equal {measure.label} {names} {are} not compared: {why}"]


def why_not_rising(
    measure: CostMeasure,
    table: pd.DataFrame,
    *,
    reference: str,
    outcome: str,
    series: Mapping[str, str] | None = None,
) -> str | None:
    """Return why a measured cost cannot order the reference's sizes, None where it rises.

    Arguments are those of `equal_cost`; a cost that is counted always rises.
    """
    if measure.name not in MEASURED:
        return None
    theirs = _reference_configurations(_configurations(table, outcome, series), reference)
    return _why_not_rising(measure, reference, theirs)


def _why_not_rising(
    measure: CostMeasure, reference: str, theirs: Sequence[_Configuration]
) -> str | None:
    """Return why the reference's mean cost cannot order its sizes, None where it rises."""
    for alike in _by_data(theirs, tokens=True):
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


def _cost_error(measure: CostMeasure, members: Sequence[_Configuration]) -> float:
    """Return how far runs lie from a smooth cost of their sizes, at most; 0 without sizes."""
    errors = [0.0]
    for alike in _by_data(members, tokens=False):
        if any(math.isnan(c.params) for c in alike):
            continue
        runs = [(c, amount) for c in alike for amount in c.taken[measure.column]]
        amount = np.asarray([amount / (c.tokens or 1.0) for c, amount in runs])
        params, memory = np.asarray([(c.params, c.memory) for c, _ in runs]).T
        fitted = fit_cost(params, memory, amount, np.ones((1, len(runs))))
        errors.append(largest_error(fitted[0], params, memory, amount))
    return max(errors)


def _by_data(members: Sequence[_Configuration], *, tokens: bool) -> list[list[_Configuration]]:
    """Return those of the same data together, and of the same tokens where asked for."""
    groups: dict[object, list[_Configuration]] = {}
    for one in members:
        groups.setdefault((one.data, one.tokens if tokens else None), []).append(one)
    return list(groups.values())


def _configurations(
    table: pd.DataFrame, outcome: str, series: Mapping[str, str] | None
) -> list[_Configuration]:
    columns = [c for c in {m.column for m in (*COST_MEASURES.values(), BASE)} if c in table]
    data = [c for c in table if str(c).startswith("data.") and table[c].nunique(dropna=False) > 1]
    by_name = table.groupby("configuration", sort=False)[columns].mean().to_dict(orient="index")
    means = {str(name): row for name, row in by_name.items()}
    values = {str(n): group for n, group in table.groupby("configuration", sort=False)[outcome]}
    taken = {
        column: {str(n): group for n, group in table.groupby("configuration", sort=False)[column]}
        for column in (COST_MEASURES[name].column for name in sorted(MEASURED))
        if column in table
    }
    size = next((c for c in COLUMNS["params"] if c in table), "")
    memory = next((c for c in COLUMNS["n_memory"] if c in table), "")
    found = []
    for row in table.drop_duplicates("configuration").to_dict(orient="records"):
        name = str(row["configuration"])
        found.append(
            _Configuration(
                name=name,
                architecture=str(row["architecture"]),
                series=str(row["architecture"]) if series is None else series[name],
                preset=str(row["preset"]) if pd.notna(row.get("preset")) else None,
                data=tuple(str(row[c]) for c in data),
                tokens=float(row[TOKENS]) if pd.notna(row.get(TOKENS)) else None,
                values=values[name].to_numpy(dtype=np.float64),
                costs={c: float(means[name][c]) for c in columns},
                taken={c: v[name].to_numpy(dtype=np.float64) for c, v in taken.items()},
                params=float(row[size]) if pd.notna(row.get(size)) else math.nan,
                memory=float(row[memory]) if pd.notna(row.get(memory)) else 0.0,
            )
        )
    return found


def _reference_configurations(
    every: Sequence[_Configuration], reference: str
) -> list[_Configuration]:
    """Return the configurations of the reference's plainest series."""
    by_series: dict[str, list[_Configuration]] = {}
    for one in every:
        if one.architecture == reference:
            by_series.setdefault(one.series, []).append(one)
    if not by_series:
        return []

    def plain(members: Sequence[_Configuration]) -> tuple[int, float]:
        params = [c.costs.get("total_params", 0.0) for c in members]
        return -len(members), sum(params) / len(params)

    return min(by_series.values(), key=plain)


def _compare(
    mine: Sequence[_Configuration],
    theirs: Sequence[_Configuration],
    measure: CostMeasure,
    outcome: str,
    level: float,
) -> CostDifference | None:
    """Return the difference of one series in one measure, None without any match."""
    values = {c.name: c.values for c in (*mine, *theirs)}
    matches: dict[str, _Match] = {}
    for one in mine:
        match = _match(one, [c for c in theirs if c.data == one.data], measure)
        if match is not None:
            matches[one.name] = match
    if not matches:
        return None

    def difference(over: Sequence[str]) -> MeanEstimate:
        share = 1 / len(over)
        weights: dict[str, float] = dict.fromkeys(over, share)
        for name in over:
            for of_reference, weight in matches[name].weights.items():
                weights[of_reference] = weights.get(of_reference, 0.0) - share * weight
        # Errors of neighbouring interpolations lean the same way, so they do not average out.
        error = sum(matches[name].error for name in over) * share
        terms = [(weight, values[name]) for name, weight in weights.items()]
        return contrast_of_means(terms, level=level, extra_sd=error)

    flops_of = {c.name: c.costs.get("training_flops", 0.0) for c in mine}
    largest = max(matches, key=lambda name: (matches[name].amount, flops_of[name]))
    return CostDifference(
        measure=measure,
        candidate=mine[0].series,
        reference=theirs[0].series,
        outcome=outcome,
        n_sizes=len(matches),
        n_unmatched=len(mine) - len(matches),
        interpolated=any(len(m.weights) > 1 for m in matches.values()),
        mean=difference(list(matches)),
        largest=difference([largest]),
        largest_amount=matches[largest].amount,
        level=level,
    )


def _match(
    one: _Configuration, there: Sequence[_Configuration], measure: CostMeasure
) -> _Match | None:
    """Return what of the reference costs as much as a configuration, None without a match."""
    column, amount = measure.column, one.costs[measure.column]
    if measure == BASE:
        same = [c for c in there if c.preset == one.preset and c.tokens == one.tokens]
        if not same or one.preset is None:
            return None
        return _Match(weights={same[0].name: 1.0}, amount=amount, error=0.0)
    same_tokens = sorted(
        (c for c in there if c.tokens == one.tokens), key=lambda c: c.costs[column]
    )
    equal = [
        c
        for c in (there if measure.name == "flops" else same_tokens)
        if abs(math.log(amount / c.costs[column])) <= math.log1p(FLOP_TOLERANCE)
    ]
    if equal:
        # Of several the one of the same tokens, then of the same FLOPs: small models take equal
        # seconds whatever their size.
        best = min(equal, key=lambda c: (c.tokens != one.tokens, _gap(c, one), c.name))
        return _Match(weights={best.name: 1.0}, amount=amount, error=0.0)
    x = np.log([c.costs[column] for c in same_tokens])
    if len(x) < FEWEST_SIZES or np.diff(x).min() <= 1e-9:
        return None
    if not x[0] <= math.log(amount) <= x[-1]:
        return None
    y = np.asarray([c.values.mean() for c in same_tokens])
    weights, error = interpolation_weights(x, math.log(amount), y)
    chosen = {c.name: float(w) for c, w in zip(same_tokens, weights, strict=True) if w != 0}
    return _Match(weights=chosen, amount=amount, error=error)


def _gap(first: _Configuration, second: _Configuration) -> float:
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
