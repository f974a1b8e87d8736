"""Kernels of a few optimizer steps, by torch.profiler: what computes, what waits for messages.

`Profiled` is a reporter that starts the profiler after one step and stops it after another, so that
the real loop is profiled as it is, its captured graphs included. `summary` says in milliseconds a
step where the time went.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from training_speed import Rates

FIRST, LAST = 30, 34
"""The profiler runs from the end of the one step to the end of the other."""
Kernel = tuple[str, float, float]
"""Name, start and end in microseconds."""


class Profiled(Rates):
    """Rates, and the kernels of steps `FIRST` + 1 to `LAST`."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Kernel] = []
        self._profiler: profile | None = None

    def progress(self, step: int, steps: int, phase: str, values: dict[str, float]) -> None:
        super().progress(step, steps, phase, values)
        if phase != "train":
            return
        if step == FIRST and self._profiler is None:
            torch.cuda.synchronize()
            self._profiler = profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU])
            self._profiler.start()
        elif step == LAST and self._profiler is not None and not self.kernels:
            torch.cuda.synchronize()
            self._profiler.stop()
            self.kernels = [
                (event.name, event.time_range.start, event.time_range.end)
                for event in self._profiler.events()
                if event.device_type == DeviceType.CUDA
            ]

    def write(self, path: Path) -> None:
        """Write the kernels as gzipped JSON, and the summary beside it.

        Raises:
            RuntimeError: If the trial had no step `LAST`.
        """
        if not self.kernels:
            raise RuntimeError(f"no profile: it needs {LAST + 1} steps or more")
        with gzip.open(path, "wt") as file:
            json.dump(self.kernels, file)
        path.with_suffix("").with_suffix(".txt").write_text(summary(self.kernels, LAST - FIRST))


def summary(kernels: list[Kernel], steps: int, most: int = 45) -> str:
    """Return lines of milliseconds a step: all, with messages told apart, and the longest kinds."""
    messages = [each for each in kernels if each[0].startswith("nccl")]
    computing = [each for each in kernels if not each[0].startswith("nccl")]
    busy, of_messages, of_computing = map(_covered, (kernels, messages, computing))
    begun, ended = min(each[1] for each in kernels), max(each[2] for each in kernels)
    lines = [
        f"{name:<60} {us / steps / 1e3:9.3f}"
        for name, us in (
            ("from first to last kernel", ended - begun),
            ("kernels that compute, overlaps counted once", of_computing),
            ("messages alone, nothing computed beside them", busy - of_computing),
            ("messages, also beside others", of_messages),
            ("nothing runs", ended - begun - busy),
        )
    ]
    times: dict[str, list[float]] = defaultdict(list)
    for name, start, end in kernels:
        times[name[:100]].append(end - start)
    longest = sorted(times.items(), key=lambda item: -sum(item[1]))[:most]
    lines += [
        f"{sum(us) / steps / 1e3:9.3f} {len(us) / steps:7.1f} x {name}" for name, us in longest
    ]
    return "\n".join(lines) + "\n"


def _covered(kernels: Iterable[Kernel]) -> float:
    """Return the time in which at least one of them runs."""
    covered, until = 0.0, float("-inf")
    for _, start, end in sorted(kernels, key=lambda kernel: kernel[1]):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered
