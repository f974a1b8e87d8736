"""Gradients of product-key selection on a GPU.

Sums have a fixed order; numbers are split so that tensor cores keep them.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

WEIGHT_BYTES = 2**28
"""Most memory for the dense weights of a chunk of tokens."""
SCATTERED = 512
"""Slots that a program of `_scatter_weights` takes: with more, its threads put numbers away in
local memory."""


def gradients(
    grad: Float[Tensor, "tokens heads knn"],
    ids: Int[Tensor, "tokens heads knn"],
    query: Float[Tensor, "tokens heads key_dim"],
    sub_keys: Float[Tensor, "2 heads n_keys half_key_dim"],
    *,
    weight_bytes: int = WEIGHT_BYTES,
    product_type: tl.dtype = tl.bfloat16,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of query and sub-keys from those of the scores, by kernels.

    The sub-keys' is a product of query and dense weights (tokens, n_keys), of which each token
    fills in at most knn, a chunk of tokens at a time. Its factors are split into two numbers of
    `product_type`: bf16 keeps 16 bits then.
    """
    query = query if query.stride(-1) == 1 else query.contiguous()
    sub_keys = sub_keys if sub_keys.stride(-1) == 1 else sub_keys.contiguous()
    grad, ids = grad.contiguous(), ids.contiguous()
    return (
        _query_gradients(grad, ids, query, sub_keys),
        _key_gradients(grad, ids, query, sub_keys, weight_bytes, product_type),
    )


