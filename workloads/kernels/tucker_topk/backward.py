"""Gradients of selection by Tucker-decomposed scores: of the chosen slots only, in a fixed order.

With S the products of a slot's sub-keys with the token's queries, its score is the sum of
`S[p] C[p, q] S[q]` over ranks p of the row and q of the column. `_token_gradients` reads these
sub-keys once more and gives the gradients of the products, of the queries and of the core.
`_key_gradient` sums those of the sub-keys by tensor cores: dense weights of a tile of sub-keys and
tokens are made of the chosen in registers.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.product_key_topk.split_fp16 import parts_of
from workloads.kernels.tucker_topk.triton import (
    TOKEN_WARPS,
    SubKeyTile,
    key_rows,
    reading,
    stored_sub_keys,
)

TOKENS = 8
"""That a program of `_token_gradients` takes, one after another."""
KEY_TILE = (64, 64, 128)
"""Sub-keys, tokens and columns that a program of `_key_gradient` takes at a time."""
KEY_PROGRAMS = 264
"""Of `_key_gradient`: two on each multiprocessor of an H100 or H200."""
KEY_WARPS = 4


def gradients(
    grad: Float[Tensor, "tokens heads knn"],
    ids: Int[Tensor, "tokens heads knn"],
    products: Float[Tensor, "heads books knn tokens"],
    query: Float[Tensor, "2 heads queries tokens half_key_dim"],
    sub_keys: Float[Tensor, "2 heads rank n_keys half_key_dim"],
    core: Float[Tensor, "heads rank rank"],
    *,
    product_type: tl.dtype = tl.bfloat16,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, sub-keys and core from those of the scores, by kernels.

    The sub-keys' are products of weights split into two numbers of `product_type`: bf16 keeps 16
    bits then.
    """
    n_tokens, n_heads, knn = ids.shape
    rank, n_keys, width = sub_keys.shape[2:]
    shared = query.shape[2] < rank
    query = query if query.stride(-1) == 1 else query.contiguous()
    read = reading(sub_keys, query, triton.next_power_of_2(knn))
    keys, scales = stored_sub_keys(sub_keys, read)
    weights = torch.empty_like(products)
    key_ids = torch.empty(n_heads, 2, knn, n_tokens, device=query.device, dtype=torch.int32)
    query_grad = torch.empty(query.shape, device=query.device, dtype=query.dtype)
    programs = triton.cdiv(n_tokens, TOKENS)
    core_grads = torch.empty(
        programs, n_heads, rank, rank, device=query.device, dtype=torch.float32
    )
    _token_gradients[(programs, n_heads)](
        grad.contiguous(), ids.contiguous(), products, keys, scales, core.contiguous(),
        weights, key_ids, query_grad, core_grads,
        n_tokens, n_heads, n_keys, width, knn,
        RANK=rank, RANKS=read.ranks, SHARED=shared, KEY_PARTS=read.parts,
        SLOTS=read.slots, COLUMNS=read.columns, BLOCK_D=read.block, TOKENS=TOKENS,
        num_warps=TOKEN_WARPS,
    )  # fmt: skip
    key_grad = _key_gradients(weights, key_ids, query, sub_keys, read, product_type)
    return query_grad, key_grad, core_grads.sum(0)


def _key_gradients(
    weights: Float[Tensor, "heads books knn tokens"],
    key_ids: Int[Tensor, "heads 2 knn tokens"],
    query: Tensor,
    sub_keys: Tensor,
    read: SubKeyTile,
    product_type: tl.dtype,
) -> Tensor:
    _, n_heads, rank, n_keys, width = sub_keys.shape
    n_tokens = query.shape[3]
    block_keys, block_tokens, most_columns = KEY_TILE
    block_width = min(most_columns, triton.next_power_of_2(max(16, width)))
    tiles = triton.cdiv(n_keys, block_keys), triton.cdiv(width, block_width)
    books = 2 * n_heads * rank
    # Few and small codebooks would leave multiprocessors idle, so tokens are shared out too, and
    # the sums added.
    shares = KEY_PROGRAMS // (books * tiles[0] * tiles[1])
    shares = max(1, min(shares, triton.cdiv(n_tokens, block_tokens)))
    sums = torch.empty(shares, *sub_keys.shape, device=query.device, dtype=torch.float32)
    _key_gradient[(tiles[0] * tiles[1], books, shares)](
        weights, key_ids, query, sums, *query.stride()[:4],
        n_tokens, n_heads, n_keys, width, weights.shape[2], tiles[1],
        RANK=rank, RANKS=read.ranks, SHARED=query.shape[2] < rank,
        QUERY_PARTS=parts_of(query.dtype), TYPE=product_type,
        BLOCK_N=block_keys, BLOCK_T=block_tokens, BLOCK_D=block_width, num_warps=KEY_WARPS,
    )  # fmt: skip
    return sums.sum(0)


