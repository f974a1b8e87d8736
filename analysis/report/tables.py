"""Tables of a sweep as text, the same rows in the terminal, the report and the notebook."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from analysis.fitting.bootstrap import MeanEstimate
from analysis.formatting import Column, Table, count, decimals, flops, number, seconds
from analysis.loading.load import Runs
from analysis.loading.schema import PARAM_GROUPS
from analysis.loading.usage import KIND_WORDS, USAGE_LABELS, UsageColumns, usage_columns
from analysis.report.benchmark_table import benchmarks
from analysis.report.fit_tables import (
    fit_fields,
    health_table,
    hold_out,
    hold_out_fields,
    parameters,
)
from analysis.scaling.equal_compute import ConfigurationSummary, EqualFlops
from analysis.scaling.experimental_design import ExperimentalDesign
from analysis.scaling.series_curves import CurveSpec, SeriesFit
from analysis.scaling.sweep_summary import SweepFits

OUTCOME_LABELS = {
    "factual_recall": "factual recall",
    "answer_nll": "answer NLL (nats)",
    "bits_per_param": "bits per param",
    "loss": "loss (nats/token)",
}

SIZED_OUTCOMES = ("factual_recall", "answer_nll", "loss")
"""Outcomes with a curve against size; stored bits per parameter has none."""

X_LABELS = {
    "total_params": "total params",
    "training_flops": "training FLOPs",
    "active_params": "active params",
    "memory_params": "memory params",
}


def tables(runs: Runs, fits: SweepFits, *, everything: bool = False) -> list[Table]:
    """Return what `memscale fit` prints.

    Configurations, curves and the comparison at equal FLOPs; where there are any, also benchmarks,
    excluded trials, missing sizes and warnings about the data.

    Args:
        runs: Of `analysis.load`.
        fits: Of `analysis.fit_sweep`.
        everything: Whether to add what only the report shows: parameters by group, the use of
            memories and experts, how the optimiser fared, and the trials.
    """
    always = [configurations(fits), curves(fits), comparison(fits)]
    if fits.best:
        always.insert(1, best(fits))
    if everything:
        always += [parameter_groups(fits), usage(runs, fits), health(fits), trials(runs)]
    return always + [
        t for t in (benchmarks(runs), excluded(runs), missing(fits), warnings(runs, fits)) if t.rows
    ]


def configurations(fits: SweepFits) -> Table:
    """Return one row per configuration: parameters, costs, outcomes with intervals over seeds."""
    outcomes = [o for o in OUTCOME_LABELS if any(o in s.outcomes for s in fits.summaries)]
    costs: list[tuple[str, str, Callable[[float], str]]] = [
        ("active params", "active_params", count),
        ("memory params", "memory_params", count),
        ("bytes per token", "bytes_read_per_token", count),
        ("bytes per token, batch 64", "bytes_read_per_token_batch64", count),
        ("training FLOPs", "training_flops", flops),
        ("block FLOPs, paper", "paper_block_flops", flops),
        ("train s", "train_seconds", seconds),
    ]
    known = [c for c in costs if any(getattr(s, c[1]) is not None for s in fits.summaries)]
    columns = [
        *_series_columns(),
        *([Column("tuned", partial(_tuned, fits=fits))] if fits.tuned else []),
        Column("total params", lambda s: count(s.total_params), True, _field("total_params")),
        *(
            Column(label, partial(_attribute, name=name, show=show), True, _field(name))
            for label, name, show in known
        ),
        Column("seeds", lambda s: str(len(s.seeds)), True, lambda s: {"seeds": len(s.seeds)}),
        *(
            Column(
                OUTCOME_LABELS[o],
                partial(_mean_of, outcome=o),
                True,
                partial(_mean_fields, outcome=o),
            )
            for o in outcomes
        ),
    ]
    meanings = {
        "active params": "active: non-embedding parameters that one token touches",
        "bytes per token": "bytes per token: weights and rows read to decode one token, bf16",
        "block FLOPs, paper": "block FLOPs, paper: one block, one sequence, as MemoryFormer counts"
        " (a multiply-add is one)",
        "train s": "train s: wall time measured, mean over seeds",
    }
    shown = [meanings[label] for label, _, _ in known if label in meanings]
    methods = dict.fromkeys(e.method for s in fits.summaries for e in s.outcomes.values())
    notes = ["; ".join(shown)] if shown else []
    notes.append("[…] is " + "; ".join(methods) if methods else "no outcome was measured")
    notes += untuned(fits)
    return Table.of("Architectures", fits.summaries, columns, [*notes, *not_causal(fits)])


def best(fits: SweepFits) -> Table:
    """Return one row per size of which several settings were tried: the best, and its edges."""
    names = " and ".join(name for name in fits.varied if name not in fits.apart)
    columns = [
        Column("architecture", lambda b: b.architecture),
        Column("size", lambda b: b.size),
        Column("best", lambda b: b.label),
        Column("of", lambda b: str(b.n_tried), True, lambda b: {"n_tried": b.n_tried}),
        Column("by", lambda b: OUTCOME_LABELS[b.outcome], False, lambda b: {"outcome": b.outcome}),
        Column("value", lambda b: number(b.value), True, lambda b: {"value": b.value}),
        Column("at the edge", lambda b: "; ".join(b.at_edge) or "no"),
    ]
    notes = [f"best of the values of {names} that were tried, by the mean over seeds"]
    if any(b.at_edge for b in fits.best):
        notes.append(
            "at the edge: nothing beyond it was tried, so the optimum may lie further out;"
            " add values there"
        )
    notes += untuned(fits)
    return Table.of("Best settings of every size", fits.best, columns, notes if fits.best else ())


def untuned(fits: SweepFits) -> list[str]:
    """Return a note where one architecture had more values of a training setting than another."""
    notes = []
    for setting in dict.fromkeys(name for tried in fits.tuned.values() for name in tried):
        several = {a: tried[setting] for a, tried in fits.tuned.items() if tried[setting] > 1}
        fixed = sorted(a for a, tried in fits.tuned.items() if tried[setting] == 1)
        if several and fixed:
            most = max(several.values())
            notes.append(
                f"{setting} was not varied for {', '.join(fixed)}, while"
                f" {', '.join(sorted(several))} had up to {most} values: a difference between them"
                " is partly tuning"
            )
    return notes


def _tuned(summary: ConfigurationSummary, *, fits: SweepFits) -> str:
    """Return `lr: 3 values` of each training setting that the sweep varies."""
    tried = fits.tuned.get(summary.architecture, {})
    words = {1: "not varied"}
    return "; ".join(
        f"{name.rpartition('.')[2]}: {words.get(n, f'{n} values')}" for name, n in tried.items()
    )


def _field(name: str) -> Callable[[Any], dict[str, Any]]:
    """Return what gives an attribute by its name."""
    return lambda item: {name: getattr(item, name)}


def _mean_fields(summary: ConfigurationSummary, *, outcome: str) -> dict[str, Any]:
    return estimate_fields(outcome, summary.outcomes.get(outcome))


def estimate_fields(name: str, value: MeanEstimate | None) -> dict[str, Any]:
    """Return an estimate and its interval by names."""
    found = (None, None, None) if value is None else (value.value, value.low, value.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), found, strict=True))


def _attribute(item: Any, *, name: str, show: Callable[[Any], str]) -> str:
    value = getattr(item, name)
    return "–" if value is None else show(value)


def _mean_of(summary: ConfigurationSummary, *, outcome: str) -> str:
    return estimate(summary.outcomes.get(outcome))


def _series_columns() -> list[Column]:
    return [Column("architecture", lambda s: s.label), Column("preset", lambda s: s.preset or "–")]


def parameter_groups(fits: SweepFits) -> Table:
    """Return one row per configuration: where its parameters are."""
    groups = [g for g in PARAM_GROUPS if any(s.params.get(g) for s in fits.summaries)]

    def cell(group: str) -> Callable[[ConfigurationSummary], str]:
        return lambda s: count(s.params[group]) if group in s.params else "–"

    def value(group: str) -> Callable[[ConfigurationSummary], dict[str, Any]]:
        return lambda s: {f"params_{group}": s.params.get(group)}

    columns = [
        *_series_columns(),
        Column("total", lambda s: count(s.total_params), True, _field("total_params")),
        *(Column(g.replace("_", " "), cell(g), True, value(g)) for g in groups),
    ]
    return Table.of("Parameters by group", fits.summaries, columns)


def not_causal(fits: SweepFits) -> tuple[str, ...]:
    """Return a note for every way in which outputs can depend on later tokens."""
    declared: dict[str, Counter[str]] = {}
    for s in fits.summaries:
        if s.not_causal is not None:
            declared.setdefault(s.not_causal, Counter())[s.series] += 1
    sizes = Counter(s.series for s in fits.summaries)

    def named(series: str, n: int) -> str:
        return series if n == sizes[series] else f"{series} ({n} of {sizes[series]} configurations)"

    return tuple(
        f"{', '.join(named(*item) for item in counts.items())}: not causal {why};"
        " compare with causal models with care"
        for why, counts in declared.items()
    )


def usage(runs: Runs, fits: SweepFits) -> Table:
    """Return the last reports on the use of memories and experts, mean over seeds.

    One row per configuration and kind; in brackets the smallest and the largest layer, where
    layers report on their own.
    """
    known = {(kind, stat): names for kind, stat, names in usage_columns(runs.table.columns)}
    order = [*USAGE_LABELS, *sorted({stat for _, stat in known} - set(USAGE_LABELS))]
    stats = [stat for stat in order if any(stat == known_stat for _, known_stat in known)]
    names = [n for c in known.values() for n in (c.mean, *c.layers) if n is not None]
    rows, values = [], []
    for s in fits.summaries:
        group = runs.table.loc[runs.table["configuration"] == s.configuration, names]
        means = group.mean().to_dict()
        for kind in dict.fromkeys(kind for kind, _ in known):
            uses = {stat: _last_use(means, known.get((kind, stat))) for stat in stats}
            if any(use is not None for use in uses.values()):
                cells = map(_use, uses.values())
                rows.append((s.label, s.preset or "–", KIND_WORDS[kind], *cells))
                named = {"architecture": s.label, "preset": s.preset, "of": kind}
                values.append(
                    {**named, **{stat: use[0] if use else None for stat, use in uses.items()}}
                )
    labels = [USAGE_LABELS.get(stat, stat.replace("_", " ")) for stat in stats]
    note = (
        "last report of training, mean over layers and seeds;"
        " in brackets the layers with the smallest and the largest value"
    )
    return Table(
        title="Use of memories and experts",
        columns=("architecture", "preset", "of", *labels),
        rows=tuple(rows),
        numeric=(False, False, False, *(True for _ in stats)),
        notes=(note,) if rows else (),
        values=tuple(values),
    )


def _use(use: tuple[float, float, float] | None) -> str:
    if use is None:
        return "–"
    mean, low, high = map(number, use)
    return mean if use[1] == use[2] else f"{mean} [{low}, {high}]"


def _last_use(
    means: Mapping[Hashable, float], columns: UsageColumns | None
) -> tuple[float, float, float] | None:
    """Return the mean and the smallest and largest layer, the mean alone thrice without layers.

    Args:
        means: Of each column, over seeds.
        columns: Of one statistic.
    """
    if columns is None:
        return None
    layers = [means[name] for name in columns.layers if not math.isnan(means[name])]
    mean = float(np.mean(layers)) if layers else math.nan
    if columns.mean is not None:
        mean = means[columns.mean]
    if math.isnan(mean):
        return None
    return (mean, min(layers), max(layers)) if len(layers) > 1 else (mean, mean, mean)


def curves(fits: SweepFits) -> Table:
    """Return one row per fitted curve: parameters with intervals, verdict, hold-out error."""
    columns = [
        Column("architecture", lambda c: c.series),
        Column("outcome", lambda c: _outcome(c.spec), False, lambda c: {"outcome": c.spec.outcome}),
        Column(
            "against",
            lambda c: X_LABELS.get(c.spec.x, c.spec.x),
            False,
            lambda c: {"x": c.spec.x, "law": c.fit.law.name, "runs": c.fit.n_points},
        ),
        Column("parameters", lambda c: parameters(c.fit), False, lambda c: fit_fields(c.fit)),
        Column("status", lambda c: str(c.fit.status)),
        Column("verdict", lambda c: str(c.fit.verdict.status)),
        Column("hold-out", lambda c: hold_out(c.fit), False, lambda c: hold_out_fields(c.fit)),
        Column("why", lambda c: c.fit.verdict.sentence),
    ]
    notes = [
        *(
            [f"curves go through the best {' and '.join(fits.pooled)} of every size"]
            if fits.pooled
            else ()
        ),
        *dict.fromkeys(f"{c.fit.law.name}: {c.fit.law.equation}" for c in fits.curves),
        f"[…] is the {fits.level:.0%} percentile interval of {fits.n_draws:,} resamples of whole"
        " configurations (all seeds together)",
        "hold-out: mean relative error of the largest sizes, predicted from the smaller ones",
        *not_causal(fits),
    ]
    few = min((c.fit.n_configurations for c in fits.curves if c.fit.usable), default=None)
    if few is not None and few < 6:
        held = "47–69 %" if few <= 4 else "79–94 %"
        notes.append(
            f"only {few} configurations to resample: such an interval is too narrow"
            f" (a 95 % one held the truth in {held} of simulated sweeps);"
            " six sizes or more make it fair"
        )
    table = Table.of("Fitted curves", fits.curves, columns, notes)
    return replace(table, rows=_without_repeats(fits.curves, table.rows))


MOST_REPEATED = 2
"""Rows without numbers that may give the same reason; more share one row."""
MOST_NAMED = 3
"""Architectures that such a row names."""


def _without_repeats(
    fitted: Sequence[SeriesFit], rows: Sequence[tuple[str, ...]]
) -> tuple[tuple[str, ...], ...]:
    """Return the rows; many without numbers and for one reason are one row, with their count."""
    alike: dict[str, list[int]] = {}
    for i, curve in enumerate(fitted):
        if not curve.fit.usable:
            alike.setdefault(curve.fit.sentence, []).append(i)
    merged: dict[int, tuple[str, ...] | None] = {}
    for places in alike.values():
        if len(places) > MOST_REPEATED:
            names, outcomes, sizes = (
                list(dict.fromkeys(rows[i][column] for i in places)) for column in range(3)
            )
            few = len(names) <= MOST_NAMED
            name = ", ".join(names) if few else f"{names[0]} and {len(names) - 1} more"
            row = (f"{len(places)} curves: {name}", ", ".join(outcomes), ", ".join(sizes))
            merged |= dict.fromkeys(places, None) | {places[0]: (*row, *rows[places[0]][3:])}
    kept = (merged.get(i, row) for i, row in enumerate(rows))
    return tuple(row for row in kept if row is not None)


def _outcome(spec: CurveSpec) -> str:
    return OUTCOME_LABELS.get(spec.outcome, spec.outcome)


def health(fits: SweepFits) -> Table:
    """Return how the optimiser fared with every curve that has numbers."""
    return health_table(
        {f"{c.series}, {c.spec.outcome} against {c.spec.x}": c.fit for c in fits.curves}
    )


def comparison(fits: SweepFits) -> Table:
    """Return one row per pair at equal training FLOPs and outcome."""

    def value(which: str) -> Callable[[EqualFlops], str]:
        return lambda p: estimate(getattr(p, which).outcomes[p.outcome], interval=False)

    def numbers(which: str) -> Callable[[EqualFlops], dict[str, Any]]:
        return lambda p: {f"{which}_value": getattr(p, which).outcomes[p.outcome].value}

    columns = [
        Column("model", lambda p: f"{p.summary.label} {p.summary.preset or ''}".strip()),
        Column("baseline", lambda p: f"{p.baseline.label} {p.baseline.preset or ''}".strip()),
        Column("FLOPs ratio", lambda p: f"{p.flops_ratio:.3f}", True, _field("flops_ratio")),
        Column("outcome", lambda p: OUTCOME_LABELS[p.outcome], False, _field("outcome")),
        Column("model's", value("summary"), True, numbers("summary")),
        Column("baseline's", value("baseline"), True, numbers("baseline")),
        Column(
            "difference",
            lambda p: estimate(p.difference, signed=True),
            True,
            lambda p: {**estimate_fields("difference", p.difference), "p": p.difference.p},
        ),
        Column("p (Holm)", lambda p: p_value(p.p_holm), True, _field("p_holm")),
        Column("verdict", lambda p: p.verdict),
        Column(f"{fits.baseline} size needed", effective_size, False, _size_fields),
    ]
    notes = list(fits.unpaired)
    if fits.pairs:
        methods = dict.fromkeys(p.difference.method for p in fits.pairs)
        notes = [
            f"[…] of a difference is {'; '.join(methods)}",
            corrected_note(sum(p.p_holm is not None for p in fits.pairs)),
            f"last column: the size at which the {fits.baseline} curve reaches the model's value,"
            " as a multiple of the baseline's size",
            *not_causal(fits),
            *notes,
        ]
    return Table.of("At equal training FLOPs", fits.pairs, columns, notes)


def no_size_needed(pair: EqualFlops) -> bool:
    """Whether a sentence says why no baseline size can be named."""
    size = pair.effective_size
    numbers = (size.equivalent_params, size.over_baseline_params)
    return pair.outcome in SIZED_OUTCOMES and None in numbers


def corrected_note(n: int) -> str:
    """Return how p-values were corrected."""
    if not n:
        return "no p-values: one seed on a side has no interval"
    return (
        f"p: that there is no difference, corrected for {n} comparisons (Holm); intervals are of"
        " one comparison each"
    )


def p_value(p: float | None) -> str:
    """Return a p-value as it is read."""
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.2g}"


def _size_fields(pair: EqualFlops) -> dict[str, Any]:
    size = pair.effective_size
    return {
        "size_needed": size.equivalent_params,
        "size_needed_low": size.low,
        "size_needed_high": size.high,
        "size_needed_ratio": size.over_baseline_params,
        "extrapolated": size.extrapolated,
    }


def effective_size(pair: EqualFlops) -> str:
    """Return `2.1× (1.3 M [1.1 M, 1.6 M])`, marked when extrapolated, or why there is none."""
    size = pair.effective_size
    if pair.outcome not in SIZED_OUTCOMES:
        return "–"
    if no_size_needed(pair):
        return size.sentence
    assert size.equivalent_params is not None
    assert size.over_baseline_params is not None
    interval = ""
    if size.low is not None and size.high is not None and not math.isnan(size.low):
        interval = f" [{count(size.low)}, {count(size.high)}]"
    mark = ", extrapolated" if size.extrapolated else ""
    return f"{size.over_baseline_params:.2f}× ({count(size.equivalent_params)}{interval}{mark})"


def excluded(runs: Runs) -> Table:
    """Return the trials that do not count and why."""
    names = ["trial_id", "sweep", "state", "reason"]
    rows = runs.excluded[names].itertuples(index=False) if len(runs.excluded) else ()
    return Table(
        title="Excluded",
        columns=("trial", "sweep", "state", "why"),
        rows=tuple(tuple(map(str, row)) for row in rows),
        numeric=(False,) * 4,
    )


def missing(fits: SweepFits) -> Table:
    """Return the sizes without a run: what each curve expects, and how far it would move."""
    columns = [
        Column("architecture", lambda m: m.series),
        Column("trial", lambda m: m.trial_id),
        Column("curve", lambda m: f"{_outcome(m.spec)} against {X_LABELS.get(m.spec.x, m.spec.x)}"),
        Column("size", lambda m: count(m.x), True, lambda m: {"size": m.x}),
        Column(
            "expected",
            lambda m: "{} [{}, {}]".format(*map(number, m.expected)),
            False,
            lambda m: _named("expected", "expected_low", "expected_high", values=m.expected),
        ),
        Column(
            "curve says",
            lambda m: f"{number(m.answer)} at {count(m.at)}",
            False,
            lambda m: {"curve_says": m.answer, "at": m.at},
        ),
        Column(
            "with it",
            lambda m: " to ".join(map(number, m.could_be)),
            False,
            lambda m: _named("with_it_low", "with_it_high", values=m.could_be),
        ),
    ]
    note = (
        "expected: by the curve through the other sizes, with the interval of a new run; with it:"
        " where the curve would lie at the largest size, were the missing one at either end;"
        " why it is missing: see Excluded"
    )
    return Table.of("Missing sizes", fits.missing, columns, [note] if fits.missing else ())


def _named(*names: str, values: Sequence[float]) -> dict[str, Any]:
    return dict(zip(names, values, strict=True))


def warnings(runs: Runs, fits: SweepFits) -> Table:
    """Return what is odd about the runs that count, and how foreign columns were read."""
    return Table.of("To look at", (*runs.notes, *fits.warnings), [Column("what", str)])


def trials(runs: Runs) -> Table:
    """Return every trial that counts, with what people look for first."""
    chosen: list[tuple[str, str, Callable[[Any], str]]] = [
        ("trial", "trial_id", str),
        ("preset", "preset", str),
        ("seed", "seed", str),
        ("total params", "total_params", count),
        ("active params", "active_params", count),
        ("memory params", "memory_params", count),
        ("bytes per token", "bytes_read_per_token", count),
        ("training FLOPs", "training_flops", flops),
        *((OUTCOME_LABELS[o], o, number) for o in OUTCOME_LABELS),
        ("train s", "train_seconds", seconds),
    ]

    def cell(name: str, show: Callable[[Any], str]) -> Callable[[Any], str]:
        return lambda row: "–" if pd.isna(row[name]) else show(row[name])

    def value(name: str) -> Callable[[Any], dict[str, Any]]:
        return lambda row: {name: None if pd.isna(row[name]) else row[name]}

    columns = [
        Column(label, cell(name, show), name not in {"trial_id", "preset"}, value(name))
        for label, name, show in chosen
        if name in runs.table
    ]
    return Table.of("Trials", runs.table.to_dict(orient="records"), columns)


def next_runs_table(design: ExperimentalDesign, *, rows: int = 12) -> Table:
    """Return the candidates of a design, the chosen ones first."""
    at = {id(r.candidate): i + 1 for i, r in enumerate(design.chosen)}
    ordered = sorted(design.ranked, key=lambda r: at.get(id(r.candidate), len(at) + 1))
    shown = ordered[: max(rows, len(at))]
    notes = [
        design.sentence,
        "width: of the target's interval once this run alone is there, over the width now",
    ]
    if len(ordered) > len(shown):
        notes.append(f"{len(ordered) - len(shown)} more candidates bring less per GPU-hour")

    def ratio(r: Any) -> str:
        return "–" if math.isnan(r.tokens_per_param) else f"{r.tokens_per_param:.3g}"

    def number_of(r: Any) -> dict[str, Any]:
        return {"run": at.get(id(r.candidate))}

    columns = [
        Column("run", lambda r: str(at.get(id(r.candidate), "")), True, number_of),
        Column("candidate", lambda r: r.candidate.name),
        Column("D/N", ratio, True, _field("tokens_per_param")),
        Column(
            "GPU-hours",
            lambda r: f"{r.candidate.gpu_hours:.2g}",
            True,
            lambda r: {"gpu_hours": r.candidate.gpu_hours},
        ),
        Column("width", lambda r: f"{r.width:.1%}", True, _field("width")),
        Column(
            "removed per GPU-hour", lambda r: f"{r.per_gpu_hour:.2g}", True, _field("per_gpu_hour")
        ),
        Column(
            "outside runs",
            lambda r: "–" if r.outside <= 1 + 1e-9 else f"{r.outside:.3g}×",
            True,
            _field("outside"),
        ),
    ]
    return Table.of("Next runs", shown, columns, [*notes, *design.notes])


def estimate(value: MeanEstimate | None, *, interval: bool = True, signed: bool = False) -> str:
    """Return `0.412 [0.401, 0.423]`, to as many decimals as the interval bears."""
    if value is None:
        return "–"
    sign = "+" if signed else ""
    if value.low is None or value.high is None or not interval:
        return format(value.value, f"{sign}.{decimals(value.value)}f")
    # Bounds at a level of detail below 1 % of the width would pretend to know more.
    width = value.high - value.low
    digits = decimals(width, significant=2) if width > 0 else decimals(value.value)
    digits = min(digits, decimals(value.value, significant=4))
    ends = f"[{value.low:{sign}.{digits}f}, {value.high:{sign}.{digits}f}]"
    return f"{value.value:{sign}.{digits}f} {ends}"
