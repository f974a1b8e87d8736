"""Equal-compute comparison with a baseline, at equal training FLOPs.

The effective size is the dense size that the dense curve needs to reach this model's value. It is
a statement about one outcome at one place, not a constant of an architecture.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.fitting.bootstrap import MeanEstimate, difference_of_means, mean_over_seeds
from analysis.fitting.multiple_comparisons import holm
from analysis.fitting.result import LawFit
from analysis.loading.schema import NOT_CAUSAL, OUTCOMES, PARAM_GROUPS, declaration
from orchestrator.records.varied_settings import MATCH

Row = Any
"""A row of the table: a pandas Series of mixed cells."""

FLOP_TOLERANCE = 0.02
"""Largest relative difference of training FLOPs that counts as equal.

`match:` hits its target within 1 %."""

_BOUNDS = {
    "factual_recall": (0.0, 1.0),
    "answer_nll": (0.0, math.inf),
    "bits_per_param": (0.0, math.inf),
    "loss": (0.0, math.inf),
}


_SIZES_AND_COSTS = (
    "active_params",
    "training_flops",
    "memory_params",
    "bytes_read_per_token",
    "bytes_read_per_token_batch64",
    "paper_block_flops",
)
"""Columns that a summary takes over as they are, where the table has them."""


@dataclass(frozen=True, kw_only=True)
class ConfigurationSummary:
    """All seeds of one configuration."""

    configuration: str
    architecture: str
    preset: str | None
    series: str
    """Name of its curve (`analysis/scaling/series_curves.py`)."""
    label: str
    """Architecture and all that varies beside the preset: `memory_plus (n_keys=64)`."""
    seeds: tuple[int, ...]
    params: Mapping[str, float]
    """Per group, the groups that the table has."""
    total_params: float
    active_params: float | None
    training_flops: float | None
    outcomes: Mapping[str, MeanEstimate]
    """factual_recall, answer_nll, bits_per_param, loss: those that were measured."""
    memory_params: float | None = None
    """Keys and values of its memories."""
    bytes_read_per_token: float | None = None
    """Decoding one sequence alone."""
    bytes_read_per_token_batch64: float | None = None
    """Decoding 64 sequences at once."""
    paper_block_flops: float | None = None
    """Of one block and one sequence, as MemoryFormer's tables count them."""
    train_seconds: float | None = None
    """Measured, mean over seeds."""
    not_causal: str | None = None
    """When and why an output can depend on later tokens, where the architecture declares it."""


@dataclass(frozen=True, kw_only=True)
class EffectiveSize:
    """The dense size that the dense curve needs for a value, over another size."""

    sentence: str
    equivalent_params: float | None = None
    """None when no size of the dense curve reaches the value, or there is no curve."""
    low: float | None = None
    high: float | None = None
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


def told_apart(
    difference: MeanEstimate, p_holm: float | None, outcome: str, level: float = 0.95
) -> str:
    """Return `better`, `worse`, `not told apart`, or `no interval` without a p-value."""
    if p_holm is None:
        return "no interval"
    if p_holm > 1 - level:
        return "not told apart"
    return "better" if (difference.value > 0) == higher_is_better(outcome) else "worse"


def higher_is_better(outcome: str) -> bool:
    """Whether a larger value is a better model."""
    return outcome in {"factual_recall", "bits_per_param"}


def summarise(
    table: pd.DataFrame,
    *,
    series: Mapping[str, str],
    labels: Mapping[str, str] | None = None,
    level: float = 0.95,
) -> list[ConfigurationSummary]:
    """Return one summary per configuration, by series and size.

    Args:
        table: Of `Runs`.
        series: Configuration to the name of its curve.
        labels: Configuration to its own name; None: that of its curve.
        level: Of the intervals over seeds.
    """
    summaries = []
    for configuration, group in table.groupby("configuration", sort=False):
        first = group.iloc[0]
        name = str(configuration)
        summaries.append(
            ConfigurationSummary(
                configuration=name,
                architecture=str(first["architecture"]),
                preset=None if pd.isna(first["preset"]) else str(first["preset"]),
                series=series[name],
                label=(labels or series)[name],
                seeds=tuple(sorted(int(seed) for seed in group["seed"])),
                params={
                    g: float(first[f"params_{g}"])
                    for g in PARAM_GROUPS
                    if _has(first, f"params_{g}")
                },
                total_params=float(first["total_params"]),
                **{name: _number(first, name) for name in _SIZES_AND_COSTS},
                train_seconds=_mean(group, "train_seconds"),
                not_causal=declaration(first.get(NOT_CAUSAL)),
                outcomes={
                    outcome: mean_over_seeds(
                        group[outcome].to_numpy(dtype=float),
                        level=level,
                        bounds=_BOUNDS.get(outcome, (-math.inf, math.inf)),
                    )
                    for outcome in OUTCOMES
                    if outcome in group and group[outcome].notna().all()
                },
            )
        )
    return sorted(summaries, key=lambda s: (s.series, s.total_params, s.configuration))


