"""How much of a GPU a trial gets: from the memory that one like it was measured to take, and more after it ran out.

A fraction of a GPU is a fraction of its memory. What a trial asks for is the least it gets; when trials of its
configuration took more, it gets what they took and a margin, so that those beside it are safe. Each process is capped at
its share: who takes more runs out of memory itself, alone, and is started again with a larger share.
"""

import math
from collections.abc import Hashable

MARGIN = 1.15
"""Memory reserved over memory measured or estimated."""
CONTEXT_BYTES = 2**29
"""Allowance per process for what CUDA itself keeps on the GPU, which torch does not count."""
STEP_BYTES = 2**28
"""Needs are rounded up to multiples of this, so that similar trials have equal demands."""


def memory_need(peak_bytes: float, *, ranks: int = 1) -> float:
    """Return the memory to reserve on a GPU on which that many ranks of a trial take `peak_bytes` each at most."""
    bytes_each = peak_bytes * MARGIN + CONTEXT_BYTES
    return float(-(-bytes_each * ranks // STEP_BYTES) * STEP_BYTES)


def enlarged_share(gpus: float, *, times: int) -> float:
    """Return the GPUs of a trial that has run out of memory so many times: of a fraction twice as much, then a whole one."""
    if times == 0 or not 0 < gpus < 1:
        return gpus
    return min(1.0, 2 * gpus) if times == 1 else 1.0


def max_enlargements(gpus: float | str) -> int:
    """Return how often a trial that asks for that much gets more of its GPU before anything else is changed."""
    if isinstance(gpus, str) or not 0 < gpus < 1:
        return 0
    return 1 if enlarged_share(float(gpus), times=1) == 1.0 else 2


def ranks_per_gpu(ranks: int, gpus: float) -> int:
    """Return how many of a trial's ranks share a GPU, at most."""
    return math.ceil(ranks / max(1.0, gpus))


def memory_fraction_per_rank(share: float, ranks: int) -> float:
    """Return the fraction of a GPU's memory that each of the ranks on a share may take (torch.cuda.set_per_process_memory_fraction)."""
    return min(1.0, share) / ranks


class MemoryObservations:
    """The most memory that a trial of each configuration was seen to take on a GPU; the first of them is the probe."""

    def __init__(self) -> None:
        """Start without a measurement."""
        self._peaks: dict[Hashable, float] = {}
        self._grown: dict[Hashable, int] = {}

    def saw(self, configuration: Hashable, n_bytes: float) -> None:
        """Take in the most that a rank of such a trial held on its GPU."""
        self._peaks[configuration] = max(n_bytes, self._peaks.get(configuration, 0.0))

    def ran_out(self, configuration: Hashable, *, times: int) -> None:
        """Take in that such a trial has run out of memory so many times; others of its configuration need not try."""
        self._grown[configuration] = max(times, self.grown(configuration))

    def grown(self, configuration: Hashable) -> int:
        """Return how often a trial of that configuration has run out of memory, at most."""
        return self._grown.get(configuration, 0)

    def need(self, configuration: Hashable, *, ranks: int = 1) -> float:
        """Return the memory to reserve for so many ranks on one GPU; 0: nothing was measured, and a share is what was asked for."""
        peak = self._peaks.get(configuration)
        return 0.0 if peak is None else memory_need(peak, ranks=ranks)
