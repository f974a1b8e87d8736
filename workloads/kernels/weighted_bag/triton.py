"""Weighted bag in Triton: fp32 sums, backward over reads sorted by row.

Any width, fp32 sums, and a backward pass over the reads sorted by row.
"""

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from triton import language as tl

from workloads.kernels.segment_sum.triton import offset, reduce_rows, sort_reads


def forward(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    weights: Float[Tensor, "bags bag_size"],
    *,
    gaps: bool = False,
    block_width: int | None = None,
    block_rows: int | None = None,
) -> Float[Tensor, "bags width"]:
    """Return `reference.forward`, summed in fp32.

    Args:
        table: Of 16 or 32 bits.
        ids: As in the reference.
        weights: As in the reference.
        gaps: Whether reads of row `len(table)` are skipped (`gaps.py`).
        block_width: Columns worked on at a time. None: 64 at most, all bags' first 64 before the
            next, so that a part of the table that the cache can hold much of is read often in a
            short time.
        block_rows: Rows fetched at a time by one program. None: as many as a warp holds.
    """
    n_bags, bag_size = ids.shape
    width = table.shape[1]
    out = table.new_empty(n_bags, width)
    if not out.numel():
        return out
    block_width = block_width or max(16, min(64, triton.next_power_of_2(width)))
    block_rows = block_rows or min(
        triton.next_power_of_2(max(1, bag_size)), 8192 // (block_width * table.element_size())
    )
    _forward[(n_bags, triton.cdiv(width, block_width))](
        table.contiguous(), ids.contiguous(), weights.contiguous(), out,
        len(table), bag_size, width, ROWS=block_rows, WIDTH=block_width, GAPS=gaps,
        EVEN=width % block_width == 0 and bag_size % block_rows == 0, num_warps=1,
    )  # fmt: skip
    return out


def backward(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    weights: Float[Tensor, "bags bag_size"],
    grad: Float[Tensor, "bags width"],
    *,
    needs_table: bool,
    needs_weights: bool,
) -> tuple[Float[Tensor, "rows width"] | None, Float[Tensor, "bags bag_size"] | None]:
    """Return `reference.backward`.

    Both gradients in one pass over the sorted reads where both are wanted.
    """
    if not needs_table:
        return None, row_products(table, ids, grad) if needs_weights else None
    reads = sort_reads(ids, weights, len(table))
    table_grad, products = reduce_rows(
        reads,
        grad,
        table if needs_weights else None,
        sums_dtype=table.dtype,
        products_dtype=weights.dtype,
    )
    return table_grad, None if products is None else products.view(ids.shape)


READS_OF_A_ROW = 2
"""From so many on, products are made by blocks of columns: the cache then holds some rows' next
reads."""


