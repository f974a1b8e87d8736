"""The tables that people read, as text cells: the terminal, the report and the notebook print the same rows."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from analysis.fitting.bootstrap import MeanEstimate
from analysis.fitting.result import LawFit
from analysis.fitting.two_stage import TwoStageFit
from analysis.formatting import Table, count, decimals, flops, number, seconds
from analysis.loading.load import Runs
from analysis.loading.schema import PARAM_GROUPS
from analysis.loading.usage import KIND_WORDS, USAGE_LABELS, UsageColumns, usage_columns
from analysis.scaling.equal_compute import ConfigurationSummary, EqualFlops
from analysis.scaling.isoflop import IsoflopFit
from analysis.scaling.missing_runs import missing_sizes
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
}


def tables(runs: Runs, fits: SweepFits) -> list[Table]:
    """Return what `memscale fit` prints: configurations, curves, comparison at equal FLOPs; excluded and odd trials if any."""
    chosen = [configurations(fits), curves(fits), comparison(fits)]
    if len(runs.excluded):
        chosen.append(excluded(runs))
    gone = missing(runs, fits)
    if gone.rows:
        chosen.append(gone)
    look = doubts(runs, fits)
    if look.rows:
        chosen.append(look)
    return chosen


def missing(runs: Runs, fits: SweepFits) -> Table:
    """Return the sizes without a run: what each curve expects of them, and how it would move if they were there."""
    rows = tuple(
        (
            m.series,
            m.trial_id,
            f"{OUTCOME_LABELS.get(m.spec.outcome, m.spec.outcome)} against {X_LABELS.get(m.spec.x, m.spec.x)}",
            count(m.x),
            f"{number(m.expected[0])} [{number(m.expected[1])}, {number(m.expected[2])}]",
            f"{number(m.answer)} at {count(m.at)}",
            f"{number(m.could_be[0])} to {number(m.could_be[1])}",
        )
        for m in missing_sizes(runs, fits)
    )
    return Table(
        title="Missing sizes",
        columns=("architecture", "trial", "curve", "size", "expected", "curve says", "with it"),
        rows=rows,
        numeric=(False, False, False, True, False, False, False),
        notes=(
            "expected: by the curve through the other sizes, with the interval of a new run; with it: where the curve would lie at the largest size, were the missing one at either end; why it is missing: see Excluded",
        )
        if rows
        else (),
    )


def doubts(runs: Runs, fits: SweepFits) -> Table:
    """Return what is odd about the runs that count, and what columns of somebody's table were taken for what."""
    return Table(
        title="To look at",
        columns=("what",),
        rows=tuple((sentence,) for sentence in (*runs.notes, *fits.warnings)),
        numeric=(False,),
    )


def configurations(fits: SweepFits) -> Table:
    """Return one row per configuration: what it is made of, what it costs, outcomes with intervals over seeds."""
    outcomes = [o for o in OUTCOME_LABELS if any(o in s.outcomes for s in fits.summaries)]
    costs: list[
        tuple[str, Callable[[ConfigurationSummary], float | None], Callable[[float], str]]
    ] = [
        ("active params", lambda s: s.active_params, count),
        ("memory params", lambda s: s.memory_params, count),
        ("bytes per token", lambda s: s.bytes_read_per_token, count),
        ("bytes per token, batch 64", lambda s: s.bytes_read_per_token_batch64, count),
        ("training FLOPs", lambda s: s.training_flops, flops),
        ("train s", lambda s: s.train_seconds, seconds),
    ]
    known = [cost for cost in costs if any(cost[1](s) is not None for s in fits.summaries)]
    rows = tuple(
        (
            s.series,
            s.preset or "–",
            count(s.total_params),
            *(_shown(number_of(s), show) for _, number_of, show in known),
            str(len(s.seeds)),
            *(estimate(s.outcomes.get(o)) for o in outcomes),
        )
        for s in fits.summaries
    )
    columns = (
        "architecture",
        "preset",
        "total params",
        *(label for label, _, _ in known),
        "seeds",
        *(OUTCOME_LABELS[o] for o in outcomes),
    )
    labels = [label for label, _, _ in known]
    notes = [
        *(
            ["active: non-embedding parameters that one token touches"]
            if "active params" in labels
            else []
        ),
        *(
            ["bytes per token: weights and rows read to decode one token, bf16"]
            if "bytes per token" in labels
            else []
        ),
        *(["train s: wall time measured, mean over seeds"] if "train s" in labels else []),
    ]
    methods = dict.fromkeys(e.method for s in fits.summaries for e in s.outcomes.values())
    return Table(
        title="Architectures",
        columns=columns,
        rows=rows,
        numeric=(False, False, *(True for _ in columns[2:])),
        notes=(
            *(["; ".join(notes)] if notes else []),
            "[…] is " + "; ".join(methods) if methods else "no outcome was measured",
            *not_causal(fits),
        ),
    )


