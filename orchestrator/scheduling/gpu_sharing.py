"""GPU sharing: the fraction of a GPU that a trial gets, from measured memory.

A fraction of a GPU is a fraction of its memory. A trial gets at least what it asks for. When trials
of its configuration took more, it gets what they took and a margin, so that its neighbours are
safe. Each process is capped at its share: one that takes more runs out of memory itself, alone, and
is started again with a larger share.
"""

import math
from collections.abc import Hashable

MARGIN = 1.15
"""Memory reserved over memory measured or estimated."""
CONTEXT_BYTES = 2**29
"""Allowance per process for what CUDA itself keeps on the GPU, which torch does not count."""
STEP_BYTES = 2**28
"""Reserved memory is a multiple of this, so that similar trials have equal demands."""


def memory_need(peak_bytes: float, *, ranks: int = 1) -> float:
    """Return the bytes to reserve on a GPU for `ranks` processes of at most `peak_bytes` each."""
    bytes_each = peak_bytes * MARGIN + CONTEXT_BYTES
    return float(-(-bytes_each * ranks // STEP_BYTES) * STEP_BYTES)


def largest_peak(gpu_bytes: float, *, ranks: int = 1) -> float:
    """Return the largest peak of `ranks` processes whose `memory_need` a GPU has."""
    whole_steps = gpu_bytes // STEP_BYTES * STEP_BYTES
    return max(0.0, (whole_steps / ranks - CONTEXT_BYTES) / MARGIN)


def enlarged_share(gpus: float, *, times: int) -> float:
    """Return the GPUs of a trial that has run out of memory so many times.

    A fraction is doubled once, then becomes a whole GPU; whole GPUs stay.
    """
    if times == 0 or not 0 < gpus < 1:
        return gpus
    return min(1.0, 2 * gpus) if times == 1 else 1.0


def max_enlargements(gpus: float | str) -> int:
    """Return how often a trial that asks for `gpus` gets a larger share."""
    if isinstance(gpus, str) or not 0 < gpus < 1:
        return 0
    return 1 if enlarged_share(float(gpus), times=1) == 1.0 else 2


def ranks_per_gpu(ranks: int, gpus: float) -> int:
    """Return how many of a trial's ranks share a GPU, at most."""
    return math.ceil(ranks / max(1.0, gpus))


def memory_fraction_per_rank(share: float, ranks: int) -> float:
    """Return the fraction for torch.cuda.set_per_process_memory_fraction."""
    return min(1.0, share) / ranks


class MemoryObservations:
    """GPU memory measured per configuration: the highest peak, and failures for want of it."""

    def __init__(self) -> None:
        """Start without a measurement."""
        self._peak_bytes: dict[Hashable, float] = {}
        self._n_ooms: dict[Hashable, int] = {}

    def observe_peak(self, configuration: Hashable, peak_bytes: float) -> None:
        """Record the most memory that a rank of a trial held."""
        self._peak_bytes[configuration] = max(peak_bytes, self._peak_bytes.get(configuration, 0.0))

    def observe_ooms(self, configuration: Hashable, n_ooms: int) -> None:
        """Record how often one trial ran out of memory; others need not repeat it."""
        self._n_ooms[configuration] = max(n_ooms, self.n_ooms(configuration))

    def n_ooms(self, configuration: Hashable) -> int:
        """Return how often a trial of that configuration ran out of memory, at most."""
        return self._n_ooms.get(configuration, 0)

    def reserved_bytes(self, configuration: Hashable, *, ranks: int = 1) -> float:
        """Return the memory to reserve for `ranks` processes on one GPU; 0 if none was measured."""
        peak_bytes = self._peak_bytes.get(configuration)
        return 0.0 if peak_bytes is None else memory_need(peak_bytes, ranks=ranks)
