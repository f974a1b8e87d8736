"""Circuit breaker around a sweep's storage: open while it fails."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.records import storage_errors, units

LOG = logging.getLogger(__name__)
WARN_EVERY_S = 60.0
"""Seconds between two warnings in the log while it is open."""


class CircuitBreaker:
    """Says whether the storage of a folder fails, since when, and why."""

    def __init__(self, place: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start closed: the storage is taken to work.

        Args:
            place: The folder.
            clock: Monotonic seconds.
        """
        self._place = place
        self._clock = clock
        self._since: float | None = None
        self._warned_at = -math.inf
        self._problem = ""

    @property
    def is_open(self) -> bool:
        """Whether the storage failed when it was last used."""
        return self._since is not None

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """End the block at an error of the storage and open; what follows the block goes on."""
        try:
            yield
        except OSError as error:
            if not storage_errors.is_failing(error):
                raise
            self._problem = storage_errors.failing_message(error, self._place)
            self._since = self._clock() if self._since is None else self._since
            self.warn()

    def warn(self) -> None:
        """Log now and then that it is open."""
        if self._clock() - self._warned_at >= WARN_EVERY_S:
            self._warned_at = self._clock()
            LOG.warning("%s", self.reason())

    def reason(self) -> str:
        """Return what fails, for how long, and what to do; for while it is open."""
        lasted_s = 0.0 if self._since is None else self._clock() - self._since
        return f"{self._problem} (for {units.duration(lasted_s)})"

    def close(self) -> None:
        """Close: the storage works again."""
        if self._since is not None:
            LOG.info("%s: its storage answers again", self._place)
        self._since = None