def parameter_groups(fits: SweepFits) -> Table:
    """Return one row per configuration: where its parameters are."""
    groups = [g for g in PARAM_GROUPS if any(s.params.get(g) for s in fits.summaries)]
    rows = tuple(
        (
            s.series,
            s.preset or "–",
            count(s.total_params),
            *(count(s.params[g]) if g in s.params else "–" for g in groups),
        )
        for s in fits.summaries
    )
    return Table(
        title="Parameters by group",
        columns=("architecture", "preset", "total", *(g.replace("_", " ") for g in groups)),
        rows=rows,
        numeric=(False, False, *(True for _ in range(len(groups) + 1))),
    )


def not_causal(fits: SweepFits) -> tuple[str, ...]:
    """Return a note for every way in which outputs can depend on later tokens, none where all models are causal."""
    declared: dict[str, Counter[str]] = {}
    for s in fits.summaries:
        if s.not_causal is not None:
            declared.setdefault(s.not_causal, Counter())[s.series] += 1
    sizes = Counter(s.series for s in fits.summaries)

    def named(series: str, n: int) -> str:
        return series if n == sizes[series] else f"{series} ({n} of {sizes[series]} configurations)"

    return tuple(
        f"{', '.join(named(*item) for item in counts.items())}: not causal {why}; compare with causal models with care"
        for why, counts in declared.items()
    )


def usage(runs: Runs, fits: SweepFits) -> Table:
    """Return the last reports on how memories and experts are used: one row per configuration and kind, mean over seeds.

    In brackets the smallest and the largest layer, where layers report on their own.
    """
    known = {(kind, stat): names for kind, stat, names in usage_columns(runs.table.columns)}
    order = [*USAGE_LABELS, *sorted({stat for _, stat in known} - set(USAGE_LABELS))]
    stats = [stat for stat in order if any(stat == known_stat for _, known_stat in known)]
    rows = []
    for s in fits.summaries:
        group = runs.table[runs.table["configuration"] == s.configuration]
        for kind in dict.fromkeys(kind for kind, _ in known):
            cells = [_last_use(group, known.get((kind, stat))) for stat in stats]
            if any(cell != "–" for cell in cells):
                rows.append((s.series, s.preset or "–", KIND_WORDS[kind], *cells))
    return Table(
        title="Use of memories and experts",
        columns=(
            "architecture",
            "preset",
            "of",
            *(USAGE_LABELS.get(stat, stat.replace("_", " ")) for stat in stats),
        ),
        rows=tuple(rows),
        numeric=(False, False, False, *(True for _ in stats)),
        notes=(
            "last report of training, mean over layers and seeds; in brackets the layers with the smallest and the largest value",
        )
        if rows
        else (),
    )


def _last_use(group: pd.DataFrame, columns: UsageColumns | None) -> str:
    if columns is None:
        return "–"
    layers = group[list(columns.layers)].mean().dropna()
    mean = group[columns.mean].mean() if columns.mean is not None else layers.mean()
    if pd.isna(mean):
        return "–"
    spread = f" [{number(layers.min())}, {number(layers.max())}]" if len(layers) > 1 else ""
    return f"{number(float(mean))}{spread}"


def curves(fits: SweepFits) -> Table:
    """Return one row per fitted curve: parameters with intervals, status, hold-out error."""
    rows = tuple(
        (
            c.series,
            OUTCOME_LABELS.get(c.spec.outcome, c.spec.outcome),
            X_LABELS.get(c.spec.x, c.spec.x),
            parameters(c.fit),
            str(c.fit.status),
            hold_out(c.fit),
            c.fit.sentence,
        )
        for c in fits.curves
    )
    notes = [
        *dict.fromkeys(f"{c.fit.law.name}: {c.fit.law.equation}" for c in fits.curves),
        f"[…] is the {fits.level:.0%} percentile interval of {fits.n_draws:,} resamples of whole configurations (all seeds together)",
        "hold-out: mean relative error of the largest sizes, predicted from the smaller ones",
        *not_causal(fits),
    ]
    few = min((c.fit.n_configurations for c in fits.curves if c.fit.usable), default=None)
    if few is not None and few < 6:
        held = "47–69 %" if few <= 4 else "79–94 %"
        notes.append(
            f"only {few} configurations to resample: such an interval is too narrow"
            f" (a 95 % one held the truth in {held} of simulated sweeps); six sizes or more make it fair"
        )
    columns = (
        "architecture",
        "outcome",
        "against",
        "parameters",
        "status",
        "hold-out",
        "what the status means",
    )
    return Table(
        title="Fitted curves", columns=columns, rows=rows, numeric=(False,) * 7, notes=tuple(notes)
    )


