"""Copies of rows between a table and a buffer, on the device that orders them."""

from importlib import import_module
from types import ModuleType

from jaxtyping import Int, Shaped
from torch import Tensor

BUS_PROGRAMS = 48
"""Programs of a copy over the bus: enough to keep it busy, and few of a GPU's multiprocessors."""
_DEVICE_PROGRAMS = 1024


def take_rows(
    source: Shaped[Tensor, "rows ..."],
    ids: Int[Tensor, " places"],
    into: Shaped[Tensor, "places ..."],
    *,
    programs: int = _DEVICE_PROGRAMS,
) -> None:
    """Write row `ids[i]` of `source` to row i of `into`; where there is none, leave it.

    Either tensor may lie in host memory (`host_offload.py`). `programs` bounds how much of a GPU
    the copy takes.
    """
    if source.is_cuda:
        _kernels().copy_rows(source, ids, into, put=False, programs=programs)
        return
    there = ids < len(source)
    into[there] = source.index_select(0, ids[there])


def put_rows(
    source: Shaped[Tensor, "places ..."],
    ids: Int[Tensor, " places"],
    into: Shaped[Tensor, "rows ..."],
    *,
    programs: int = _DEVICE_PROGRAMS,
) -> None:
    """Write row i of `source` to row `ids[i]` of `into`, if it has one; no id may come twice."""
    if source.is_cuda:
        _kernels().copy_rows(source, ids, into, put=True, programs=programs)
        return
    there = ids < len(into)
    into.index_copy_(0, ids[there].long(), source[there])


def _kernels() -> ModuleType:
    # A CPU build of torch comes without Triton.
    return import_module("workloads.layers.memory.row_copies_triton")