def _query_gradients(grad: Tensor, ids: Tensor, query: Tensor, sub_keys: Tensor) -> Tensor:
    n_tokens, n_heads, knn = ids.shape
    n_keys, width = sub_keys.shape[2:]
    padded = triton.next_power_of_2(max(16, width))
    out = torch.empty(query.shape, device=query.device, dtype=query.dtype)
    block = max(1, min(16, 4096 // padded))
    _query_gradient[(triton.cdiv(n_tokens, block), 2 * n_heads)](
        grad, ids, sub_keys, out, *sub_keys.stride()[:3], n_tokens, n_heads, n_keys, width, knn,
        BLOCK_T=block, BLOCK_D=padded, num_warps=4,
    )  # fmt: skip
    return out


def _key_gradients(
    grad: Tensor,
    ids: Tensor,
    query: Tensor,
    sub_keys: Tensor,
    weight_bytes: int,
    product_type: tl.dtype,
) -> Tensor:
    n_tokens, n_heads, knn = ids.shape
    n_keys, width = sub_keys.shape[2:]
    query_parts = 1 if query.dtype == torch.bfloat16 else 2
    block_tokens, block_keys = 64, 64
    block_width = min(128, triton.next_power_of_2(max(16, width)))
    chunk = max(1, weight_bytes // (2 * n_heads * n_keys * 4) // block_tokens) * block_tokens
    chunk = min(chunk, triton.cdiv(n_tokens, block_tokens) * block_tokens)
    tiles = triton.cdiv(n_keys, block_keys), triton.cdiv(width, block_width)
    # Few and small codebooks would leave multiprocessors idle, so tokens are shared out too, and
    # the sums added.
    shares = max(1, min(256 // (2 * n_heads * tiles[0] * tiles[1]), chunk // block_tokens, 16))
    weights = torch.empty(2 * n_heads, chunk, n_keys, device=query.device, dtype=torch.float32)
    sums = torch.zeros(shares, *sub_keys.shape, device=query.device, dtype=torch.float32)
    slots = triton.next_power_of_2(knn)
    scatter_block = SCATTERED // slots
    for start in range(0, n_tokens, chunk):
        tokens = min(chunk, n_tokens - start)
        weights.zero_()
        _scatter_weights[(triton.cdiv(tokens, scatter_block), n_heads)](
            grad[start:], ids[start:], weights, tokens, chunk, n_heads, n_keys, knn,
            SLOTS=slots, BLOCK_T=scatter_block, num_warps=4,
        )  # fmt: skip
        _key_gradient[(tiles[0] * tiles[1], 2 * n_heads, shares)](
            weights, query[start:], sums, query.stride(0), query.stride(1),
            tokens, chunk, n_heads, n_keys, width, tiles[1],
            QUERY_PARTS=query_parts, TYPE=product_type,
            BLOCK_T=block_tokens, BLOCK_N=block_keys, BLOCK_D=block_width, num_warps=4,
            num_stages=4 - query_parts,  # an fp32 query leaves registers for two
        )  # fmt: skip
    return sums.sum(0).to(sub_keys.dtype)


@triton.jit
def _query_gradient(
    grad_ptr,
    ids_ptr,
    sub_keys_ptr,
    grad_query_ptr,
    stride_half,
    stride_head,
    stride_key,
    n_tokens,
    n_heads,
    n_keys,
    width,
    knn,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    half = tl.program_id(1) // n_heads
    head = tl.program_id(1) % n_heads
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.arange(0, BLOCK_D)
    inside = token < n_tokens
    sub_keys_ptr += half.to(tl.int64) * stride_half + head.to(tl.int64) * stride_head
    at = (token.to(tl.int64) * n_heads + head) * knn
    total = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    for i in range(knn):
        slot = tl.load(ids_ptr + at + i, mask=inside, other=0).to(tl.int32)
        weight = tl.load(grad_ptr + at + i, mask=inside, other=0.0)
        left = slot // n_keys
        key = tl.where(half == 0, left, slot - left * n_keys)
        row = tl.load(
            sub_keys_ptr + key[:, None].to(tl.int64) * stride_key + column[None, :],
            mask=(column < width)[None, :],
            other=0.0,
        )
        total += weight[:, None] * row.to(tl.float32)
    to = (token[:, None].to(tl.int64) * n_heads + head) * (2 * width) + half * width
    tl.store(
        grad_query_ptr + to + column[None, :],
        total.to(grad_query_ptr.dtype.element_ty),
        mask=inside[:, None] & (column < width)[None, :],
    )


@triton.jit
def _scatter_weights(
    grad_ptr,
    ids_ptr,
    weights_ptr,
    n_tokens,
    padded_tokens,
    n_heads,
    n_keys,
    knn,
    SLOTS: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    head = tl.program_id(1)
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    rank = tl.arange(0, SLOTS)
    at = (token.to(tl.int64) * n_heads + head) * knn
    inside = (token < n_tokens)[:, None] & (rank < knn)[None, :]
    slot = tl.load(ids_ptr + at[:, None] + rank[None, :], mask=inside, other=0).to(tl.int32)
    left = slot // n_keys
    right = slot - left * n_keys
    left_sum = tl.zeros([BLOCK_T, SLOTS], tl.float32)
    right_sum = tl.zeros([BLOCK_T, SLOTS], tl.float32)
    # Slots share sub-keys. Each adds up all that share its own, and they then write the same
    # number.
    for i in range(knn):
        other = tl.load(ids_ptr + at + i, mask=token < n_tokens, other=0).to(tl.int32)
        weight = tl.load(grad_ptr + at + i, mask=token < n_tokens, other=0.0)[:, None]
        other_left = other // n_keys
        other_right = other - other_left * n_keys
        left_sum += tl.where(left == other_left[:, None], weight, 0.0)
        right_sum += tl.where(right == other_right[:, None], weight, 0.0)
    to_left = (head.to(tl.int64) * padded_tokens + token)[:, None] * n_keys + left
    to_right = ((n_heads + head).to(tl.int64) * padded_tokens + token)[:, None] * n_keys + right
    tl.store(weights_ptr + to_left, left_sum, mask=inside)
    tl.store(weights_ptr + to_right, right_sum, mask=inside)


@triton.jit
def _key_gradient(
    weights_ptr,
    query_ptr,
    sums_ptr,
    stride_token,
    stride_head,
    n_tokens,
    padded_tokens,
    n_heads,
    n_keys,
    width,
    tiles_d,
    QUERY_PARTS: tl.constexpr,
    TYPE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    book = tl.program_id(1).to(tl.int64)
    half = tl.program_id(1) // n_heads
    head = tl.program_id(1) % n_heads
    key = tl.program_id(0) // tiles_d * BLOCK_N + tl.arange(0, BLOCK_N)
    column = tl.program_id(0) % tiles_d * BLOCK_D + tl.arange(0, BLOCK_D)
    query_ptr += half * width + head.to(tl.int64) * stride_head
    weights_ptr += book * padded_tokens * n_keys
    share = tl.program_id(2).to(tl.int64)
    shares = tl.num_programs(2)
    to = (share * 2 * n_heads + book) * n_keys * width + key[:, None] * width + column[None, :]
    inside = (key < n_keys)[:, None] & (column < width)[None, :]
    total = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for start in range(tl.program_id(2) * BLOCK_T, n_tokens, shares * BLOCK_T):
        token = start + tl.arange(0, BLOCK_T)
        weights = tl.load(
            weights_ptr + token[:, None].to(tl.int64) * n_keys + key[None, :],
            mask=(token < n_tokens)[:, None] & (key < n_keys)[None, :],
            other=0.0,
        ).T
        query = tl.load(
            query_ptr + token[:, None].to(tl.int64) * stride_token + column[None, :],
            mask=(token < n_tokens)[:, None] & (column < width)[None, :],
            other=0.0,
        )
        high = weights.to(TYPE)
        low = (weights - high.to(tl.float32)).to(TYPE)
        query_high = query.to(TYPE)
        total = tl.dot(high, query_high, total, input_precision="ieee")
        total = tl.dot(low, query_high, total, input_precision="ieee")
        if QUERY_PARTS == 2:
            query_low = (query.to(tl.float32) - query_high.to(tl.float32)).to(TYPE)
            total = tl.dot(high, query_low, total, input_precision="ieee")
    # Loaded here and not before the loop, over which addresses would not fit the registers.
    total += tl.load(sums_ptr + to, mask=inside, other=0.0)
    tl.store(sums_ptr + to, total, mask=inside)
