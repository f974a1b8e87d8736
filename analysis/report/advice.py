"""Advice on what to run next, in words: which runs, what they bring, and why."""

import math
from collections.abc import Sequence

import pandas as pd

from analysis.fitting.bootstrap import p_value_with_seeds
from analysis.fitting.verdict import VerdictStatus
from analysis.formatting import some_of
from analysis.report.answer import MOST_NAMED, SweepAnswer
from analysis.scaling.comparison import ArchitectureComparison
from analysis.scaling.equal_cost import CostDifference
from analysis.scaling.sweep_summary import SweepFits
from orchestrator.records.units import plural

MOST_SEEDS = 30
"""Seeds per configuration beyond which more of them are no sensible advice."""

FEWEST_FOR_A_CURVE = 6
"""Sizes from which on an interval of a curve is fair (`docs/analysis.md`)."""

MOST_CURVES_NAMED = 4
"""Curves of too few sizes that are named; of more it says how many."""


def advice(
    answer: SweepAnswer,
    fits: SweepFits,
    comparison: ArchitectureComparison,
    *,
    sweep: str | None,
    excluded: pd.DataFrame | None = None,
) -> tuple[str, ...]:
    """Return what to run next, the most useful first; a sentence or two each.

    Args:
        answer: Of the sweep.
        fits: Of `analysis.fit_sweep`.
        comparison: Whose design chose among planned trials.
        sweep: Name, for commands to type; None of several, or of none.
        excluded: Trials that do not count (`Runs.excluded`); None is none.
    """
    unfinished = _unfinished(excluded, sweep)
    if unfinished:
        # What else is missing is told when the planned trials are there: some of it is theirs.
        return unfinished
    found = [*_seeds(answer), *_edges(fits), *_untuned(fits), *_sizes(fits)]
    laws = {} if comparison.laws is None else comparison.laws.by_name
    verdicts = {name: law.fit.verdict.status for name, law in laws.items()}
    misfits = [name for name, verdict in verdicts.items() if verdict == VerdictStatus.MISFIT]
    vague = [n for n, verdict in verdicts.items() if verdict == VerdictStatus.UNDERDETERMINED]
    design = comparison.design
    if misfits:
        found.append(
            f"The law of {', '.join(misfits)} misfits its runs, so no run can be said to narrow it"
            " most: spread further sizes evenly, or fit another law (analysis.choose_law)."
        )
    elif design is not None and (not design.is_known or (vague and not design.chosen)):
        whose = ", ".join(vague or verdicts)
        found.append(
            f"Add sizes further apart: many curves fit the runs of {whose} equally well,"
            " and no trial left or further seed changes that."
            f" `memscale next {sweep or 'SWEEP'} --candidates more.yaml` chooses among those of"
            " another file."
        )
    elif design is not None:
        names = ", ".join(one.candidate.name for one in design.chosen)
        what = f"Run {names}: " if names else ""
        writes = f" `memscale next {sweep}` writes the sweep file." if sweep else ""
        found.append(f"{what}{design.sentence}.{writes}")
    if not found and answer.differences.differences:
        found.append(
            "Train larger sizes: what is measured here says nothing beyond the largest of them."
        )
    return tuple(found)


def _unfinished(excluded: pd.DataFrame | None, sweep: str | None) -> tuple[str, ...]:
    """Return that planned trials wait or run, if some do, and how they go on."""
    if excluded is None:
        return ()
    left = excluded[excluded["state"].isin(["running", "waiting"])]
    if not len(left):
        return ()
    names = sorted(set(left["sweep"].astype(str)))
    several = len(names) > 1
    which = "the sweep" if names == [sweep] else f"sweep{'s' if several else ''} {some_of(names)}"
    trials = plural(len(left), "planned trial")
    status = " and ".join(f"`memscale status {name}`" for name in names)
    if (left["state"] == "waiting").any():
        return (
            f"Finish {which} first: {trials} of {'them' if several else 'it'} without a result."
            f" Submit the sweep {'files' if several else 'file'} again, or see {status}.",
        )
    return (
        f"Make the report again when {which} {'have' if several else 'has'} ended: {trials}"
        f" without a result ({status}).",
    )