def laws_table(laws: Mapping[str, Any]) -> Table:
    """Return one row per fit of `fit_law`, `fit_chain`, `fit_isoflop` or `fit_envelope`: numbers, status, hold-out."""
    rows = [
        (title, *row)
        for title, fit in laws.items()
        for row in (
            [_law_row(fit)]
            if isinstance(fit, LawFit)
            else [_law_row(fit.to_loss), (parameters(fit.to_outcome), str(fit.to_outcome.status), "–", fit.sentence)]
            if isinstance(fit, TwoStageFit)
            else [*(_line_row(line) for line in fit.lines.values()), _law_row(fit.parametric)]
            if isinstance(fit, IsoflopFit)
            else [_line_row(fit)]
        )
    ]  # fmt: skip
    return Table(
        title="Laws",
        columns=("fit", "numbers", "status", "hold-out", "what the status means"),
        rows=tuple(rows),
        numeric=(False,) * 5,
        notes=("hold-out: mean |log error| of the largest runs, predicted from the rest",)
        if rows
        else (),
    )


def _law_row(fit: LawFit) -> tuple[str, str, str, str]:
    held = "–" if fit.hold_out is None else f"{fit.hold_out.mean_absolute_log_error:.2%}"
    return f"{fit.law.name}: {parameters(fit)}", str(fit.status), held, fit.sentence


def _line_row(line: Any) -> tuple[str, str, str, str]:
    size = getattr(line, "size", "params")
    shown = "–"
    if line.exponent is not None:
        interval = "" if line.interval is None else f" [{number(line.interval[0])}, {number(line.interval[1])}]"  # fmt: skip
        shown = f"optimal {size} = {number(line.coefficient)} C^{number(line.exponent)}{interval}"
    return shown, str(line.status), "–", line.sentence


def health(fits: SweepFits) -> Table:
    """Return how the optimiser fared with every curve that has numbers."""
    return law_health(
        {f"{c.series}, {c.spec.outcome} against {c.spec.x}": c.fit for c in fits.curves}
    )


def law_health(fits: Mapping[str, LawFit]) -> Table:
    """Return how the optimiser fared with every fit that has numbers."""
    usable = {title: fit for title, fit in fits.items() if fit.usable}
    rows = tuple(
        (
            title,
            str(fit.n_points),
            str(fit.n_configurations),
            str(fit.degrees_of_freedom),
            f"{fit.objective:.6g}",
            f"{fit.gradient_norm:.1e}",
            f"{fit.moved:.2g}",
            f"{fit.condition_number:.1e}",
            f"{fit.n_agreeing} of {fit.n_starts}",
            str(fit.n_optima),
            f"{fit.share_refused:.0%}",
            f"{fit.share_unsettled:.1%}",
        )
        for title, fit in usable.items()
    )
    return Table(
        title="How the optimiser fared",
        columns=("fit", "runs", "configurations", "degrees of freedom", "objective", "gradient", "moved",
                 "condition number", "starts agreeing", "minima", "resamples refused", "resamples unsettled"),
        rows=rows,
        numeric=(False, *(True,) * 11),
        notes=("moved: from the winning start, 0 is a start handed back untouched; minima: distinct ones that starts came to rest in",)
        if rows
        else (),
    )  # fmt: skip


