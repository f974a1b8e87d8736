"""Copies of rows in Triton: a bounded number of programs, each with several rows on their way.

Over the bus four large programs take a little longer than many, and slow a training step beside
them half as much (docs/benchmarks.md).
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton import language as tl


class _Launch(NamedTuple):
    """How a copy is launched."""

    programs: int
    """At most."""
    words: int
    """Of 4 bytes, that a program copies at a time."""
    warps: int


_BY_BUS = _Launch(programs=4, words=8192, warps=16)
_ON_DEVICE = _Launch(programs=1024, words=2048, warps=4)


def copy_rows(source: Tensor, ids: Tensor, into: Tensor, *, put: bool, by_bus: bool) -> None:
    """Copy as `row_copies.put_rows` does, or as `take_rows` does."""
    source, into = _words(source), _words(into)
    width = source.shape[1]
    how = _BY_BUS if by_bus else _ON_DEVICE
    columns = min(triton.next_power_of_2(width), how.words)
    rows = how.words // columns
    if not (len(ids) and width):
        return
    _copy[(min(triton.cdiv(len(ids), rows), how.programs),)](
        source, ids, into, len(ids), len(into) if put else len(source),
        WIDTH=width, COLUMNS=columns, ROWS=rows, PUT=put,
        num_warps=how.warps,
    )  # fmt: skip


def _words(tensor: Tensor) -> Tensor:
    """Return rows as words of 4 bytes where they divide into them."""
    rows = tensor.view(len(tensor), -1)
    return rows.view(torch.int32) if rows.shape[1] * rows.element_size() % 4 == 0 else rows


@triton.jit
def _copy(
    source, ids, into, n_ids, n_rows,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, PUT: tl.constexpr,
):  # fmt: skip
    """Copy ROWS rows at a time, COLUMNS of their WIDTH words after one another."""
    for start in range(tl.program_id(0) * ROWS, n_ids, tl.num_programs(0) * ROWS):
        place = start + tl.arange(0, ROWS)
        row = tl.load(ids + place, mask=place < n_ids, other=n_rows).to(tl.int64)
        live = (row < n_rows)[:, None]
        for first in range(0, WIDTH, COLUMNS):
            cols = first + tl.arange(0, COLUMNS)[None, :]
            named = row[:, None] * WIDTH + cols
            placed = place.to(tl.int64)[:, None] * WIDTH + cols
            mask = live & (cols < WIDTH)
            if PUT:
                tl.store(into + named, tl.load(source + placed, mask=mask), mask=mask)
            else:
                tl.store(into + placed, tl.load(source + named, mask=mask), mask=mask)
