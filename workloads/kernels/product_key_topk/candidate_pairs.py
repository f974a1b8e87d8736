"""Candidate pairs: a head's best slots from its best sub-keys.

A kernel over `reference.candidate_pairs`, which come in sorted runs.

The slots of one left sub-key fall in score with the right one's rank, and those of one right
sub-key with the left one's. So the pairs that can win are a few runs that need no sorting: 32, 31,
15, 14, 8, 7, 5, 4, 2 and 1 for knn 32.
"""

from functools import cache
from typing import NamedTuple

import triton
import triton.language as tl

from workloads.kernels.product_key_topk.bitonic_sort import id_of, merge, pack_score_id, score_of
from workloads.kernels.product_key_topk.reference import candidate_pairs


class Arrangement(NamedTuple):
    """Blocks of 2**log places, each of which has the pairs of a few runs.

    Numbers that the compiler knows.
    """

    blocks: int
    table: int
    """Of 2 log + 1 bits a place: whether it has a pair, and the ranks of its left and right
    sub-keys."""
    sizes: int
    """Of 4 bits a block: log2 of the places that are sorted already, falling and rising by turns.
    """


@cache
def arrange(knn: int, log: int) -> Arrangement:
    """Put the candidate pairs of `knn` into blocks of runs, to leave least to sort and merge."""
    fewest = triton.cdiv(len(candidate_pairs(knn)[0]), 2**log)
    tried = [_arrange(knn, log, n_blocks) for n_blocks in range(fewest, fewest + 3)]
    return min(tried, key=lambda arrangement: _comparisons(arrangement, log))


def _arrange(knn: int, log: int, n_blocks: int) -> Arrangement:
    left = runs(knn)
    table, sizes = 0, 0
    for block in range(n_blocks):
        size, pieces, left = _fill(left, log, n_blocks - block - 1)
        sizes |= size << (4 * block)
        for i, piece in enumerate(pieces):
            rising = i % 2 == 1 or (size == log and block > 0)
            first = block * 2**log + i * 2**size
            for j, (a, b) in enumerate(piece):
                place = first + (2**size - 1 - j if rising else j)
                table |= (1 | a << 1 | b << (1 + log)) << (place * (2 * log + 1))
    return Arrangement(n_blocks, table, sizes)


def _comparisons(arrangement: Arrangement, log: int) -> int:
    """Return how many a token takes.

    Half as many as places for each stage of sorting, one for each when blocks meet.
    """
    stages = sum(
        sum(range(((arrangement.sizes >> (4 * block)) & 15) + 1, log + 1))
        for block in range(arrangement.blocks)
    )
    meetings = arrangement.blocks - 1
    return 2 ** (log - 1) * (stages + meetings * (log + 2))


def runs(knn: int) -> list[list[tuple[int, int]]]:
    """Return all candidate pairs in runs whose scores do not rise, longest first.

    Hooks of the triangle that they are.
    """
    pairs = list(zip(*candidate_pairs(knn), strict=True))
    rows = [[(i, j) for i, j in pairs if i == corner and j >= corner] for corner in range(knn)]
    columns = [[(i, j) for i, j in pairs if j == corner and i > corner] for corner in range(knn)]
    return sorted([run for run in rows + columns if run], key=len, reverse=True)


def _fill(
    left: list[list[tuple[int, int]]], log: int, more_blocks: int
) -> tuple[int, list[list[tuple[int, int]]], list[list[tuple[int, int]]]]:
    """Return log2 of a block's piece size, its pieces, and the runs left for `more_blocks`."""
    for size in range(log, -1, -1):
        pieces = [run[i : i + 2**size] for run in left for i in range(0, len(run), 2**size)]
        taken, rest = pieces[: 2 ** (log - size)], pieces[2 ** (log - size) :]
        if sum(map(len, rest)) <= more_blocks * 2**log:
            return size, taken, rest
    raise AssertionError("places of one pair each leave none of them out")


