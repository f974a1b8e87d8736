"""The picture of a simulated sweep: who is where when, how much of the cluster is busy, how many wait. Needs matplotlib."""

import importlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.records.errors import StoreError
from orchestrator.scheduling.demand import UNIT
from orchestrator.simulation import gantt
from orchestrator.simulation.simulate import SimulatedRun, Simulation

SUFFIXES = (".png", ".svg", ".pdf")
OUTLINED = 1500
"""Up to so many bars have an outline; of more it would hide the colours."""
TIMES = ((2 * 86_400.0, 86_400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (120.0, 60.0, "minutes"))
"""From how many seconds on, the seconds of one, and the word."""
INK = "#333333"


def check_place(path: Path) -> None:
    """Make the folder of a picture.

    Raises:
        ValueError: If the file has no suffix that can be drawn, or cannot be where it is to be.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: a picture ends in {', '.join(SUFFIXES)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The name alone does not tell: only the file system knows whether it takes a file there.
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(
            f"{path}: {path.parent} takes no file ({error.strerror}); name another folder"
        ) from error
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
        simulation: What happened.
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
        figures: Any = importlib.import_module("matplotlib.figure")
        collections: Any = importlib.import_module("matplotlib.collections")
        ticker: Any = importlib.import_module("matplotlib.ticker")
        patches: Any = importlib.import_module("matplotlib.patches")
    except ModuleNotFoundError as error:
        raise StoreError(
            "matplotlib is not installed, and pictures need it; pip install 'memscale[analysis]'"
        ) from error
    figure = figures.Figure(figsize=(11, 7.5), dpi=150, layout="constrained")
    chart, busy, waiting = figure.subplots(
        3, 1, sharex=True, gridspec_kw={"height_ratios": (5.5, 1, 1)}
    )
    scale, word = time_unit(simulation.makespan_s)
    _bars(chart, collections, simulation, scale=scale, label=label, colours=colours)
    names = list(dict.fromkeys(label[run.trial.trial_id] for run in simulation.runs))
    chart.legend(
        handles=[patches.Patch(color=colours[name], label=name) for name in names],
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=5,
        frameon=False,
        fontsize=9,
        handlelength=1,
        columnspacing=1.4,
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    _step(busy, *occupied(simulation), scale=scale, ceiling=gantt.height(simulation))
    busy.set_ylabel("GPUs busy" if simulation.gpus else "cores busy")
    times, counts = still_waiting(simulation)
    _step(waiting, times, counts, scale=scale, ceiling=max(1.0, float(counts.max())))
    waiting.set_ylabel("waiting")
    waiting.set_xlabel(f"{word} since the start")
    for axes in (chart, busy, waiting):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(0, (simulation.makespan_s or 1.0) / scale)
        axes.yaxis.set_major_locator(
            ticker.MaxNLocator(integer=True, nbins=8 if axes is chart else 3)
        )
    figure.align_ylabels((chart, busy, waiting))
    try:
        figure.savefig(path)
    except OSError as error:
        raise StoreError(
            f"{path}: the picture cannot be written ({error.strerror or error})"
        ) from error


def _bars(
    axes: Any,
    collections: Any,
    simulation: Simulation,
    *,
    scale: float,
    label: Mapping[str, str],
    colours: Mapping[str, str],
) -> None:
    found = gantt.bars(simulation)
    corners = [
        [
            (bar.run.start_s / scale, bar.low),
            (bar.run.end_s / scale, bar.low),
            (bar.run.end_s / scale, bar.high),
            (bar.run.start_s / scale, bar.high),
        ]
        for bar in found
    ]
    outlined = len(found) <= OUTLINED
    axes.add_collection(
        collections.PolyCollection(
            corners,
            facecolors=[colours[label[bar.run.trial.trial_id]] for bar in found],
            edgecolors="white" if outlined else "none",
            linewidths=0.5 if outlined else 0.0,
            # Thousands of shapes make an SVG that no browser opens.
            rasterized=not outlined,
        )
    )
    height = gantt.height(simulation)
    axes.set_ylim(0, height)
    axes.set_ylabel("GPU" if simulation.gpus else "core")
    edges = np.cumsum(
        [len(node.gpus) if simulation.gpus else node.cpus for node in simulation.nodes]
    )
    if len(edges) <= 32:
        for edge in edges[:-1]:
            axes.axhline(edge, color=INK, linewidth=0.4, alpha=0.5)


def _step(
    axes: Any, times: np.ndarray, values: np.ndarray, *, scale: float, ceiling: float
) -> None:
    axes.fill_between(times / scale, values, step="post", color="#9AA5B1", linewidth=0)
    axes.set_ylim(0, ceiling * 1.05)


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the seconds of a fitting unit of time, and its name."""
    return next(((unit, word) for least, unit, word in TIMES if seconds >= least), (1.0, "seconds"))


def occupied(simulation: Simulation) -> tuple[np.ndarray, np.ndarray]:
    """Return times, and the GPUs (without any: cores) in which trials compute from each on."""
    sizes = [run.gpus if simulation.gpus else run.trial.demand.cpus for run in simulation.runs]
    return _running_total(
        [run.start_s for run in simulation.runs] + [run.end_s for run in simulation.runs],
        sizes + [-size for size in sizes],
        start=0.0,
    )


def still_waiting(simulation: Simulation) -> tuple[np.ndarray, np.ndarray]:
    """Return times, and how many trials have not started from each on."""
    starts = [run.start_s for run in simulation.runs] + [simulation.makespan_s]
    changes = [-1.0] * len(simulation.runs) + [0.0]
    return _running_total(starts, changes, start=float(len(simulation.runs)))


def _running_total(
    times: Sequence[float], changes: Sequence[float], *, start: float
) -> tuple[np.ndarray, np.ndarray]:
    unique, at = np.unique(np.array(times, dtype=float), return_inverse=True)
    total = start + np.cumsum(np.bincount(at, weights=np.array(changes), minlength=len(unique)))
    return unique, total


# Where each trial of a simulation is drawn: time to the right, GPUs (or cores, where there are none) upwards.


@dataclass(frozen=True)
class Bar:
    """A rectangle of a trial; one that holds what does not lie together has several."""

    run: SimulatedRun
    low: float
    high: float


def height(simulation: Simulation) -> int:
    """Return how high the picture is: GPUs, or cores where there are none."""
    return simulation.gpus or simulation.cores


def bars(simulation: Simulation) -> list[Bar]:
    """Return the rectangles of all trials, in the order of their starts. Those without a GPU are left out where there are any."""
    by_gpu = simulation.gpus > 0
    floor = 0
    floors = []
    for node in simulation.nodes:
        floors.append(floor)
        floor += len(node.gpus) if by_gpu else node.cpus
    # Of each GPU, or node of cores: who lies where until when.
    lying: dict[tuple[int, int], list[tuple[float, float, float]]] = {}
    found: list[Bar] = []
    for run in simulation.runs:
        for piece in run.allocation:
            if by_gpu:
                slots = [((piece.node, gpu), 1.0, piece.units / UNIT) for gpu in piece.gpus]
            else:
                slots = [
                    ((piece.node, 0), float(simulation.nodes[piece.node].cpus), float(piece.cpus))
                ]
            for slot, room, size in slots:
                there = [held for held in lying.get(slot, []) if held[2] > run.start_s]
                taken = _gaps(there, room=room, size=size)
                lying[slot] = there + [(low, high, run.end_s) for low, high in taken]
                base = floors[slot[0]] + slot[1]
                found += [Bar(run, base + low, base + high) for low, high in taken]
    return _joined(found)


def _gaps(
    there: list[tuple[float, float, float]], *, room: float, size: float
) -> list[tuple[float, float]]:
    """Return where something of that size lies in the gaps: in the lowest that holds it whole, else in several."""
    gaps = []
    low = 0.0
    for begin, end, _ in sorted(there):
        gaps.append((low, begin))
        low = end
    gaps = [(a, b) for a, b in [*gaps, (low, room)] if b - a > 1e-9]
    for a, b in gaps:
        if b - a >= size - 1e-9:
            return [(a, a + size)]
    taken = []
    for a, b in gaps:
        part = min(size, b - a)
        taken.append((a, a + part))
        size -= part
        if size <= 1e-9:
            break
    return taken


def _joined(found: list[Bar]) -> list[Bar]:
    """Join rectangles of one trial that touch."""
    joined: list[Bar] = []
    for bar in found:
        last = joined[-1] if joined else None
        if last is not None and last.run is bar.run and abs(last.high - bar.low) < 1e-9:
            joined[-1] = Bar(bar.run, last.low, bar.high)
        else:
            joined.append(bar)
    return joined
