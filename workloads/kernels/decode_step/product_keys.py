"""Product-key selection for few tokens in Triton, with scores in memory.

After the scores it takes one program per head. The kernels of `product_key_topk` never store a
score, which pays for many tokens and takes five launches. Of few tokens the scores are small, and
two launches find the rows and their weights.
"""

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from triton import language as tl

from workloads.kernels.decode_step import reference
from workloads.kernels.product_key_topk.bitonic_sort import (
    LARGEST_ID,
    id_of,
    pack_score_id,
    score_of,
)

MAX_KEYS = 2048
"""Of a half: a program holds all scores of both halves."""
MAX_KNN = 32
"""And all pairs of the best of them."""


def applies(n_keys: int, knn: int) -> bool:
    """Whether a program can hold the scores and the pairs."""
    return knn <= min(n_keys, MAX_KNN) and n_keys <= MAX_KEYS and n_keys**2 <= LARGEST_ID.value


def choose(
    query: Float[Tensor, "tokens columns"],
    sub_keys: Float[Tensor, "2 heads n_keys half_key_dim"],
    knn: int,
    *,
    normalise: bool = False,
) -> tuple[Int[Tensor, "tokens rows"], Float[Tensor, "tokens rows"]]:
    """Return the rows that each token reads, best first in every head, and their softmax weights.

    The choice is that of `product_key_topk.reference`; the softmax is over a head's rows. With
    `normalise` both halves of a query are brought to length 1 first.
    """
    tokens, (_, heads, n_keys, half) = len(query), sub_keys.shape
    if not applies(n_keys, knn):
        return reference.choose(query, sub_keys, knn, normalise=normalise)
    scores = torch.empty(tokens, 2, heads, n_keys, dtype=torch.float32, device=query.device)
    block = 16 if tokens <= 16 else 64
    _scores[(2 * heads, triton.cdiv(n_keys, 64), triton.cdiv(tokens, block))](
        query, sub_keys, scores, tokens, n_keys, half,
        HEADS=heads, KEYS=64, TOKENS=block, WIDTH=max(16, triton.next_power_of_2(half)),
        NORMALISE=normalise, num_warps=4,
    )  # fmt: skip
    ids = torch.empty(tokens, heads * knn, dtype=torch.int64, device=query.device)
    weights = torch.empty(tokens, heads * knn, dtype=torch.float32, device=query.device)
    _choose[(tokens * heads,)](
        scores, ids, weights, n_keys, knn,
        HEADS=heads, KEYS=triton.next_power_of_2(n_keys), BEST=triton.next_power_of_2(knn),
        num_warps=4,
    )  # fmt: skip
    return ids, weights


@triton.jit
def _scores(
    query, sub_keys, scores, tokens, n_keys, half,
    HEADS: tl.constexpr, KEYS: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
    NORMALISE: tl.constexpr,
):  # fmt: skip
    """Products of tokens and keys of one codebook: side 0 or 1 of a head."""
    book = tl.program_id(0)
    side, head = book // HEADS, book % HEADS
    key = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    token = (tl.program_id(2) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < half
    k_at = sub_keys + (book * n_keys + key)[:, None] * half + column[None, :]
    k = tl.load(k_at, mask=(key < n_keys)[:, None] & inside[None, :], other=0.0)
    q_at = query + ((token * HEADS + head) * 2 + side)[None, :] * half + column[:, None]
    q = tl.load(q_at, mask=(token < tokens)[None, :] & inside[:, None], other=0.0)
    found = tl.dot(k, q.to(k.dtype), input_precision="ieee")  # [KEYS, TOKENS]
    if NORMALISE:  # afterwards: a query of length 1 would be rounded once more
        wide = q.to(tl.float32)
        found = found / tl.maximum(tl.sqrt(tl.sum(wide * wide, 0)), 1e-12)[None, :]
    to = scores + (token * 2 * HEADS + book)[None, :] * n_keys + key[:, None]
    tl.store(to, found, mask=(key < n_keys)[:, None] & (token < tokens)[None, :])


@triton.jit
def _choose(
    scores, ids, weights, n_keys, knn,
    HEADS: tl.constexpr, KEYS: tl.constexpr, BEST: tl.constexpr,
):  # fmt: skip
    """The best of both halves one after another, then the best of their pairs."""
    token = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    side = tl.arange(0, 2)[:, None]
    key = tl.arange(0, KEYS)[None, :]
    inside = (key < n_keys) & (side < 2)
    score = tl.load(scores + ((token * 2 + side) * HEADS + head) * n_keys + key, mask=inside)
    left_over = tl.where(inside, pack_score_id(score, key), 0.0)
    rank = tl.arange(0, BEST)
    best = tl.zeros([2, BEST], tl.float64)
    for place in range(knn):
        top = tl.max(left_over, 1)[:, None]
        best = tl.where(rank[None, :] == place, top, best)
        left_over = tl.where(left_over == top, 0.0, left_over)
    left, right = tl.split(tl.trans(best))
    live = (rank < knn)[:, None] & (rank < knn)[None, :]
    slot = id_of(left)[:, None] * n_keys + id_of(right)[None, :]
    pairs = pack_score_id(score_of(left)[:, None] + score_of(right)[None, :], slot)
    # Of ranks i and j, from 1, i * j - 1 other pairs are at least as good.
    able = live & ((rank + 1)[:, None] * (rank + 1)[None, :] <= knn)
    pairs = tl.where(able, pairs, 0.0)
    chosen = tl.zeros([BEST], tl.float64)
    for place in range(knn):
        top = tl.max(tl.max(pairs, 1), 0)
        chosen = tl.where(rank == place, top, chosen)
        pairs = tl.where(pairs == top, 0.0, pairs)
    value = tl.where(rank < knn, score_of(chosen), -float("inf"))
    weight = tl.exp(value - tl.max(value, 0))
    weight = weight / tl.sum(weight, 0)
    to = (token * HEADS + head) * knn + rank
    tl.store(ids + to, id_of(chosen), mask=rank < knn)
    tl.store(weights + to, weight, mask=rank < knn)
