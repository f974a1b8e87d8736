"""Host offload of memory tables: pinned memory that the GPU reads by row.

A GPU maps pinned host memory into its own address space, so such a table is a CUDA tensor like any
other: every kernel reads and writes it, over the bus. What is expensive is to read a row twice; so
many reads go through `fetch_rows`.
"""

import contextlib
import math
import mmap
import weakref
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

DIRECT_READS = 2**14
"""Reads up to here are made in place: finding rows named twice costs a sort, and the host waits for
it. A token reads 128 rows or so, of which few are the same, and so decoding of up to a hundred
tokens at once waits for nothing."""


def empty_on_host(*shape: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "*shape"]:
    """Return an open tensor of `device` whose bytes lie in pinned host memory.

    Of a CPU an ordinary one.

    Operations on it are ordered as those on any tensor of the GPU. It takes as many bytes as it
    has: torch's own pinned memory is rounded up to a power of two.

    Raises:
        ValueError: If it has no element: there is nothing to map.
        RuntimeError: If the memory cannot be pinned, or torch copied it instead of mapping it.
    """
    if device.type == "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    n_bytes = math.prod(shape) * dtype.itemsize
    if not n_bytes:
        raise ValueError(f"a tensor in host memory needs at least one element, got shape {shape}")
    pinned = _pinned(n_bytes)
    here = torch.device(
        device.type, torch.cuda.current_device() if device.index is None else device.index
    )
    mapped = torch.as_tensor(_Mapped(pinned, here), device=here)
    if mapped.data_ptr() != pinned.data_ptr() or mapped.device != here:
        raise RuntimeError(
            f"pinned host memory cannot be mapped on {here}; use memory_tables: device"
        )
    return mapped.view(dtype).view(shape)


def _pinned(n_bytes: int) -> Tensor:
    """Return zeros in memory that stays where it is, for a GPU to map."""
    pages = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A child would share them, and whoever writes first would leave the pages that a GPU maps.
    pages.madvise(mmap.MADV_DONTFORK)
    with contextlib.suppress(
        OSError
    ):  # Large pages take fewer look-ups; not every kernel has them.
        pages.madvise(mmap.MADV_HUGEPAGE)
    # All threads together make the pages; pinning would make them one by one.
    pinned = torch.frombuffer(pages, dtype=torch.uint8).zero_()
    failed = int(_runtime().cudaHostRegister(pinned.data_ptr(), n_bytes, 0))
    if failed:
        raise RuntimeError(
            f"{n_bytes / 1e9:.1f} GB of host memory cannot be pinned (CUDA error {failed}); "
            "use smaller tables, or memory_tables: device"
        )
    return pinned


def zeros_on_host(like: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Return zeros of the shape and device of `like`, in pinned host memory."""
    return empty_on_host(*like.shape, dtype=dtype, device=like.device).zero_()


def fetch_rows(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    *,
    direct_reads: int | None = None,
) -> tuple[Float[Tensor, "fetched width"], Int[Tensor, "bags bag_size"]]:
    """Return the rows that `ids` names, and `ids` as places among them.

    `rows[places]` is `table[ids]`.

    More than `direct_reads` reads (`DIRECT_READS` if None): each row once, copied to the device.
    Fewer: the table itself.
    """
    if ids.numel() <= (DIRECT_READS if direct_reads is None else direct_reads):
        return table, ids
    rows, places = torch.unique(ids, return_inverse=True)
    return table.index_select(0, rows), places


class _Mapped:
    """Pinned bytes as torch takes foreign CUDA memory in.

    The tensor that it makes keeps this object, hence the bytes.
    """

    def __init__(self, pinned: Tensor, device: torch.device) -> None:
        # torch's allocator of pinned memory does not know which kernels use these bytes.
        weakref.finalize(self, _after_the_last_use, pinned, device).atexit = False
        self.__cuda_array_interface__ = {
            "shape": tuple(pinned.shape),
            "typestr": "|u1",
            "data": (pinned.data_ptr(), False),
            "strides": None,
            "version": 3,
        }


def _after_the_last_use(pinned: Tensor, device: torch.device) -> None:
    """Wait, and so let go of `pinned` when nothing that is queued reads or writes it."""
    torch.cuda.synchronize(device)
    _runtime().cudaHostUnregister(pinned.data_ptr())


def _runtime() -> Any:
    """Return CUDA's own functions."""
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
