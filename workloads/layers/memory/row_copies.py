"""Copies of rows within one device, of which some may be missing."""

from importlib import import_module

from jaxtyping import Int, Shaped
from torch import Tensor


def take_rows(
    source: Shaped[Tensor, "rows ..."],
    ids: Int[Tensor, " places"],
    into: Shaped[Tensor, "places ..."],
) -> None:
    """Write row `ids[i]` of `source` to row i of `into`; where there is none, leave it."""
    if source.is_cuda:
        # A CPU build of torch comes without Triton.
        import_module("workloads.layers.memory.row_copies_triton").take_rows(source, ids, into)
        return
    there = ids < len(source)
    into[there] = source.index_select(0, ids[there])
