"""Gantt rows: where each simulated trial is drawn, GPUs upwards.

Time goes to the right. Where no trial holds a GPU, rows are cores.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from orchestrator.scheduling.demand import UNIT
from orchestrator.simulation.simulate import SimulatedRun, Simulation

_NOTHING = 1e-9
"""Less height than this is none: heights are sums of fractions."""


@dataclass(frozen=True)
class Bar:
    """A rectangle of a trial; a trial whose GPUs are not side by side has several."""

    run: SimulatedRun
    low: float
    high: float


class _Span(NamedTuple):
    """A part of a row's height, taken until a time."""

    low: float
    high: float
    end_s: float


def height(simulation: Simulation) -> int:
    """Return how many rows the chart has: GPUs, or cores where no trial holds a GPU."""
    return simulation.gpus if simulation.by_gpu else simulation.cores


def node_edges(simulation: Simulation) -> list[int]:
    """Return where the nodes begin, and the height as the last."""
    sizes = (len(node.gpus) if simulation.by_gpu else node.cpus for node in simulation.nodes)
    return list(accumulate(sizes, initial=0))


def bars(simulation: Simulation) -> list[Bar]:
    """Return the rectangles of all trials, in the order of their starts.

    Trials without a GPU are left out where others have one.
    """
    edges = node_edges(simulation)
    # Per GPU, or per node of cores: the spans that are taken.
    taken: defaultdict[tuple[int, int], list[_Span]] = defaultdict(list)
    found: list[Bar] = []
    for run in simulation.runs:
        for part in run.allocation:
            if simulation.by_gpu:
                rows = [((part.node, gpu), 1.0, part.units / UNIT) for gpu in part.gpus]
            else:
                cores = float(simulation.nodes[part.node].cpus)
                rows = [((part.node, 0), cores, float(part.cpus))]
            for (node, gpu), row_height, size in rows:
                busy = [span for span in taken[node, gpu] if span.end_s > run.start_s]
                spans = _fill_gaps(busy, row_height=row_height, size=size, end_s=run.end_s)
                taken[node, gpu] = busy + spans
                base = edges[node] + gpu
                found += [Bar(run, base + span.low, base + span.high) for span in spans]
    return _joined(found)


def _fill_gaps(busy: list[_Span], *, row_height: float, size: float, end_s: float) -> list[_Span]:
    """Return spans of that size between busy ones: the lowest gap that holds it, else several."""
    lows = [0.0, *(span.high for span in sorted(busy))]
    highs = [*(span.low for span in sorted(busy)), row_height]
    gaps = [(a, b) for a, b in zip(lows, highs, strict=True) if b - a > _NOTHING]
    for low, high in gaps:
        if high - low >= size - _NOTHING:
            return [_Span(low, low + size, end_s)]
    spans = []
    for low, high in gaps:
        part = min(size, high - low)
        spans.append(_Span(low, low + part, end_s))
        size -= part
        if size <= _NOTHING:
            break
    return spans


def _joined(found: list[Bar]) -> list[Bar]:
    """Join rectangles of one trial that touch."""
    joined: list[Bar] = []
    for bar in found:
        last = joined[-1] if joined else None
        if last is not None and last.run is bar.run and abs(last.high - bar.low) < _NOTHING:
            joined[-1] = replace(last, high=bar.high)
        else:
            joined.append(bar)
    return joined
