"""Gradients of selection by Tucker-decomposed scores, in a fixed order.

They are of the chosen slots only. With S the products of a slot's sub-keys with the token's
queries, its score is the sum of `S[p] C[p, q] S[q]` over ranks p of the row and q of the column.
`_dense_weights` writes the gradients of S of each half, head and rank, a codebook, as rows of
n_keys weights, nearly all zero. The gradients of queries and sub-keys are then products that tensor
cores take, as those of product keys are (`product_key_topk/backward.py`).
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.product_key_topk.backward import added
from workloads.kernels.wide_product import wide_product

WEIGHT_BYTES = 2**28
"""Most memory for the dense weights of a chunk of tokens."""
COMPARED = 2**13
"""Pairs of slots that a program of `_dense_weights` compares at a time."""
KEY_PROGRAMS = 128
"""About as many blocks of 128 x 128 numbers as make a product fill an H100 or H200."""


def gradients(
    grad: Float[Tensor, "tokens heads knn"],
    ids: Int[Tensor, "tokens heads knn"],
    products: Float[Tensor, "heads books knn tokens"],
    query: Float[Tensor, "2 heads queries tokens half_key_dim"],
    sub_keys: Float[Tensor, "2 heads rank n_keys half_key_dim"],
    core: Float[Tensor, "heads rank rank"],
    *,
    weight_bytes: int = WEIGHT_BYTES,
    product_type: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, sub-keys and core from those of the scores, by kernels.

    Sums are fp32. Factors have the `product_type`: None is bf16 for a bf16 query, as autocast
    rounds them, and fp32 otherwise.
    """
    (n_tokens, n_heads, knn), (rank, n_keys, width) = ids.shape, sub_keys.shape[2:]
    kind = product_type or (query.dtype if query.dtype == torch.bfloat16 else torch.float32)
    # Ranks that share a query are one codebook to it.
    together = rank // query.shape[2]
    lines = 2 * n_heads * rank // together
    keys = sub_keys.to(kind).reshape(lines, together * n_keys, width)
    queries = query.to(kind).reshape(lines, n_tokens, width)
    query_grad = torch.empty_like(queries, memory_format=torch.contiguous_format)
    grad, ids, core = grad.contiguous(), ids.contiguous(), core.contiguous()
    slots = triton.next_power_of_2(knn)
    block = max(1, COMPARED // slots**2)
    chunk = max(1, weight_bytes // (2 * n_heads * rank * n_keys * keys.element_size()))
    key_grad: Tensor | None = None
    core_grad: Tensor | None = None
    for start in range(0, n_tokens, chunk):
        tokens = min(chunk, n_tokens - start)
        programs = triton.cdiv(tokens, block)
        weights = keys.new_empty(lines, tokens, together * n_keys)
        core_grads = core.new_empty(programs, *core.shape)
        _dense_weights[(programs, 2 * n_heads * rank)](
            grad[start:], ids[start:], products[..., start:], core, weights, core_grads,
            tokens, n_tokens, n_heads, n_keys, knn,
            RANK=rank, RANKS=products.shape[1] // 2, TOGETHER=together,
            SLOTS=slots, BLOCK_T=block, BLOCK_N=min(1024, triton.next_power_of_2(n_keys)),
            num_warps=4,
        )  # fmt: skip
        part = slice(start, start + tokens)
        torch.bmm(weights, keys, out=query_grad[:, part])
        key_grad = added(key_grad, _summed_over_tokens(weights, queries[:, part]))
        core_grad = added(core_grad, core_grads.sum(0))
    assert key_grad is not None, "there are tokens"
    assert core_grad is not None, "there are tokens"
    return (
        query_grad.view(query.shape).to(query.dtype),
        key_grad.view(sub_keys.shape).to(sub_keys.dtype),
        core_grad,
    )


def _summed_over_tokens(
    weights: Float[Tensor, "lines tokens keys"],
    queries: Float[Tensor, "lines tokens half_key_dim"],
) -> Float[Tensor, "lines keys half_key_dim"]:
    """Return the products of weights and queries, in fp32.

    Few and small codebooks would leave multiprocessors idle, so tokens are shared out, too.
    """
    lines, tokens, n_keys = weights.shape
    blocks = lines * triton.cdiv(n_keys, 128) * triton.cdiv(queries.shape[2], 128)
    shares = 1
    while 2 * shares * blocks <= KEY_PROGRAMS and tokens % (2 * shares) == 0:
        shares *= 2
    of_shares = wide_product(
        weights.reshape(lines * shares, tokens // shares, n_keys).mT,
        queries.reshape(lines * shares, tokens // shares, -1),
    )
    return of_shares.view(lines, shares, n_keys, -1).sum(1)


@triton.jit(do_not_specialize=["n_tokens"])
def _dense_weights(
    grad_ptr, ids_ptr, products_ptr, core_ptr, weights_ptr, core_grads_ptr,
    n_tokens, all_tokens, n_heads, n_keys, knn,
    RANK: tl.constexpr, RANKS: tl.constexpr, TOGETHER: tl.constexpr, SLOTS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Store the rows of weights of BLOCK_T tokens for one codebook.

    Rows of TOGETHER codebooks lie side by side. A codebook of rows stores the sums of its row of
    the core's gradient, too.
    """
    book = tl.program_id(1)
    half, head, own = book // (n_heads * RANK), book // RANK % n_heads, book % RANK
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)[:, None]
    slot = tl.arange(0, SLOTS)[None, :]
    inside = (token < n_tokens) & (slot < knn)
    at = (token.to(tl.int64) * n_heads + head) * knn + slot
    grad = tl.load(grad_ptr + at, mask=inside, other=0.0)
    chosen = tl.load(ids_ptr + at, mask=inside, other=0).to(tl.int32)
    row = chosen // n_keys
    key = tl.where(half == 0, row, chosen - row * n_keys)
    # Of one token and slot: products with all codebooks of a head, `book_size` apart.
    book_size = tl.cast(knn, tl.int64) * all_tokens
    products_ptr += head * 2 * RANKS * book_size + slot.to(tl.int64) * all_tokens + token
    own_product = tl.load(products_ptr + (half * RANKS + own) * book_size, mask=inside, other=0.0)
    core_ptr += head * RANK * RANK
    factor = tl.zeros([BLOCK_T, SLOTS], tl.float32)
    for other in tl.static_range(RANK):
        product = tl.load(
            products_ptr + ((1 - half) * RANKS + other) * book_size, mask=inside, other=0.0
        )
        place = tl.where(half == 0, own * RANK + other, other * RANK + own)
        factor += tl.load(core_ptr + place) * product
        if half == 0:
            to = (tl.program_id(0).to(tl.int64) * n_heads + head) * RANK * RANK + place
            tl.store(core_grads_ptr + to, tl.sum(tl.sum(grad * own_product * product, 1), 0))
    # Slots share sub-keys. Each adds up all that share its own, and they then write the same
    # number.
    weight = grad * factor
    same = key[:, :, None] == key[:, None, :]
    weight = tl.sum(tl.where(same, weight[:, None, :], 0.0), 2)
    line = (book // TOGETHER).to(tl.int64) * n_tokens + token
    rows_ptr = weights_ptr + (line * TOGETHER + book % TOGETHER) * n_keys
    kind = weights_ptr.dtype.element_ty
    nothing = tl.zeros([BLOCK_T, BLOCK_N], kind)
    for first in range(0, n_keys, BLOCK_N):
        column = first + tl.arange(0, BLOCK_N)[None, :]
        tl.store(rows_ptr + column, nothing, mask=(token < n_tokens) & (column < n_keys))
    tl.debug_barrier()  # other threads have stored these zeros
    tl.store(rows_ptr + key, weight.to(kind), mask=inside)
