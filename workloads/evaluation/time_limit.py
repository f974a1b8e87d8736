"""Limit on the time of an evaluation, the same decision on all ranks."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from workloads.distributed.process_group import RankGroup


class OutOfTime(Exception):
    """An evaluation has used its time."""


@dataclass(kw_only=True)
class TimeLimit:
    """When an evaluation has to stop; made when it starts.

    Ranks that share passes have to stop together, so several look between tasks only; one looks
    between passes, too.
    """

    seconds: float = float("inf")
    world: RankGroup = field(default_factory=RankGroup)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._start = self.clock()

    def between_passes(self) -> None:
        """Look at the clock.

        Raises:
            OutOfTime: If a single rank has used its time.
        """
        if self.world.size == 1 and self._is_over():
            raise OutOfTime

    def between_tasks(self) -> None:
        """Look at the clocks of all ranks. Collective.

        Raises:
            OutOfTime: On every rank, if one has used its time.
        """
        if any(self.world.all_gather_objects(self._is_over())):
            raise OutOfTime

    def _is_over(self) -> bool:
        return self.clock() - self._start > self.seconds
