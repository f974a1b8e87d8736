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
        gaps: Whether reads of row `len(table)` are skipped (`gaps.py`). All others of a bag stand
            side by side.
        block_width: Columns worked on at a time. None: 64 at most, all bags' first 64 before the
            next, so that a part of the table that the cache can hold much of is read often in a
            short time. With `gaps` 512 bytes: a program makes few of a bag's reads, and narrower
            ones spend their time on waiting for the first.
        block_rows: Rows fetched at a time by one program. None: as many as a warp holds; with
            `gaps` 8.
    """
    n_bags, bag_size = ids.shape
    width = table.shape[1]
    out = table.new_empty(n_bags, width)
    if not out.numel():
        return out
    table, ids, weights = table.contiguous(), ids.contiguous(), weights.contiguous()
    made = reads_made(ids, len(table)) if gaps else ids
    block_width = block_width or (_warp_width(table) if gaps else _block_width(table, 64))
    block_rows = block_rows or (_GAPS_ROWS if gaps else _block_rows(table, bag_size, block_width))
    _forward[(n_bags, triton.cdiv(width, block_width))](
        table, ids, weights, made, out,
        bag_size, width, ROWS=block_rows, WIDTH=block_width, GAPS=gaps,
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


_GAPS_ROWS = 8
"""Rows fetched at a time where reads are skipped: one of four ranks makes some 32 of 128 reads."""


def _warp_width(table: Tensor) -> int:
    """Return how many columns a warp loads at once, 16 bytes a thread."""
    return _block_width(table, 512 // table.element_size())


def _block_width(table: Tensor, most: int) -> int:
    full: int = triton.next_power_of_2(table.shape[1])
    return max(16, min(most, full))


def _block_rows(table: Tensor, bag_size: int, block_width: int) -> int:
    most: int = 8192 // (block_width * table.element_size())
    return min(triton.next_power_of_2(max(1, bag_size)), most)


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

    With `gaps`, those of reads of row `len(table)` may be anything, and all others of a bag stand
    side by side.
    """
    n_bags, bag_size = ids.shape
    width = table.shape[1]
    out = table.new_empty(n_bags, bag_size)
    if not out.numel():
        return out
    table, ids, x = table.contiguous(), ids.contiguous(), x.contiguous()
    if gaps or ids.numel() < READS_OF_A_ROW * len(table):
        made = reads_made(ids, len(table)) if gaps else ids
        _row_products[(n_bags,)](
            table, ids, x, made, out, bag_size, width,
            ROWS=_GAPS_ROWS if gaps else min(32, triton.next_power_of_2(bag_size)),
            WIDTH=_warp_width(table), GAPS=gaps, num_warps=1 if gaps else 4,
        )  # fmt: skip
        return out
    block_width = _block_width(table, 64)
    block_rows = _block_rows(table, bag_size, block_width)
    sums = out.new_empty(out.shape, dtype=torch.float32)
    for left in range(0, width, block_width):
        _add_products[(n_bags,)](
            table, ids, x, sums, out, bag_size, width, left,
            ROWS=block_rows, WIDTH=block_width,
            FIRST=left == 0, LAST=left + block_width >= width,
            EVEN=width % block_width == 0 and bag_size % block_rows == 0, num_warps=1,
        )  # fmt: skip
    return out


def reads_made(ids: Int[Tensor, "bags bag_size"], n_rows: int) -> Int[Tensor, "bags 2"]:
    """Return the first read of every bag whose id is below `n_rows`, and the end of those.

    They stand side by side. `ids` are contiguous.
    """
    found = torch.empty(len(ids), 2, dtype=torch.int32, device=ids.device)
    if ids.numel():
        width = triton.next_power_of_2(ids.shape[1])
        _reads_made[(len(ids),)](ids, found, n_rows, ids.shape[1], WIDTH=width, num_warps=1)
    return found


