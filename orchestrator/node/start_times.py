"""Start times of an attempt: seconds per phase from launch to first step."""

from collections.abc import Callable

BEFORE_STEPS = ("data", "model", "start")
"""Phases that a rank reports before it has taken a step (`workloads.training.metrics.reporter`)."""


class StartTimes:
    """Follows one rank from its launch to its first step."""

    def __init__(self, launched_at: float | None, clock: Callable[[], float]) -> None:
        """The rank begins now.

        Args:
            launched_at: When the controller launched the attempt, in seconds since 1970.
            clock: Seconds since 1970.
        """
        self._clock = clock
        self._mark = clock()
        self._phase = "rank"
        self._seconds: dict[str, float] | None = {"launch": 0.0}
        if launched_at is not None:
            self._seconds = {"launch": self._mark - launched_at}

    def record(self, phase: str) -> dict[str, float] | None:
        """Take note of a phase; return seconds by phase, once: when a step has been taken.

        `launch` is from the controller to the rank's first line, `rank` until it reports a phase,
        `start` the optimizer, compilation and the first step. `total` is their sum.
        """
        if self._seconds is None or phase == self._phase:
            return None
        now = self._clock()
        self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + now - self._mark
        self._phase, self._mark = phase, now
        if phase in BEFORE_STEPS:
            return None
        seconds, self._seconds = self._seconds, None
        return {**seconds, "total": sum(seconds.values())}
