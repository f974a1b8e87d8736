"""Tables of a sweep's curves: fits, optimiser diagnostics, sizes without a run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from analysis.formatting import Column, Table, count, number
from analysis.report.cells import OUTCOME_LABELS, X_LABELS, value_column
from analysis.report.configuration_tables import not_causal
from analysis.report.fit_tables import (
    fit_fields,
    health_table,
    hold_out,
    hold_out_fields,
    parameters,
)
from analysis.scaling.series_curves import CurveSpec, SeriesFit
from analysis.scaling.sweep_summary import SweepFits

MOST_REPEATED = 2
"""Rows without numbers that may give the same reason; more share one row."""

MOST_NAMED = 3
"""Architectures that such a row names."""


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


def missing(fits: SweepFits) -> Table:
    """Return the sizes without a run: what each curve expects, and how far it would move."""
    columns = [
        Column("architecture", lambda m: m.series),
        Column("trial", lambda m: m.trial_id),
        Column("curve", lambda m: f"{_outcome(m.spec)} against {X_LABELS.get(m.spec.x, m.spec.x)}"),
        value_column("size", "size", count, get=lambda m: m.x),
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