@triton.jit
def _span(spans, bag, bag_size, GAPS: tl.constexpr):
    """Return the first read of a bag that is made, and the end of those that are."""
    if GAPS:
        return tl.load(spans + 2 * bag), tl.load(spans + 2 * bag + 1)
    else:
        return 0, bag_size


@triton.jit
def _forward(
    table, ids, weights, spans, out, bag_size, width,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, GAPS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    bag = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = cols < width
    lo, hi = _span(spans, bag, bag_size, GAPS)
    ids += bag * bag_size
    weights += bag * bag_size
    acc = tl.zeros([WIDTH], tl.float32)
    for start in range(lo, hi, ROWS):
        at = start + tl.arange(0, ROWS)
        if EVEN and not GAPS:
            row = tl.load(ids + at)
            weight = tl.load(weights + at).to(tl.float32)
            values = tl.load(table + offset(row, width)[:, None] + cols[None, :])
        else:
            live = at < hi
            row = tl.load(ids + at, mask=live, other=0)
            weight = tl.load(weights + at, mask=live, other=0.0).to(tl.float32)
            values = tl.load(
                table + offset(row, width)[:, None] + cols[None, :],
                mask=live[:, None] if EVEN else live[:, None] & inside[None, :],
                other=0.0,
            )  # [ROWS, WIDTH]
        acc += tl.sum(values.to(tl.float32) * weight[:, None], axis=0)
    tl.store(out + bag * width + cols, acc.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _row_products(
    table, ids, x, spans, out, bag_size, width,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, GAPS: tl.constexpr,
):  # fmt: skip
    bag = tl.program_id(0).to(tl.int64)
    lo, hi = _span(spans, bag, bag_size, GAPS)
    for start in range(lo, hi, ROWS):
        at = start + tl.arange(0, ROWS)
        live = at < hi
        row = tl.load(ids + bag * bag_size + at, mask=live, other=0).to(tl.int64)
        acc = tl.zeros([ROWS, WIDTH], tl.float32)
        for left in range(0, width, WIDTH):
            cols = left + tl.arange(0, WIDTH)
            inside = cols < width
            vector = tl.load(x + bag * width + cols, mask=inside, other=0.0).to(tl.float32)
            values = tl.load(
                table + row[:, None] * width + cols[None, :],
                mask=live[:, None] & inside[None, :],
                other=0.0,
            ).to(tl.float32)  # [ROWS, WIDTH]
            acc += values * vector[None, :]
        tl.store(out + bag * bag_size + at, tl.sum(acc, axis=1).to(out.dtype.element_ty), mask=live)


@triton.jit
def _add_products(
    table, ids, x, sums, out, bag_size, width, left,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
    EVEN: tl.constexpr,
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
            values = tl.load(table + offset(row, width)[:, None] + cols[None, :])
        else:
            row = tl.load(ids + place, mask=live, other=0)
            values = tl.load(
                table + offset(row, width)[:, None] + cols[None, :],
                mask=live[:, None] & inside[None, :],
                other=0.0,
            )  # [ROWS, WIDTH]
        found = tl.sum(values.to(tl.float32) * vector[None, :], axis=1)
        if not FIRST:
            found += tl.load(sums + place, mask=live, other=0.0)
        if LAST:
            tl.store(out + place, found.to(out.dtype.element_ty), mask=live)
        else:
            tl.store(sums + place, found, mask=live)


@triton.jit
def _reads_made(ids, spans, n_rows, bag_size, WIDTH: tl.constexpr):
    bag = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDTH)
    here = tl.load(ids + bag * bag_size + at, mask=at < bag_size, other=n_rows) < n_rows
    # Of a bag without any, a span of length 0.
    first = tl.min(tl.where(here, at, WIDTH), axis=0)
    tl.store(spans + 2 * bag, first)
    tl.store(spans + 2 * bag + 1, first + tl.sum(here.to(tl.int32), axis=0))