def row_products(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags width"],
    *,
    gaps: bool = False,
) -> Float[Tensor, "bags bag_size"]:
    """Return the product of every row that a bag names with the bag's `x`, summed in fp32.

    With `gaps`, those of reads of row `len(table)` are 0.
    """
    n_bags, bag_size = ids.shape
    width = table.shape[1]
    out = table.new_empty(n_bags, bag_size)
    if not out.numel():
        return out
    arguments = table.contiguous(), ids.contiguous(), x.contiguous()
    if ids.numel() < READS_OF_A_ROW * len(table):
        block_width = min(512 // table.element_size(), max(16, triton.next_power_of_2(width)))
        _row_products[(n_bags,)](
            *arguments,
            out,
            len(table),
            bag_size,
            width,
            ROWS=min(32, triton.next_power_of_2(bag_size)),
            WIDTH=block_width,
            GAPS=gaps,
            num_warps=4,
        )
        return out
    block_width = max(16, min(64, triton.next_power_of_2(width)))
    block_rows = min(triton.next_power_of_2(bag_size), 8192 // (block_width * table.element_size()))
    sums = out.new_empty(out.shape, dtype=torch.float32)
    for left in range(0, width, block_width):
        _add_products[(n_bags,)](
            *arguments, sums, out, len(table), bag_size, width, left,
            ROWS=block_rows, WIDTH=block_width,
            FIRST=left == 0, LAST=left + block_width >= width, GAPS=gaps,
            EVEN=width % block_width == 0 and bag_size % block_rows == 0, num_warps=1,
        )  # fmt: skip
    return out


@triton.jit
def _forward(
    table, ids, weights, out, n_rows, bag_size, width,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, GAPS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    bag = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = cols < width
    ids += bag * bag_size
    weights += bag * bag_size
    acc = tl.zeros([WIDTH], tl.float32)
    for start in range(0, bag_size, ROWS):
        at = start + tl.arange(0, ROWS)
        if EVEN:
            row = tl.load(ids + at)
            weight = tl.load(weights + at).to(tl.float32)
            place = table + offset(row, width)[:, None] + cols[None, :]
            values = (
                tl.load(place, mask=(row < n_rows)[:, None], other=0.0) if GAPS else tl.load(place)
            )
        else:
            live = at < bag_size
            row = tl.load(ids + at, mask=live, other=0)
            if GAPS:
                live &= row < n_rows
            weight = tl.load(weights + at, mask=live, other=0.0).to(tl.float32)
            values = tl.load(
                table + offset(row, width)[:, None] + cols[None, :],
                mask=live[:, None] & inside[None, :],
                other=0.0,
            )  # [ROWS, WIDTH]
        acc += tl.sum(values.to(tl.float32) * weight[:, None], axis=0)
    tl.store(out + bag * width + cols, acc.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _row_products(
    table, ids, x, out, n_rows, bag_size, width,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, GAPS: tl.constexpr,
):  # fmt: skip
    bag = tl.program_id(0).to(tl.int64)
    for start in range(0, bag_size, ROWS):
        at = start + tl.arange(0, ROWS)
        live = at < bag_size
        row = tl.load(ids + bag * bag_size + at, mask=live, other=0).to(tl.int64)
        here = live & (row < n_rows) if GAPS else live
        acc = tl.zeros([ROWS, WIDTH], tl.float32)
        for left in range(0, width, WIDTH):
            cols = left + tl.arange(0, WIDTH)
            inside = cols < width
            vector = tl.load(x + bag * width + cols, mask=inside, other=0.0).to(tl.float32)
            values = tl.load(
                table + row[:, None] * width + cols[None, :],
                mask=here[:, None] & inside[None, :],
                other=0.0,
            ).to(tl.float32)  # [ROWS, WIDTH]
            acc += values * vector[None, :]
        tl.store(out + bag * bag_size + at, tl.sum(acc, axis=1).to(out.dtype.element_ty), mask=live)


@triton.jit
def _add_products(
    table, ids, x, sums, out, n_rows, bag_size, width, left,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
    GAPS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Add a block of columns' part of a bag's products to what the blocks before gave."""
    bag = tl.program_id(0).to(tl.int64)
    cols = left + tl.arange(0, WIDTH)
    inside = cols < width
    vector = tl.load(x + bag * width + cols, mask=inside, other=0.0).to(tl.float32)
    for start in range(0, bag_size, ROWS):
        at = start + tl.arange(0, ROWS)
        live = at < bag_size
        place = bag * bag_size + at
        if EVEN:
            row = tl.load(ids + place)
            row_place = table + offset(row, width)[:, None] + cols[None, :]
            values = (
                tl.load(row_place, mask=(row < n_rows)[:, None], other=0.0)
                if GAPS
                else tl.load(row_place)
            )
        else:
            row = tl.load(ids + place, mask=live, other=0)
            here = live & (row < n_rows) if GAPS else live
            values = tl.load(
                table + offset(row, width)[:, None] + cols[None, :],
                mask=here[:, None] & inside[None, :],
                other=0.0,
            )  # [ROWS, WIDTH]
        found = tl.sum(values.to(tl.float32) * vector[None, :], axis=1)
        if not FIRST:
            found += tl.load(sums + place, mask=live, other=0.0)
        if LAST:
            tl.store(out + place, found.to(out.dtype.element_ty), mask=live)
        else:
            tl.store(sums + place, found, mask=live)