@triton.jit
def _token_gradients(
    grad_ptr, ids_ptr, products_ptr, keys_ptr, scales_ptr, core_ptr,
    weights_ptr, key_ids_ptr, query_grad_ptr, core_grads_ptr,
    n_tokens, n_heads, n_keys, width, knn,
    RANK: tl.constexpr, RANKS: tl.constexpr, SHARED: tl.constexpr, KEY_PARTS: tl.constexpr,
    SLOTS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_D: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Store the gradients of the products (`weights`), queries and core of TOKENS tokens."""
    head = tl.program_id(1)
    book = tl.arange(0, 2 * RANKS)
    half, rank = book // RANKS, tl.minimum(book % RANKS, RANK - 1)
    own_rank = book % RANKS < RANK
    slot = tl.arange(0, SLOTS)
    inside = own_rank[:, None] & (slot < knn)[None, :]
    next_part = 2 * n_heads * RANK * n_keys * COLUMNS
    of_book = (((head * 2 * RANKS + book) * knn)[:, None] + slot[None, :]).to(tl.int64) * n_tokens
    # What the product with one book is multiplied by in the score, of the products with all.
    of_row = (half == 0)[:, None]
    core_at = tl.where(of_row, rank[:, None] * RANK, rank[:, None])
    core_at += tl.where(of_row, rank[None, :], rank[None, :] * RANK)
    meet = (half[:, None] != half[None, :]) & own_rank[:, None] & own_rank[None, :]
    core = tl.load(core_ptr + head * RANK * RANK + core_at, mask=meet, other=0.0)
    core_grad = tl.zeros([2 * RANKS, 2 * RANKS], tl.float32)
    first = tl.program_id(0) * TOKENS
    for token in range(first, tl.minimum(first + TOKENS, n_tokens)):
        at = (tl.cast(token, tl.int64) * n_heads + head) * knn + slot
        grad = tl.load(grad_ptr + at, mask=slot < knn, other=0.0)[None, :]
        chosen = tl.load(ids_ptr + at, mask=slot < knn, other=0).to(tl.int32)
        left = chosen // n_keys
        key = tl.where(of_row, left[None, :], (chosen - left * n_keys)[None, :])
        row = ((half * n_heads + head) * RANK + rank)[:, None] * n_keys + key
        scale = tl.load(scales_ptr + row)
        products = tl.load(products_ptr + of_book + token, mask=inside, other=0.0)
        weights = grad * tl.sum(core[:, :, None] * products[None, :, :], 1)
        core_grad += tl.sum((grad * products)[:, None, :] * products[None, :, :], 2)
        tl.store(weights_ptr + of_book + token, weights, mask=inside)
        to = ((head * 2 + half) * knn)[:, None] + slot[None, :]
        of_half = inside & (book % RANKS == 0)[:, None]
        tl.store(key_ids_ptr + to.to(tl.int64) * n_tokens + token, key, mask=of_half)
        for start in range(0, COLUMNS, BLOCK_D):
            keys = key_rows(keys_ptr, row, start, next_part, KEY_PARTS, COLUMNS, BLOCK_D)
            total = tl.sum((weights * scale)[:, :, None] * keys, 1)  # [books, BLOCK_D]
            _store_query_gradient(
                query_grad_ptr, total, token, head, start, n_tokens, n_heads, width,
                RANK, RANKS, SHARED, BLOCK_D,
            )  # fmt: skip
    to = (tl.program_id(0).to(tl.int64) * n_heads + head) * RANK * RANK + core_at
    tl.store(core_grads_ptr + to, core_grad, mask=meet & of_row)


@triton.jit
def _store_query_gradient(
    query_grad_ptr, total, token, head, start, n_tokens, n_heads, width,
    RANK: tl.constexpr, RANKS: tl.constexpr, SHARED: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Store columns of the queries' gradient: of every rank, or its sum where they share one."""
    column = start + tl.arange(0, BLOCK_D)
    if SHARED:
        total = tl.sum(tl.reshape(total, [2, RANKS, BLOCK_D]), 1)
        half = tl.arange(0, 2)
        query = half.to(tl.int64) * n_heads + head
        inside = half < 2
    else:
        book = tl.arange(0, 2 * RANKS)
        query = ((book // RANKS).to(tl.int64) * n_heads + head) * RANK + book % RANKS
        inside = book % RANKS < RANK
    to = (query * n_tokens + token)[:, None] * width + column[None, :]
    tl.store(
        query_grad_ptr + to,
        total.to(query_grad_ptr.dtype.element_ty),
        mask=inside[:, None] & (column < width)[None, :],
    )


@triton.jit
def _key_gradient(
    weights_ptr, key_ids_ptr, query_ptr, sums_ptr,
    stride_half, stride_head, stride_query, stride_token,
    n_tokens, n_heads, n_keys, width, knn, tiles_d,
    RANK: tl.constexpr, RANKS: tl.constexpr, SHARED: tl.constexpr,
    QUERY_PARTS: tl.constexpr, TYPE: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of a tile of sub-keys over one share of the tokens."""
    book = tl.program_id(1)
    half, head, rank = book // (n_heads * RANK), book // RANK % n_heads, book % RANK
    key = tl.program_id(0) // tiles_d * BLOCK_N + tl.arange(0, BLOCK_N)
    column = tl.program_id(0) % tiles_d * BLOCK_D + tl.arange(0, BLOCK_D)
    query_ptr += half.to(tl.int64) * stride_half + head.to(tl.int64) * stride_head
    if not SHARED:
        query_ptr += rank.to(tl.int64) * stride_query
    weights_ptr += (head * 2 * RANKS + half * RANKS + rank).to(tl.int64) * knn * n_tokens
    key_ids_ptr += (head * 2 + half).to(tl.int64) * knn * n_tokens
    total = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for start in range(tl.program_id(2) * BLOCK_T, n_tokens, tl.num_programs(2) * BLOCK_T):
        token = start + tl.arange(0, BLOCK_T)
        inside = token < n_tokens
        query = tl.load(
            query_ptr + token[:, None].to(tl.int64) * stride_token + column[None, :],
            mask=inside[:, None] & (column < width)[None, :],
            other=0.0,
        )
        weights = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
        for i in range(knn):
            at = tl.cast(i, tl.int64) * n_tokens + token
            chosen = tl.load(key_ids_ptr + at, mask=inside, other=-1)
            weight = tl.load(weights_ptr + at, mask=inside, other=0.0)
            weights += tl.where(key[:, None] == chosen[None, :], weight[None, :], 0.0)
        high = weights.to(TYPE)
        low = (weights - high.to(tl.float32)).to(TYPE)
        query_high = query.to(TYPE)
        total = tl.dot(low, query_high, total, input_precision="ieee")
        if QUERY_PARTS == 2:
            query_low = (query.to(tl.float32) - query_high.to(tl.float32)).to(TYPE)
            total = tl.dot(high, query_low, total, input_precision="ieee")
        total = tl.dot(high, query_high, total, input_precision="ieee")
    row = (tl.program_id(2).to(tl.int64) * tl.num_programs(1) + book) * n_keys + key
    inside = (key < n_keys)[:, None] & (column < width)[None, :]
    tl.store(sums_ptr + row[:, None] * width + column[None, :], total, mask=inside)
