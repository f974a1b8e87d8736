"""Gradients of product-key selection on a GPU, as products with dense weights.

A token's gradient reaches at most knn sub-keys of a half. Written out as a row of n_keys weights,
nearly all zero, it makes both gradients products that tensor cores take: of weights and sub-keys,
and of weights and queries. To gather the sub-keys of every token instead takes longer.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.wide_product import wide_product

WEIGHT_BYTES = 2**28
"""Most memory for the dense weights of a chunk of tokens."""
SCATTERED = 512
"""Slots that a program of `_dense_weights` takes: with more, its threads put numbers away in local
memory."""


def gradients(
    grad: Float[Tensor, "tokens heads knn"],
    ids: Int[Tensor, "tokens heads knn"],
    query: Float[Tensor, "tokens heads key_dim"],
    sub_keys: Float[Tensor, "2 heads n_keys half_key_dim"],
    *,
    weight_bytes: int = WEIGHT_BYTES,
    product_type: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of query and sub-keys from those of the scores, a chunk at a time.

    Sums are fp32. Factors have the `product_type`: None is bf16 for a bf16 query, as autocast
    rounds them, and fp32 otherwise.
    """
    (n_tokens, n_heads, knn), (n_keys, width) = ids.shape, sub_keys.shape[2:]
    kind = product_type or (query.dtype if query.dtype == torch.bfloat16 else torch.float32)
    books = 2 * n_heads  # the two halves of a head side by side, as in a query
    keys = sub_keys.transpose(0, 1).to(kind).reshape(books, n_keys, width)
    queries = query.to(kind).reshape(n_tokens, books, width).transpose(0, 1)
    query_grad = keys.new_empty(n_tokens, books, width)
    key_grad: Tensor | None = None
    chunk = max(1, weight_bytes // (books * n_keys * keys.element_size()))
    grad, ids = grad.contiguous(), ids.contiguous()
    slots = triton.next_power_of_2(knn)
    block = SCATTERED // slots
    for start in range(0, n_tokens, chunk):
        tokens = min(chunk, n_tokens - start)
        weights = keys.new_empty(books, tokens, n_keys)
        _dense_weights[(triton.cdiv(tokens, block), n_heads)](
            grad[start:], ids[start:], weights, tokens, n_heads, n_keys, knn,
            SLOTS=slots, BLOCK_T=block, BLOCK_N=min(1024, triton.next_power_of_2(n_keys)),
            num_warps=4,
        )  # fmt: skip
        part = slice(start, start + tokens)
        # Written where it belongs: a copy would take as long as the product.
        torch.bmm(weights, keys, out=query_grad[part].transpose(0, 1))
        key_grad = added(key_grad, wide_product(weights.mT, queries[:, part]))
    assert key_grad is not None, "there are tokens"
    key_grad = key_grad.view(n_heads, 2, n_keys, width).transpose(0, 1)
    return (
        query_grad.view(query.shape).to(query.dtype),
        key_grad.to(sub_keys.dtype).contiguous(),
    )


def added(total: Tensor | None, term: Tensor) -> Tensor:
    """Return `total` with `term` added in place; `term` itself where there is no total yet."""
    return term if total is None else total.add_(term)


@triton.jit
def _dense_weights(
    grad_ptr, ids_ptr, weights_ptr, n_tokens, n_heads, n_keys, knn,
    SLOTS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Store the rows of weights of some tokens for both halves of a head."""
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
    left_rows = weights_ptr + ((2 * head).to(tl.int64) * n_tokens + token)[:, None] * n_keys
    right_rows = weights_ptr + ((2 * head + 1).to(tl.int64) * n_tokens + token)[:, None] * n_keys
    kind = weights_ptr.dtype.element_ty
    for first in range(0, n_keys, BLOCK_N):
        key = first + tl.arange(0, BLOCK_N)[None, :]
        row = (token < n_tokens)[:, None] & (key < n_keys)
        nothing = tl.zeros([BLOCK_T, BLOCK_N], kind)
        tl.store(left_rows + key, nothing, mask=row)
        tl.store(right_rows + key, nothing, mask=row)
    tl.debug_barrier()  # other threads have stored these zeros
    tl.store(left_rows + left, left_sum.to(kind), mask=inside)
    tl.store(right_rows + right, right_sum.to(kind), mask=inside)
