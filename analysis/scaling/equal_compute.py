"""Equal-compute comparison with a baseline, at equal training FLOPs.

The effective size is the dense size that the dense curve needs to reach this model's value. It is
a statement about one outcome at one place, not a constant of an architecture.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.fitting.bootstrap import MeanEstimate, difference_of_means, mean_over_seeds
from analysis.fitting.multiple_comparisons import holm_corrected
from analysis.fitting.result import LawFit
from analysis.loading.schema import OUTCOMES
from analysis.scaling.configuration_summary import ConfigurationSummary
from analysis.scaling.counterparts import architecture_of
from analysis.scaling.outcomes import told_apart
from orchestrator.records.varied_settings import MATCH

FLOP_TOLERANCE = 0.02
"""Largest relative difference of training FLOPs that counts as equal.

`match:` hits its target within 1 %."""


@dataclass(frozen=True, kw_only=True)
class EffectiveSize:
    """The dense size that the dense curve needs for a value, over another size."""

    sentence: str
    equivalent_params: float | None = None
    """None when no size of the dense curve reaches the value, or there is no curve."""
    low: float | None = None
    """None for one seed, as of every mean over seeds, for a curve of fewer than two draws, and
    where the whole interval is too large a size to be known."""
    high: float | None = None
    """The same; infinite where the upper end alone is too large."""
    over_baseline_params: float | None = None
    """equivalent_params / total_params of the dense configuration at equal FLOPs."""
    extrapolated: bool = False
    """Whether the equivalent size lies outside the dense runs."""


@dataclass(frozen=True, kw_only=True)
class EqualFlops:
    """One configuration against the baseline configuration that spent the same training FLOPs."""

    outcome: str
    summary: ConfigurationSummary
    baseline: ConfigurationSummary
    flops_ratio: float
    """training_flops of this over that of the baseline."""
    difference: MeanEstimate
    """This minus baseline, in the units of the outcome."""
    effective_size: EffectiveSize
    p_holm: float | None = None
    """p-value of the difference, corrected for all comparisons of the sweep; None: one seed."""
    level: float = 0.95

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `not told apart` or `no interval`, after the correction."""
        return told_apart(self.difference, self.p_holm, self.outcome, self.level)


def equal_flops(
    table: pd.DataFrame,
    summaries: Sequence[ConfigurationSummary],
    fits: Mapping[tuple[str, str], LawFit],
    *,
    baseline: str = "dense",
    level: float = 0.95,
) -> tuple[list[EqualFlops], list[str]]:
    """Return the comparisons, and a sentence for every configuration that has no partner.

    A partner runs on the same data with training FLOPs within FLOP_TOLERANCE. Of several it is the
    nearest in FLOPs, then the one with the fewest differing settings.

    Args:
        table: Of `Runs`.
        summaries: Of `summarise`.
        fits: (series, outcome) to the curve against total_params.
        baseline: Architecture to compare with.
        level: Of the intervals.
    """
    references = [s for s in summaries if s.architecture == baseline]
    others = [s for s in summaries if s.architecture != baseline]
    if not references:
        return [], [f"no {baseline} runs to compare with"]
    if not others:
        return [], [f"only {baseline} runs: nothing to compare"]
    groups = {str(name): group for name, group in table.groupby("configuration", sort=False)}
    settings = {name: group.iloc[0].to_dict() for name, group in groups.items()}
    pairs: list[EqualFlops] = []
    notes: list[str] = []
    for one in others:
        partner, note = _partner(one, references, settings)
        if partner is None or one.training_flops is None or partner.training_flops is None:
            notes.append(note)
            continue
        ratio = one.training_flops / partner.training_flops
        for outcome in OUTCOMES:
            if outcome not in one.outcomes or outcome not in partner.outcomes:
                continue
            mine, theirs = (
                groups[s.configuration][outcome].to_numpy(dtype=float) for s in (one, partner)
            )
            curve = fits.get((partner.series, outcome))
            pairs.append(
                EqualFlops(
                    outcome=outcome,
                    summary=one,
                    baseline=partner,
                    flops_ratio=ratio,
                    difference=difference_of_means(mine, theirs, level=level),
                    effective_size=effective_size(partner, mine, curve),
                    level=level,
                )
            )
    # All of a report are one family: any of them may be the one that is told.
    corrected = holm_corrected([pair.difference for pair in pairs])
    return [replace(pair, p_holm=p) for pair, p in zip(pairs, corrected, strict=True)], notes


