"""Metrics log: pending numbers on the device, throughput, seconds by activity."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor


class PendingMetrics:
    """Numbers of steps that still are tensors on the device, one row per step."""

    def __init__(self) -> None:
        self._rows: list[Mapping[str, Tensor]] = []

    def add(self, row: Mapping[str, Tensor]) -> None:
        """Keep the 0-d tensors of one step."""
        self._rows.append(row)

    def read(self) -> list[dict[str, float]]:
        """Return the numbers of the steps since the last call, oldest first, in one transfer."""
        values = torch.stack([tensor for row in self._rows for tensor in row.values()]).tolist()
        found, remaining = [], iter(values)
        for row in self._rows:
            found.append({name: next(remaining) for name in row})
        self._rows.clear()
        return found


@dataclass(kw_only=True)
class Stopwatch:
    """Seconds per activity, over all attempts whose steps were kept."""

    clock: Callable[[], float]
    seconds: dict[str, float] = field(
        default_factory=lambda: {"train": 0.0, "evaluate": 0.0, "data": 0.0, "start": 0.0}
    )
    """Warm-up steps are in `start`, all others in `train`."""

    @contextmanager
    def on(self, activity: str) -> Iterator[None]:
        """Add the seconds of the block to `activity`."""
        start = self.clock()
        try:
            yield
        finally:
            spent = self.clock() - start
            self.seconds[activity] = self.seconds.get(activity, 0.0) + spent

    def split(self, *, steps: int, warm_ups: int) -> dict[str, float]:
        """Return seconds per activity where `train` is that of all steps, as if all were warm.

        A warm-up step counts in `train` with the mean of the others, and with what it took beyond
        that in `start`: compilation, choice of kernels, capture. Without a warm step nothing is
        known of that, and all is in `train`.

        Args:
            steps: Steps done, over all attempts whose steps were kept.
            warm_ups: How many of them were warm-ups.
        """
        start, train = self.seconds["start"], self.seconds["train"]
        usual = start
        if steps > warm_ups:
            usual = min(start, train / (steps - warm_ups) * warm_ups)
        return {**self.seconds, "train": train + usual, "start": start - usual}


class Throughput:
    """Tokens seen, and tokens per second of training; evaluation and checkpoints do not count."""

    def __init__(self, stopwatch: Stopwatch, *, tokens: int) -> None:
        """Start at `tokens`, which earlier attempts have seen."""
        self.tokens = tokens
        self._stopwatch = stopwatch
        self._mark = self._mark_before = (tokens, self._busy_s())

    def rate(self) -> float:
        """Return tokens per second since the last lap."""
        tokens, busy_s = self.tokens - self._mark[0], self._busy_s() - self._mark[1]
        return tokens / busy_s if busy_s > 0 else 0.0

    def lap(self, *, is_short: bool = False) -> float:
        """Return the rate and start a new lap.

        A short lap, of a training's last few steps, is joined with the lap before: most of it would
        be the wait for the device.
        """
        if is_short:
            self._mark = self._mark_before
        rate = self.rate()
        self._mark_before, self._mark = self._mark, (self.tokens, self._busy_s())
        return rate

    def _busy_s(self) -> float:
        return sum(self._stopwatch.seconds[activity] for activity in ("train", "data", "start"))
