"""Tables with a row per configuration, per size, and per trial."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from analysis.formatting import Column, Table, count, flops, number, seconds
from analysis.loading.load import Runs
from analysis.loading.schema import PARAM_GROUPS
from analysis.report.cells import OUTCOME_LABELS, estimate, estimate_fields, value_column
from analysis.scaling.best_settings import LENGTH
from analysis.scaling.configuration_summary import ConfigurationSummary
from analysis.scaling.sweep_summary import SweepFits
from orchestrator.records.varied_settings import setting_text


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
        value_column("total params", "total_params", count),
        *(value_column(label, name, show) for label, name, show in known),
        value_column("seeds", "seeds", str, get=lambda s: len(s.seeds)),
        *(_mean_column(o) for o in outcomes),
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
    names = " and ".join(name for name in fits.varied if name not in (*fits.apart, LENGTH))
    lost = any(b.diverged for b in fits.best)
    columns = [
        Column("architecture", lambda b: b.architecture),
        Column("size", lambda b: b.size),
        Column("best", lambda b: b.label),
        value_column("of", "n_tried", str),
        value_column("by", "outcome", OUTCOME_LABELS.__getitem__, numeric=False),
        value_column("value", "value", number),
        *([Column("diverged", lambda b: "; ".join(b.diverged) or "none")] if lost else []),
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


def _mean_column(outcome: str) -> Column:
    """Return the column of an outcome's mean over seeds."""
    return Column(
        OUTCOME_LABELS[outcome],
        lambda s: estimate(s.outcomes.get(outcome)),
        True,
        lambda s: estimate_fields(outcome, s.outcomes.get(outcome)),
    )


def _series_columns() -> list[Column]:
    return [Column("architecture", lambda s: s.label), Column("preset", lambda s: s.preset or "–")]


def parameter_groups(fits: SweepFits) -> Table:
    """Return one row per configuration: where its parameters are."""
    groups = [g for g in PARAM_GROUPS if any(s.params.get(g) for s in fits.summaries)]
    columns = [
        *_series_columns(),
        value_column("total", "total_params", count),
        *(
            value_column(g.replace("_", " "), f"params_{g}", count, get=partial(_params_of, g))
            for g in groups
        ),
    ]
    return Table.of("Parameters by group", fits.summaries, columns)


def _params_of(group: str, summary: ConfigurationSummary) -> float | None:
    return summary.params.get(group)


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


def trials(runs: Runs, fits: SweepFits) -> Table:
    """Return every trial that counts, with what varies and what people look for first."""
    chosen: list[tuple[str, str, Callable[[Any], str]]] = [
        ("trial", "trial_id", str),
        ("architecture", "architecture", str),
        ("preset", "preset", str),
        *((name, name, setting_text) for name in fits.varied),
        ("seed", "seed", str),
        ("total params", "total_params", count),
        ("active params", "active_params", count),
        ("memory params", "memory_params", count),
        ("bytes per token", "bytes_read_per_token", count),
        ("training FLOPs", "training_flops", flops),
        *((OUTCOME_LABELS[o], o, number) for o in OUTCOME_LABELS),
        ("train s", "train_seconds", seconds),
    ]
    there = [(label, name, show) for label, name, show in chosen if name in runs.table]
    texts = {"trial_id", "architecture", "preset"}
    columns = [
        value_column(
            label,
            name,
            show,
            get=itemgetter(name),
            numeric=name not in texts and is_numeric_dtype(runs.table[name]),
        )
        for label, name, show in there
    ]
    records = runs.table[[name for _, name, _ in there]].to_dict(orient="records")
    rows = [{k: None if pd.isna(v) else v for k, v in record.items()} for record in records]
    return Table.of("Trials", rows, columns)
