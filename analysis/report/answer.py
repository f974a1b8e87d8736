"""Answer of a report to the sweep's question, in one to three sentences.

Differences at equal cost rest on means over seeds alone. Multipliers and curves rest on fitted
laws, and nothing is claimed of a law that misfits its runs or is underdetermined by them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from analysis.fitting.verdict import VerdictStatus
from analysis.formatting import count, some_of
from analysis.loading.load import Runs
from analysis.report.cells import OUTCOME_LABELS, X_LABELS, estimate, p_value
from analysis.report.configuration_tables import untuned
from analysis.report.difference_tables import amount_text, left_out_text
from analysis.report.fit_tables import parameters
from analysis.scaling.best_settings import size_names
from analysis.scaling.comparison import ArchitectureComparison
from analysis.scaling.compute_multiplier import Multipliers
from analysis.scaling.equal_cost import CostDifference, EqualCost, equal_cost
from analysis.scaling.memory_trend import MemoryTrend, memory_trends
from analysis.scaling.outcomes import higher_is_better
from analysis.scaling.series_curves import name_series
from analysis.scaling.sweep_summary import SweepFits
from orchestrator.records.units import plural

MOST_NAMED = 3
"""Architectures that a sentence names; of more it says how many."""

USUAL_BASELINE = "dense"
"""What others are compared with wherever it was trained."""


class AnswerStatus(StrEnum):
    """Whether the runs answer the question."""

    TOLD_APART = "told apart"
    """Some architecture differs from the reference by more than noise, or memory size matters."""
    OPEN = "not told apart"
    """None does; more seeds or sizes may tell."""
    NO_COMPARISON = "no comparison"
    """One architecture, one seed, or nothing at equal cost."""


@dataclass(frozen=True, kw_only=True)
class SweepAnswer:
    """What a sweep says to its question."""

    status: AnswerStatus
    sentences: tuple[str, ...]
    """One to three."""
    rests_on: str
    """What the fitted curves are worth, in one sentence."""
    differences: EqualCost
    trends: tuple[MemoryTrend, ...] = ()
    """Where a memory's size was varied at a preset."""


def sweep_answer(runs: Runs, fits: SweepFits, comparison: ArchitectureComparison) -> SweepAnswer:
    """Return the answer of a sweep.

    Args:
        runs: The best configuration of every size, where several settings were tried.
        fits: Of `analysis.fit_sweep`.
        comparison: Of `compare_architectures`, for multipliers.
    """
    apart = [name for name in fits.apart if not name.startswith("data.")]
    series = name_series(runs.table, by=apart)
    found = equal_cost(runs.table, reference=fits.baseline, series=series, level=fits.level)
    trends = tuple(memory_trends(runs.table, outcome=found.outcome, level=fits.level))
    first_measure = next(iter(found.differences)).measure if found.differences else None
    first = [d for d in found.differences if d.measure == first_measure]
    if not first:
        return SweepAnswer(
            status=AnswerStatus.NO_COMPARISON,
            sentences=tuple(map(_capitalised, _one_architecture(runs, fits, found)[:3])),
            rests_on=curves_worth(fits),
            differences=found,
            trends=trends,
        )
    verdicts = [*(d.verdict for d in first), *(t.verdict for t in trends)]
    told = any(verdict in ("better", "worse") for verdict in verdicts)
    status = AnswerStatus.TOLD_APART if told else AnswerStatus.OPEN
    if all(d.p_holm is None for d in first):
        status = AnswerStatus.NO_COMPARISON
    ranking = _ranking_sentence(runs, fits, first, series)
    sentences = [ranking or _difference_sentence(first, found)]
    multiplier = _multiplier_sentence(first, fits, comparison)
    further = [_trend_sentence(trends), multiplier, *untuned(fits)]
    others = _other_costs_sentence(first, found)
    sentences += [s for s in (*further, others) if s]
    if USUAL_BASELINE in _without_runs(runs):
        others = f"; others are compared with {fits.baseline}"
        sentences.insert(0, _without_runs_sentence(runs, [USUAL_BASELINE], others))
    return SweepAnswer(
        status=status,
        sentences=tuple(map(_capitalised, sentences[:3])),
        rests_on=curves_worth(fits),
        differences=found,
        trends=trends,
    )