@triton.jit(do_not_specialize=["n_tokens", "padded_tokens"])
def choose_pairs(
    ordered_ptr, out_scores_ptr, out_ids_ptr,
    n_tokens, padded_tokens, n_heads, n_keys, knn,
    BLOCKS: tl.constexpr, TABLE: tl.constexpr, SIZES: tl.constexpr,
    SLOTS: tl.constexpr, LOG: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Store scores and ids of the best knn slots of BLOCK_T tokens of a head.

    `ordered` [2 heads, SLOTS, padded_tokens] begins with the best sub-keys in order, score above
    id. Rows apart by a number that is not specialised are loaded one number at a time, so that one
    thread holds all places of a token and sorts without talking to its neighbours.
    """
    BEST: tl.constexpr = 2**LOG
    head = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    inside = (token < n_tokens)[:, None]
    # There is room for tokens beyond the last, whatever it holds.
    left_ptr = ordered_ptr + head * SLOTS * padded_tokens + token[:, None]
    right_ptr = ordered_ptr + (n_heads + head) * SLOTS * padded_tokens + token[:, None]
    apart = _sums_are_apart(left_ptr, right_ptr, padded_tokens, knn, LOG)

    best = _block(left_ptr, right_ptr, padded_tokens, n_keys, 0, TABLE, LOG)
    for size in tl.static_range((SIZES & 15) + 1, LOG + 1):
        best = merge(best, LOG, size, 0)
    for block in tl.static_range(1, BLOCKS):
        new = _block(left_ptr, right_ptr, padded_tokens, n_keys, block, TABLE, LOG)
        for size in tl.static_range(((SIZES >> (4 * block)) & 15) + 1, LOG + 1):
            new = merge(new, LOG, size, size == LOG)
        # One falls, the other rises: the larger of each two numbers are the best of both.
        best = merge(tl.where(best < new, new, best), LOG, LOG, 0)

    rank = tl.arange(0, BEST)[None, :]
    to = (token[:, None].to(tl.int64) * n_heads + head) * knn + rank
    valid = (inside & apart) & (rank < knn)
    tl.store(out_scores_ptr + to, score_of(best), mask=valid)
    tl.store(out_ids_ptr + to, id_of(best), mask=valid)

    tied = tl.reshape((inside & (apart == 0)).to(tl.int32), [BLOCK_T])
    if tl.max(tied, 0) > 0:
        for i in range(BLOCK_T):
            if tl.max(tl.where(tl.arange(0, BLOCK_T) == i, tied, 0), 0) > 0:
                one = tl.program_id(0) * BLOCK_T + i
                row = (one.to(tl.int64) * n_heads + head) * knn
                _choose_one_by_one(
                    ordered_ptr + head * SLOTS * padded_tokens + one,
                    ordered_ptr + (n_heads + head) * SLOTS * padded_tokens + one,
                    out_scores_ptr + row, out_ids_ptr + row,
                    padded_tokens, n_keys, knn, BLOCKS, TABLE, LOG,
                )  # fmt: skip


@triton.jit
def _sums_are_apart(left_ptr, right_ptr, padded_tokens, knn, LOG: tl.constexpr):
    """Return where sums that share one score are in order without their ids, so runs are sorted.

    Of equal sums the lowest id is best, and ids need not rise with the rank. Different scores have
    equal sums where they differ by no more than the distance of fp32 numbers as large as the sums:
    one pair of ranks in 1e5.
    """
    largest = _largest(left_ptr, padded_tokens, knn) + _largest(right_ptr, padded_tokens, knn)
    # Infinite for what is not a number.
    exponent = (largest.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    left = _in_order(left_ptr, padded_tokens, knn, exponent * 2.0**-23, LOG)
    right = _in_order(right_ptr, padded_tokens, knn, exponent * 2.0**-23, LOG)
    return left & right


@triton.jit
def _largest(ordered_ptr, padded_tokens, knn):
    """Return the size of the largest score.

    Not a number if one is not, because that comes first.
    """
    first = tl.abs(_score(tl.load(ordered_ptr)))
    last = tl.abs(_score(tl.load(ordered_ptr + (knn - 1) * padded_tokens)))
    return tl.maximum(first, last, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _in_order(ordered_ptr, padded_tokens, knn, distance, LOG: tl.constexpr):
    """Return where scores that are no more than `distance` apart have rising ids."""
    rank = tl.arange(0, 2**LOG)[None, :]
    this = tl.load(ordered_ptr + tl.minimum(rank, knn - 1) * padded_tokens)
    after = tl.load(ordered_ptr + tl.minimum(rank + 1, knn - 1) * padded_tokens)
    apart = (_score(this) - _score(after) > distance) | (this.to(tl.int32) <= after.to(tl.int32))
    return tl.min(apart.to(tl.int32), 1, keep_dims=True) != 0


@triton.jit
def _choose_one_by_one(
    left_ptr, right_ptr, out_scores_ptr, out_ids_ptr, padded_tokens, n_keys, knn,
    BLOCKS: tl.constexpr, TABLE: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """Store the best slots of one token, each time the best that is left of all pairs."""
    place = _places(TABLE, BLOCKS * 2**LOG, LOG)
    left = tl.load(left_ptr + (place >> 1) % 2**LOG * padded_tokens)
    right = tl.load(right_ptr + (place >> (1 + LOG)) * padded_tokens)
    slots = _slots(left, right, place, n_keys)
    for rank in range(knn):
        best = tl.max(slots, 0)
        tl.store(out_scores_ptr + rank, score_of(best))
        tl.store(out_ids_ptr + rank, id_of(best))
        slots = tl.where(slots == best, 0.0, slots)


@triton.jit
def _block(
    left_ptr, right_ptr, padded_tokens, n_keys,
    BLOCK: tl.constexpr, TABLE: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """Return a block's slots [tokens, 2**LOG]."""
    place = _places(TABLE >> (BLOCK * 2**LOG * (2 * LOG + 1)), 2**LOG, LOG)[None, :]
    left = tl.load(left_ptr + (place >> 1) % 2**LOG * padded_tokens)
    right = tl.load(right_ptr + (place >> (1 + LOG)) * padded_tokens)
    return _slots(left, right, place, n_keys)


@triton.jit
def _slots(left, right, place, n_keys):
    """Return score and id of slots together.

    0.0, which is below them all, for places that have no pair.
    """
    slot = left.to(tl.int32) * n_keys + right.to(tl.int32)
    return tl.where(place % 2 == 1, pack_score_id(_score(left) + _score(right), slot), 0.0)


@triton.jit
def _score(packed):
    return (packed >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _places(TABLE: tl.constexpr, PLACES: tl.constexpr, LOG: tl.constexpr):
    """Return what the table says of its first places, rounded up to a power of two.

    A thread that holds all places of a row knows them when it is compiled, and loads nothing.
    """
    BITS: tl.constexpr = 2 * LOG + 1
    EACH: tl.constexpr = 62 // BITS
    place = tl.arange(0, triton.next_power_of_2(PLACES))
    word = tl.zeros_like(place).to(tl.int64)
    for i in tl.static_range((PLACES + EACH - 1) // EACH):
        word = tl.where(
            place // EACH == i, (TABLE >> (i * EACH * BITS)) & (2 ** (EACH * BITS) - 1), word
        )
    return ((word >> (place % EACH * BITS)) & (2**BITS - 1)).to(tl.int32)
