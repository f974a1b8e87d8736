"""Selection by Tucker-decomposed scores in Triton: few scores are ever stored.

1. `_weigh`: the leading singular pair of each core, and sub-keys times its numbers. A product with
   a query's pieces, one for each rank, is then the approximate score.
2. `product_key_topk.triton.best_sub_keys`: the best rows and columns by it.
3. `_multiply`: products of each rank's queries with these candidates.
4. `_choose`: the best of the grid of candidates, one thread a token.
5. `_keep_products`: their products, for the gradients.

No atomics: all sums have one order.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.product_key_topk import triton as product_keys
from workloads.kernels.product_key_topk.bitonic_sort import (
    id_of,
    merge,
    pack_score_id,
    score_of,
    sort,
)
from workloads.kernels.product_key_topk.split_fp16 import fp16_parts, padded_width, parts_of
from workloads.kernels.tucker_topk.reference import SQUARINGS

MAX_KNN = 32
"""One thread holds twice as many numbers of 64 bits."""
MAX_FACTORS = 64
"""Most ranks times slots: products of the columns of the grid."""
MOST_NUMBERS = 2**11
"""Of a token's sub-keys, which a program loads at a time."""
TOKENS = 8
"""Of a program that takes one of them at a time, so that it stores products side by side."""
TOKEN_WARPS = 1
"""Of such a program. More share less and wait for each other."""

_SQUARINGS = tl.constexpr(SQUARINGS)


class SubKeyTile(NamedTuple):
    """How a program reads the sub-keys of a token: of one half and rank."""

    parts: int
    """fp16 numbers that hold a number of the sub-keys."""
    slots: int
    ranks: int
    """Rounded up to powers of two."""
    columns: int
    """Of a stored sub-key."""
    block: int
    """Columns at a time."""


def applies(query: Tensor, sub_keys: Tensor, core: Tensor, knn: int) -> bool:
    """Return whether these kernels can choose.

    On CUDA, sub-keys and core in fp32, not too many keys, ranks or slots.
    """
    return (
        product_keys.applies(query, sub_keys[:, :, 0], knn)
        and sub_keys.dtype == core.dtype == torch.float32
        and knn <= MAX_KNN
        and sub_keys.shape[2] * 2 ** product_keys.log_of_best(knn) <= MAX_FACTORS
    )