def _capitalised(sentence: str) -> str:
    """Return a sentence with a capital letter, unless it begins with an architecture's name."""
    begins = sentence.startswith(("at ", "the "))
    return sentence[0].upper() + sentence[1:] if begins else sentence


def _without_runs(runs: Runs) -> list[str]:
    """Return the architectures that were planned and have no run that counts."""
    if not len(runs.excluded):
        return []
    planned = dict.fromkeys(str(name) for name in runs.excluded["architecture"].dropna())
    return [name for name in planned if name not in set(runs.table["architecture"])]


def _without_runs_sentence(runs: Runs, names: Sequence[str], others: str = "") -> str:
    """Return that architectures have no run that counts, and why the first trial does not."""
    trials = runs.excluded[runs.excluded["architecture"].isin(names)]
    first, n_more = trials.iloc[0], len(trials) - 1
    who = some_of([f"the baseline {n}" if n == USUAL_BASELINE else n for n in names])
    more = f"; {plural(n_more, 'more trial')} excluded" if n_more else ""
    return (
        f"{who} {'has' if len(names) == 1 else 'have'} no run that counts{others}."
        f" {first['trial_id']}: {first['reason']}{more}."
    )


def curves_worth(fits: SweepFits) -> str:
    """Return how many of the fitted curves are adequate, doubtful, and so on."""
    counts = Counter(c.fit.verdict.status for c in fits.curves)
    if not counts:
        return "No curve was fitted."
    parts = [f"{counts[status]} {status}" for status in VerdictStatus if counts[status]]
    n = sum(counts.values())
    curves = "1 fitted curve" if n == 1 else f"{n} fitted curves"
    return f"Of {curves}: {', '.join(parts)}. Nothing here is claimed of a misfit."


def _difference_sentence(found: Sequence[CostDifference], every: EqualCost) -> str:
    """Return who is better than the reference at equal FLOPs, and by how much."""
    one = found[0]
    outcome, where = OUTCOME_LABELS.get(one.outcome, one.outcome), f"at equal {one.measure.label}"
    if len(found) == 1:
        verdict = one.verdict
        words = {
            "not told apart": f"{one.candidate} and {one.reference} are not told apart",
            "no interval": f"{one.candidate} against {one.reference} has no interval"
            f" ({one.mean.why_no_interval})",
        }.get(verdict, f"{one.candidate} is {verdict} than {one.reference}")
        return f"{where} {words}: {_difference(one, outcome, every)}."
    groups = {
        verdict: [d for d in found if d.verdict == verdict]
        for verdict in ("better", "worse", "not told apart", "no interval")
    }
    unclear = groups["no interval"]
    reasons = " or ".join(dict.fromkeys(d.mean.why_no_interval for d in unclear))
    words_of = {
        "better": "better",
        "worse": "worse",
        "not told apart": "not told apart",
        "no interval": f"without an interval ({reasons})",
    }
    parts = [
        f"{len(members)} {'is' if len(members) == 1 else 'are'} {words_of[verdict]}"
        f"{_named(members)}"
        for verdict, members in groups.items()
        if members
    ]
    top = _furthest(found)
    kinds = "settings" if any(" (" in d.candidate for d in found) else "architectures"
    return (
        f"{where}, of {len(found)} {kinds} against {one.reference} {', '.join(parts)}; furthest"
        f" lies {top.candidate}: {_difference(top, outcome, every)}."
    )


def _ranking_sentence(
    runs: Runs, fits: SweepFits, found: Sequence[CostDifference], series: Mapping[str, str]
) -> str | None:
    """Return the best at one size and one cost with one seed each; None where runs say more."""
    one = found[0]
    names = [one.reference, *(d.candidate for d in found)]
    values = runs.table.set_index(runs.table["configuration"].map(series))[one.outcome]
    values = values[values.index.isin(names)]
    sizes = size_names(runs.table).unique()
    # A reference of several series has no value of its own.
    if len(found) == 1 or len(sizes) > 1 or not values.index.is_unique or names[0] not in values:
        return None
    better = higher_is_better(one.outcome)
    ranked = [f"{name} {v:.4g}" for name, v in values.sort_values(ascending=not better).items()]
    best, theirs = ranked[:MOST_NAMED], f"{one.reference} {values[one.reference]:.4g}"
    return (
        f"at one size{f' ({sizes[0]})' if sizes[0] else ''} and equal {one.measure.label},"
        f" {OUTCOME_LABELS.get(one.outcome, one.outcome)}"
        f"{' with the best settings tried' if fits.best else ''}"
        f" is {'highest' if better else 'lowest'} for {', '.join(best[:-1])} and {best[-1]}"
        f"{'' if theirs in best else f'; {theirs}'}. One seed each: no interval."
    )


