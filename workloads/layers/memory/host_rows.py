"""Rows of tables in host memory, gathered and scattered by threads of the CPU.

A GPU that reads single rows over the bus gets a sixth of its rate, and its copies take
multiprocessors from the training step beside them (docs/benchmarks.md). The CPU is next to the
table: it gathers rows into one block, which the GPU's copy engine then moves at the whole rate.
"""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from jaxtyping import Shaped
from numpy.typing import NDArray
from torch import Tensor

Items = NDArray[np.void]
"""Rows as items of bytes, which numpy copies without looking into them."""
Ids = NDArray[np.integer]

MAX_THREADS = 8
"""Eight take 24 ms for 1e6 rows of 64 bytes in and back, with the bus (docs/benchmarks.md)."""
_LEAST = 4096
"""Rows of one thread; for fewer it is not worth waking."""


def items_of(rows: Shaped[Tensor, "rows ..."]) -> Items:
    """Return contiguous rows that lie in host memory (`host_offload.py`) as items, not copied."""
    assert rows.is_contiguous()
    memory: Any = (ctypes.c_ubyte * rows.nbytes).from_address(rows.data_ptr())
    memory.keeps = rows
    return np.frombuffer(memory, dtype=np.dtype((np.void, rows.nbytes // len(rows))))


class HostRows:
    """Threads that copy rows between tables and blocks; numpy lets them run side by side."""

    def __init__(self, threads: int | None = None) -> None:
        """Start no thread yet. `threads` is None for one per processor, `MAX_THREADS` at most."""
        self._n = threads or min(MAX_THREADS, len(os.sched_getaffinity(0)))
        self._threads = ThreadPoolExecutor(self._n, thread_name_prefix="host-rows")

    def gather(self, table: Items, ids: Ids, into: Items) -> None:
        """Write row `ids[i]` of `table` to item i of `into`."""

        def copy(part: slice) -> None:
            # Whoever asks numpy to check the ids gets a copy more.
            np.take(table, ids[part], out=into[part], mode="clip")

        self._each_part(copy, len(ids))

    def scatter(self, rows: Items, ids: Ids, into: Items) -> None:
        """Write item i of `rows` to row `ids[i]` of the table `into`; no id may come twice."""

        def copy(part: slice) -> None:
            into[ids[part]] = rows[part]

        self._each_part(copy, len(ids))

    def _each_part(self, copy: Callable[[slice], None], n: int) -> None:
        """Copy `n` rows, a part per thread."""
        size = max(_LEAST, -(-n // self._n))
        parts = [slice(start, min(start + size, n)) for start in range(0, n, size)]
        for _ in self._threads.map(copy, parts):
            pass  # waits, and raises what a thread raised