def equal_flops(
    table: pd.DataFrame,
    summaries: Sequence[ConfigurationSummary],
    fits: Mapping[tuple[str, str], LawFit],
    *,
    baseline: str = "dense",
    level: float = 0.95,
    tolerance: float = FLOP_TOLERANCE,
    seed: int = 0,
) -> tuple[list[EqualFlops], list[str]]:
    """Return the comparisons, and a sentence for every configuration that has no partner.

    A partner runs on the same data with training FLOPs within `tolerance`. Of several it is the
    nearest in FLOPs, then the one with the fewest differing settings.

    Args:
        table: Of `Runs`.
        summaries: Of `summarise`.
        fits: (series, outcome) to the curve against total_params.
        baseline: Architecture to compare with.
        level: Of the intervals.
        tolerance: Relative difference of training FLOPs.
        seed: Of the resampling of seeds behind a multiplier's interval.
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
        partner, note = _partner(one, references, settings, tolerance)
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
                    effective_size=effective_size(one, partner, mine, curve, seed=seed),
                    level=level,
                )
            )
    # All of a report are one family: any of them may be the one that is told.
    corrected = holm_corrected([pair.difference for pair in pairs])
    return [replace(pair, p_holm=p) for pair, p in zip(pairs, corrected, strict=True)], notes


def holm_corrected(differences: Sequence[MeanEstimate]) -> list[float | None]:
    """Return Holm's p-value of each difference among all that have one, None for the others."""
    adjusted = iter(holm([d.p for d in differences if d.p is not None]))
    return [None if d.p is None else next(adjusted) for d in differences]


def effective_size(
    one: ConfigurationSummary,
    partner: ConfigurationSummary,
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    fit: LawFit | None,
    *,
    seed: int = 0,
) -> EffectiveSize:
    """Return the baseline size that the baseline's curve needs to reach the mean of `values`.

    The interval joins the curve's resamples with resampled seeds of this configuration; for one
    seed it is of the curve alone. A curve that is a misfit gives no size.
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
    generator = np.random.default_rng(seed)
    resampled = generator.choice(values, size=(len(fit.draws), len(values))).mean(axis=1)
    size, low, high = fit.x_reaching(float(values.mean()), y_draws=resampled)
    if not np.isfinite(size) or size == 0:
        return EffectiveSize(
            sentence=f"no size on the {partner.series} curve reaches {values.mean():.4g}",
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
    tolerance: float,
) -> tuple[ConfigurationSummary | None, str]:
    label = f"{one.architecture} {one.preset or one.configuration}"
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
    if gap(best) > tolerance:
        why = f"nearest {best.architecture} run differs by {gap(best):.0%} in training FLOPs"
        return None, f"{label}: {why}; {_advice(mine, best.architecture)}"
    return best, ""


def _advice(settings: Mapping[Hashable, Any], baseline: str) -> str:
    """Return what gives a configuration a partner, by what its training FLOPs were matched to."""
    counterpart = settings.get(f"{MATCH}training_flops")
    if counterpart is None or pd.isna(counterpart):
        return "use match: {training_flops: …}"
    if counterpart == baseline:
        return "its match is not trained yet, or excluded"
    return f"its match is {counterpart}"


def _differing(
    first: Mapping[Hashable, Any], second: Mapping[Hashable, Any], prefix: str
) -> list[Hashable]:
    return [
        name
        for name, value in first.items()
        if str(name).startswith(prefix)
        and not (value == second[name] or (pd.isna(value) and pd.isna(second[name])))
    ]


def _number(row: Row, name: str) -> float | None:
    return float(row[name]) if _has(row, name) else None


def _mean(group: pd.DataFrame, name: str) -> float | None:
    return float(group[name].mean()) if name in group and group[name].notna().any() else None


def _has(row: Row, name: str) -> bool:
    return name in row.index and bool(pd.notna(row[name]))
