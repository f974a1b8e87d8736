"""Table of the candidates of an experimental design."""

import math
from typing import Any

from analysis.formatting import Column, Table
from analysis.report.cells import field_of
from analysis.scaling.experimental_design import ExperimentalDesign


def next_runs_table(design: ExperimentalDesign, *, rows: int = 12) -> Table:
    """Return the candidates of a design, the chosen ones first."""
    unit = design.unit
    at = {id(r.candidate): i + 1 for i, r in enumerate(design.chosen)}
    ordered = sorted(design.ranked, key=lambda r: at.get(id(r.candidate), len(at) + 1))
    shown = ordered[: max(rows, len(at))]
    notes = [
        design.sentence,
        "width: of the target's interval once this run alone is there, over the width now",
    ]
    if len(ordered) > len(shown):
        notes.append(
            f"{len(ordered) - len(shown)} more candidates bring less per {unit.removesuffix('s')}"
        )

    def ratio(r: Any) -> str:
        return "–" if math.isnan(r.tokens_per_param) else f"{r.tokens_per_param:.3g}"

    def number_of(r: Any) -> dict[str, Any]:
        return {"run": at.get(id(r.candidate))}

    columns = [
        Column("run", lambda r: str(at.get(id(r.candidate), "")), True, number_of),
        Column("candidate", lambda r: r.candidate.name),
        Column("D/N", ratio, True, field_of("tokens_per_param")),
        Column(
            unit,
            lambda r: f"{r.candidate.gpu_hours:.2g}",
            True,
            lambda r: {"gpu_hours": r.candidate.gpu_hours},
        ),
        Column("width", lambda r: f"{r.width:.1%}", True, field_of("width")),
        Column(
            f"removed per {unit.removesuffix('s')}",
            lambda r: f"{r.per_gpu_hour:.2g}",
            True,
            field_of("per_gpu_hour"),
        ),
        Column(
            "outside runs",
            lambda r: "–" if r.outside <= 1 + 1e-9 else f"{r.outside:.3g}×",
            True,
            field_of("outside"),
        ),
    ]
    return Table.of("Next runs", shown, columns, [*notes, *design.notes])
