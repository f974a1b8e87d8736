"""Sign-hash lookups in small tables, in Triton: products with one-hot matrices, on tensor cores.

With S[t, r] the score of token t where it reads row r, and 0 elsewhere,

    y = S T,    dT = S^T dy,    d score[t, k] = (dy T^T)[t, row that t reads of table k].

S is made tile by tile in the kernels and stored nowhere. Of 2**b numbers of S that belong to one
table, one is not zero, so the products take 2**b times the multiply-adds that are needed. Tensor
cores do about 32 times as many a second as rows can be read from a near cache; so this is for
tables of few rows. Nothing is sorted. Sums are in fp32, in an order that shapes alone decide.
"""

from dataclasses import dataclass

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from triton import language as tl

from workloads.kernels.wgmma_wait import wait_for_product


@dataclass(frozen=True, kw_only=True)
class ProductTile:
    """Sizes of what one program computes, and how."""

    tokens: int
    """Tokens of the output or, of a table's gradient, read at a time."""
    rows: int
    """Rows of the tables read at a time or, of the gradients, of the output."""
    columns: int
    """Columns of the output or, of the scores' gradient, read at a time."""
    warps: int
    stages: int
    """Tiles on their way from memory at a time."""
    resident: int = 132
    """Programs that an H100 runs at once: it has 132 multiprocessors."""


# `benchmarks/hash_bag.py --one-hot` times these and others.
SUMS = ProductTile(tokens=128, rows=64, columns=256, warps=8, stages=3)
TABLE_GRADIENT = ProductTile(tokens=64, rows=128, columns=256, warps=8, stages=3)
SCORE_GRADIENT = ProductTile(tokens=128, rows=128, columns=64, warps=4, stages=3)

MOST_BITS = 5
"""Most bits of a chunk. In tables of 2**6 rows and more, reading row by row takes less time."""


def pays(table: Float[Tensor, "rows width"], rows: Int[Tensor, "tokens chunks"]) -> bool:
    """Whether products take less time than reading rows one by one."""
    small = len(table) <= rows.shape[1] << MOST_BITS
    # Rows of other widths would be loaded number by number.
    aligned = table.shape[1] % 16 == 0
    return (
        small and aligned and table.dtype == torch.bfloat16 and bool(rows.numel() and table.numel())
    )


def sums(
    table: Float[Tensor, "rows width"],
    rows: Int[Tensor, "tokens chunks"],
    scores: Float[Tensor, "tokens chunks"],
    *,
    tile: ProductTile = SUMS,
) -> Float[Tensor, "tokens width"]:
    """Return `reference.bag`: of scores in the table's type, as there."""
    n_tokens, width = len(rows), table.shape[1]
    out = table.new_empty(n_tokens, width)
    constants = _constants(tile, rows, table)
    grid = (triton.cdiv(width, constants["COLUMNS"]), triton.cdiv(n_tokens, tile.tokens))
    _sums[grid](
        table.contiguous(), rows.T.contiguous(), scores.T.contiguous(), _codes(table, rows), out,
        *rows.shape, *table.shape, **constants,
    )  # fmt: skip
    return out


def table_gradient(
    table: Float[Tensor, "rows width"],
    rows: Int[Tensor, "tokens chunks"],
    scores: Float[Tensor, "tokens chunks"],
    grad: Float[Tensor, "tokens width"],
    *,
    tile: ProductTile = TABLE_GRADIENT,
) -> Float[Tensor, "rows width"]:
    """Return the table's gradient for that of the sums."""
    n_tokens, (n_rows, width) = len(rows), table.shape
    constants = _constants(tile, rows, table)
    blocks = triton.cdiv(n_rows, tile.rows), triton.cdiv(width, constants["COLUMNS"])
    n_tiles = triton.cdiv(n_tokens, tile.tokens)
    n_splits = _splits(blocks[0] * blocks[1], n_tiles, tile.resident)
    tiles_each = triton.cdiv(n_tiles, n_splits)
    n_splits = triton.cdiv(n_tiles, tiles_each)
    # What is split is rounded once, like what is not.
    dtype = torch.float32 if n_splits > 1 else table.dtype
    parts = table.new_empty(n_splits, n_rows, width, dtype=dtype)
    _table_gradient[(*blocks, n_splits)](
        grad.contiguous(), rows.T.contiguous(), scores.T.contiguous(), _codes(table, rows), parts,
        *rows.shape, n_rows, width, tiles_each * tile.tokens, **constants,
    )  # fmt: skip
    return parts.sum(0).to(table.dtype) if n_splits > 1 else parts[0]


