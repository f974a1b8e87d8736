"""Rendering of a list of sweeps."""

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.cli.render.progress import STATUS_STYLE
from orchestrator.control.sweep_list import SweepSummary
from orchestrator.records import units
from orchestrator.records.trial_spec import TrialState


def sweeps_table(sweeps: Sequence[SweepSummary], *, now: float | None = None) -> RenderableType:
    """Return a row per sweep: trials, trials per state, age, state; below it what is damaged."""
    now = time.time() if now is None else now
    states = [state for state in TrialState if any(state in sweep.counts for sweep in sweeps)]
    table = Table(box=None, pad_edge=False)
    table.add_column("sweep", no_wrap=True)
    for name in ("trials", *states, "submitted"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for sweep in sweeps:
        at = sweep.submitted_at
        table.add_row(
            Text(sweep.name),
            f"{sweep.trials:,}",
            *(f"{sweep.counts[state]:,}" if sweep.counts.get(state) else "" for state in states),
            "" if at is None else f"{units.duration(max(0.0, now - at))} ago",
            Text(sweep.state, style=STATUS_STYLE.get(sweep.state, "dim")),
        )
    problems = (Text(f"{s.name}: {s.problem}", style="red") for s in sweeps if s.problem)
    return Group(table, *problems)
