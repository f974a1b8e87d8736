"""Product-key selection in Triton: exact search of scores never stored.

Scores come from tensor cores to fp32 accuracy.

A chunk of tokens at a time, so that memory stays within `CHUNK_BYTES`, goes through five kernels:

1. `fp16_parts`: rows of query and sub-keys become sums of one or two fp16 rows times a power of two
per row. 2. `_search`: goes over the sub-keys twice. The first time it keeps the largest score of
each group of keys: the knn-th
   largest of these cannot exceed the knn-th largest score. The second time it keeps what reaches
   that bound, about 1.15 knn of 1,024 scores. Scores take one tensor-core product of high parts the
   first time, because their error has a bound. The second time they take all products but that of
   two low parts: one if query and sub-keys are bf16, two if one of them is fp32, three if both are.
3. `_search_crowded`: rows of which more reach the bound than there is room for, because of ties,
search once more. 4. `_order`: the best knn of these in order. Score and id share one integer, so
that ties fall to the lowest id. 5. `choose_pairs`: the best knn among the sums of
`reference.candidate_pairs`.

No atomics: all sums have one order.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from workloads.kernels.product_key_topk.bitonic_sort import (
    LARGEST_ID,
    as_rising,
    id_of,
    merge,
    pack_score_id,
    score_of,
    sort,
)
from workloads.kernels.product_key_topk.candidate_pairs import arrange, choose_pairs
from workloads.kernels.product_key_topk.split_fp16 import fp16_parts, padded_width, parts_of

MAX_KNN = 64
"""One thread sorts twice as many numbers of 64 bits, and it has 255 registers of 32."""
MAX_KEYS = math.isqrt(LARGEST_ID.value + 1)
"""A half; 11,585, which make 1.3e8 slots, whose ids `pack_score_id` still tells."""
MAX_GROUPS = 256
"""A thread of `_search` holds the largest scores of all groups of a row, and 512 would not fit its
registers."""
WARP = 32
"""Tokens of a program that sorts, one a thread."""
CHUNK_BYTES = 2**29
"""Most memory for what a chunk of tokens leaves between the kernels."""

_ERROR = tl.constexpr(1.25 * 2**-10)
"""Most by which a product of high parts errs, over the product of the norms: 2**-11 for each low
part that is left out, and a quarter more for what is rounded on the way."""
_COUNTED = tl.constexpr(0x4B000000)
"""The bits of the fp32 number 2**23, from which on they count its units."""
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


class Tile(NamedTuple):
    """What a program of `_search` takes at a time."""

    tokens: int
    keys: int
    first_keys: int
    """Keys in the first pass, which leaves out the low parts and has room for more: a multiple of
    `keys`."""
    columns: int
    warps: int
    stages: int
    groups: int = 8
    """Most groups for each of the best that are wanted, up to `MAX_GROUPS`: half of 8 fill fewer
    registers."""


def applies(query: Tensor, sub_keys: Tensor, knn: int) -> bool:
    """Return whether these kernels can choose.

    On CUDA, types up to fp32, not too many keys or slots.
    """
    n_keys = sub_keys.shape[2]
    return (
        query.is_cuda
        and query.dtype in _TYPES
        and sub_keys.dtype in _TYPES
        and query.numel() > 0
        and n_keys <= MAX_KEYS
        and 1 <= knn <= min(n_keys, MAX_KNN)
    )


class BestSubKeys(NamedTuple):
    """The best sub-keys of a chunk of tokens."""

    start: int
    """First of the tokens."""
    n_tokens: int
    ordered: Int[Tensor, "halves_x_heads slots padded_tokens"]
    """Score (fp32) above id, in 64 bits, best first; only the first `knn` slots are valid. The next
    chunk overwrites them."""


def select(
    query: Float[Tensor, "tokens heads key_dim"],
    sub_keys: Float[Tensor, "2 heads n_keys half_key_dim"],
    knn: int,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    tile: Tile | None = None,
) -> tuple[Float[Tensor, "tokens heads knn"], Int[Tensor, "tokens heads knn"]]:
    """Run the forward kernels.

    Args:
        query: The halves are the first and the last key_dim / 2 columns.
        sub_keys: Left and right codebooks.
        knn: Slots per head.
        chunk_bytes: Most memory for what lies between the kernels.
        tile: In the place of what was fastest.
    """
    n_tokens, n_heads, _ = query.shape
    n_keys = sub_keys.shape[2]
    log_best = log_of_best(knn)
    pairs = arrange(knn, log_best)
    out_scores = torch.empty(n_tokens, n_heads, knn, device=query.device, dtype=torch.float32)
    out_ids = torch.empty(n_tokens, n_heads, knn, device=query.device, dtype=torch.int64)
    rows = query.unflatten(-1, (2, 1, -1)).permute(2, 1, 0, 3, 4)
    chunks = best_sub_keys(
        rows,
        sub_keys[..., None, :],
        knn,
        key_parts=parts_of(sub_keys.dtype),
        chunk_bytes=chunk_bytes,
        tile=tile,
    )
    for found in chunks:
        _, slots, padded_tokens = found.ordered.shape
        choose_pairs[(triton.cdiv(found.n_tokens, WARP), n_heads)](
            found.ordered, out_scores[found.start :], out_ids[found.start :],
            found.n_tokens, padded_tokens, n_heads, n_keys, knn,
            BLOCKS=pairs.blocks, TABLE=pairs.table, SIZES=pairs.sizes,
            SLOTS=slots, LOG=log_best, BLOCK_T=WARP, num_warps=1,
        )  # fmt: skip
    return out_scores, out_ids


def log_of_best(knn: int) -> int:
    """Return log2 of how many of the best are put in order: `knn` at least."""
    return max(4, (knn - 1).bit_length())


def best_sub_keys(
    query: Float[Tensor, "2 heads tokens pieces piece_width"],
    sub_keys: Float[Tensor, "2 heads n_keys pieces piece_width"],
    knn: int,
    *,
    key_parts: int,
    chunk_bytes: int = CHUNK_BYTES,
    tile: Tile | None = None,
) -> Iterator[BestSubKeys]:
    """Yield the `knn` best sub-keys of each token, head and half, chunk of tokens by chunk.

    Scores are the products of whole rows: the sums of the products of their pieces.

    Args:
        query: Of both halves.
        sub_keys: Left and right codebooks.
        knn: Sub-keys of a half.
        key_parts: fp16 numbers that hold a number of the sub-keys.
        chunk_bytes: Most memory for what lies between the kernels.
        tile: In the place of what was fastest.
    """
    # Sizes: the tile, and the room for what the kernels leave to each other.
    _, n_heads, n_tokens, pieces, piece_width = query.shape
    n_keys = sub_keys.shape[2]
    query_parts = parts_of(query.dtype)
    columns = padded_width(pieces * piece_width)
    tile = tile or _tile(columns, query_parts, key_parts)
    tile = tile._replace(columns=min(tile.columns, columns))
    books = 2 * n_heads
    log_best = log_of_best(knn)
    best = 2**log_best
    # Of those that reach the bound: 1.15 knn of many keys, and more than twice knn hardly ever.
    slots = 2 * best
    first_keys = tile.first_keys
    padded_keys = triton.cdiv(n_keys, first_keys) * first_keys
    groups, together, all_groups = _grouping(padded_keys // first_keys, tile, best)

    def new(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, device=query.device, dtype=dtype)

    # Sub-keys are split once, the queries chunk by chunk.
    keys, key_scales, key_norms = fp16_parts(sub_keys, padded_keys, key_parts)
    longest = (key_norms * key_scales).amax(1)
    first_tiles, key_tiles = (
        TensorDescriptor.from_tensor(keys.view(-1, columns), [rows, tile.columns])
        for rows in (first_keys, tile.keys)
    )
    # Buffers that all chunks of tokens share, `chunk_bytes` at most.
    per_token = books * (query_parts * columns * 2 + all_groups * 2 + slots * 8)
    chunk = _even_chunk(n_tokens, chunk_bytes // per_token, max(tile.tokens, WARP))
    maxima = new(books, chunk, all_groups, dtype=torch.bfloat16)
    found = new(books, slots, chunk, dtype=torch.int64)
    counts = new(books, chunk, dtype=torch.int32)
    row_warps, lanes, deep = _crowded_layout(n_keys)
    crowded_programs = _crowded_programs(query.device, row_warps)
    crowded_rows = _crowded_rows(books * chunk, crowded_programs)
    row_scores = new(crowded_programs, deep * lanes, dtype=torch.float32)

    # Chunk by chunk, each kernel reads what the one before it left in these buffers.
    for start in range(0, n_tokens, chunk):
        part = query[:, :, start : start + chunk]
        tokens = part.shape[2]
        queries, query_scales, query_norms = fp16_parts(part, chunk, query_parts)
        tiles_t = triton.cdiv(tokens, tile.tokens)
        _search[(books * tiles_t,)](
            queries, query_norms, first_tiles, key_tiles, key_scales, longest, maxima, found,
            counts,
            tokens, chunk, padded_keys, n_keys, knn, tiles_t,
            QUERY_PARTS=query_parts, KEY_PARTS=key_parts,
            GROUPS=groups, TOGETHER=together, ALL_GROUPS=triton.next_power_of_2(all_groups),
            SLOTS=slots,
            # The interpreter knows no assembly.
            EVEN=n_keys == padded_keys, ASSEMBLY=isinstance(_search, triton.JITFunction),
            PACKED=_compares_bf16_pairs(query.device),
            HELD=tile.columns == columns, WIDTH=columns,
            BLOCK_T=tile.tokens, BLOCK_F=first_keys, BLOCK_N=tile.keys, BLOCK_D=tile.columns,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        _search_crowded[(crowded_programs,)](
            queries, keys, key_scales, row_scores, found, counts,
            books, tokens, chunk, padded_keys, n_keys, knn,
            QUERY_PARTS=query_parts, KEY_PARTS=key_parts, SLOTS=slots,
            WIDTH=columns, BLOCK_D=triton.next_power_of_2(columns),
            LANES=lanes, DEEP=deep, ROWS=crowded_rows, num_warps=row_warps,
        )  # fmt: skip
        _order[(triton.cdiv(tokens, WARP), books)](
            # In place. One name would keep addresses from loading to storing, half of what a thread
            # may have.
            found, found, counts, query_scales, tokens, chunk,
            SLOTS=slots, LOG=log_best, BLOCK_T=WARP, num_warps=1,
        )  # fmt: skip
        yield BestSubKeys(start, tokens, found)


def _tile(columns: int, query_parts: int, key_parts: int) -> Tile:
    """Return what was fastest on an H200.

    The query's tile stays in shared memory, where there is room for it.

    A tile has a power of two of columns, which `columns` is a multiple of.
    """
    parts = query_parts, key_parts
    if columns <= 128:
        if parts == (1, 2):
            return Tile(64, 32, 64, 128, warps=4, stages=2, groups=4)
        if parts == (2, 2):
            return Tile(128, 64, 128, 128, warps=8, stages=3)
        return Tile(64, 64, 64, 128, warps=4, stages=3 if key_parts == 1 else 2)
    if columns == 256:
        if parts == (1, 2):
            return Tile(128, 64, 128, 256, warps=8, stages=2)
        if parts == (1, 1):
            return Tile(128, 64, 64, 256, warps=8, stages=3)
        return Tile(64, 64, 64 * key_parts, 256, warps=4, stages=2)
    return Tile(64, 64, 128, 64, warps=4, stages=4 if query_parts == 1 else 3)


def _grouping(tiles: int, tile: Tile, best: int) -> tuple[int, int, int]:
    """Return groups of a tile in the first pass, tiles that share them, and groups of all tiles.

    About four times as many as are wanted, so that the bound keeps 1.15 times as many; never under
    twice.
    """
    # A thread holds every eighth column of a row, so that it finds the maxima of eight groups on
    # its own.
    groups = min(tile.first_keys, max(8, triton.next_power_of_2(triton.cdiv(4 * best, tiles))))
    together = triton.cdiv(tiles * groups, min(MAX_GROUPS, tile.groups * best))
    return groups, together, triton.cdiv(tiles, together) * groups


def _crowded_layout(n_keys: int) -> tuple[int, int, int]:
    """Return warps and threads of a program of `_search_crowded`, and scores of each, up to 32."""
    padded = triton.next_power_of_2(n_keys)
    warps = max(1, padded // 1024)
    lanes = min(32 * warps, padded)
    return warps, lanes, padded // lanes


def _crowded_programs(device: torch.device, warps: int) -> int:
    """Return the programs of `_search_crowded`.

    Sixteen warps a multiprocessor, whose registers hold no more of them.
    """
    multiprocessors: int = torch.cuda.get_device_properties(device).multi_processor_count
    return multiprocessors * max(1, 16 // warps)


def _crowded_rows(rows: int, programs: int) -> int:
    """Return the rows that a program of `_search_crowded` looks at a time.

    Few, so that it seldom searches more than one of them.
    """
    share: int = triton.next_power_of_2(triton.cdiv(rows, programs))
    return min(128, max(32, share))


def _compares_bf16_pairs(device: torch.device) -> bool:
    """Return whether a GPU has an instruction for it: from compute capability 9.0 on.

    The interpreter has none.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def _even_chunk(n_tokens: int, at_most: int, multiple_of: int) -> int:
    """Return the tokens of a chunk: as few chunks as there can be, none of them small."""
    chunks = triton.cdiv(n_tokens, max(multiple_of, at_most // multiple_of * multiple_of))
    size: int = triton.cdiv(triton.cdiv(n_tokens, chunks), multiple_of) * multiple_of
    return size


@triton.jit
def _tile_scores(
    query, keys, row, next_query_part, next_key_part, scale, q, low_q,
    QUERY_PARTS: tl.constexpr, KEY_PARTS: tl.constexpr, HELD: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Return fp32 scores [BLOCK_T, BLOCK_N] but for the query's scale.

    Products of two low parts are left out.
    """
    scores = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)
    for start in range(0, WIDTH, BLOCK_D):
        if not HELD:
            q = tl.load(query + start)
            if QUERY_PARTS == 2:
                low_q = tl.load(query + next_query_part + start)
        k = keys.load([row, start])
        # What tensor cores add to a sum is cut off at the sum's last place, so the small products
        # come first.
        if KEY_PARTS == 2:
            low = keys.load([row + next_key_part, start])
            scores = tl.dot(q, low.T, scores)
        if QUERY_PARTS == 2:
            scores = tl.dot(low_q, k.T, scores)
        scores = tl.dot(q, k.T, scores)
    return scores * scale[None, :]


@triton.jit
def _search(
    # Inputs: fp16 parts, descriptors of the sub-keys' tiles in the two passes, norms and scales.
    query_ptr, query_norms_ptr, first_keys, keys, key_scales_ptr, longest_ptr,
    # Outputs: largest score of each group; packed scores and ids; how many of them a row has.
    maxima_ptr, found_ptr, counts_ptr,
    n_tokens, padded_tokens, padded_keys, n_keys, knn, tiles_t,
    QUERY_PARTS: tl.constexpr, KEY_PARTS: tl.constexpr,
    # Groups of a tile, tiles that share them, groups of all tiles; room for each row.
    GROUPS: tl.constexpr, TOGETHER: tl.constexpr, ALL_GROUPS: tl.constexpr, SLOTS: tl.constexpr,
    # Variants: no key is padding; inline assembly; comparison of bf16 pairs; query in registers.
    EVEN: tl.constexpr, ASSEMBLY: tl.constexpr, PACKED: tl.constexpr, HELD: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Find the scores of BLOCK_T rows that can be among their best knn."""
    # Neighbours share the sub-keys.
    book = (tl.program_id(0) // tiles_t).to(tl.int64)
    books = tl.num_programs(0) // tiles_t
    token = tl.program_id(0) % tiles_t * BLOCK_T + tl.arange(0, BLOCK_T)
    row = book * padded_tokens + token
    column = tl.arange(0, BLOCK_D)
    query = query_ptr + row[:, None] * WIDTH + column[None, :]
    next_query_part = books.to(tl.int64) * padded_tokens * WIDTH
    next_key_part = (books * padded_keys).to(tl.int32)
    key_scales_ptr += book * padded_keys

    q = tl.load(query)
    low_q = q
    if HELD and QUERY_PARTS == 2:
        low_q = tl.load(query + next_query_part)

    n_groups = (padded_keys + (TOGETHER - 1) * BLOCK_F) // (TOGETHER * BLOCK_F) * GROUPS
    maxima = maxima_ptr + row[:, None] * n_groups
    lowest, highest = _group_maxima(
        query, first_keys, book, next_query_part, next_key_part, key_scales_ptr, q, maxima,
        padded_keys, n_keys,
        GROUPS, TOGETHER, EVEN, HELD, WIDTH, BLOCK_T, BLOCK_F, BLOCK_D,
    )  # fmt: skip

    # The bound: the knn-th largest of the groups' maxima, less the error of the first pass. Other
    # threads of this program read what these have written.
    tl.debug_barrier()
    group = tl.arange(0, ALL_GROUPS)[None, :]
    largest = tl.load(maxima + group, mask=group < n_groups, other=-float("inf"))
    bound = _bound(largest, tl.min(lowest, 1), tl.max(highest, 1), knn, PACKED)
    bound -= _ERROR * tl.load(query_norms_ptr + row) * tl.load(longest_ptr + book)
    bound = tl.where(token < n_tokens, bound, float("inf"))

    kept = _store_reaching(
        query, keys, book, next_query_part, next_key_part, key_scales_ptr, q, low_q, bound,
        found_ptr + book * SLOTS * padded_tokens, token, padded_tokens, padded_keys, n_keys,
        QUERY_PARTS, KEY_PARTS, SLOTS, EVEN, ASSEMBLY, HELD, WIDTH, BLOCK_T, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    tl.store(counts_ptr + row, kept)


@triton.jit
def _group_maxima(
    query, keys, book, next_query_part, next_key_part, key_scales_ptr, q, maxima,
    padded_keys, n_keys,
    GROUPS: tl.constexpr, TOGETHER: tl.constexpr, EVEN: tl.constexpr, HELD: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """First pass: store the largest score of each group of keys, by the high parts alone.

    A group has the keys of every so many columns of TOGETHER tiles. Returns the lowest and the
    highest of these maxima by column of groups, [BLOCK_T, GROUPS] each.
    """
    group = tl.arange(0, GROUPS)[None, :]
    key = tl.arange(0, BLOCK_F)
    so_far = tl.full([BLOCK_T, GROUPS], -float("inf"), tl.float32)
    lowest = tl.full([BLOCK_T, GROUPS], float("inf"), tl.float32)
    highest = so_far
    for start in range(0, padded_keys, BLOCK_F):
        scale = tl.load(key_scales_ptr + start + key)
        scores = _tile_scores(
            query, keys, (book * padded_keys + start).to(tl.int32), next_query_part,
            next_key_part, scale, q, q,
            1, 1, HELD, WIDTH, BLOCK_T, BLOCK_F, BLOCK_D,
        )  # fmt: skip
        if not EVEN:
            scores = tl.where((key < n_keys - start)[None, :], scores, -float("inf"))
        largest = tl.max(tl.reshape(scores, [BLOCK_T, BLOCK_F // GROUPS, GROUPS]), 1)
        highest = tl.maximum(highest, largest)
        to = maxima + start // (TOGETHER * BLOCK_F) * GROUPS + group
        if TOGETHER > 1:
            largest = tl.maximum(largest, so_far)
            after = start // BLOCK_F + 1
            last = (after % TOGETHER == 0) | (after * BLOCK_F == padded_keys)
            tl.store(to, largest, mask=last)
            so_far = tl.where(last, -float("inf"), largest)
            # Groups without keys have no largest score.
            lowest = tl.where(last & (largest > -float("inf")), tl.minimum(lowest, largest), lowest)
        else:
            tl.store(to, largest)
            if not EVEN:
                largest = tl.where(largest > -float("inf"), largest, lowest)
            lowest = tl.minimum(lowest, largest)
    return lowest, highest


@triton.jit
def _store_reaching(
    query, keys, book, next_query_part, next_key_part, key_scales_ptr, q, low_q, bound,
    found_ptr, token, padded_tokens, padded_keys, n_keys,
    QUERY_PARTS: tl.constexpr, KEY_PARTS: tl.constexpr, SLOTS: tl.constexpr, EVEN: tl.constexpr,
    ASSEMBLY: tl.constexpr, HELD: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Second pass: store the scores that reach the bound, with their ids; return how many of a row.

    How many of a row were kept before each key, by a product with a triangle of ones: the sums stay
    in the threads that hold the scores, and their bits times the distance of two slots lead to
    where a score goes.
    """
    key = tl.arange(0, BLOCK_N)
    triangle = (key[:, None] < key[None, :]).to(tl.float16)
    first = (found_ptr + token).to(tl.int64) - (8 * padded_tokens).to(tl.int64) * _COUNTED
    kept = tl.full([BLOCK_T], 2.0**23, tl.float32)
    for start in range(0, padded_keys, BLOCK_N):
        scores = _tile_scores(
            query, keys, (book * padded_keys + start).to(tl.int32), next_query_part, next_key_part,
            tl.load(key_scales_ptr + start + key), q, low_q,
            QUERY_PARTS, KEY_PARTS, HELD, WIDTH, BLOCK_T, BLOCK_N, BLOCK_D,
        )  # fmt: skip
        # Not a number is not below the bound either, and the reference, too, takes it for the best.
        keep = _not_below(scores, bound[:, None], ASSEMBLY)
        if not EVEN:
            keep = tl.where((key < n_keys - start)[None, :], keep, 0.0)
        before = tl.dot(
            keep.to(tl.float16), triangle, tl.broadcast_to(kept[:, None], [BLOCK_T, BLOCK_N])
        )
        kept += tl.sum(keep, 1)
        if not EVEN:
            before = tl.where((key < n_keys - start)[None, :], before, 2.0**24)
        if ASSEMBLY:
            _store_pairs(
                first[:, None], 8 * padded_tokens, before, 2.0**23 + SLOTS, (start + key)[None, :],
                scores, bound[:, None],
            )  # fmt: skip
        else:
            slot = before.to(tl.int32, bitcast=True) - _COUNTED
            packed = (scores.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (start + key)[None, :]
            to = found_ptr + slot * padded_tokens + token[:, None]
            tl.store(to, packed, mask=(keep != 0) & (slot < SLOTS))
    return (kept - 2.0**23).to(tl.int32)


@triton.jit
def _not_below(x, bound, ASSEMBLY: tl.constexpr):
    """Return 1.0 where x is not below the bound, else 0.0."""
    if not ASSEMBLY:
        return tl.where(x < bound, 0.0, 1.0)
    return tl.inline_asm_elementwise(
        "set.geu.f32.f32 $0, $1, $2;", "=f,f,f", [x, bound], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _store_pairs(first, stride, before, end, low, high, bound):
    """Store two words where it is below `end` and `high` not below `bound`.

    They go to `first` + `stride` times the bits of `before`.

    From the threads that hold them: `tl.store` would bring them to other threads first, through
    shared memory.
    """
    tl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b64 to; setp.lt.f32 p, $3, $4; setp.geu.and.f32 p, $6, $7, p; "
        "mad.wide.u32 to, $8, $2, $1; @p st.global.v2.b32 [to], {$5, $6}; mov.b32 $0, 0; }",
        "=r,l,r,f,f,r,f,f,r",
        [first, stride, before, end, low, high, bound, before.to(tl.int32, bitcast=True)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _bound(largest, low, high, knn, PACKED: tl.constexpr):
    """Return for each row of bf16 [rows, groups] a number that at least knn reach, hardly more.

    -inf if that is knn's.

    All lie between `low` and `high`, which are given in fp32.
    """
    low = _below(low)  # what rounding makes of it
    low = tl.where(_reaching(largest, low, PACKED) >= knn, low, -float("inf"))
    for _ in range(7):
        middle = 0.5 * low + 0.5 * high
        enough = _reaching(largest, middle, PACKED) >= knn
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    # Maxima and bounds may have been rounded up.
    return _below(low)


@triton.jit
def _below(x):
    """Return less than what rounds to the same bf16 number as x."""
    return tl.minimum(x * (1 - 2.0**-7), x * (1 + 2.0**-7)) - 2.0**-126


@triton.jit
def _reaching(x, bound, PACKED: tl.constexpr):
    """Return how many bf16 numbers of each row [rows, n] reach its bound, rounded to bf16."""
    bound = bound.to(tl.bfloat16)[:, None]
    if not PACKED:
        return tl.sum((x.to(tl.float32) >= bound.to(tl.float32)).to(tl.float32), 1)
    reached = tl.inline_asm_elementwise(
        "set.ge.bf16x2.bf16x2 $0, $1, $2;", "=r,r,r", [x, bound],
        dtype=tl.bfloat16, is_pure=True, pack=2,
    )  # fmt: skip
    # A sum over a row's threads takes five times as many instructions.
    return tl.max(tl.dot(reached, tl.full([x.shape[1], 16], 1.0, tl.bfloat16)), 1)


@triton.jit(do_not_specialize=["n_tokens", "padded_tokens"])
def _search_crowded(
    query_ptr, keys_ptr, key_scales_ptr, row_scores_ptr, found_ptr, counts_ptr,
    books, n_tokens, padded_tokens, padded_keys, n_keys, knn,
    QUERY_PARTS: tl.constexpr, KEY_PARTS: tl.constexpr, SLOTS: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, LANES: tl.constexpr, DEEP: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Search the rows of which too many reached the bound, one after another.

    Few, but for many equal keys.
    """
    row_scores_ptr += tl.program_id(0) * DEEP * LANES
    n_rows = books.to(tl.int64) * padded_tokens
    for first in range(tl.program_id(0).to(tl.int64) * ROWS, n_rows, tl.num_programs(0) * ROWS):
        rows = first + tl.arange(0, ROWS)
        inside = (rows < n_rows) & (rows % padded_tokens < n_tokens)
        if tl.max(tl.load(counts_ptr + rows, mask=inside, other=0), 0) > SLOTS:
            for row in range(first, tl.minimum(first + ROWS, n_rows)):
                token = row % padded_tokens
                if (token < n_tokens) & (tl.load(counts_ptr + row) > SLOTS):
                    book = row // padded_tokens
                    _score_row(
                        query_ptr + row * WIDTH, keys_ptr + book * padded_keys * WIDTH,
                        n_rows * WIDTH, books.to(tl.int64) * padded_keys * WIDTH,
                        key_scales_ptr + book * padded_keys, row_scores_ptr, n_keys,
                        QUERY_PARTS, KEY_PARTS, WIDTH, BLOCK_D,
                    )  # fmt: skip
                    tl.debug_barrier()
                    _keep_best(
                        row_scores_ptr, found_ptr + book * SLOTS * padded_tokens + token,
                        counts_ptr + row,
                        padded_tokens, n_keys, knn, SLOTS, LANES, DEEP,
                    )  # fmt: skip
                    tl.debug_barrier()


@triton.jit
def _score_row(
    query, keys, next_query_part, next_key_part, key_scales, to, n_keys,
    QUERY_PARTS: tl.constexpr, KEY_PARTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Store the scores of one row at `to`, which has room for n_keys rounded up to 16."""
    KEYS: tl.constexpr = 16
    column = tl.arange(0, BLOCK_D)
    inside = column < WIDTH
    q = tl.load(query + column, mask=inside, other=0.0).to(tl.float32)
    if QUERY_PARTS == 2:
        q += tl.load(query + next_query_part + column, mask=inside, other=0.0).to(tl.float32)
    for start in range(0, n_keys, KEYS):
        key = start + tl.arange(0, KEYS)
        place = keys + key[:, None] * WIDTH + column[None, :]
        k = tl.load(place, mask=inside[None, :], other=0.0).to(tl.float32)
        if KEY_PARTS == 2:
            k += tl.load(place + next_key_part, mask=inside[None, :], other=0.0).to(tl.float32)
        scores = tl.sum(q[None, :] * k, 1) * tl.load(key_scales + key)
        tl.store(to + key, scores)


@triton.jit
def _keep_best(
    scores_ptr, found_ptr, count_ptr, padded_tokens, n_keys, knn,
    SLOTS: tl.constexpr, LANES: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """Keep at least knn of a row's scores, SLOTS at most.

    Halves the range of integers of score and id.
    """
    key = tl.arange(0, DEEP * LANES)
    inside = key < n_keys
    scores = tl.load(scores_ptr + key, mask=inside, other=-float("inf"))
    rising = tl.where(inside, as_rising(scores), -(2**31))
    first = tl.cast(-(2**31), tl.int64) << 32
    last = (tl.max(rising, 0).to(tl.int64) << 32) | 0xFFFFFFFF
    count = n_keys
    while count > SLOTS:
        middle = (first | last) - ((first ^ last) >> 1)
        above = tl.sum(_reach(rising, key, middle), 0)
        enough = above >= knn
        first = tl.where(enough, middle, first)
        last = tl.where(enough, last, middle - 1)
        count = tl.where(enough, above, count)
    # Once more from memory: places beside all scores would not fit the registers.
    slot = 0
    for start in range(0, n_keys, LANES):
        some = start + tl.arange(0, LANES)
        score = tl.load(scores_ptr + some, mask=some < n_keys, other=0.0)
        keep = tl.where(some < n_keys, _reach(as_rising(score), some, first), 0)
        packed = (score.to(tl.int32, bitcast=True).to(tl.int64) << 32) | some
        to = (slot + tl.cumsum(keep, 0) - 1).to(tl.int64) * padded_tokens
        tl.store(found_ptr + to, packed, mask=keep != 0)
        slot += tl.sum(keep, 0)
    tl.store(count_ptr, count)


@triton.jit
def _reach(rising, key, bound):
    """Return 1 where score and complement of the id, as one integer, reach the bound."""
    score = (bound >> 32).to(tl.int32)
    id = (bound & 0xFFFFFFFF) ^ 0xFFFFFFFF
    return ((rising > score) | ((rising == score) & (key <= id))).to(tl.int32)


@triton.jit(do_not_specialize=["n_tokens", "padded_tokens"])
def _order(
    found_ptr, ordered_ptr, counts_ptr, query_scales_ptr, n_tokens, padded_tokens,
    SLOTS: tl.constexpr, LOG: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Sort what was found of each row; put the best 2**LOG in its place."""
    # Rows apart by a number that is not specialised are loaded one number at a time, so that one
    # thread holds all slots of a token and sorts without talking to its neighbours.
    BEST: tl.constexpr = 2**LOG
    book = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    inside = token < n_tokens
    count = tl.load(counts_ptr + book * padded_tokens + token, mask=inside, other=0)
    rank = tl.arange(0, BEST)[None, :]
    found_ptr += book * SLOTS * padded_tokens
    ordered_ptr += book * SLOTS * padded_tokens
    best = sort(_found(found_ptr, rank, token, count, padded_tokens), LOG, 0)
    most = tl.max(count, 0)
    half = tl.arange(0, BEST // 2)[None, :]
    # Mostly there are few more than knn.
    for start in tl.static_range(BEST, SLOTS, BEST // 2):
        if most > start:
            new = sort(_found(found_ptr, start + half, token, count, padded_tokens), LOG - 1, 1)
            new = tl.permute(tl.join(tl.zeros_like(new), new), [0, 2, 1])
            new = tl.reshape(new, [BLOCK_T, BEST])
            # One falls, the other rises: the larger of each two numbers are the best of both.
            best = merge(tl.where(best < new, new, best), LOG, LOG, 0)
    scale = tl.load(query_scales_ptr + book * padded_tokens + token, mask=inside, other=0.0)
    score = score_of(best) * scale[:, None]
    packed = (score.to(tl.int32, bitcast=True).to(tl.int64) << 32) | id_of(best)
    tl.store(ordered_ptr + rank * padded_tokens + token[:, None], packed, mask=inside[:, None])


@triton.jit
def _found(found_ptr, slot, token, count, padded_tokens):
    valid = slot < count[:, None]
    packed = tl.load(found_ptr + slot * padded_tokens + token[:, None], mask=valid, other=0)
    score = (packed >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return tl.where(valid, pack_score_id(score, packed & LARGEST_ID), 0.0)
