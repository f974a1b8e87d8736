"""Table of where the time of a training step goes, where trials recorded it."""

from typing import Any

from analysis.formatting import Column, Table
from analysis.loading.load import Runs
from analysis.report.cells import value_column
from analysis.scaling.sweep_summary import SweepFits

PREFIX, SUFFIX = "step_time/", "_s"
"""Of the metrics, in seconds of a step (`docs/metrics.md`)."""


def step_times(runs: Runs, fits: SweepFits) -> Table:
    """Return one row per configuration: milliseconds of a step by phase, mean over seeds."""
    names = [str(c) for c in runs.table if str(c).startswith(PREFIX)]
    means: dict[Any, dict[Any, float]] = {}
    if names:
        found = runs.table.groupby("configuration")[names].mean().dropna(how="all")
        means = found.to_dict(orient="index")

    def phase(column: str) -> Column:
        name = column.removeprefix(PREFIX)
        return value_column(
            name.removesuffix(SUFFIX),
            name,
            lambda time_s: f"{1e3 * time_s:.3g}",
            get=lambda s: float(means[s.configuration][column]),
        )

    columns = [
        Column("architecture", lambda s: s.label),
        Column("preset", lambda s: s.preset or "–"),
        *map(phase, names),
    ]
    rows = [s for s in fits.summaries if s.configuration in means]
    note = (
        "milliseconds of one step by phase, mean over seeds; on a GPU data is mostly hidden behind"
        " the step before"
    )
    return Table.of("Step time", rows, columns, [note] if rows else ())
