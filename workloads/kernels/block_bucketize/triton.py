"""Block bucketize in Triton: one pass, ranks and places in registers.

A program takes some whole bags. The place of a read in its bag is the number of reads of lower
ranks, and of those before it of its own rank. A running count of a rank needs a few bits, so
several of them share an integer, and one scan makes all of these.
"""

from collections.abc import Sequence

import torch
import triton
from jaxtyping import Int, Shaped
from torch import Tensor
from triton import language as tl

_READS = 1024
"""Of one program at least, of whole bags."""
_INT32_MAX = 2**31 - 1


def bucketize(
    ids: Int[Tensor, "bags bag_size"],
    scalars: Sequence[Shaped[Tensor, "bags bag_size"]],
    *,
    n_rows: int,
    n_ranks: int,
    out: Sequence[Shaped[Tensor, "bags bag_size"]] | None = None,
) -> Sequence[Shaped[Tensor, "bags bag_size"]]:
    """Return `reference.bucketize`."""
    if out is None:
        # Not `empty_like`, which would take over strides.
        out = [each.new_empty(each.shape) for each in scalars]
    if ids.numel():
        sources, targets = ([_bits(each) for each in side] for side in (scalars, out))
        second = (sources[1], targets[1]) if len(sources) > 1 else (None, None)
        grid, constants = _launch(ids, n_rows, n_ranks)
        _bucketize[grid](
            ids.contiguous(), sources[0], targets[0], *second, n_rows, *ids.shape, **constants
        )
    return out


def unbucketize(
    ids: Int[Tensor, "bags bag_size"],
    parts: Shaped[Tensor, "ranks bags bag_size"],
    *,
    n_rows: int,
) -> Shaped[Tensor, "bags bag_size"]:
    """Return `reference.unbucketize`."""
    taken = parts.new_empty(ids.shape)
    if ids.numel():
        grid, constants = _launch(ids, n_rows, len(parts))
        _unbucketize[grid](
            ids.contiguous(), _bits(parts), _bits(taken), n_rows, *ids.shape, **constants
        )
    return taken


def local_ids(
    ids: Sequence[Int[Tensor, "_ bag_size"]], rows: range
) -> Int[Tensor, "held_bags bag_size"]:
    """Return `reference.local_ids`, one launch for each tensor."""
    lengths = [len(part) for part in ids]
    joined = ids[0].new_empty(sum(lengths), ids[0].shape[1])
    for part, local in zip(ids, torch.split(joined, lengths), strict=True):
        if part.numel():
            _local_ids[(triton.cdiv(part.numel(), _READS),)](
                part.contiguous(), local, rows.start, len(rows), part.numel(), READS=_READS
            )
    return joined


def _bits(scalars: Tensor) -> Tensor:
    """Return the bits of numbers as integers, contiguous: one kernel for all types of a size."""
    same_size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return scalars.contiguous().view(same_size[scalars.element_size()])


def _launch(ids: Tensor, n_rows: int, n_ranks: int) -> tuple[tuple[int], dict[str, int | bool]]:
    """Return the grid and the constants of a kernel over all bags of `ids`."""
    n_bags, bag_size = ids.shape
    size = triton.next_power_of_2(bag_size)
    bags = max(1, _READS // size)
    # A place is below the bag's size.
    bits = max(1, (bag_size - 1).bit_length())
    return (triton.cdiv(n_bags, bags),), {
        "RANKS": n_ranks,
        "BITS": bits,
        "FIELDS": max(1, min(n_ranks, 31 // bits)),
        "WIDE": n_rows > _INT32_MAX,
        "BAGS": bags,
        "SIZE": size,
        "num_warps": max(4, min(16, size // 256)),
    }


@triton.jit
def _reads(n_bags, bag_size, BAGS: tl.constexpr, SIZE: tl.constexpr):
    """Return where each bag of a program begins, the reads of a bag, and a mask of those there."""
    bag = tl.program_id(0).to(tl.int64) * BAGS + tl.arange(0, BAGS)[:, None]
    read = tl.arange(0, SIZE)[None, :]
    return bag * bag_size, read, (bag < n_bags) & (read < bag_size)  # [BAGS, SIZE]


@triton.jit
def _holders(ids, at, live, n_rows, RANKS: tl.constexpr, WIDE: tl.constexpr):
    """Return the rank that holds the row of each read [BAGS, SIZE]."""
    kind: tl.constexpr = tl.int64 if WIDE else tl.int32
    row = tl.load(ids + at, mask=live, other=0).to(kind)
    rank = tl.zeros(row.shape, tl.int32)
    for each in range(1, RANKS):
        first = (each * n_rows.to(tl.int64) // RANKS).to(kind)
        rank += (row >= first).to(tl.int32)
    return rank


@triton.jit
def _places(rank, live, RANKS: tl.constexpr, BITS: tl.constexpr, FIELDS: tl.constexpr):
    """Return where each read stands in its bag once they are in the order of their ranks."""
    # Ones of all fields but the lowest: times counts, it is the sum of the fields below each. What
    # passes a field's bits is carried upwards, where no read of this bag is then.
    LOWER: tl.constexpr = ((1 << (BITS * FIELDS)) - 1) // ((1 << BITS) - 1) - 1
    place = tl.zeros(rank.shape, tl.int32)
    before = tl.zeros([rank.shape[0]], tl.int32)
    for lowest in range(0, RANKS, FIELDS):
        here = live & (rank >= lowest) & (rank < lowest + FIELDS)
        shift = tl.where(here, rank - lowest, 0) * BITS
        one = here.to(tl.int32) << shift
        counts = tl.cumsum(one, axis=1) - one + (tl.sum(one, axis=1) * LOWER)[:, None]
        found = (counts >> shift) & ((1 << BITS) - 1)
        place = tl.where(here, before[:, None] + found, place)
        before += tl.sum(here.to(tl.int32), axis=1)
    return place


@triton.jit(do_not_specialize=["n_rows"])
def _bucketize(
    ids, first, first_out, second, second_out, n_rows, n_bags, bag_size,
    RANKS: tl.constexpr, BITS: tl.constexpr, FIELDS: tl.constexpr, WIDE: tl.constexpr,
    BAGS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    bag, read, live = _reads(n_bags, bag_size, BAGS, SIZE)
    rank = _holders(ids, bag + read, live, n_rows, RANKS, WIDE)
    to = bag + _places(rank, live, RANKS, BITS, FIELDS)
    tl.store(first_out + to, tl.load(first + bag + read, mask=live), mask=live)
    if second is not None:
        tl.store(second_out + to, tl.load(second + bag + read, mask=live), mask=live)


@triton.jit(do_not_specialize=["n_rows"])
def _unbucketize(
    ids, parts, taken, n_rows, n_bags, bag_size,
    RANKS: tl.constexpr, BITS: tl.constexpr, FIELDS: tl.constexpr, WIDE: tl.constexpr,
    BAGS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    bag, read, live = _reads(n_bags, bag_size, BAGS, SIZE)
    rank = _holders(ids, bag + read, live, n_rows, RANKS, WIDE)
    part = rank.to(tl.int64) * n_bags * bag_size
    place = _places(rank, live, RANKS, BITS, FIELDS)
    tl.store(taken + bag + read, tl.load(parts + part + bag + place, mask=live), mask=live)


@triton.jit(do_not_specialize=["first", "n_here"])
def _local_ids(ids, local, first, n_here, n_reads, READS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * READS + tl.arange(0, READS)
    row = tl.load(ids + at, mask=at < n_reads, other=0) - first
    tl.store(local + at, tl.where((row >= 0) & (row < n_here), row, n_here), mask=at < n_reads)
