"""Gantt chart of a simulated sweep, with busy GPUs and waiting trials over time.

Drawing needs matplotlib.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.records.errors import StoreError
from orchestrator.records.storage_errors import unwritable
from orchestrator.records.trial_spec import Outcome
from orchestrator.simulation import gantt_rows
from orchestrator.simulation.simulate import Simulation

SUFFIXES = (".png", ".svg", ".pdf")
OUTLINED = 1500
"""Up to so many bars have an outline; of more it would hide the colours."""
TIMES = ((2 * 86_400.0, 86_400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (120.0, 60.0, "minutes"))
"""Seconds from which a unit is used, its seconds, and its name."""
INK = "#333333"
SHADE = "#9AA5B1"
FAULT_MARKS = {
    Outcome.NODE_LOST: ("x", "#B3001B", "node lost"),
    Outcome.PREEMPTED: (".", "#111111", "preempted"),
}
"""How the ends of attempts are marked: symbol, colour, name."""
MOST_EDGES = 32
"""Nodes are told apart by lines up to so many."""


def check_place(path: Path) -> None:
    """Make the folder of a picture.

    Raises:
        ValueError: If the file has no suffix that can be drawn, or cannot be where it is to be.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: a picture ends in {', '.join(SUFFIXES)}")
    why = unwritable(path.parent)
    if why:
        raise ValueError(f"{path}: {path.parent} {why}; name another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; name a file")


