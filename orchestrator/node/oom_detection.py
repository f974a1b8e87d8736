"""Detection of kills by the kernel's out-of-memory killer, from its counter.

A SIGKILL does not say who sent it; the counter does.
"""

from collections.abc import Callable
from pathlib import Path

JUST_NOW_S = 5.0
"""A rank found dead this soon after the counter rose is the process that the kernel chose."""


class OomKillCounter:
    """Follows the kernel's count of out-of-memory kills, in a cgroup or in the whole machine."""

    def __init__(
        self, clock: Callable[[], float], *, counters: Path = Path("/proc/vmstat")
    ) -> None:
        """Read the count; a kernel that keeps none (before 4.13, gVisor) is never at fault."""
        self._clock = clock
        self._counters = counters
        self._count = self._read()
        self._rose_at: float | None = None

    def update(self) -> None:
        """Notice whether the count rose. Called often, so that the time of a rise is known."""
        count = self._read()
        if count != self._count:
            self._count, self._rose_at = count, self._clock()

    def just_killed(self) -> bool:
        """Whether the kernel killed something for want of memory a moment ago."""
        self.update()
        return self._rose_at is not None and self._clock() - self._rose_at < JUST_NOW_S

    def _read(self) -> str | None:
        try:
            lines = self._counters.read_text().splitlines()
        except OSError:
            return None
        return next((line for line in lines if line.startswith("oom_kill ")), None)
