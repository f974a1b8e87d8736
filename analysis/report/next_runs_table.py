"""Table of the candidates of an experimental design."""

from typing import Any

from analysis.formatting import Column, Table
from analysis.report.cells import value_column
from analysis.scaling.design_result import ExperimentalDesign


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

    def number_of(r: Any) -> dict[str, Any]:
        return {"run": at.get(id(r.candidate))}

    columns = [
        Column("run", lambda r: str(at.get(id(r.candidate), "")), True, number_of),
        Column("candidate", lambda r: r.candidate.name),
        value_column("D/N", "tokens_per_param", "{:.3g}".format),
        value_column(unit, "gpu_hours", "{:.2g}".format, get=lambda r: r.candidate.gpu_hours),
        value_column("width", "width", "{:.1%}".format),
        value_column(f"removed per {unit.removesuffix('s')}", "per_gpu_hour", "{:.2g}".format),
        value_column("outside runs", "outside", lambda x: "–" if x <= 1 + 1e-9 else f"{x:.3g}×"),
    ]
    return Table.of("Next runs", shown, columns, [*notes, *design.notes])
