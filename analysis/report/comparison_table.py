"""Pairs at equal training FLOPs: differences, p-values, baseline size needed."""

import math
from collections.abc import Callable
from typing import Any

from analysis.fitting.multiple_comparisons import n_corrected
from analysis.formatting import Column, Table, count
from analysis.report.cells import (
    OUTCOME_LABELS,
    SIZED_OUTCOMES,
    estimate,
    estimate_fields,
    p_value,
    value_column,
)
from analysis.report.configuration_tables import not_causal
from analysis.scaling.equal_compute import EqualFlops
from analysis.scaling.sweep_summary import SweepFits
from orchestrator.records.units import plural


def comparison(fits: SweepFits) -> Table:
    """Return one row per pair at equal training FLOPs and outcome."""

    def value(which: str) -> Callable[[EqualFlops], str]:
        return lambda p: estimate(getattr(p, which).outcomes[p.outcome], interval=False)

    def numbers(which: str) -> Callable[[EqualFlops], dict[str, Any]]:
        return lambda p: {f"{which}_value": getattr(p, which).outcomes[p.outcome].value}

    columns = [
        Column("model", lambda p: f"{p.summary.label} {p.summary.preset or ''}".strip()),
        Column("baseline", lambda p: f"{p.baseline.label} {p.baseline.preset or ''}".strip()),
        value_column("FLOPs ratio", "flops_ratio", "{:.3f}".format),
        value_column("outcome", "outcome", OUTCOME_LABELS.__getitem__, numeric=False),
        Column("model's", value("summary"), True, numbers("summary")),
        Column("baseline's", value("baseline"), True, numbers("baseline")),
        Column(
            "difference",
            lambda p: estimate(p.difference, signed=True),
            True,
            lambda p: {**estimate_fields("difference", p.difference), "p": p.difference.p},
        ),
        value_column("p (Holm)", "p_holm", p_value),
        Column("verdict", lambda p: p.verdict),
        Column(f"{fits.baseline} size needed", _size_needed, False, _size_fields),
    ]
    notes = list(fits.unpaired)
    if fits.pairs:
        methods = dict.fromkeys(p.difference.method for p in fits.pairs)
        notes = [
            f"[…] of a difference is {'; '.join(methods)}",
            corrected_note(n_corrected(p.difference for p in fits.pairs)),
            f"last column: the size at which the {fits.baseline} curve reaches the model's value,"
            " as a multiple of the baseline's size; one seed of the model gives no interval",
            *not_causal(fits),
            *notes,
        ]
    return Table.of("At equal training FLOPs", fits.pairs, columns, notes)


def _without_size(pair: EqualFlops) -> bool:
    """Whether a sentence says why no baseline size can be named."""
    size = pair.effective_size
    numbers = (size.equivalent_params, size.over_baseline_params)
    return pair.outcome in SIZED_OUTCOMES and None in numbers


def corrected_note(n: int) -> str:
    """Return how p-values were corrected."""
    if not n:
        return "no p-values: one seed on a side, or seeds that do not differ, give no interval"
    return (
        f"p: that there is no difference, corrected for {plural(n, 'comparison')} (Holm);"
        " intervals are of one comparison each"
    )


def _size_fields(pair: EqualFlops) -> dict[str, Any]:
    size = pair.effective_size
    return {
        "size_needed": size.equivalent_params,
        "size_needed_low": size.low,
        "size_needed_high": size.high,
        "size_needed_ratio": size.over_baseline_params,
        "extrapolated": size.extrapolated,
    }


def _size_needed(pair: EqualFlops) -> str:
    """Return `2.1× (1.3 M [1.1 M, 1.6 M])`, marked when extrapolated, or why there is none."""
    size = pair.effective_size
    if pair.outcome not in SIZED_OUTCOMES:
        return "–"
    if _without_size(pair):
        return size.sentence
    assert size.equivalent_params is not None
    assert size.over_baseline_params is not None
    interval = ""
    if size.low is not None and size.high is not None and not math.isnan(size.low):
        interval = f" [{count(size.low)}, {count(size.high)}]"
    mark = ", extrapolated" if size.extrapolated else ""
    return f"{size.over_baseline_params:.2f}× ({count(size.equivalent_params)}{interval}{mark})"