def draw(
    simulation: Simulation,
    path: Path,
    *,
    title: str,
    label: Mapping[str, str],
    colours: Mapping[str, str],
) -> None:
    """Draw into a PNG, SVG or PDF file, by its suffix.

    Args:
        simulation: What to draw.
        path: Of the file; its folder is made.
        title: Above the picture.
        label: Of each trial id: what its colour stands for.
        colours: Of each label.

    Raises:
        StoreError: If matplotlib is not installed, or the file cannot be written.
        ValueError: As `check_place`.
    """
    check_place(path)
    try:
        from matplotlib import figure as figures
        from matplotlib import ticker
    except ModuleNotFoundError as error:
        raise StoreError(
            "matplotlib is not installed, and pictures need it; pip install 'memscale[analysis]'"
        ) from error
    figure = figures.Figure(figsize=(11, 7.5), dpi=150, layout="constrained")
    chart, busy, waiting = figure.subplots(
        3, 1, sharex=True, gridspec_kw={"height_ratios": (5.5, 1, 1)}
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    scale, word = time_unit(simulation.makespan_s)
    _draw_bars(chart, simulation, scale=scale, label=label, colours=colours)
    times, occupied_rows = occupied(simulation)
    _draw_steps(busy, times / scale, occupied_rows, ceiling=gantt_rows.height(simulation))
    busy.set_ylabel("GPUs busy" if simulation.by_gpu else "cores busy")
    times, counts = still_waiting(simulation)
    _draw_steps(waiting, times / scale, counts, ceiling=max(1.0, float(counts.max())))
    waiting.set_ylabel("waiting")
    waiting.set_xlabel(f"{word} since the start")
    for axes, n_ticks in ((chart, 8), (busy, 3), (waiting, 3)):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(0, (simulation.makespan_s or 1.0) / scale)
        axes.yaxis.set_major_locator(ticker.MaxNLocator(integer=True, nbins=n_ticks))
    figure.align_ylabels((chart, busy, waiting))
    try:
        figure.savefig(path)
    except OSError as error:
        raise StoreError(
            f"{path}: the picture cannot be written ({error.strerror or error})"
        ) from error


def _draw_bars(
    axes: Any,
    simulation: Simulation,
    *,
    scale: float,
    label: Mapping[str, str],
    colours: Mapping[str, str],
) -> None:
    from matplotlib import collections, patches

    bars = gantt_rows.bars(simulation)
    boxes = [(bar.run.start_s / scale, bar.run.end_s / scale, bar.low, bar.high) for bar in bars]
    corners = [[(x0, y0), (x1, y0), (x1, y1), (x0, y1)] for x0, x1, y0, y1 in boxes]
    outlined = len(bars) <= OUTLINED
    axes.add_collection(
        collections.PolyCollection(
            corners,
            facecolors=[colours[label[bar.run.trial.trial_id]] for bar in bars],
            edgecolors="white" if outlined else "none",
            linewidths=0.5 if outlined else 0.0,
            # Thousands of shapes make an SVG that no browser opens.
            rasterized=not outlined,
        )
    )
    marks = _mark_faults(axes, bars, scale=scale)
    axes.set_ylim(0, gantt_rows.height(simulation))
    axes.set_ylabel("GPU" if simulation.by_gpu else "core")
    edges = gantt_rows.node_edges(simulation)
    if len(simulation.nodes) <= MOST_EDGES:
        for edge in edges[1:-1]:
            axes.axhline(edge, color=INK, linewidth=0.4, alpha=0.5)
    names = dict.fromkeys(label[run.trial.trial_id] for run in simulation.runs)
    axes.legend(
        handles=[*(patches.Patch(color=colours[name], label=name) for name in names), *marks],
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=5,
        frameon=False,
        fontsize=9,
        handlelength=1,
        columnspacing=1.4,
    )


def _mark_faults(axes: Any, bars: Sequence[gantt_rows.Bar], *, scale: float) -> list[Any]:
    """Mark the ends of attempts that a fault ended, once each; return handles for the legend."""
    handles = []
    for outcome, (symbol, colour, name) in FAULT_MARKS.items():
        ended = {id(bar.run): bar for bar in reversed(bars) if bar.run.outcome is outcome}
        if ended:
            times = [bar.run.end_s / scale for bar in ended.values()]
            rows = [(bar.low + bar.high) / 2 for bar in ended.values()]
            handles += axes.plot(
                *(times, rows),
                marker=symbol,
                color=colour,
                linestyle="none",
                markersize=5 if len(ended) <= OUTLINED else 2,
                label=f"{name} ({len(ended):,})",
                rasterized=len(ended) > OUTLINED,
                zorder=3,
            )
    return handles


def _draw_steps(axes: Any, times: np.ndarray, values: np.ndarray, *, ceiling: float) -> None:
    axes.fill_between(times, values, step="post", color=SHADE, linewidth=0)
    axes.set_ylim(0, ceiling * 1.05)


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the seconds of a fitting unit of time, and its name."""
    return next(((unit, word) for least, unit, word in TIMES if seconds >= least), (1.0, "seconds"))


def occupied(simulation: Simulation) -> tuple[np.ndarray, np.ndarray]:
    """Return times, and the GPUs (without any: cores) in which trials compute from each on."""
    runs = simulation.runs
    sizes = [run.gpus if simulation.by_gpu else run.trial.demand.cpus for run in runs]
    times = [run.start_s for run in runs] + [run.end_s for run in runs]
    return _running_total(times, sizes + [-size for size in sizes], start=0.0)


def still_waiting(simulation: Simulation) -> tuple[np.ndarray, np.ndarray]:
    """Return times, and how many trials wait for a first or further attempt from each on."""
    again = [run.end_s for run in simulation.runs if run.retried]
    times = [run.start_s for run in simulation.runs] + again + [simulation.makespan_s]
    changes = [-1.0] * len(simulation.runs) + [1.0] * len(again) + [0.0]
    return _running_total(times, changes, start=float(simulation.n_trials))


def _running_total(
    times: Sequence[float], changes: Sequence[float], *, start: float
) -> tuple[np.ndarray, np.ndarray]:
    unique, position = np.unique(np.array(times, dtype=float), return_inverse=True)
    change = np.bincount(position, weights=np.array(changes), minlength=len(unique))
    return unique, start + np.cumsum(change)
