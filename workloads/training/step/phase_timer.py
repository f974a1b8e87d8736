"""Step-time split: seconds of each phase of sampled steps, on the device.

On a GPU the bounds of phases are CUDA events on the stream of the step. Steps are timed as they
train: of a captured step a second graph is captured, with the events as nodes in it, which is
replayed in place of the other when a step is sampled (`cuda_graph.py`). So the other steps carry no
events, and nothing waits: the events are read when the host reads the step's losses anyway. On a
CPU the bounds are readings of a clock.
"""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch

FORWARD, BACKWARD = "forward", "backward"
COMMUNICATION, OPTIMIZER = "communication", "optimizer"

Bound = tuple[str | None, "Event"]
"""A phase, None after the last, and the event at which it begins."""


class Event(Protocol):
    """What a phase timer asks of `torch.cuda.Event`."""

    def record(self) -> None:
        """Take the time once all work of the stream so far is done."""

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds from here to a later event."""


class HostEvent:
    """The time at which a CPU, which works in order, comes to an event."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Take the time from `clock`, in seconds."""
        self._clock = clock
        self._at = 0.0

    def record(self) -> None:
        """Take the time."""
        self._at = self._clock()

    def elapsed_time(self, end_event: "HostEvent") -> float:
        """Return the milliseconds from here to a later event."""
        return 1000.0 * (end_event._at - self._at)


class PhaseTimer:
    """Times the phases of the steps that are asked for.

    Phases follow one another: each lasts to the next `begin`, the last to `begin(None)`. A phase
    that comes several times in a step counts with the sum.
    """

    def __init__(self, new_event: Callable[[], Event] | None = None) -> None:
        """Time nothing before `wanted` is set.

        Args:
            new_event: Makes an event of the device; None: on the current GPU, to be captured too.
        """
        self._new_event = new_event or _cuda_event
        self.wanted = False
        """Whether to time the step that comes next."""
        self._bounds: list[Bound] = []
        self._seconds: dict[str, float] = {}
        self._n_steps = 0

    def begin(self, phase: str | None) -> None:
        """Begin a phase of the step, which ends the phase before; None only ends that."""
        if self.wanted:
            event = self._new_event()
            event.record()
            self._bounds.append((phase, event))

    def take(self) -> tuple[Bound, ...]:
        """Return the bounds since the last call and forget them: a graph keeps its own."""
        taken, self._bounds = tuple(self._bounds), []
        return taken

    def extend(self, bounds: Sequence[Bound]) -> None:
        """Add the bounds of a graph that was replayed."""
        self._bounds.extend(bounds)

    def add(self, phase: str, seconds: float) -> None:
        """Add seconds that the host took for a sampled step, beside those of the device."""
        if self.wanted:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def read(self) -> None:
        """Add up the step that was timed last; the device must have finished it."""
        bounds = self.take()
        if not bounds:
            return
        self._n_steps += 1
        for (phase, begin), (_, end) in pairwise(bounds):
            if phase is not None:
                seconds = begin.elapsed_time(end) / 1000.0
                self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def mean_s(self) -> dict[str, float]:
        """Return mean seconds per phase over the steps timed since the last call, if any."""
        seconds, n = self._seconds, self._n_steps
        self._seconds, self._n_steps = {}, 0
        return {phase: total / n for phase, total in seconds.items()} if n else {}


def _cuda_event() -> Event:
    # External: an event captured in a graph is recorded anew by each replay.
    made: Callable[..., Event] = torch.cuda.Event
    return made(enable_timing=True, external=True)
