"""Bitonic sort in registers.

Score and id as one number, of which no two are equal, and a bitonic network over them.
"""

import triton
import triton.language as tl

ID_BITS = tl.constexpr(27)
"""1.3e8 ids. `pack_score_id` leaves no more than 30: 32 bits of score, shifted by them, must stay
below 2**62."""
LARGEST_ID = tl.constexpr(2**ID_BITS.value - 1)


@triton.jit
def as_rising(x):
    """Return integers in the order of fp32 numbers; zeros of either sign are one."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def as_number(rising):
    """Return the fp32 number of `as_rising`'s integer."""
    return (rising ^ ((rising >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def pack_score_id(score, id):
    """Return numbers in the order of scores, equal scores by lowest id first, that tell both.

    They are fp64, which compares in one instruction where int64 takes two: as integers between
    2**60 and 2**61, hence normal numbers, which rise with their bits and of which none is infinite,
    none no number, whatever the score is.
    """
    rising = (as_rising(score) ^ -(2**31)).to(tl.uint32, bitcast=True).to(tl.int64)
    return ((rising << ID_BITS) + (id ^ LARGEST_ID) + 2**60).to(tl.float64, bitcast=True)


@triton.jit
def score_of(packed):
    """Return the score of `pack_score_id`'s number."""
    rising = (packed.to(tl.int64, bitcast=True) >> ID_BITS).to(tl.int32)
    return as_number(rising ^ -(2**31))


@triton.jit
def id_of(packed):
    """Return the id of `pack_score_id`'s number."""
    return (packed.to(tl.int64, bitcast=True) & LARGEST_ID) ^ LARGEST_ID


@triton.jit
def _exchange(
    x, LOG: tl.constexpr, BLOCK: tl.constexpr, STRIDE: tl.constexpr, RISING: tl.constexpr
):
    """Compare numbers STRIDE apart of rows (rows, 2**LOG).

    The larger comes first in every other block.
    """
    PAIRS: tl.constexpr = 2**LOG // (2 * STRIDE)
    pairs = tl.permute(tl.reshape(x, [x.shape[0], PAIRS, 2, STRIDE]), [0, 1, 3, 2])
    first, second = tl.split(pairs)
    falling = tl.arange(0, PAIRS) // (BLOCK // (2 * STRIDE)) % 2 == RISING
    swap = (first < second) == falling[None, :, None]
    pairs = tl.join(tl.where(swap, second, first), tl.where(swap, first, second))
    return tl.reshape(tl.permute(pairs, [0, 1, 3, 2]), [x.shape[0], 2**LOG])


@triton.jit
def merge(x, LOG: tl.constexpr, SIZE: tl.constexpr, RISING: tl.constexpr):
    """Sort every 2**SIZE numbers of rows (rows, 2**LOG), falling and rising by turns.

    Before, each half of them was sorted, one falling and one rising (a bitonic merge).
    """
    for i in tl.static_range(SIZE):
        x = _exchange(x, LOG, 2**SIZE, 2 ** (SIZE - 1 - i), RISING)
    return x


@triton.jit
def sort(x, LOG: tl.constexpr, RISING: tl.constexpr):
    """Return rows (rows, 2**LOG) sorted, falling or rising.

    Tl.sort takes a hundred times as long to compile.
    """
    for size in tl.static_range(1, LOG):
        x = merge(x, LOG, size, 0)
    return merge(x, LOG, LOG, RISING)