def effective_size(
    partner: ConfigurationSummary,
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    fit: LawFit | None,
) -> EffectiveSize:
    """Return the baseline size that the baseline's curve needs to reach the mean of `values`.

    The interval joins the curve's resamples with Student's t interval of the mean. There is none
    for one seed. A curve that is a misfit gives no size.

    Args:
        partner: Baseline configuration at equal FLOPs.
        values: Of the other configuration, over seeds.
        fit: The baseline's curve against total parameters.
    """
    if fit is None or not fit.usable:
        why = (
            "no curve was fitted"
            if fit is None
            else f"the {partner.series} curve is {fit.status}: {fit.sentence}"
        )
        return EffectiveSize(sentence=why)
    if fit.verdict.is_misfit:
        return EffectiveSize(
            sentence=f"the {partner.series} curve is a misfit: {fit.verdict.sentence}"
        )
    mean = mean_over_seeds(values, level=fit.level)
    low: float | None
    high: float | None
    half = 0.0 if mean.high is None else mean.high - mean.value
    size, low, high = fit.x_reaching(mean.value, y_half_width=half)
    if mean.high is None or not np.isfinite(low):
        low = high = None
    if not np.isfinite(size) or size == 0:
        return EffectiveSize(
            sentence=f"no size on the {partner.series} curve reaches {mean.value:.4g}",
            low=low,
            extrapolated=True,
        )
    outside = not fit.x.min() <= size <= fit.x.max()
    sentence = (
        f"outside the {partner.series} runs: an extrapolation"
        if outside
        else f"between the {partner.series} runs"
    )
    return EffectiveSize(
        equivalent_params=size,
        low=low,
        high=high,
        over_baseline_params=size / partner.total_params,
        extrapolated=outside,
        sentence=sentence,
    )


def _partner(
    one: ConfigurationSummary,
    references: Sequence[ConfigurationSummary],
    settings: Mapping[str, Mapping[Hashable, Any]],
) -> tuple[ConfigurationSummary | None, str]:
    label = f"{one.label} {one.preset or one.configuration}"
    if one.training_flops is None:
        return None, f"{label}: no training_flops in the table"
    mine = settings[one.configuration]
    same_data = [
        r
        for r in references
        if not _differing(mine, settings[r.configuration], "data.") and r.training_flops
    ]
    if not same_data:
        return None, f"{label}: no {references[0].architecture} run on the same data"

    def gap(reference: ConfigurationSummary) -> float:
        return abs((one.training_flops or 0.0) / (reference.training_flops or np.inf) - 1)

    best = min(
        same_data,
        key=lambda r: (
            round(gap(r), 6),
            len(_differing(mine, settings[r.configuration], "train.")),
            r.configuration,
        ),
    )
    if gap(best) > FLOP_TOLERANCE:
        why = f"nearest {best.architecture} run differs by {gap(best):.0%} in training FLOPs"
        return None, f"{label}: {why}; {_advice(mine, settings[best.configuration])}"
    return best, ""


def _advice(mine: Mapping[Hashable, Any], theirs: Mapping[Hashable, Any]) -> str:
    """Return what gives a configuration a partner, by what `match` made equal to what.

    Args:
        mine: Cells of the configuration.
        theirs: Those of the baseline's configuration that is nearest in FLOPs.
    """
    held, to_mine = _held(mine), _held(theirs)
    counterpart = held.get("training_flops", to_mine.get("training_flops"))
    if architecture_of(str(counterpart)) in (theirs["architecture"], mine["architecture"]):
        return "its match is not trained yet, or excluded"
    if counterpart is not None:
        return f"its match is {counterpart}"
    others = [*held, *(key for key, value in to_mine.items() if value == mine["architecture"])]
    if others:
        return f"match held {others[0]} equal, not training_flops"
    return "use match: {training_flops: …}"


def _held(settings: Mapping[Hashable, Any]) -> dict[str, Any]:
    """Return what `match` held equal in a configuration, and to what."""
    return {
        str(name).removeprefix(MATCH): value
        for name, value in settings.items()
        if str(name).startswith(MATCH) and name != f"{MATCH}solve" and not pd.isna(value)
    }


def _differing(
    first: Mapping[Hashable, Any], second: Mapping[Hashable, Any], prefix: str
) -> list[Hashable]:
    return [
        name
        for name, value in first.items()
        if str(name).startswith(prefix)
        and not (value == second[name] or (pd.isna(value) and pd.isna(second[name])))
    ]