def _seeds(answer: SweepAnswer) -> list[str]:
    """Return how many seeds would tell apart what is not."""
    # What the sweep held equal for most comes first.
    found = answer.differences.differences
    held_equal = [d for d in found if d.measure == found[0].measure]
    no_noise = "with one seed nothing says whether a difference is noise."
    if held_equal and all(max(d.mean.n_seeds) == 1 for d in held_equal):
        return [f"Train a second and a third seed: {no_noise}"]
    without = dict.fromkeys(s for d in held_equal if d.mean.p is None for s in d.missing_seeds)
    left_out = dict.fromkeys(s for d in held_equal for s in d.missing_seeds if s not in without)
    sentences = []
    if without:
        sentences.append(f"Train {some_of([*without])}: {no_noise}")
    if left_out:
        sentences.append(
            f"Train {some_of([*left_out])}: a size with one seed is left out of the mean."
        )
    equal = [d.candidate for d in held_equal if d.mean.p is None and min(d.mean.n_seeds) > 1]
    if equal:
        sentences.append(
            f"{some_of(equal)}: no seed differs from another, so nothing says what noise is. Where"
            " all models know none of the facts, or all, change the tokens or the facts."
        )
    open_ones = [d for d in held_equal if d.verdict == "not told apart"]
    for one in sorted(open_ones, key=lambda d: -abs(d.mean.value))[:MOST_NAMED]:
        n = seeds_needed(one, n_open=answer.differences.n_open)
        low, high = one.mean.low, one.mean.high
        if n is None or low is None or high is None:
            continue
        if n == math.inf:
            sentences.append(
                f"{one.candidate}: no number of seeds would tell a difference of"
                f" {abs(one.mean.value):.2g} at equal {one.measure.label}. There {one.reference} is"
                f" interpolated between its sizes, with an error of about {one.mean.extra_sd:.2g}."
                f" Train sizes of {one.reference} that are nearer in {one.measure.label}."
            )
        elif n > MOST_SEEDS:
            sentences.append(
                f"{one.candidate}: further seeds are hardly worth it. The difference at equal"
                f" {one.measure.label} lies between {low:+.2g} and {high:+.2g}; larger sizes say"
                " more."
            )
        else:
            sentences.append(
                f"{one.candidate}: about {n} seeds or more of each configuration would tell a"
                f" difference of {abs(one.mean.value):.2g} at equal {one.measure.label} from noise."
            )
    return sentences


def seeds_needed(one: CostDifference, *, n_open: int) -> float | None:
    """Return the seeds at which the difference would be told apart, if no configuration had fewer.

    Counted up to one more than `MOST_SEEDS`; infinite where the error of the interpolation alone
    hides the difference. None where nothing says how much seeds differ.

    Args:
        one: Not told apart now.
        n_open: Comparisons that are not, this one included. Holm's procedure multiplies the
            smallest p-value among them by their number; the others are taken as they are.
    """
    if one.mean.p is None or one.mean.value == 0:
        return None

    def told_apart_with(n: float) -> bool:
        then = p_value_with_seeds(one.mean, n)
        return then is not None and then * n_open <= 1 - one.level

    if not told_apart_with(math.inf):
        return math.inf
    counts = range(min(one.mean.n_seeds) + 1, MOST_SEEDS + 1)
    return next((n for n in counts if told_apart_with(n)), MOST_SEEDS + 1)


def _edges(fits: SweepFits) -> list[str]:
    """Return which settings to extend, because the best is the last one tried."""
    at_edge = [b for b in fits.best if b.at_edge]
    if not at_edge:
        return []
    shown = "; ".join(f"{b.architecture} {b.size}: {', '.join(b.at_edge)}" for b in at_edge[:3])
    more = f"; so at {plural(len(at_edge) - 3, 'more size')}" if len(at_edge) > 3 else ""
    return [f"Try values further out, since the best is the last one tried ({shown}{more})."]


def _untuned(fits: SweepFits) -> list[str]:
    """Return which architectures to tune as others were."""
    sentences = []
    settings: Sequence[str] = list(dict.fromkeys(n for t in fits.tuned.values() for n in t))
    for name in settings:
        fixed = sorted(a for a, tried in fits.tuned.items() if tried[name] == 1)
        if fixed and len(fixed) < len(fits.tuned):
            sentences.append(
                f"Vary {name} for {', '.join(fixed)} too: tuning one side alone favours it."
            )
    return sentences


def _sizes(fits: SweepFits) -> list[str]:
    """Return where more sizes would make a curve fair."""
    series = {c.series: c.architecture for c in fits.curves}
    few = {c.series for c in fits.curves if c.fit.n_configurations < FEWEST_FOR_A_CURVE}
    if not few:
        return []
    names = sorted(few)
    if len(names) > MOST_CURVES_NAMED:  # an architecture stands for all its settings
        enough = {series[name] for name in series.keys() - few}
        names = sorted({name if series[name] in enough else series[name] for name in few})
    more = len(names) - MOST_CURVES_NAMED
    named = ", ".join(names[:MOST_CURVES_NAMED]) + (f" and {more} more" if more > 0 else "")
    return [
        f"Add sizes of {named}: a curve through fewer than {FEWEST_FOR_A_CURVE} has intervals that"
        " are too narrow, and too few runs to check the law."
    ]
