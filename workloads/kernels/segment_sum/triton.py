"""Segment sums over the readers of every row, in Triton.

`d_table[r] = sum over reads of r of weights[read] * x[bag of read]`.

The gradient of a table in a weighted bag (`x` is the output's gradient) and in `gathered_dot`
(`weights` is). Where it is wanted, the same pass gives every read its product `table[r] . x[bag]`,
the gradient of a bag's weights.

Reads are sorted by row. So the table, which is large, streams through once, and what is gathered is
`x`, which is small, and still too large for the L2 cache: the columns are worked on in blocks, one
after another, so that of each much is found there. Nothing is added up by atomics: all sums have an
order fixed by the ids. A row with more than `CHUNK` reads is split: all of them but the first
`CHUNK` are summed by programs of their own, as many as there can be at most, because how many there
are is only known on the device; the row's program adds their sums up.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from triton import language as tl

CHUNK = 512
"""Reads that one program sums at most."""
_SPLIT_PROGRAMS = 4096
_BLOCK_BYTES = 512
"""Of a row, worked on at a time: what a warp loads at once. Narrower blocks, of which more lie in
the cache, are slower whatever the number of bags."""


@dataclass(frozen=True, kw_only=True)
class SortedReads:
    """All reads of a table, sorted by row; those of one row in the order of the bags."""

    rows: Int[Tensor, " reads"]
    bags: Int[Tensor, " reads"]
    weights: Float[Tensor, " reads"]
    order: Int[Tensor, " reads"]
    """Where each read stands in the flattened ids."""
    n_rows: int
    """Rows of the table."""
    starts: Int[Tensor, " rows+1"]
    """Where the reads of each row begin, and where they end."""
    splits_end: Int[Tensor, " rows"]
    """How many splits this row and all before it have."""
    owners: Int[Tensor, " splits"]
    """The row that each possible split belongs to; `n_rows` for those that there are not."""


def sort_reads(
    ids: Int[Tensor, "bags bag_size"],
    weights: Float[Tensor, "bags bag_size"],
    n_rows: int,
    *,
    by_chunk: bool = False,
) -> SortedReads:
    """Sort the reads of a table of `n_rows` rows, and count each row's; weights become fp32.

    Reads of row `n_rows` come last, and are no row's.

    With `by_chunk`, ids and weights are [bag_size, bags]: the first read of every bag, then the
    second.
    """
    rows, order = _sort(ids.reshape(-1), n_rows)
    bags = torch.empty_like(order, dtype=torch.int32)
    sorted_weights = torch.empty_like(order, dtype=torch.float32)
    if len(order):
        _permute[(triton.cdiv(len(order), _BLOCK),)](
            order, weights.contiguous(), bags, sorted_weights, len(order), ids.shape[1],
            BY_CHUNK=by_chunk, BLOCK=_BLOCK,
        )  # fmt: skip
    numbers = torch.arange(n_rows + 1, dtype=rows.dtype, device=rows.device)
    starts = torch.searchsorted(rows, numbers, out_int32=True)
    splits_end = ((starts.diff() - 1).clamp_min(0) // CHUNK).cumsum(0, dtype=torch.int32)
    splits = torch.arange(len(rows) // CHUNK, dtype=torch.int32, device=rows.device)
    return SortedReads(
        rows=rows,
        bags=bags,
        weights=sorted_weights,
        order=order,
        n_rows=n_rows,
        starts=starts,
        splits_end=splits_end,
        owners=torch.searchsorted(splits_end, splits, right=True, out_int32=True),
    )


def in_order_of(reads: SortedReads, weights: Float[Tensor, "bags bag_size"]) -> SortedReads:
    """Return the same reads with other weights."""
    return replace(reads, weights=weights.reshape(-1)[reads.order].float())


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A pass over all rows whose splits are summed.

    What the kernel that calls `row_sum` for each is called with.
    """

    arguments: tuple[Tensor | int, ...]
    """From `x` to `width`, in `_sum_rows`' order."""
    tiling: dict[str, Any]
    """Its constants, and the warps."""
    n_blocks: int
    """Of columns: the second dimension of the grid."""
    products: Float[Tensor, "blocks reads"]
    """Where each block of columns puts its part of the products, in the order of the sorted reads.
    """


