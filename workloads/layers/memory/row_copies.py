"""Copies of rows between a table and a buffer, on the device that orders them."""

from importlib import import_module
from types import ModuleType

from jaxtyping import Int, Shaped
from torch import Tensor


def take_rows(
    source: Shaped[Tensor, "rows ..."],
    ids: Int[Tensor, " places"],
    into: Shaped[Tensor, "places ..."],
    *,
    by_bus: bool = False,
) -> None:
    """Write row `ids[i]` of `source` to row i of `into`; where there is none, leave it.

    Either tensor may lie in host memory (`host_offload.py`). A copy `by_bus` leaves room for other
    kernels beside it.
    """
    if source.is_cuda:
        _kernels().copy_rows(source, ids, into, put=False, by_bus=by_bus)
        return
    there = ids < len(source)
    into[there] = source.index_select(0, ids[there])


def put_rows(
    source: Shaped[Tensor, "places ..."],
    ids: Int[Tensor, " places"],
    into: Shaped[Tensor, "rows ..."],
    *,
    by_bus: bool = False,
) -> None:
    """Write row i of `source` to row `ids[i]` of `into`, if it has one; no id may come twice."""
    if source.is_cuda:
        _kernels().copy_rows(source, ids, into, put=True, by_bus=by_bus)
        return
    there = ids < len(into)
    into.index_copy_(0, ids[there].long(), source[there])


def _kernels() -> ModuleType:
    # A CPU build of torch comes without Triton.
    return import_module("workloads.layers.memory.row_copies_triton")