def _furthest(found: Sequence[CostDifference]) -> CostDifference:
    """Return the largest difference of those that are told apart, of all if none is."""
    told = [d for d in found if d.verdict in ("better", "worse")] or list(found)
    return max(told, key=lambda d: abs(d.mean.value))


def _named(members: Sequence[CostDifference]) -> str:
    names = [d.candidate for d in members]
    return f" ({', '.join(names)})" if len(names) <= MOST_NAMED else ""


def _difference(one: CostDifference, outcome: str, every: EqualCost) -> str:
    """Return the mean difference with its p-value, that at the largest size, what is left out."""
    mean = f"{outcome} {estimate(one.mean, signed=True)}"
    at, p = amount_text(one.measure, one.largest_amount), _p(one, every)
    left_out = left_out_text(one)
    left_out = f"; {left_out}" if left_out else ""
    if one.n_sizes == 1:
        which = "with several seeds" if one.n_left_out else "that has a match"
        return f"{mean}{p} at the one size {which} ({at}){left_out}"
    largest = estimate(one.largest, signed=True)
    return (
        f"{mean} on average over {one.n_sizes} sizes{p}, {largest} at the largest ({at}){left_out}"
    )


def _p(one: CostDifference, every: EqualCost) -> str:
    if one.p_holm is None:
        return ""
    n = every.n_corrected
    corrected = "" if n == 1 else f" after Holm's correction for {n} comparisons"
    return f" (p {_with_sign(one.p_holm)}{corrected})"


def _with_sign(p: float) -> str:
    """Return `= 0.017` or `< 0.001`."""
    return p_value(p) if p < 0.001 else f"= {p_value(p)}"


def _multiplier_sentence(
    found: Sequence[CostDifference], fits: SweepFits, comparison: ArchitectureComparison
) -> str | None:
    """Return how many times the FLOPs the reference needs, or why no number is claimed."""
    one = _furthest(found)
    curves = [
        c
        for c in comparison.multipliers
        if c.measure.name == "flops"
        and (c.candidate, c.reference) == (one.candidate, one.reference)
    ]
    if not curves:
        return None
    curve = curves[0]
    unclaimed = (
        f"How many times the FLOPs of {curve.candidate} {curve.reference} needs for the same"
        f" {curve.outcome} is not claimed"
    )
    misfits = _misfits(curve, fits, comparison)
    if misfits and not curve.verdict.is_misfit:
        return (
            f"{unclaimed}: the law of {' and of '.join(misfits)} is a misfit (see Fitted curves)."
        )
    if not curve.verdict.is_credible:
        status = _article(curve.verdict.status)
        return f"{unclaimed}: the laws that multipliers rest on are {status} (see report.html)."
    i = _last_within_runs(curve)
    if i is None:
        return None
    if not np.isfinite(curve.low[i]):
        return f"{unclaimed}: it has no interval, so nothing says how well the runs determine it."
    high = f"{curve.high[i]:.3g}" if np.isfinite(curve.high[i]) else "∞"
    band = f" [{curve.low[i]:.3g}, {high}]"
    return (
        f"For the {curve.outcome} of {curve.candidate} at"
        f" {amount_text(curve.measure, curve.amount[i])}, {curve.reference} needs"
        f" {curve.multiplier[i]:.3g}×{band} as many (laws {curve.verdict.status})."
    )


def _misfits(curve: Multipliers, fits: SweepFits, comparison: ArchitectureComparison) -> list[str]:
    """Return the architectures of a multiplier whose law misfits among the fitted curves.

    Both places fit the law on their own and may judge it differently. The worse verdict holds.
    """
    if comparison.laws is None:
        return []
    x = comparison.laws.columns.get("x")
    return [
        c.series
        for c in fits.curves
        if c.series in (curve.candidate, curve.reference)
        and (c.spec.outcome, c.spec.x) == (curve.outcome, x)
        and c.fit.verdict.is_misfit
    ]


