"""Differences between architectures at equal cost: FLOPs, seconds or bytes.

Bytes are those read, or those stored. A configuration is compared with the reference at its own
cost. Where a reference configuration costs the same (within FLOP_TOLERANCE), that is a difference
of two means over seeds. What no reference equals in FLOPs is compared at the same preset and
tokens, as papers compare what they add to a model. Elsewhere the reference's value is interpolated
in ln(cost) between its nearest sizes, and never extrapolated. All of it is linear in the means over
seeds, so intervals and p-values are those of a linear contrast. They hold the noise of seeds, and
an estimate of the interpolation's error; no fitted law enters.

What `match` in a sweep file held equal is compared first, step times among it. Those have no
column: each configuration is compared with the counterpart that `match` named.

They do not hold the noise of the cost itself. FLOPs and bytes are counted, and have none. Seconds
are measured: where they do not follow size nothing is compared at equal seconds.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.fitting.bootstrap import MeanEstimate, contrast_of_means
from analysis.fitting.multiple_comparisons import holm_corrected, n_corrected
from analysis.formatting import some_of
from analysis.scaling.configuration_costs import (
    BASE,
    MEASURED,
    Configuration,
    plainest_series,
    read_configurations,
)
from analysis.scaling.cost_match import FEWEST_SIZES, CostMatch, NoMatch, match_cost
from analysis.scaling.cost_measures import COST_MEASURES, CostMeasure
from analysis.scaling.counterparts import (
    QUANTITIES,
    TIMED,
    architecture_of,
    held_to,
    is_counterpart,
)
from analysis.scaling.measured_cost import that_follow_size
from analysis.scaling.outcomes import main_outcome, told_apart

Array = NDArray[np.float64]

MEASURES = ("flops", "seconds", "bytes_moved", "total_params")
"""Cost measures that are held equal, those whose column the table has."""

TABLE_ORDER = ("flops", "step_time", "training_time", "active_params", BASE.name, *MEASURES[1:])
"""Of cost measures that a sweep held equal for as many architectures."""


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
    """Those that nothing of the reference stands for."""
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
    by_match: bool = False
    """Whether `match` in the sweep file made any of the sizes compared equal to the reference."""
    n_left_out: int = 0
    """Sizes with a match that were not compared: a side has one seed, while others have several."""
    missing_seeds: Sequence[str] = ()
    """What sizes with a match lack, left out or not: `seed 1 of primer d12`."""
    level: float = 0.95

    @property
    def n_configurations(self) -> int:
        """Sizes of the candidate, compared or not."""
        return self.n_sizes + self.n_left_out + self.n_unmatched

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
    """A sentence for every measure, and every reason, by which candidates have no match."""

    @property
    def n_corrected(self) -> int:
        """Number of comparisons that p-values are corrected for."""
        return n_corrected(d.mean for d in self.differences)

    @property
    def n_open(self) -> int:
        """Number of those that are not told apart."""
        return sum(d.verdict == "not told apart" for d in self.differences)


def equal_cost(
    table: pd.DataFrame,
    *,
    reference: str,
    series: Mapping[str, str] | None = None,
    level: float = 0.95,
) -> EqualCost:
    """Compare every architecture with the reference at equal cost.

    Configurations meet others on the same data only. Where training tokens vary, a reference is
    interpolated over its sizes at the same tokens. Sizes of which a side has one seed have no
    interval, so they are left out where others have several.

    Args:
        table: Of `Runs`, one configuration per series, size, tokens and data set.
        reference: Architecture that others are compared with. Of several series of it, that with
            the most sizes is, the smallest of equals.
        series: Configuration to series, each of which is compared; None: architectures.
        level: Of the intervals.
    """
    outcome = main_outcome(table)
    if outcome is None:
        return EqualCost(outcome="loss", differences=(), unmatched=())
    every = read_configurations(table, outcome, series)
    theirs = plainest_series(every, reference)
    candidates: dict[str, list[Configuration]] = {}
    in_order = sorted(every, key=lambda c: (c.architecture, c.costs.get("total_params", 0.0)))
    for one in in_order:
        if one.series not in {c.series for c in theirs}:
            candidates.setdefault(one.series, []).append(one)
    if not candidates:
        return EqualCost(outcome=outcome, differences=(), unmatched=())
    planned = frozenset[int]().union(*(c.seeds for c in every))
    found: dict[str, list[CostDifference]] = {}
    unmatched = []
    of_reference = [c for c in every if c.architecture == reference]
    for measure in (*_measures(every), BASE):
        counted = measure.column in table and not table[measure.column].isna().any()
        if not counted and measure not in TIMED:
            continue
        compared = list(candidates) if measure != BASE else _added_to_presets(candidates, found)
        pool = theirs
        if measure in TIMED:
            pool = of_reference
            compared = [
                name
                for name, members in candidates.items()
                if members[0].architecture != reference
                and any(_was_matched(c, of_reference, measure) for c in members)
            ]
        if measure.name in MEASURED:
            compared, refused = that_follow_size(measure, reference, theirs, candidates)
            unmatched += refused
        pairs = {
            name: _compare(candidates[name], pool, measure, outcome, level=level, planned=planned)
            for name in compared
        }
        found[measure.name] = [d for d in pairs.values() if isinstance(d, CostDifference)]
        for reason in NoMatch:
            without = [name for name, pair in pairs.items() if pair is reason]
            if without and measure != BASE:
                why = _why_unmatched(reason, without, reference, every)
                unmatched.append(f"at equal {measure.label} {why}")
    differences = [d for name in _in_order(found) for d in found.get(name, ())]
    corrected = holm_corrected([d.mean for d in differences])
    differences = [replace(d, p_holm=p) for d, p in zip(differences, corrected, strict=True)]
    return EqualCost(outcome=outcome, differences=differences, unmatched=unmatched)


def _measures(every: Sequence[Configuration]) -> list[CostMeasure]:
    """Return `MEASURES`, and what else `match` held equal."""
    further = (COST_MEASURES["active_params"], *TIMED)
    held = [m for m in further if any(held_to(c, m) is not None for c in every)]
    return [*(COST_MEASURES[name] for name in MEASURES), *held]


def _was_matched(
    one: Configuration, of_reference: Sequence[Configuration], measure: CostMeasure
) -> bool:
    """Whether `match` made it equal to the reference, trained or not, or the reference to it."""
    named = {c.architecture for c in of_reference}
    return architecture_of(held_to(one, measure) or "") in named or any(
        is_counterpart(one, c, measure) for c in of_reference
    )


def _in_order(found: Mapping[str, Sequence[CostDifference]]) -> list[str]:
    """Return the cost measures, first what the sweep held equal for most."""
    by_match = {name: sum(d.by_match for d in found.get(name, ())) for name in QUANTITIES}
    held = {**by_match, BASE.name: len(found.get(BASE.name, ()))}
    if not any(n for name, n in by_match.items() if name != "flops"):
        # Equal FLOPs without `match`, as of an isoFLOP profile, are held equal, too.
        held["flops"] = len(found.get("flops", ()))
    return sorted(TABLE_ORDER, key=lambda name: (-held.get(name, 0), name == BASE.name))


def _why_unmatched(
    reason: NoMatch, series: Sequence[str], reference: str, every: Sequence[Configuration]
) -> str:
    """Return why candidates have no match, and which further runs would give them one."""
    names = some_of(series)
    solved = any(
        c.solved_tokens for c in every if c.series in series or c.architecture == reference
    )
    held = sorted({key for c in every for key in c.match if key != "solve"})
    or_match = f" (match held {', '.join(held)} equal)" if held else ", or use match"
    of_tokens = (
        ", since match solved for tokens; let it solve for a field of the model"
        if solved
        else f"; train {FEWEST_SIZES} sizes of {reference} or more for as many{or_match}"
    )
    return {
        NoMatch.COUNTERPART: (
            f"nothing is compared with {names}: the {reference} runs that match names are not"
            " trained yet, or excluded"
        ),
        NoMatch.DATA: f"no {reference} run is on the data of {names}; train {reference} on them",
        NoMatch.TOKENS: f"no {reference} run has the training tokens of {names}{of_tokens}",
        NoMatch.FEW: (
            f"{reference} has fewer than {FEWEST_SIZES} sizes with the training tokens of {names},"
            f" too few to interpolate; add sizes on both sides of that cost{or_match}"
        ),
        NoMatch.TIED: (
            f"several sizes of {reference} cost the same, so it is not interpolated at the cost of"
            f" {names}; leave out all but one of them{or_match}"
        ),
        NoMatch.OUTSIDE: (
            f"no {reference} runs on both sides of the cost of {names}; add larger or smaller"
            f" ones{or_match}"
        ),
    }[reason]


def _added_to_presets(
    candidates: Mapping[str, Sequence[Configuration]],
    found: Mapping[str, Sequence[CostDifference]],
) -> list[str]:
    """Return the series of architectures of which not every size has equal FLOPs."""
    by_flops = {
        d.candidate for d in found.get("flops", ()) if not (d.interpolated or d.n_unmatched)
    }
    added = {candidates[name][0].architecture for name in candidates if name not in by_flops}
    return [name for name, members in candidates.items() if members[0].architecture in added]


def _compare(
    mine: Sequence[Configuration],
    theirs: Sequence[Configuration],
    measure: CostMeasure,
    outcome: str,
    *,
    level: float,
    planned: frozenset[int],
) -> CostDifference | NoMatch:
    """Return the difference of one series in one measure, or why most of its sizes have none.

    `planned` are the seeds of the sweep.
    """
    by_name = {c.name: c for c in (*mine, *theirs)}
    matches: dict[str, CostMatch] = {}
    reasons: Counter[NoMatch] = Counter()
    for one in mine:
        match = match_cost(one, [c for c in theirs if c.data == one.data], measure)
        if isinstance(match, NoMatch):
            reasons[match] += 1
        else:
            matches[one.name] = match
    if not matches:
        return reasons.most_common(1)[0][0]
    one_seed = {
        name: [n for n in (name, *match.weights) if len(by_name[n].values) == 1]
        for name, match in matches.items()
    }
    compared = [name for name in matches if not one_seed[name]] or list(matches)
    lacking = dict.fromkeys(n for names in one_seed.values() for n in names)

    def difference(over: Sequence[str]) -> MeanEstimate:
        share = 1 / len(over)
        weights: dict[str, float] = dict.fromkeys(over, share)
        for name in over:
            for of_reference, weight in matches[name].weights.items():
                weights[of_reference] = weights.get(of_reference, 0.0) - share * weight
        # Errors of neighbouring interpolations lean the same way, so they do not average out.
        error = sum(matches[name].error for name in over) * share
        terms = [(weight, by_name[name].values) for name, weight in weights.items()]
        return contrast_of_means(terms, level=level, extra_sd=error)

    # The counterparts of `match` may be of any series.
    used = {name for of in compared for name in matches[of].weights}
    series = {c.series for c in theirs if c.name in used}
    flops_of = {c.name: c.costs.get("training_flops", 0.0) for c in mine}
    largest = max(compared, key=lambda name: (matches[name].amount, flops_of[name]))
    return CostDifference(
        measure=measure,
        candidate=mine[0].series,
        reference=series.pop() if len(series) == 1 else theirs[0].architecture,
        outcome=outcome,
        n_sizes=len(compared),
        n_unmatched=len(mine) - len(matches),
        interpolated=any(len(matches[name].weights) > 1 for name in compared),
        mean=difference(compared),
        largest=difference([largest]),
        largest_amount=matches[largest].amount,
        by_match=any(matches[name].by_match for name in compared),
        n_left_out=len(matches) - len(compared),
        missing_seeds=tuple(_missing_seeds(by_name[name], planned) for name in lacking),
        level=level,
    )


def _missing_seeds(one: Configuration, planned: frozenset[int]) -> str:
    """Return which seeds a configuration lacks that others have: `seed 1 of primer d12`."""
    missing = [str(seed) for seed in sorted(planned - one.seeds)]
    if not missing:
        return f"a second seed of {one.label}"
    return f"{'seed' if len(missing) == 1 else 'seeds'} {some_of(missing)} of {one.label}"
