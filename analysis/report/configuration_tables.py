"""Tables with a row per configuration, per size, and per trial."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pandas as pd

from analysis.formatting import Column, Table, count, flops, number, seconds
from analysis.loading.load import Runs
from analysis.loading.schema import PARAM_GROUPS
from analysis.report.cells import OUTCOME_LABELS, estimate, estimate_fields, field_of
from analysis.scaling.equal_compute import ConfigurationSummary
from analysis.scaling.sweep_summary import SweepFits


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
        Column("total params", lambda s: count(s.total_params), True, field_of("total_params")),
        *(
            Column(label, partial(_attribute, name=name, show=show), True, field_of(name))
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
    notes = ["; ".join(shown)] if shown else []
    notes.append(_interval_words(fits.summaries))
    notes += untuned(fits)
    return Table.of("Architectures", fits.summaries, columns, [*notes, *not_causal(fits)])


def _interval_words(summaries: Sequence[ConfigurationSummary]) -> str:
    """Return what brackets are, and why numbers have none."""
    means = [e for s in summaries for e in s.outcomes.values()]
    if not means:
        return "no outcome was measured"
    methods = dict.fromkeys(e.method for e in means if e.low is not None)
    without = dict.fromkeys(e.method for e in means if e.low is None)
    return "; ".join([*(["[…] is " + ", ".join(methods)] if methods else []), *without])


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


def _mean_fields(summary: ConfigurationSummary, *, outcome: str) -> dict[str, Any]:
    return estimate_fields(outcome, summary.outcomes.get(outcome))


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
        Column("total", lambda s: count(s.total_params), True, field_of("total_params")),
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

    there = [(label, name, show) for label, name, show in chosen if name in runs.table]
    columns = [
        Column(label, cell(name, show), name not in {"trial_id", "preset"}, value(name))
        for label, name, show in there
    ]
    rows = runs.table[[name for _, name, _ in there]].to_dict(orient="records")
    return Table.of("Trials", rows, columns)
