"""Table of where the time of a training step goes, where trials recorded it."""

from collections.abc import Callable
from typing import Any

from analysis.formatting import Column, Table
from analysis.loading.load import Runs
from analysis.scaling.equal_compute import ConfigurationSummary
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

    def value(summary: ConfigurationSummary, name: str) -> float:
        return float(means[summary.configuration][name])

    def cell(name: str) -> Callable[[ConfigurationSummary], str]:
        return lambda s: "–" if value(s, name) != value(s, name) else f"{1e3 * value(s, name):.3g}"

    def field(name: str) -> Callable[[ConfigurationSummary], dict[str, Any]]:
        return lambda s: {name.removeprefix(PREFIX): value(s, name)}

    columns = [
        Column("architecture", lambda s: s.label),
        Column("preset", lambda s: s.preset or "–"),
        *(
            Column(n.removeprefix(PREFIX).removesuffix(SUFFIX), cell(n), True, field(n))
            for n in names
        ),
    ]
    rows = [s for s in fits.summaries if s.configuration in means]
    note = (
        "milliseconds of one step by phase, mean over seeds; on a GPU data is mostly hidden behind"
        " the step before"
    )
    return Table.of("Step time", rows, columns, [note] if rows else ())