def reading(sub_keys: Tensor, query: Tensor, slots: int) -> SubKeyTile:
    """Return how programs read `slots` sub-keys of each half and rank."""
    rank, _, width = sub_keys.shape[2:]
    ranks = triton.next_power_of_2(rank)
    columns = padded_width(width)
    most = max(16, MOST_NUMBERS // slots)
    # The largest power of two that divides the columns, or less.
    block = min(columns & -columns, most)
    return SubKeyTile(parts_of(query.dtype), slots, ranks, columns, block)


def select(
    query: Float[Tensor, "2 heads queries tokens half_key_dim"],
    sub_keys: Float[Tensor, "2 heads rank n_keys half_key_dim"],
    core: Float[Tensor, "heads rank rank"],
    knn: int,
    *,
    tile: product_keys.Tile | None = None,
    chunk_bytes: int = product_keys.CHUNK_BYTES,
) -> tuple[
    Float[Tensor, "tokens heads knn"],
    Int[Tensor, "tokens heads knn"],
    Float[Tensor, "heads books knn tokens"],
]:
    """Run the forward kernels; return scores, ids and the products that the gradients need.

    These are of the queries with the sub-keys of the chosen slots, in each half and rank (rounded
    up to a power of two).

    Args:
        query: Of both halves, for each rank or one for all.
        sub_keys: Row and column codebooks of each rank.
        core: What combines the ranks' scores.
        knn: Slots per head.
        tile: Of the search for candidates, in the place of what was fastest.
        chunk_bytes: Most memory for what lies between the search's kernels.
    """
    _, n_heads, n_queries, n_tokens, width = query.shape
    rank, n_keys = sub_keys.shape[2:4]
    query = query if query.stride(-1) == 1 else query.contiguous()
    log_best = product_keys.log_of_best(knn)
    # Sub-keys are split and weighed once, for all chunks of tokens.
    read = reading(sub_keys, query, 2**log_best)
    keys, scales = stored_sub_keys(sub_keys, read)
    core = core.contiguous()
    weighed = _weighed(sub_keys.contiguous(), core, n_queries)
    scores = torch.empty(n_tokens, n_heads, knn, device=query.device, dtype=torch.float32)
    ids = torch.empty(n_tokens, n_heads, knn, device=query.device, dtype=torch.int64)
    chosen = scores.new_empty(n_heads, 2 * read.ranks, knn, n_tokens)
    candidates = product_keys.best_sub_keys(
        query.transpose(2, 3),
        weighed,
        knn,
        key_parts=read.parts,
        chunk_bytes=chunk_bytes,
        tile=tile,
    )
    for start, tokens, ordered in candidates:
        # `_choose` meets every product in a whole row or column of its grid: they are made before.
        _, found_slots, padded_tokens = ordered.shape
        products = query.new_empty(
            n_heads, 2 * read.ranks, read.slots, padded_tokens, dtype=torch.float32
        )
        _multiply[(triton.cdiv(tokens, TOKENS), n_heads, 2 * rank)](
            ordered, query[:, :, :, start:], keys, scales, products, *query.stride()[:4],
            tokens, padded_tokens, found_slots, n_heads, n_keys, width, knn,
            RANK=rank, RANKS=read.ranks, SHARED=n_queries < rank, KEY_PARTS=read.parts,
            SLOTS=read.slots, COLUMNS=read.columns, BLOCK_D=read.block, TOKENS=TOKENS,
            num_warps=TOKEN_WARPS,
        )  # fmt: skip
        _choose[(triton.cdiv(tokens, product_keys.WARP), n_heads)](
            ordered, products, core, scores[start:], ids[start:],
            tokens, padded_tokens, found_slots, n_heads, n_keys, knn,
            RANK=rank, RANKS=read.ranks, LOG=log_best, BLOCK_T=product_keys.WARP, num_warps=1,
        )  # fmt: skip
        # The next chunk overwrites its candidates, so what the gradients need is copied out.
        tiles = triton.cdiv(tokens, product_keys.WARP), n_heads * 2 * read.ranks
        _keep_products[(*tiles, triton.cdiv(knn, 16))](
            ordered, products, ids[start:], chosen[..., start:],
            tokens, n_tokens, padded_tokens, found_slots, n_heads, n_keys, knn,
            RANKS=read.ranks, SLOTS=read.slots, BLOCK_T=product_keys.WARP, BLOCK_G=16, num_warps=1,
        )  # fmt: skip
    return scores, ids, chosen


def stored_sub_keys(
    sub_keys: Float[Tensor, "2 heads rank n_keys half_key_dim"], read: SubKeyTile
) -> tuple[Float[Tensor, "parts books n_keys padded_width"], Float[Tensor, "books n_keys"]]:
    """Return the sub-keys of all halves, heads and ranks as fp16 parts, and their scales."""
    keys, scales, _ = fp16_parts(
        sub_keys.flatten(1, 2)[..., None, :], sub_keys.shape[3], read.parts
    )
    return keys, scales


def _weighed(
    sub_keys: Float[Tensor, "2 heads rank n_keys half_key_dim"],
    core: Float[Tensor, "heads rank rank"],
    n_queries: int,
) -> Float[Tensor, "2 heads n_keys queries half_key_dim"]:
    """Return the sub-keys of the approximation of rank one; their sum where ranks share a query."""
    _, n_heads, rank, n_keys, width = sub_keys.shape
    out = torch.empty(2, n_heads, n_keys, n_queries, width, device=core.device, dtype=core.dtype)
    block = 16
    _weigh[(triton.cdiv(n_keys, block), 2 * n_heads)](
        sub_keys, core, out, n_heads, n_keys, width,
        RANK=rank, RANKS=triton.next_power_of_2(rank), SHARED=n_queries < rank,
        BLOCK_N=block, BLOCK_D=triton.next_power_of_2(width),
    )  # fmt: skip
    return out


@triton.jit
def _weigh(
    sub_keys_ptr, core_ptr, out_ptr, n_heads, n_keys, width,
    RANK: tl.constexpr, RANKS: tl.constexpr, SHARED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Multiply sub-keys by their rank's number of the leading pair (`reference.leading_pair`)."""
    book = tl.program_id(1)
    a = tl.arange(0, RANKS)
    core = tl.load(
        core_ptr + book % n_heads * RANK * RANK + a[:, None] * RANK + a[None, :],
        mask=(a < RANK)[:, None] & (a < RANK)[None, :],
        other=0.0,
    )
    gram = tl.sum(core[:, :, None] * core[:, None, :], 0)
    for _ in tl.static_range(_SQUARINGS):
        trace = tl.sum(tl.sum(tl.where(a[:, None] == a[None, :], gram, 0.0), 1), 0)
        gram = gram / tl.maximum(trace, 2.0**-126)
        gram = tl.sum(gram[:, :, None] * gram[None, :, :], 1)
    pair = _normalised(tl.sum(gram, 0))
    if book < n_heads:
        pair = _normalised(tl.sum(core * pair[None, :], 1))

    key = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    column = tl.arange(0, BLOCK_D)
    inside = (key < n_keys)[:, None] & (column < width)[None, :]
    total = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    row = book.to(tl.int64) * n_keys + key
    for rank in tl.static_range(RANK):
        place = ((book.to(tl.int64) * RANK + rank) * n_keys + key)[:, None] * width + column[
            None, :
        ]
        weight = tl.sum(tl.where(a == rank, pair, 0.0), 0)
        weighed = weight * tl.load(sub_keys_ptr + place, mask=inside, other=0.0)
        if SHARED:
            total += weighed
        else:
            to = (row * RANK + rank)[:, None] * width + column[None, :]
            tl.store(out_ptr + to, weighed, mask=inside)
    if SHARED:
        tl.store(out_ptr + row[:, None] * width + column[None, :], total, mask=inside)


@triton.jit
def _normalised(x):
    return x / tl.maximum(tl.sqrt(tl.sum(x * x, 0)), 1e-12)


@triton.jit
def _multiply(
    ordered_ptr, query_ptr, keys_ptr, scales_ptr, products_ptr,
    stride_half, stride_head, stride_query, stride_token,
    n_tokens, padded_tokens, found_slots, n_heads, n_keys, width, knn,
    RANK: tl.constexpr, RANKS: tl.constexpr, SHARED: tl.constexpr, KEY_PARTS: tl.constexpr,
    SLOTS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_D: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Store the products of TOKENS tokens' queries with their candidates of one half and rank.

    `products` is [heads, 2 RANKS, SLOTS, padded_tokens], for `_choose`. Programs of one codebook
    run after each other, since the cache of a multiprocessor holds one, but not all.
    """
    head, book = tl.program_id(1), tl.program_id(2)
    half, rank = book // RANK, book % RANK
    first = tl.program_id(0).to(tl.int64) * TOKENS
    slot = tl.arange(0, SLOTS)
    place = tl.arange(0, TOKENS)[:, None]
    ordered_ptr += (half * n_heads + head).to(tl.int64) * found_slots * padded_tokens
    ordered_ptr += slot.to(tl.int64) * padded_tokens
    first_row = ((half * n_heads + head) * RANK + rank) * n_keys
    query_ptr += half.to(tl.int64) * stride_half + head.to(tl.int64) * stride_head
    if not SHARED:
        query_ptr += rank.to(tl.int64) * stride_query
    products = tl.zeros([TOKENS, SLOTS], tl.float32)
    for i in range(TOKENS):
        token = tl.minimum(first + i, n_tokens - 1)
        key = tl.load(ordered_ptr + token, mask=slot < knn, other=0).to(tl.int32)
        found = _row_products(
            query_ptr + token * stride_token, keys_ptr, first_row + key,
            2 * n_heads * RANK * n_keys * COLUMNS, width, KEY_PARTS, COLUMNS, BLOCK_D,
        )  # fmt: skip
        found *= tl.load(scales_ptr + first_row + key)
        products = tl.where(place == i, found[None, :], products)
    token = first + place
    products_ptr += ((head * 2 * RANKS + half * RANKS + rank) * SLOTS).to(tl.int64) * padded_tokens
    to = products_ptr + slot[None, :].to(tl.int64) * padded_tokens + token
    tl.store(to, products, mask=(token < n_tokens) & (slot < knn)[None, :])


@triton.jit
def _row_products(
    query_ptr, keys_ptr, row, next_part, width,
    KEY_PARTS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Return products of a query with the sub-keys of some rows, but for their scale."""
    total = tl.zeros([row.shape[0]], tl.float32)
    for start in range(0, COLUMNS, BLOCK_D):
        column = start + tl.arange(0, BLOCK_D)
        query = tl.load(query_ptr + column, mask=column < width, other=0.0).to(tl.float32)
        place = keys_ptr + row[:, None] * COLUMNS + column[None, :]
        keys = tl.load(place).to(tl.float32)
        if KEY_PARTS == 2:
            keys += tl.load(place + next_part).to(tl.float32)
        total += tl.sum(keys * query[None, :], 1)
    return total


@triton.jit(do_not_specialize=["n_tokens", "padded_tokens"])
def _choose(
    ordered_ptr, products_ptr, core_ptr, scores_ptr, ids_ptr,
    n_tokens, padded_tokens, found_slots, n_heads, n_keys, knn,
    RANK: tl.constexpr, RANKS: tl.constexpr, LOG: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Store scores and ids of the best knn of the grid of candidates of BLOCK_T tokens of a head.

    Rows apart by a number that is not specialised are loaded one number at a time, so that one
    thread holds all places of a token and sorts without talking to its neighbours.
    """
    BEST: tl.constexpr = 2**LOG
    head = tl.program_id(1)
    token = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T))[:, None]
    inside = token < n_tokens
    # There is room for tokens beyond the last, whatever it holds.
    book_size = found_slots * padded_tokens
    rows_ptr = ordered_ptr + head.to(tl.int64) * book_size + token
    columns_ptr = ordered_ptr + (n_heads + head).to(tl.int64) * book_size + token
    products_ptr += head.to(tl.int64) * 2 * RANKS * BEST * padded_tokens + token
    core_ptr += head * RANK * RANK
    best = tl.zeros([BLOCK_T, BEST], tl.float64)
    # Sixteen columns of the grid at a time: more would not fit the registers.
    for first in tl.static_range(0, BEST, 16):
        column = first + tl.arange(0, 16)[None, :]
        column_id = tl.load(columns_ptr + column * padded_tokens, mask=column < knn, other=0)
        for i in range(knn):
            scores = tl.zeros([BLOCK_T, 16], tl.float32)
            for b in tl.static_range(RANK):
                mixed = tl.zeros([BLOCK_T, 1], tl.float32)
                for a in tl.static_range(RANK):
                    factor = tl.load(products_ptr + (a * BEST + i) * padded_tokens)
                    mixed += factor * tl.load(core_ptr + a * RANK + b)
                at = ((RANKS + b) * BEST + column) * padded_tokens
                scores += mixed * tl.load(products_ptr + at, mask=column < knn, other=0.0)
            row_id = tl.load(rows_ptr + i * padded_tokens).to(tl.int32)
            packed = pack_score_id(scores, row_id * n_keys + column_id.to(tl.int32))
            # 0.0 is below them all.
            new = sort(tl.where(column < knn, packed, 0.0), 4, 1)
            if LOG == 5:
                new = tl.permute(tl.join(tl.zeros_like(new), new), [0, 2, 1])
                new = tl.reshape(new, [BLOCK_T, BEST])
            # One falls, the other rises: the larger of each two numbers are the best of both.
            best = merge(tl.where(best < new, new, best), LOG, LOG, 0)
    rank = tl.arange(0, BEST)[None, :]
    to = (token.to(tl.int64) * n_heads + head) * knn + rank
    tl.store(scores_ptr + to, score_of(best), mask=inside & (rank < knn))
    tl.store(ids_ptr + to, id_of(best), mask=inside & (rank < knn))


@triton.jit(do_not_specialize=["n_tokens", "all_tokens", "padded_tokens"])
def _keep_products(
    ordered_ptr, products_ptr, ids_ptr, chosen_ptr,
    n_tokens, all_tokens, padded_tokens, found_slots, n_heads, n_keys, knn,
    RANKS: tl.constexpr, SLOTS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """Store the products with the sub-keys of BLOCK_G chosen slots of BLOCK_T tokens of a head.

    A chosen slot's row and column are among the candidates, whose ids are compared.
    """
    head, book = tl.program_id(1) // (2 * RANKS), tl.program_id(1) % (2 * RANKS)
    half = book // RANKS
    token = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T))[:, None]
    slot = (tl.program_id(2) * BLOCK_G + tl.arange(0, BLOCK_G))[None, :]
    inside = (token < n_tokens) & (slot < knn)
    at = (token.to(tl.int64) * n_heads + head) * knn + slot
    id = tl.load(ids_ptr + at, mask=inside, other=0).to(tl.int32)
    row = id // n_keys
    key = tl.where(half == 0, row, id - row * n_keys)
    book_size = found_slots * padded_tokens
    ordered_ptr += (half * n_heads + head).to(tl.int64) * book_size + token
    products_ptr += (head * 2 * RANKS + book).to(tl.int64) * SLOTS * padded_tokens + token
    chosen_ptr += (head * 2 * RANKS + book).to(tl.int64) * knn * all_tokens + token
    found = tl.zeros([BLOCK_T, BLOCK_G], tl.float32)
    for i in range(knn):
        candidate = tl.load(ordered_ptr + i * padded_tokens).to(tl.int32)
        product = tl.load(products_ptr + i * padded_tokens)
        found = tl.where(key == candidate, product, found)
    tl.store(chosen_ptr + slot.to(tl.int64) * all_tokens, found, mask=inside)
