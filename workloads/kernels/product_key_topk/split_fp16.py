"""Split of rows into fp16 parts and power-of-two scales, for tensor cores.

Two fp16 numbers hold 22 bits and a sign each way, as good as the 24 bits of fp32 to within half a
unit of its last place.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor


def fp16_parts(
    x: Float[Tensor, "2 heads rows pieces piece_width"], padded_rows: int, n_parts: int
) -> tuple[
    Float[Tensor, "parts halves_x_heads padded_rows padded_width"],
    Float[Tensor, "halves_x_heads padded_rows"],
    Float[Tensor, "halves_x_heads padded_rows"],
]:
    """Return rows of both halves and all heads as fp16 parts, with their scales and norms.

    The pieces of a row are put one after another. Rows beyond those of `x` are zeros. A row is the
    sum of its parts times its scale, rounded to the 11 bits of fp16 where one part is less than
    `x` holds; its norm is that of the sum of its parts.
    """
    _, n_heads, n_rows, pieces, piece_width = x.shape
    x = x if x.stride(-1) == 1 else x.contiguous()
    columns = padded_width(pieces * piece_width)
    parts = x.new_empty((n_parts, 2 * n_heads, padded_rows, columns), dtype=torch.float16)
    scales, norms = x.new_empty((2, 2 * n_heads, padded_rows), dtype=torch.float32)
    block = 16
    _split[(triton.cdiv(padded_rows, block), 2 * n_heads)](
        x,
        parts,
        scales,
        norms,
        *x.stride()[:4],
        n_rows,
        padded_rows,
        n_heads,
        pieces * piece_width,
        columns,
        PIECE=piece_width,
        PARTS=n_parts,
        BLOCK_R=block,
        BLOCK_D=triton.next_power_of_2(columns),
        num_warps=4,
    )
    return parts, scales, norms


def parts_of(dtype: torch.dtype) -> int:
    """Return how many fp16 numbers hold one of this type."""
    return 2 if dtype == torch.float32 else 1


def padded_width(width: int) -> int:
    """Return the columns of a part: a power of two up to 64, from there on a multiple of 64."""
    return min(triton.next_power_of_2(max(16, width)), triton.cdiv(width, 64) * 64)


@triton.jit
def _split(
    x_ptr,
    parts_ptr,
    scales_ptr,
    norms_ptr,
    stride_half,
    stride_head,
    stride_row,
    stride_piece,
    n_rows,
    padded_rows,
    n_heads,
    width,
    padded_width,
    PIECE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    book = tl.program_id(1)
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.arange(0, BLOCK_D)
    origin = (book // n_heads).to(tl.int64) * stride_half
    origin += (book % n_heads).to(tl.int64) * stride_head
    place = column // PIECE * stride_piece + column % PIECE
    x = tl.load(
        x_ptr + origin + row[:, None].to(tl.int64) * stride_row + place[None, :],
        mask=(row < n_rows)[:, None] & (column < width)[None, :],
        other=0.0,
    ).to(tl.float32)  # [BLOCK_R, BLOCK_D]
    # The largest number of each row goes to 2**14..2**15: fp16 ends at 2**16, and rounds no worse
    # down to 2**-14.
    exponent = (tl.max(tl.abs(x), 1).to(tl.int32, bitcast=True) >> 23) & 255
    up = tl.minimum(268 - exponent, 253)
    x = x * (up << 23).to(tl.float32, bitcast=True)[:, None]
    high = x.to(tl.float16)
    to = (book.to(tl.int64) * padded_rows + row)[:, None] * padded_width + column[None, :]
    inside = (row < padded_rows)[:, None] & (column < padded_width)[None, :]
    tl.store(parts_ptr + to, high, mask=inside)
    if PARTS == 2:
        low = (x - high.to(tl.float32)).to(tl.float16)
        all_rows = tl.num_programs(1).to(tl.int64) * padded_rows
        tl.store(parts_ptr + all_rows * padded_width + to, low, mask=inside)
    down = ((254 - up) << 23).to(tl.float32, bitcast=True)
    tl.store(scales_ptr + book.to(tl.int64) * padded_rows + row, down, mask=row < padded_rows)
    norm = tl.sqrt(tl.sum(x * x, 1))
    tl.store(norms_ptr + book.to(tl.int64) * padded_rows + row, norm, mask=row < padded_rows)
