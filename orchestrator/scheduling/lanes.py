"""Where each trial of a simulation is drawn: time to the right, GPUs (or cores, where there are none) upwards."""

from dataclasses import dataclass

from orchestrator.scheduling.demand import UNIT
from orchestrator.scheduling.simulate import Ran, Simulation


@dataclass(frozen=True)
class Bar:
    """A rectangle of a trial; one that holds what does not lie together has several."""

    run: Ran
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
    for run in simulation.ran:
        for piece in run.place:
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