def _splits(n_blocks: int, n_tiles: int, resident: int) -> int:
    """Return into how many parts tokens are split, so that few multiprocessors idle at the end.

    A part costs about a fortieth: it is written, and read to be added.
    """

    def worth(n_splits: int) -> float:
        programs = n_splits * n_blocks
        return programs / (triton.cdiv(programs, resident) * resident) - n_splits / 40

    return max(range(1, max(1, n_tiles // _TILES_EACH) + 1), key=worth)


_TILES_EACH = 32
"""Fewest tiles of tokens that one program of a table's gradient reads."""


def score_gradient(
    table: Float[Tensor, "rows width"],
    rows: Int[Tensor, "tokens chunks"],
    grad: Float[Tensor, "tokens width"],
    *,
    tile: ProductTile = SCORE_GRADIENT,
) -> Float[Tensor, "tokens chunks"]:
    """Return the scores' gradient for that of the sums, in fp32, stored chunk by chunk."""
    n_tokens, n_chunks = rows.shape
    found = grad.new_empty(n_chunks, n_tokens, dtype=torch.float32)
    grid = (triton.cdiv(len(table), tile.rows), triton.cdiv(n_tokens, tile.tokens))
    _score_gradient[grid](
        table.contiguous(), rows.T.contiguous(), grad.contiguous(), found,
        n_tokens, n_chunks, *table.shape, **_constants(tile, rows, table),
    )  # fmt: skip
    return found.T


def _constants(tile: ProductTile, rows: Tensor, table: Tensor) -> dict[str, int]:
    n_rows, width = table.shape
    columns = max(16, min(tile.columns, triton.next_power_of_2(width)))
    return {
        "SIZE": n_rows // rows.shape[1],
        "TOKENS": tile.tokens,
        "ROWS": tile.rows,
        "COLUMNS": columns,
        "ASSEMBLY": table.element_size() == 2 and isinstance(_one_hot, triton.JITFunction),
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def _codes(table: Tensor, rows: Tensor) -> Tensor:
    """Return 0, 1, ... up to the rows of one table.

    Only if all that one-hot tiles are made of is loaded does Triton make them where tensor cores
    read them, in registers; otherwise they go through shared memory.
    """
    n_codes = len(table) // rows.shape[1]
    return torch.arange(n_codes, dtype=torch.int32, device=table.device)


@triton.jit
def _one_hot(row, score, code, kind: tl.constexpr, ASSEMBLY: tl.constexpr):
    """Return the score where `code` is the row's within its table, and 0 elsewhere.

    The three broadcast against one another.
    """
    score = score.to(kind)
    if ASSEMBLY:
        # Two numbers in two instructions, compared as if they were fp16: their bits are equal or
        # not. The compiler's own way takes five for one.
        return tl.inline_asm_elementwise(
            "{ .reg .b32 equal; set.eq.u32.f16x2 equal, $1, $3; and.b32 $0, equal, $2; }",
            "=r,r,r,r",
            [row.to(tl.int16), score, code.to(tl.int16)],
            dtype=score.dtype,
            is_pure=True,
            pack=2,
        )
    return tl.where(row == code, score, 0.0).to(kind)


@triton.jit
def _sums(
    table, rows, scores, codes, out, n_tokens, n_chunks, n_rows, width,
    SIZE: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Sum a block of columns of a block of tokens, ROWS rows of the tables at a time."""
    cols = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    token = tl.program_id(1).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None]
    chunk = tl.arange(0, ROWS // SIZE)[None, :]
    place = tl.arange(0, ROWS)[:, None]
    code = tl.reshape(tl.load(codes + tl.arange(0, SIZE)), [1, 1, SIZE])
    read = chunk.to(tl.int64) * n_tokens + token
    values = table + place.to(tl.int64) * width + cols
    acc = tl.zeros([TOKENS, COLUMNS], tl.float32)
    for first in range(0, n_chunks, ROWS // SIZE):
        there = (first + chunk < n_chunks) & (token < n_tokens)
        row = tl.load(rows + read, mask=there, other=0) & (SIZE - 1)
        score = tl.load(scores + read, mask=there, other=0.0)
        one_hot = _one_hot(
            tl.reshape(row, [TOKENS, ROWS // SIZE, 1]),
            tl.reshape(score, [TOKENS, ROWS // SIZE, 1]),
            code,
            table.dtype.element_ty,
            ASSEMBLY,
        )
        inside = (first * SIZE + place < n_rows) & (cols < width)
        acc = tl.dot(
            tl.reshape(one_hot, [TOKENS, ROWS]), tl.load(values, mask=inside, other=0.0), acc
        )
        acc = wait_for_product(acc, ASSEMBLY)
        read += (ROWS // SIZE) * n_tokens
        values += ROWS * width
    tl.store(
        out + token * width + cols,
        acc.to(out.dtype.element_ty),
        mask=(token < n_tokens) & (cols < width),
    )


@triton.jit
def _table_gradient(
    grad, rows, scores, codes, parts, n_tokens, n_chunks, n_rows, width, tokens_each,
    SIZE: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Sum a block of the gradient over `tokens_each` tokens, TOKENS at a time."""
    first = tl.program_id(0) * ROWS
    cols = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    chunk = first // SIZE + tl.arange(0, ROWS // SIZE)[:, None]
    code = tl.reshape(tl.load(codes + tl.arange(0, SIZE)), [1, SIZE, 1])
    begin = tl.program_id(2) * tokens_each
    end = tl.minimum(begin + tokens_each, n_tokens)
    reads = chunk.to(tl.int64) * n_tokens
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(begin, end, TOKENS):
        token = start + tl.arange(0, TOKENS)
        there = (chunk < n_chunks) & (token < end)[None, :]
        row = tl.load(rows + reads + token[None, :], mask=there, other=0) & (SIZE - 1)
        score = tl.load(scores + reads + token[None, :], mask=there, other=0.0)
        one_hot = _one_hot(
            tl.reshape(row, [ROWS // SIZE, 1, TOKENS]),
            tl.reshape(score, [ROWS // SIZE, 1, TOKENS]),
            code,
            grad.dtype.element_ty,
            ASSEMBLY,
        )
        token = token[:, None]
        vectors = grad + token.to(tl.int64) * width + cols
        acc = tl.dot(
            tl.reshape(one_hot, [ROWS, TOKENS]),
            tl.load(vectors, mask=(token < end) & (cols < width), other=0.0),
            acc,
        )
        acc = wait_for_product(acc, ASSEMBLY)
    place = first + tl.arange(0, ROWS)[:, None]
    parts += (tl.program_id(2).to(tl.int64) * n_rows + place) * width + cols
    tl.store(parts, acc.to(parts.dtype.element_ty), mask=(place < n_rows) & (cols < width))


@triton.jit
def _score_gradient(
    table, rows, grad, found, n_tokens, n_chunks, n_rows, width,
    SIZE: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Multiply tokens by ROWS rows, COLUMNS columns at a time; keep what the rows read give."""
    first = tl.program_id(0) * ROWS
    token = tl.program_id(1).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    live = token < n_tokens
    place = first + tl.arange(0, ROWS)
    cols = tl.arange(0, COLUMNS)
    vectors = grad + token[:, None] * width + cols[None, :]
    values = table + place.to(tl.int64)[None, :] * width + cols[:, None]
    acc = tl.zeros([TOKENS, ROWS], tl.float32)
    for _ in range(0, width, COLUMNS):
        left = tl.load(vectors, mask=live[:, None] & (cols < width)[None, :], other=0.0)
        right = tl.load(values, mask=(place < n_rows)[None, :] & (cols < width)[:, None], other=0.0)
        acc = tl.dot(left, right, acc)
        vectors += COLUMNS
        values += COLUMNS
        cols += COLUMNS
    chunk = first // SIZE + tl.arange(0, ROWS // SIZE)
    read = chunk.to(tl.int64)[None, :] * n_tokens + token[:, None]
    there = (chunk < n_chunks)[None, :] & live[:, None]
    row = tl.load(rows + read, mask=there, other=-1)
    here = tl.reshape(place, [1, ROWS // SIZE, SIZE])
    products = tl.reshape(acc, [TOKENS, ROWS // SIZE, SIZE])
    product = tl.sum(tl.where(row[:, :, None] == here, products, 0.0), axis=2)
    tl.store(found + read, product, mask=there)
