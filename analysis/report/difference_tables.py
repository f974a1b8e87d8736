"""Tables of differences at equal cost, and of trends with memory size."""

from collections.abc import Callable, Sequence
from typing import Any

from analysis.fitting.bootstrap import MeanEstimate
from analysis.fitting.multiple_comparisons import n_corrected
from analysis.formatting import Column, Table, count, flops, seconds, some_of
from analysis.report.cells import (
    OUTCOME_LABELS,
    estimate,
    estimate_fields,
    p_value,
    value_column,
)
from analysis.report.comparison_table import corrected_note
from analysis.report.configuration_tables import untuned
from analysis.scaling.cost_measures import CostMeasure
from analysis.scaling.counterparts import TIMED
from analysis.scaling.equal_cost import CostDifference, EqualCost
from analysis.scaling.memory_trend import MemoryTrend
from analysis.scaling.sweep_summary import SweepFits


def differences_table(found: EqualCost, fits: SweepFits) -> Table:
    """Return one row per cost measure and architecture: the difference at equal cost."""
    columns = [
        Column("at equal", lambda d: d.measure.label, False, lambda d: {"measure": d.measure.name}),
        Column("architecture", lambda d: d.candidate),
        value_column("against", "reference", str, numeric=False),
        Column("sizes", _sizes_text, True, _size_counts),
        Column(
            "mean difference",
            lambda d: estimate(d.mean, signed=True),
            True,
            lambda d: {"outcome": d.outcome, **estimate_fields("difference", d.mean)},
        ),
        Column(
            "at the largest",
            lambda d: (
                f"{estimate(d.largest, signed=True)} at {amount_text(d.measure, d.largest_amount)}"
            ),
            True,
            lambda d: {
                **estimate_fields("difference_at_largest", d.largest),
                "largest_amount": d.largest_amount,
            },
        ),
        *_told_apart_columns(lambda d: d.mean),
    ]
    notes = list(found.unmatched)
    if found.differences:
        outcome = OUTCOME_LABELS.get(found.outcome, found.outcome)
        notes = [
            f"{outcome}: architecture minus reference, {fits.level:.0%} intervals of Welch's t"
            " over seeds; they say nothing of other data, settings or larger sizes",
            corrected_note(found.n_corrected),
            *(
                ["interpolated: the reference between its sizes, never beyond them"]
                if any(d.interpolated for d in found.differences)
                else []
            ),
            *(
                [
                    "matched: timed when the sweep was planned, not while it ran; each ratio is in"
                    " sweep.step_times.json"
                ]
                if any(d.measure in TIMED for d in found.differences)
                else []
            ),
            *dict.fromkeys(
                f"{d.candidate}: {left_out_text(d)}" for d in found.differences if d.n_left_out
            ),
            *untuned(fits),
            *notes,
        ]
    return Table.of("Differences at equal cost", found.differences, columns, notes)


def left_out_text(one: CostDifference) -> str:
    """Return which sizes are left out for want of seeds, empty where none is."""
    if not one.n_left_out:
        return ""
    what = (
        "size is left out, which lacks" if one.n_left_out == 1 else "sizes are left out, which lack"
    )
    return f"{one.n_left_out} {what} {some_of(one.missing_seeds)}"


def _sizes_text(one: CostDifference) -> str:
    """Return `4 of 6, interpolated`."""
    text = f"{one.n_sizes} of {one.n_configurations}"
    return f"{text}, interpolated" if one.interpolated else text


def _size_counts(one: CostDifference) -> dict[str, object]:
    return {
        "n_sizes": one.n_sizes,
        "n_unmatched": one.n_unmatched,
        "n_left_out": one.n_left_out,
        "interpolated": one.interpolated,
    }


def trends_table(trends: Sequence[MemoryTrend], fits: SweepFits) -> Table:
    """Return one row per architecture and preset at which a memory's size was varied."""
    columns = [
        Column("architecture", lambda t: t.architecture),
        Column("preset", lambda t: t.preset),
        value_column("sizes", "n_sizes", str),
        value_column("smallest", "smallest", count),
        value_column("largest", "largest", count),
        Column(
            "change per doubling",
            lambda t: estimate(t.per_doubling, signed=True),
            True,
            lambda t: {"outcome": t.outcome, **estimate_fields("per_doubling", t.per_doubling)},
        ),
        *_told_apart_columns(lambda t: t.per_doubling),
    ]
    if not trends:
        return Table.of("Memory size at a fixed preset", (), columns, ())
    outcome = OUTCOME_LABELS.get(trends[0].outcome, trends[0].outcome)
    solved = sorted({name for t in trends for name in t.solved})
    but = f" but for {', '.join(solved)}, which match solved for" if solved else ""
    notes = [
        f"{outcome}: slope over log2 of memory parameters at equal preset and tokens{but};"
        f" {fits.level:.0%} intervals of Student's t over seeds, each with a slope of its own, hold"
        " what a line misses, too",
        corrected_note(n_corrected(t.per_doubling for t in trends)),
    ]
    return Table.of("Memory size at a fixed preset", trends, columns, notes)


def _told_apart_columns(estimate_of: Callable[[Any], MeanEstimate]) -> list[Column]:
    """Return the columns of a row's corrected p-value, and of what follows from it."""
    return [
        Column(
            "p (Holm)",
            lambda row: p_value(row.p_holm),
            True,
            lambda row: {"p": estimate_of(row).p, "p_holm": row.p_holm},
        ),
        Column("verdict", lambda row: row.verdict),
    ]


def amount_text(measure: CostMeasure, value: float) -> str:
    """Return an amount of a cost measure with its unit: `8.1e+11 FLOPs`."""
    units = {"training_flops": " FLOPs", "train_seconds": " s", "bytes_read_per_token": " B"}
    units["training_tokens"] = " tokens"
    show = {"training_flops": flops, "train_seconds": seconds}.get(measure.column, count)
    return f"{show(value)}{units.get(measure.column, '')}"