def comparison(fits: SweepFits) -> Table:
    """Return one row per pair at equal training FLOPs and outcome."""
    rows = tuple(
        (
            f"{p.summary.series} {p.summary.preset or ''}".strip(),
            f"{p.baseline.series} {p.baseline.preset or ''}".strip(),
            f"{p.flops_ratio:.3f}",
            OUTCOME_LABELS[p.outcome],
            estimate(p.summary.outcomes[p.outcome], interval=False),
            estimate(p.baseline.outcomes[p.outcome], interval=False),
            estimate(p.difference, signed=True),
            p.verdict,
            multiplier(p),
        )
        for p in fits.pairs
    )
    columns = (
        "model",
        "baseline",
        "FLOPs ratio",
        "outcome",
        "model's",
        "baseline's",
        "difference",
        "verdict",
        f"{fits.baseline} size needed",
    )
    methods = dict.fromkeys(p.difference.method for p in fits.pairs)
    notes = list(fits.unpaired)
    if rows:
        notes = [
            f"[…] of a difference is {'; '.join(methods)}",
            f"last column: the size at which the {fits.baseline} curve reaches the model's value, as a multiple of the baseline's size",
            *not_causal(fits),
            *notes,
        ]
    return Table(
        title="At equal training FLOPs",
        columns=columns,
        rows=rows,
        numeric=(False, False, True, False, True, True, True, False, False),
        notes=tuple(notes),
    )


def excluded(runs: Runs) -> Table:
    """Return the trials that do not count and why."""
    rows = tuple(
        (str(r.trial_id), str(r.sweep), str(r.state), str(r.reason))
        for r in runs.excluded.itertuples(index=False)
    )
    return Table(
        title="Excluded",
        columns=("trial", "sweep", "state", "why"),
        rows=rows,
        numeric=(False,) * 4,
    )


def trials(runs: Runs) -> Table:
    """Return every trial that counts, with what people look for first."""
    table = runs.table
    chosen: list[tuple[str, str, Callable[[Any], str]]] = [
        ("trial", "trial_id", str),
        ("preset", "preset", lambda v: "–" if pd.isna(v) else str(v)),
        ("seed", "seed", str),
        ("total params", "total_params", count),
        ("active params", "active_params", count),
        ("memory params", "memory_params", count),
        ("bytes per token", "bytes_read_per_token", count),
        ("training FLOPs", "training_flops", flops),
        *((OUTCOME_LABELS[o], o, number) for o in OUTCOME_LABELS),
        ("train s", "train_seconds", seconds),
    ]
    present = [(label, name, show) for label, name, show in chosen if name in table]
    rows = tuple(
        tuple("–" if pd.isna(row[name]) else show(row[name]) for _, name, show in present)
        for _, row in table.iterrows()
    )
    return Table(
        title="Trials",
        columns=tuple(label for label, _, _ in present),
        rows=rows,
        numeric=tuple(name not in {"trial_id", "preset"} for _, name, _ in present),
    )


def parameters(fit: LawFit) -> str:
    """Return `E 1.69 [1.60, 1.75], A …`, or a dash without a usable fit."""
    if not fit.usable:
        return "–"
    phrases = []
    for name, value in fit.parameters.items():
        interval = ""
        if name in fit.intervals:
            low, high = fit.intervals[name]
            # A bound or a fixed value leaves no spread; brackets around it would look like certainty.
            interval = f" [{number(low)}, {number(high)}]" if low < high else " (held at its bound)"
        phrases.append(f"{name} {number(value)}{interval}")
    return ", ".join(phrases)


def hold_out(fit: LawFit) -> str:
    """Return the mean error of the held-out sizes."""
    if fit.hold_out is None:
        return "–"
    if fit.hold_out.mean_relative_error is None:
        return f"{number(fit.hold_out.mean_absolute_error)} absolute"
    return f"{fit.hold_out.mean_relative_error:.1%}"


def multiplier(pair: EqualFlops) -> str:
    """Return `2.1× (1.3 M [1.1 M, 1.6 M])`, marked when extrapolated, or why there is none."""
    m = pair.multiplier
    if pair.outcome not in SIZED_OUTCOMES:
        return "–"
    if m.equivalent_params is None or m.over_baseline_params is None:
        return m.sentence
    interval = (
        ""
        if m.low is None or m.high is None or math.isnan(m.low)
        else f" [{count(m.low)}, {count(m.high)}]"
    )
    mark = ", extrapolated" if m.extrapolated else ""
    return f"{m.over_baseline_params:.2f}× ({count(m.equivalent_params)}{interval}{mark})"


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
    return f"{value.value:{sign}.{digits}f} [{value.low:{sign}.{digits}f}, {value.high:{sign}.{digits}f}]"


def _shown(value: float | None, show: Callable[[float], str]) -> str:
    return "–" if value is None else show(value)
