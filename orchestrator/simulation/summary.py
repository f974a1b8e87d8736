"""Summary of a simulated sweep for the terminal, with a small Gantt chart."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.records import units
from orchestrator.simulation import gantt_rows
from orchestrator.simulation.cluster_spec import ClusterSpec
from orchestrator.simulation.fault_summary import FaultSummary
from orchestrator.simulation.simulate import LabelTotals, Simulation, hours_by

ROWS, COLUMNS = 16, 72
"""Size of the picture, at most."""
SHADES = " ░▒▓█"
COLOURS = (
    *("dodger_blue2", "dark_orange3", "spring_green4", "orchid", "gold3", "sky_blue1", "grey84"),
    *("purple4", "deep_pink4", "yellow4", "grey50", "slate_blue1", "light_salmon3", "orange4"),
    "dark_olive_green3",
)


def simulation_text(
    simulation: Simulation,
    cluster: ClusterSpec,
    *,
    name: str,
    label: Mapping[str, str],
    rate: str,
    faults: Sequence[tuple[str, str]] = (),
) -> RenderableType:
    """Return the result of a simulation.

    Args:
        simulation: What happened.
        cluster: Where.
        name: Of the sweep.
        label: Of each trial id: its architecture.
        rate: Where the predicted times come from.
        faults: What they cost (`fault_summary.summary_rows`), if there were any.
    """
    blank = Text("")
    n_trials = units.plural(simulation.n_trials, "trial")
    title = Text(f"{name} on {cluster}: {n_trials}", style="bold")
    parts: list[RenderableType] = [title, blank]
    if simulation.runs:
        hours = _hours(simulation, label)
        parts += [_summary(simulation, cluster, rate, faults), blank, hours, blank]
        parts.append(picture(simulation, label))
    else:
        parts.append(Text(f"Nothing {'can run' if simulation.impossible else 'to train'}."))
    parts += [Text(line, style="yellow") for line in _impossible(simulation)]
    return Group(*parts)


def headline(simulation: Simulation) -> str:
    """Return the three numbers that a picture needs beside it."""
    return (
        f"{units.plural(simulation.n_trials, 'trial')} "
        f"in {units.short_duration(simulation.makespan_s)} "
        f"(no schedule beats {units.short_duration(simulation.bound_s)}), "
        f"{simulation.utilisation:.0%} utilised"
    )


def simulation_json(
    simulation: Simulation, label: Mapping[str, str], faults: FaultSummary | None = None
) -> dict[str, Any]:
    """Return all of it as plain values; times in seconds since the start."""
    return {
        "makespan_s": simulation.makespan_s,
        "bound_s": simulation.bound_s,
        "utilisation": simulation.utilisation,
        "gpus": simulation.gpus,
        "cores": simulation.cores,
        "faults": faults and asdict(faults),
        "architectures": {
            name: asdict(totals) for name, totals in hours_by(simulation.runs, label).items()
        },
        "trials": [
            {
                "trial_id": run.trial.trial_id,
                "start_s": run.start_s,
                "end_s": run.end_s,
                "attempt": run.attempt,
                "outcome": run.outcome.value,
                "gpus": run.gpus,
                "cpus": run.trial.demand.cpus,
                "nodes": {
                    simulation.nodes[piece.node].node_id: list(piece.gpus)
                    for piece in run.allocation
                },
            }
            for run in simulation.runs
        ],
        "impossible": dict(simulation.impossible),
    }


def _summary(
    simulation: Simulation, cluster: ClusterSpec, rate: str, faults: Sequence[tuple[str, str]]
) -> RenderableType:
    duration, waited = units.short_duration, simulation.waited_s()
    over = simulation.makespan_s / simulation.bound_s - 1
    what = "GPU" if simulation.by_gpu else "core"
    hours = (simulation.gpu_seconds if simulation.by_gpu else simulation.core_seconds) / 3600
    # The shortest wait that so many did not exceed.
    half, most = waited[-(-len(waited) // 2) - 1], waited[-(-9 * len(waited) // 10) - 1]
    table = Table.grid(padding=(0, 2))
    table.add_row(
        "makespan",
        f"{duration(simulation.makespan_s)}, {over:.1%} over what no schedule can beat "
        f"({duration(simulation.bound_s)}; the longest trial takes "
        f"{duration(simulation.longest_s)})",
    )
    table.add_row(
        "utilisation",
        f"{simulation.utilisation:.1%} of {what}-hours until then; "
        f"{units.hours(hours)} {what}-hours {'held' if faults else 'of training'}",
    )
    table.add_row(
        "waiting",
        f"half of the trials up to {duration(half)}, nine of ten up to {duration(most)}, "
        f"all up to {duration(waited[-1])}",
    )
    for row in faults:
        table.add_row(*row)
    extra = "evaluations come on top" if faults else "start-up and evaluations come on top"
    table.add_row("times", f"{rate}; of training alone: {extra}")
    if simulation.by_gpu and all(node.gpu_memory_bytes is None for node in cluster.nodes):
        table.add_row("memory", "not looked at: say gpu_memory=80GB to see what fits")
    return table


def _hours(simulation: Simulation, label: Mapping[str, str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading, justify in (
        ("architecture", "left"),
        ("trials", "right"),
        ("GPU-hours", "right"),
        ("core-hours", "right"),
    ):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    totals = hours_by(simulation.runs, label)
    for name, total in totals.items():
        table.add_row(name, *_totals_row(total))
    if len(totals) > 1:
        everything = LabelTotals(
            trials=sum(total.trials for total in totals.values()),
            gpu_hours=sum(total.gpu_hours for total in totals.values()),
            core_hours=sum(total.core_hours for total in totals.values()),
        )
        table.add_row("in all", *_totals_row(everything), style="bold")
    return table


def _totals_row(total: LabelTotals) -> tuple[str, str, str]:
    return f"{total.trials:,}", units.hours(total.gpu_hours), units.hours(total.core_hours)


def picture(simulation: Simulation, label: Mapping[str, str]) -> RenderableType:
    """Return the Gantt chart as text: time to the right, GPUs (or cores) downwards.

    The colour of a cell is that of the label that fills most of it; its shade is how full it is.
    """
    names = list(dict.fromkeys(label[run.trial.trial_id] for run in simulation.runs))
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    height = gantt_rows.height(simulation)
    n_rows = min(ROWS, height)
    filled = _filled(simulation, label, names, n_rows)
    text = Text()
    spans = [
        _span_text(row, n_rows, height, "GPU" if simulation.by_gpu else "core")
        for row in range(n_rows)
    ]
    width = max(map(len, spans))
    for row, span in enumerate(spans):
        text.append(f"{span:>{width}} ", style="dim")
        for cell in filled[:, row].T:
            shade = int(np.ceil(cell.sum() * (len(SHADES) - 1) - 1e-6))
            name = names[int(cell.argmax())]
            text.append(SHADES[min(len(SHADES) - 1, shade)], style=colour[name])
        text.append("\n")
    end = units.short_duration(simulation.makespan_s)
    text.append(f"{'':{width}} 0{end:>{COLUMNS - 1}}\n", style="dim")
    text.append(f"{'':{width}} ")
    for name in names:
        text.append("■ ", style=colour[name])
        text.append(f"{name}  ")
    return text


def _filled(
    simulation: Simulation, label: Mapping[str, str], names: Sequence[str], n_rows: int
) -> np.ndarray:
    """Return how much of each cell each label fills, [labels, rows, columns]."""
    filled = np.zeros((len(names), n_rows, COLUMNS))
    across = COLUMNS / max(simulation.makespan_s, 1e-9)
    down = n_rows / gantt_rows.height(simulation)
    bars = gantt_rows.bars(simulation)
    number = {name: i for i, name in enumerate(names)}
    which = np.array([number[label[bar.run.trial.trial_id]] for bar in bars], dtype=int)
    edges = [(bar.low, bar.high, bar.run.start_s, bar.run.end_s) for bar in bars]
    low, high, left, right = (np.reshape(edges, (-1, 4)) * [down, down, across, across]).T
    for row in range(n_rows):
        height = _covered(low, high, row)
        here = height > 0
        for column in range(COLUMNS):
            area = height[here] * _covered(left[here], right[here], column)
            filled[:, row, column] = np.bincount(which[here], area, minlength=len(names))
    return filled


def _span_text(row: int, rows: int, height: int, what: str) -> str:
    first, last = row * height // rows, (row + 1) * height // rows - 1
    return f"{what} {first}" if first >= last else f"{what}s {first}-{last}"


def _covered(low: np.ndarray, high: np.ndarray, cell: int) -> np.ndarray:
    """Return how much of a cell each interval [low, high] covers."""
    covered: np.ndarray = (np.minimum(high, cell + 1) - np.maximum(low, cell)).clip(min=0.0)
    return covered


def _impossible(simulation: Simulation) -> list[str]:
    reasons = Counter(simulation.impossible.values())
    return [
        f"note: {units.plural(n, 'trial')} cannot run there: {why}"
        for why, n in reasons.most_common(5)
    ]