def begin_pass(
    reads: SortedReads,
    x: Float[Tensor, "bags width"],
    table: Float[Tensor, "rows width"] | None = None,
    *,
    products: bool,
    block_width: int | None = None,
    block_reads: int | None = None,
) -> Pass:
    """Sum all splits, and return what is left to do.

    Arguments as `reduce_rows`'; `products` are with `table`.
    """
    x = x.contiguous()
    width = x.shape[1]
    n_reads, max_splits = len(reads.rows), len(reads.owners)
    block_width = block_width or _block_width(width, x.element_size())
    block_bytes = block_width * x.element_size()
    n_blocks = triton.cdiv(width, block_width)
    found = x.new_empty(n_blocks if products else 0, n_reads, dtype=torch.float32)
    arguments = (
        x,
        reads.bags,
        reads.weights,
        reads.starts,
        reads.splits_end,
        x.new_empty(max_splits, width, dtype=torch.float32),
        x if table is None else table,
        found,
        reads.n_rows,
        n_reads,
        width,
    )
    block_reads = block_reads or max(4, min(16, 2048 // block_bytes))
    tiling = {
        "CHUNK": CHUNK,
        "READS": block_reads,
        "WIDTH": block_width,
        "PRODUCTS": products,
        "EVEN": width % block_width == 0,
        # Written for one warp, of which each thread holds 16 bytes side by side of every read.
        "ASSEMBLY": block_reads == 4
        and block_bytes == _BLOCK_BYTES
        and width % block_width == 0
        and all(
            address % 16 == 0
            for address in (x.data_ptr(), 0 if table is None else table.data_ptr())
        )
        and isinstance(_add_up, triton.JITFunction),
        "num_warps": max(1, min(8, block_bytes // _BLOCK_BYTES)),
    }
    if max_splits:
        # Most often few rows are split, or none: not as many programs as splits there could be.
        _sum_splits[(min(max_splits, _SPLIT_PROGRAMS), n_blocks)](
            reads.owners, max_splits, *arguments, **tiling
        )
    return Pass(arguments=arguments, tiling=tiling, n_blocks=n_blocks, products=found)


def _sort(ids: Int[Tensor, " reads"], n_rows: int) -> tuple[Tensor, Tensor]:
    """Return the ids sorted, int32 where that holds them, and where each of them stood.

    On a GPU this is a radix sort over all bits of the key: with 16 it takes half the passes of 32.
    """
    if n_rows >= _ROWS_OF_16_BITS:  # id `n_rows` is that of skipped reads
        rows, order = ids.to(torch.int32 if n_rows < 2**31 else torch.int64).sort(stable=True)
        return rows, order
    signed = (ids - _ROWS_OF_16_BITS // 2).to(torch.int16)
    rows, order = signed.sort(stable=True)
    return rows.to(torch.int32) + _ROWS_OF_16_BITS // 2, order


_ROWS_OF_16_BITS = 2**16


def reduce_rows(
    reads: SortedReads,
    x: Float[Tensor, "bags width"],
    table: Float[Tensor, "rows width"] | None = None,
    *,
    sums_dtype: torch.dtype,
    products_dtype: torch.dtype,
    block_width: int | None = None,
    block_reads: int | None = None,
    group: int = 16,
) -> tuple[Float[Tensor, "rows width"], Float[Tensor, " reads"] | None]:
    """Return every row's sum, and with `table` the products of all reads in the order of the ids.

    Args:
        reads: Who reads which row.
        x: One vector per bag.
        table: What the products are with.
        sums_dtype: Type that the sums, taken in fp32, are rounded to.
        products_dtype: Type that the products, taken in fp32, are rounded to.
        block_width: Columns worked on at a time. None: 512 bytes of a row.
        block_reads: Reads fetched at a time by one program. None: as many as make eight loads of a
            thread.
        group: Rows that one program sums, one after another.
    """
    todo = begin_pass(
        reads,
        x,
        None if table is None else table.contiguous(),
        products=table is not None,
        block_width=block_width,
        block_reads=block_reads,
    )
    sums = x.new_empty(reads.n_rows, x.shape[1], dtype=sums_dtype)
    grid = (triton.cdiv(reads.n_rows, group), todo.n_blocks)
    _sum_rows[grid](sums, *todo.arguments, GROUP=group, **todo.tiling)
    return sums, None if table is None else in_order_of_ids(reads, todo.products, products_dtype)


def _block_width(width: int, element_bytes: int) -> int:
    full: int = triton.next_power_of_2(width)
    return max(16, min(_BLOCK_BYTES // element_bytes, full))


def in_order_of_ids(
    reads: SortedReads, products: Float[Tensor, "blocks reads"], dtype: torch.dtype
) -> Float[Tensor, " reads"]:
    """Add up the blocks' parts of the products; return them in the order of the flattened ids."""
    out = torch.empty_like(products[0], dtype=dtype)
    n_blocks, n_reads = products.shape
    if n_reads:
        _add_up[(triton.cdiv(n_reads, _BLOCK),)](
            products, reads.order, out, n_reads, N_BLOCKS=n_blocks, BLOCK=_BLOCK
        )
    return out


_BLOCK = 1024


@triton.jit
def offset(row, width):
    """Return where rows begin, in 64 bits.

    Row numbers of 32 bits take one instruction instead of six.
    """
    if row.dtype == tl.int32:
        return row.to(tl.uint32).to(tl.uint64) * tl.cast(width, tl.uint32).to(tl.uint64)
    else:
        return row * width


@triton.jit
def _permute(
    order, weights, bags, sorted_weights, n_reads, per_line,
    BY_CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < n_reads
    read = tl.load(order + at, mask=live, other=0)
    bag = read % per_line if BY_CHUNK else read // per_line
    tl.store(bags + at, bag.to(tl.int32), mask=live)
    weight = tl.load(weights + read, mask=live, other=0.0)
    tl.store(sorted_weights + at, weight.to(tl.float32), mask=live)


@triton.jit
def _add_up(products, order, out, n_reads, N_BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < n_reads
    total = tl.zeros([BLOCK], tl.float32)
    for _ in tl.static_range(N_BLOCKS):
        total += tl.load(products + at, mask=live, other=0.0)
        products += n_reads
    place = tl.load(order + at, mask=live, other=0)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=live)


@triton.jit
def _sum_reads(
    lo, hi, cols, inside, values, x, read_bags, read_weights, products, n_reads, width,
    READS: tl.constexpr, WIDTH: tl.constexpr, PRODUCTS: tl.constexpr, EVEN: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Return the weighted sum of the vectors of the reads from lo up to hi.

    Store their products with `values`.
    """
    acc = tl.zeros([1, WIDTH], tl.float32)
    products += tl.program_id(1).to(tl.int64) * n_reads
    rest = hi - (hi - lo) % READS
    for start in range(lo, rest, READS):
        acc = _add_reads(
            acc, start, hi, cols, inside, values, x, read_bags, read_weights, products, width,
            True, READS, WIDTH, PRODUCTS, EVEN, ASSEMBLY,
        )  # fmt: skip
    # Half of the rows have half a group left, or less.
    if rest < hi:
        if READS > 2 and hi - rest <= READS // 2:
            acc = _add_reads(
                acc, rest, hi, cols, inside, values, x, read_bags, read_weights, products, width,
                False, READS // 2, WIDTH, PRODUCTS, EVEN, False,
            )  # fmt: skip
        else:
            acc = _add_reads(
                acc, rest, hi, cols, inside, values, x, read_bags, read_weights, products, width,
                False, READS, WIDTH, PRODUCTS, EVEN, ASSEMBLY,
            )  # fmt: skip
    return acc


@triton.jit
def _add_reads(
    acc, start, hi, cols, inside, values, x, read_bags, read_weights, products, width,
    FULL: tl.constexpr, READS: tl.constexpr, WIDTH: tl.constexpr, PRODUCTS: tl.constexpr,
    EVEN: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Return `acc` and the weighted sum of up to READS vectors from `start` on, but before hi."""
    at = start + tl.arange(0, READS)
    if FULL:
        bag = tl.load(read_bags + at)
        weight = tl.load(read_weights + at)
    else:
        # Beyond the end the last read once more, with no weight: cheaper than masks, and no other
        # row's NaN gets in.
        within = tl.minimum(at, hi - 1)
        bag = tl.load(read_bags + within)
        weight = tl.where(at < hi, tl.load(read_weights + within), 0.0)
    place = x + offset(bag, width)[:, None] + cols
    if EVEN:
        vectors = tl.load(place).to(tl.float32)  # [READS, WIDTH]
    else:
        vectors = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    if PRODUCTS:
        if ASSEMBLY:
            parts = tl.sum(tl.reshape(vectors * values, [4, 32, WIDTH // 32]), 2)
            first, second = tl.split(tl.permute(tl.reshape(parts, [2, 2, 32]), [2, 1, 0]))
            found, read = _sums_of_four(*tl.split(first), *tl.split(second))
            lane = tl.arange(0, 32)
            tl.store(
                products + start + read, found, mask=(lane % 8 == 0) & (FULL | (start + read < hi))
            )
        else:
            found = tl.sum(vectors * values, axis=1)
            tl.store(products + at, found, mask=at < hi)
    return acc + tl.sum(vectors * weight[:, None], axis=0, keep_dims=True)


@triton.jit
def _sums_of_four(a, b, c, d):
    """Return the sum over a warp's threads of one of four numbers, and which.

    Thread t has that of number t / 8.

    Each exchange halves the numbers or the threads that hold them: 6 exchanges, where four sums one
    by one take 20.
    """
    return tl.inline_asm_elementwise(
        """{
        .reg .pred p;
        .reg .b32 lane, half;
        .reg .f32 kept, sent, kept2, sent2;
        mov.u32 lane, %laneid;
        and.b32 half, lane, 16;
        setp.ne.u32 p, half, 0;
        selp.f32 kept, $4, $2, p;
        selp.f32 sent, $2, $4, p;
        selp.f32 kept2, $5, $3, p;
        selp.f32 sent2, $3, $5, p;
        shfl.sync.bfly.b32 sent, sent, 16, 31, -1;
        shfl.sync.bfly.b32 sent2, sent2, 16, 31, -1;
        add.f32 kept, kept, sent;
        add.f32 kept2, kept2, sent2;
        and.b32 half, lane, 8;
        setp.ne.u32 p, half, 0;
        selp.f32 sent, kept, kept2, p;
        selp.f32 kept, kept2, kept, p;
        shfl.sync.bfly.b32 sent, sent, 8, 31, -1;
        add.f32 kept, kept, sent;
        shfl.sync.bfly.b32 sent, kept, 4, 31, -1;
        add.f32 kept, kept, sent;
        shfl.sync.bfly.b32 sent, kept, 2, 31, -1;
        add.f32 kept, kept, sent;
        shfl.sync.bfly.b32 sent, kept, 1, 31, -1;
        add.f32 $0, kept, sent;
        shr.u32 $1, lane, 3;
        }""",
        "=f,=r,f,f,f,f",
        [a, b, c, d],
        dtype=(tl.float32, tl.int32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def _sum_splits(
    owners, max_splits, x, read_bags, read_weights, starts, splits_end, split_sums, table, products,
    n_rows, n_reads, width,
    CHUNK: tl.constexpr, READS: tl.constexpr, WIDTH: tl.constexpr,
    PRODUCTS: tl.constexpr, EVEN: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Sum splits: `CHUNK` reads each, or the rest, of rows too long for one program."""
    cols = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    inside = cols < width
    for split in range(tl.program_id(0), max_splits, tl.num_programs(0)):
        row = tl.load(owners + split)
        if row < n_rows:
            first_split = tl.load(splits_end + row - 1, mask=row > 0, other=0)
            lo = tl.load(starts + row) + (split - first_split + 1) * CHUNK
            hi = tl.minimum(tl.load(starts + row + 1), lo + CHUNK)
            values = tl.zeros([1, WIDTH], tl.float32)
            if PRODUCTS:
                values = tl.load(table + offset(row, width) + cols, mask=inside, other=0.0).to(
                    tl.float32
                )
            acc = _sum_reads(
                lo, hi, cols, inside, values, x, read_bags, read_weights, products, n_reads, width,
                READS, WIDTH, PRODUCTS, EVEN, ASSEMBLY,
            )  # fmt: skip
            tl.store(split_sums + tl.cast(split, tl.int64) * width + cols, acc, mask=inside)


@triton.jit
def row_sum(
    row, lo, end, cols, inside, values, x, read_bags, read_weights, splits_end, split_sums,
    products, n_reads, width,
    CHUNK: tl.constexpr, READS: tl.constexpr, WIDTH: tl.constexpr,
    PRODUCTS: tl.constexpr, EVEN: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Return the sum of a row whose reads are lo up to end.

    `CHUNK` of them, and the sums of its splits.
    """
    acc = _sum_reads(
        lo, tl.minimum(end, lo + CHUNK), cols, inside, values,
        x, read_bags, read_weights, products, n_reads, width,
        READS, WIDTH, PRODUCTS, EVEN, ASSEMBLY,
    )  # fmt: skip
    if end > lo + CHUNK:
        n_splits = (end - lo - 1) // CHUNK
        part = split_sums + offset(tl.load(splits_end + row) - n_splits, width) + cols
        for _ in range(n_splits):
            acc += tl.load(part, mask=inside, other=0.0)
            part += width
    return acc


@triton.jit
def _sum_rows(
    sums, x, read_bags, read_weights, starts, splits_end, split_sums, table, products,
    n_rows, n_reads, width,
    GROUP: tl.constexpr, CHUNK: tl.constexpr, READS: tl.constexpr, WIDTH: tl.constexpr,
    PRODUCTS: tl.constexpr, EVEN: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Sum GROUP rows, one after another."""
    first_row = tl.program_id(0).to(tl.int64) * GROUP
    cols = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    inside = cols < width
    place = first_row * width + cols
    end = tl.load(starts + first_row)
    for row in range(first_row, tl.minimum(first_row + GROUP, n_rows)):
        lo = end
        end = tl.load(starts + row + 1)
        values = tl.zeros([1, WIDTH], tl.float32)
        if PRODUCTS:
            if EVEN:
                values = tl.load(table + place, eviction_policy="evict_first").to(tl.float32)
            else:
                values = tl.load(
                    table + place, mask=inside, other=0.0, eviction_policy="evict_first"
                ).to(tl.float32)
        acc = row_sum(
            row, lo, end, cols, inside, values, x, read_bags, read_weights, splits_end, split_sums,
            products, n_reads, width, CHUNK, READS, WIDTH, PRODUCTS, EVEN, ASSEMBLY,
        )  # fmt: skip
        rounded = acc.to(sums.dtype.element_ty)
        if EVEN:
            tl.store(sums + place, rounded, eviction_policy="evict_first")
        else:
            tl.store(sums + place, rounded, mask=inside, eviction_policy="evict_first")
        place += width
