"""Rows of tables in host memory, gathered and scattered by threads of the CPU.

A GPU that reads single rows over the bus gets a sixth of its rate, and its copies take
multiprocessors from the training step beside them (docs/benchmarks.md). The CPU is next to the
table: it gathers rows into one block, which the GPU's copy engine then moves at the whole rate.

The copies are C (`host_rows.c`), compiled at first use by the compiler that Triton needs too.
Where there is none, numpy copies the same bytes in one thread.
"""

import ctypes
import functools
import logging
import os
import subprocess
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped
from numpy.typing import NDArray
from torch import Tensor

Items = NDArray[np.void]
"""Rows as items of bytes, which are copied without a look into them."""
Ids = NDArray[np.integer]

MAX_THREADS = 16
"""Sixteen took 0.86 of the time of eight, with rows of 256 bytes; more were not tried
(docs/benchmarks.md)."""
LEAST_OF_A_THREAD = 4096
"""Rows; for fewer it is not worth starting."""

_log = logging.getLogger(__name__)


def items_of(rows: Shaped[Tensor, "rows ..."]) -> Items:
    """Return contiguous rows that lie in host memory (`host_offload.py`) as items, not copied."""
    assert rows.is_contiguous()
    memory: Any = (ctypes.c_ubyte * rows.nbytes).from_address(rows.data_ptr())
    memory.keeps = rows
    return np.frombuffer(memory, dtype=np.dtype((np.void, rows.nbytes // len(rows))))


def gather(tables: Sequence[Items], ids: Ids, into: Sequence[Items]) -> None:
    """Write row `ids[i]` of every table to item i of its block.

    Raises:
        IndexError: If an id names no row. Some rows may have been copied then.
    """
    copy_rows = _compiled()
    if copy_rows is not None:
        _copy(copy_rows, tables, ids, into, scatters=False)
        return
    for table, block in zip(tables, into, strict=True):
        block[: len(ids)] = table[ids]


def scatter(blocks: Sequence[Items], ids: Ids, into: Sequence[Items]) -> None:
    """Write item i of every block to row `ids[i]` of its table; no id may come twice.

    Raises:
        IndexError: As `gather`.
    """
    copy_rows = _compiled()
    if copy_rows is not None:
        _copy(copy_rows, into, ids, blocks, scatters=True)
        return
    for block, table in zip(blocks, into, strict=True):
        table[ids] = block[: len(ids)]


def _copy(
    copy_rows: Callable[..., None],
    tables: Sequence[Items],
    ids: Ids,
    blocks: Sequence[Items],
    *,
    scatters: bool,
) -> None:
    assert ids.flags.c_contiguous
    assert ids.itemsize in (4, 8)
    pairs = []
    for table, block in zip(tables, blocks, strict=True):
        # C looks at none of this: it is given addresses.
        assert len(table) == len(tables[0])
        assert len(block) >= len(ids)
        assert table.itemsize == block.itemsize
        pairs += [table.ctypes.data, block.ctypes.data, table.itemsize]
    processors = len(os.sched_getaffinity(0))
    n_threads = min(MAX_THREADS, processors, -(-len(ids) // LEAST_OF_A_THREAD))
    copy_rows(
        np.asarray(pairs, np.int64),
        len(tables[0]),
        ids,
        ids.itemsize,
        len(ids),
        n_threads,
        scatters,
    )


@functools.cache
def _compiled() -> Callable[..., None] | None:
    """Return the function of `host_rows.c`; None where nothing can compile it."""
    source = Path(__file__).with_suffix(".c").read_text()
    try:
        # A CPU build of torch comes without Triton.
        build = import_module("triton.runtime.build")
        module: Any = build.compile_module_from_src(source, "host_rows", ccflags=["-pthread"])
    except (ImportError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        _log.warning(
            "host_rows.c is not compiled (%s), so one thread copies rows of tables in host "
            "memory; install a C compiler and the headers of Python",
            error,
        )
        return None
    copy_rows: Callable[..., None] = module.copy_rows
    return copy_rows