def _trend_sentence(trends: Sequence[MemoryTrend]) -> str | None:
    """Return what twice the memory brings, for the trend that is told apart most clearly."""
    if not trends:
        return None
    one = min(trends, key=lambda t: (t.p_holm is None, t.p_holm or 0.0, -t.largest))
    outcome = OUTCOME_LABELS.get(one.outcome, one.outcome)
    p = "" if one.p_holm is None else f", p {_with_sign(one.p_holm)}"
    more = "; see Memory size for the others" if len(trends) > 1 else ""
    return (
        f"Twice the memory parameters change {outcome} of {one.architecture} {one.preset} by"
        f" {estimate(one.per_doubling, signed=True)}, between {count(one.smallest)} and"
        f" {count(one.largest)} of them ({one.verdict}{p}){more}."
    )


def _article(status: VerdictStatus) -> str:
    return "a misfit" if status is VerdictStatus.MISFIT else str(status)


def _last_within_runs(curve: Multipliers) -> int | None:
    """Return the largest amount with a number that rests on runs of both, None without one."""
    firm = np.flatnonzero(~curve.extrapolated & np.isfinite(curve.multiplier))
    return int(firm[-1]) if len(firm) else None


def _other_costs_sentence(found: Sequence[CostDifference], every: EqualCost) -> str | None:
    """Return how the furthest architecture does where another cost is held equal."""
    one = _furthest(found)
    told, without, reasons = [], [], []
    for d in every.differences:
        if d.candidate != one.candidate or d.measure == one.measure:
            continue
        n = d.n_configurations
        sizes = f" at {d.n_sizes} of {n} sizes" if d.n_sizes < n else ""
        place = f"at equal {d.measure.label}{sizes} ({estimate(d.mean, signed=True)})"
        if d.verdict == "no interval":
            without.append(place)
            reasons.append(d.mean.why_no_interval)
        else:
            told.append(f"{d.verdict} {place}")
    sentence = f"{one.candidate} is {', '.join(told)}" if told else ""
    if without:
        subject = f"{sentence}; it" if told else one.candidate
        sentence = (
            f"{subject} against {one.reference} has no interval"
            f" ({' or '.join(dict.fromkeys(reasons))}) {', '.join(without)}"
        )
    return f"{sentence}." if sentence else None


def _one_architecture(runs: Runs, fits: SweepFits, found: EqualCost) -> list[str]:
    """Return the answer where nothing is compared: the best settings, and the curve."""
    if not len(runs.table):
        return ["No trial has finished, so there is no answer yet."]
    lost = _without_runs(runs)
    sentences = [_without_runs_sentence(runs, lost)] if lost else []
    sentences += [f"{why}." for why in found.unmatched[:1]]
    if fits.best:
        largest = fits.best[-1]
        at_edge = sum(bool(b.at_edge) for b in fits.best)
        failed = f"; diverged: {some_of(largest.diverged)}" if largest.diverged else ""
        edge = f" At {at_edge} of {len(fits.best)} sizes the best is the last value tried, so the"
        sentences.append(
            f"Of {largest.n_tried} settings tried at {largest.architecture} {largest.size},"
            f" {largest.label} is best ({OUTCOME_LABELS.get(largest.outcome, largest.outcome)}"
            f" {largest.value:.4g}, mean over seeds){failed}."
            + (f"{edge} optimum may lie further out." if at_edge else "")
        )
    curve = next((c for c in fits.curves if c.spec.outcome == found.outcome), None)
    if curve is not None:
        what = f"{OUTCOME_LABELS[curve.spec.outcome]} of {curve.series}"
        against = X_LABELS.get(curve.spec.x, curve.spec.x)
        verdict = curve.fit.verdict
        if verdict.is_credible:
            sentences.append(
                f"{what} against {against}: {curve.fit.law.equation} with"
                f" {parameters(curve.fit)} ({verdict.status})."
            )
        else:
            sentences.append(
                f"No curve of {what} against {against} is claimed: {verdict.sentence}."
            )
    return sentences or ["One architecture without a fitted curve: there is nothing to compare."]
