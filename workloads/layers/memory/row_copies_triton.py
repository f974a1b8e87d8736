"""Copies of rows in Triton, each program with several rows on their way."""

import torch
import triton
from torch import Tensor
from triton import language as tl

_WORDS = 2048
"""Of 4 bytes, that a program copies at a time."""


def take_rows(source: Tensor, ids: Tensor, into: Tensor) -> None:
    """Copy as `row_copies.take_rows` does."""
    source, into = _words(source), _words(into)
    width = source.shape[1]
    columns = min(triton.next_power_of_2(width), _WORDS)
    rows = _WORDS // columns
    if not (len(ids) and width):
        return
    _take[(triton.cdiv(len(ids), rows),)](
        source, ids, into, len(ids), len(source), WIDTH=width, COLUMNS=columns, ROWS=rows,
    )  # fmt: skip


def _words(tensor: Tensor) -> Tensor:
    """Return rows as words of 4 bytes where they divide into them."""
    rows = tensor.view(len(tensor), -1)
    return rows.view(torch.int32) if rows.shape[1] * rows.element_size() % 4 == 0 else rows


@triton.jit
def _take(
    source, ids, into, n_ids, n_rows,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Copy ROWS rows, COLUMNS of their WIDTH words after one another."""
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = tl.load(ids + place, mask=place < n_ids, other=n_rows).to(tl.int64)
    live = (row < n_rows)[:, None]
    for first in range(0, WIDTH, COLUMNS):
        cols = first + tl.arange(0, COLUMNS)[None, :]
        named = row[:, None] * WIDTH + cols
        placed = place.to(tl.int64)[:, None] * WIDTH + cols
        mask = live & (cols < WIDTH)
        tl.store(into + placed, tl.load(source + named, mask=mask), mask=mask)
