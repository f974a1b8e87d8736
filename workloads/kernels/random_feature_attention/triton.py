"""Performer's sums in Triton, with feature gradients that are never stored.

The features `f(x) = exp(w . y - largest) + eps` of y = x / d_head^(1/4) are written once. Their
sums, and likewise the gradient of values, are

    o_t = sum over j <= t of (f(q_t) . f(k_j)) v_j

The gradient of the features, of which there are several times as many numbers as of queries and
keys, is not written: with g the gradient of the sums and e that of the sums of weights, the slopes

    of queries: s_t = sum over j <= t of (g_t . v_j + e_t) f(k_j)
    of keys:    s_j = sum over t >= j of (v_j . g_t + e_t) f(q_t)

become gradients within the program that sums them, by `s * (f(x) - eps)` and a product with w.

A program takes one head of a sequence, chunk after chunk. What the chunks before added up, a matrix
of features x d_head, stays in its registers in fp32. For the gradients it makes the features of a
chunk again, which costs less than to read them, as the rows of all products: so two groups of warps
have half of them each, where with few rows each group would do all the work.
"""

import math
from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor
from triton import language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from workloads.kernels.random_feature_attention.memory_layout import (
    empty_by_token,
    padded_features,
)

GRADIENT_CHUNK = 32
"""Tokens of a chunk of the gradients: beside a state, slopes of 64 tokens spill."""
SUMS_CHUNK = 64
"""Tokens of a chunk of the sums."""
FEATURE_TOKENS = 32
"""Whose features a program makes."""


def forward(
    query: Float[Tensor, "batch heads seq d_head"],
    key: Float[Tensor, "batch heads seq d_head"],
    value: Float[Tensor, "batch heads seq d_head"],
    vectors: Float[Tensor, "features d_head"],
    eps: float,
) -> tuple[Tensor, ...]:
    """Return the sums and those of the weights, and what `backward` needs.

    Features of queries and of keys, and what was subtracted from the exponents of both.
    """
    batch, heads, seq, _ = query.shape
    n_chunks, columns = triton.cdiv(seq, FEATURE_TOKENS), padded_features(len(vectors))
    totals = query.new_empty(batch, heads, n_chunks, columns, dtype=torch.float32)
    weights = query.new_empty(batch, heads, seq, dtype=torch.float32)
    of_key, key_level = features(key, vectors, eps, totals, None)
    of_query, query_level = features(query, vectors, eps, totals, weights)
    sums = sum_up(of_query, of_key, value, weights)
    return sums, weights, of_query, of_key, query_level, key_level


def backward(
    query: Float[Tensor, "batch heads seq d_head"],
    key: Float[Tensor, "batch heads seq d_head"],
    value: Float[Tensor, "batch heads seq d_head"],
    vectors: Float[Tensor, "features d_head"],
    eps: float,
    of_query: Float[Tensor, "batch heads seq features"],
    of_key: Float[Tensor, "batch heads seq features"],
    query_level: Float[Tensor, "batch heads seq"],
    key_level: Float[Tensor, "batch heads seq"],
    grad: Float[Tensor, "batch heads seq d_head"],
    weights_grad: Float[Tensor, "batch heads seq"],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value."""
    grad, extra = _aligned(grad), weights_grad.contiguous()
    queries, keys = (_aligned(query), query_level), (_aligned(key), key_level)
    value = _aligned(value)
    return (
        _gradient(queries, keys, grad, value, vectors, extra, eps, are_keys=False),
        _gradient(keys, queries, value, grad, vectors, extra, eps, are_keys=True),
        sum_up(of_key, of_query, grad, None),
    )


def features(
    x: Float[Tensor, "batch heads seq d_head"],
    vectors: Float[Tensor, "features d_head"],
    eps: float,
    totals: Float[Tensor, "batch heads chunks columns"],
    weights: Float[Tensor, "batch heads seq"] | None,
) -> tuple[Float[Tensor, "batch heads seq columns"], Float[Tensor, "batch heads seq"]]:
    """Return features, with columns of zeros, and what was subtracted, in fp32.

    The latter is an exponent of 2.

    Args:
        x: Keys, or, with `weights`, queries.
        vectors: The random vectors.
        eps: Added to each feature.
        totals: The sums of the features of each `FEATURE_TOKENS` keys: written with keys, read with
            queries.
        weights: Where the products of queries with the totals of all earlier chunks of the sums go.
    """
    (batch, heads, seq, width), n_features = x.shape, len(vectors)
    out = x.new_empty(batch, heads, seq, totals.shape[-1])
    level = x.new_empty(batch, heads, seq, dtype=torch.float32)
    if out.numel():
        constants = padded(width, n_features)
        _features[(batch * heads, triton.cdiv(seq, FEATURE_TOKENS))](
            _tiles(_aligned(x), FEATURE_TOKENS), _whole(vectors, constants), out, level, totals,
            level if weights is None else weights, heads, seq, eps,
            ARE_KEYS=weights is None, N_FEATURES=n_features, TOKENS=FEATURE_TOKENS,
            IN_CHUNK=SUMS_CHUNK // FEATURE_TOKENS, **constants, num_warps=4,
        )  # fmt: skip
    return out, level


def sum_up(
    a: Float[Tensor, "batch heads seq columns"],
    b: Float[Tensor, "batch heads seq columns"],
    c: Float[Tensor, "batch heads seq d_head"],
    weights: Float[Tensor, "batch heads seq"] | None,
) -> Float[Tensor, "batch heads seq d_head"]:
    """Return `sum of (a_t . b_j) c_j` over j <= t; without `weights` over j >= t.

    To `weights` are added those of a chunk itself.
    """
    batch, heads, seq, width = c.shape
    out = empty_by_token(c)
    if out.numel():
        _sums[(batch * heads,)](
            *(_tiles(x, SUMS_CHUNK) for x in (a, b, _aligned(c), out)),
            out if weights is None else weights, heads, seq,
            LATER=weights is None, CHUNK=SUMS_CHUNK, D=padded(width, 1)["D"], M=a.shape[-1],
            num_warps=4, num_stages=2,
        )  # fmt: skip
    return out


def _gradient(
    own: tuple[Tensor, Tensor],
    other: tuple[Tensor, Tensor],
    a: Tensor,
    b: Tensor,
    vectors: Tensor,
    extra: Tensor,
    eps: float,
    *,
    are_keys: bool,
) -> Tensor:
    """Return the gradient of queries or keys, whose slopes are sums of `(a . b + e) f(other)`."""
    batch, heads, seq, width = own[0].shape
    out = empty_by_token(own[0])
    if out.numel():
        constants = padded(width, len(vectors))
        tiles = (_tiles(x, GRADIENT_CHUNK) for x in (own[0], other[0], a, b, out))
        _input_gradient[(batch * heads,)](
            *tiles, _whole(vectors, constants), extra, own[1], other[1], heads, seq, eps,
            ARE_KEYS=are_keys, N_FEATURES=len(vectors), CHUNK=GRADIENT_CHUNK, **constants,
            num_warps=8, num_stages=3,
        )  # fmt: skip
    return out


def padded(width: int, n_features: int) -> dict[str, Any]:
    """Return the factor of y = SCALE x, and the sizes of tiles."""
    return {
        "SCALE": width**-0.25,
        "D": max(32, triton.next_power_of_2(width)),
        "M": padded_features(n_features),
    }


def _aligned(x: Float[Tensor, "batch heads seq d_head"]) -> Tensor:
    """Return `x` as the copy engine wants it: rows of side by side numbers, at 16 bytes each."""
    steps = [step * x.element_size() % 16 for step in x.stride()[:-1]]
    return x if x.stride(-1) == 1 and not any(steps) and not x.data_ptr() % 16 else x.contiguous()


def _tiles(x: Float[Tensor, "batch heads seq d_head"], tokens: int) -> TensorDescriptor:
    columns = max(32, triton.next_power_of_2(x.shape[-1]))
    return TensorDescriptor.from_tensor(x, [1, 1, tokens, columns])


def _whole(vectors: Tensor, constants: dict[str, Any]) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(vectors.contiguous(), [constants["M"], constants["D"]])


_LOG2_E = tl.constexpr(math.log2(math.e))


@triton.jit
def _features(
    x, vectors, out, level, totals, weights, heads, seq, eps,
    ARE_KEYS: tl.constexpr, N_FEATURES: tl.constexpr, TOKENS: tl.constexpr,
    IN_CHUNK: tl.constexpr, SCALE: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Store the features of some tokens of a head, and what was subtracted from the exponents."""
    pair, chunk = tl.program_id(0), tl.program_id(1)
    first = chunk * TOKENS
    tokens = x.load([pair // heads, pair % heads, first, 0]).reshape(TOKENS, D)
    w = vectors.load([0, 0])
    exponent = tl.dot(tokens, tl.trans(w), input_precision="ieee") * (SCALE * _LOG2_E)
    col = tl.arange(0, M)
    if N_FEATURES < M:
        exponent = tl.where((col < N_FEATURES)[None, :], exponent, float("-inf"))
    if ARE_KEYS:
        wide = tokens.to(tl.float32)
        largest = tl.sum(wide * wide, 1) * (SCALE * SCALE / 2 * _LOG2_E)
    else:
        largest = tl.max(exponent, 1)
    found = tl.exp2(exponent - largest[:, None]) + tl.where(col < N_FEATURES, eps, 0.0)[None, :]
    found = found.to(out.dtype.element_ty)
    row = first + tl.arange(0, TOKENS)
    at = pair.to(tl.int64) * seq + row
    tl.store(level + at, largest, mask=row < seq)
    tl.store(out + at[:, None] * M + col[None, :], found, mask=(row < seq)[:, None])
    totals += pair.to(tl.int64) * tl.num_programs(1) * M + col
    if ARE_KEYS:
        tl.store(totals + chunk * M, tl.sum(found.to(tl.float32), 0))
    else:
        before = tl.zeros([M], tl.float32)
        for earlier in range(chunk // IN_CHUNK * IN_CHUNK):
            before += tl.load(totals + earlier * M)
        read = tl.sum(found.to(tl.float32) * before[None, :], 1)
        tl.store(weights + at, read, mask=row < seq)


@triton.jit
def _sums(
    a, b, c, out, weights, heads, seq,
    LATER: tl.constexpr, CHUNK: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Store the sums of one head of a sequence."""
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    weights += tl.program_id(0).to(tl.int64) * seq
    place = tl.arange(0, CHUNK)
    seen = place[:, None] <= place[None, :] if LATER else place[:, None] >= place[None, :]
    state = tl.zeros([M, D], tl.float32)
    n_chunks = tl.cdiv(seq, CHUNK)
    for number in range(n_chunks):
        first = (n_chunks - 1 - number if LATER else number) * CHUNK
        of_a = a.load([batch, head, first, 0]).reshape(CHUNK, M)
        of_b = b.load([batch, head, first, 0]).reshape(CHUNK, M)
        of_c = c.load([batch, head, first, 0]).reshape(CHUNK, D)
        kind = of_a.dtype
        scores = tl.dot(of_a, tl.trans(of_b), input_precision="ieee")
        scores = tl.where(seen, scores, 0.0).to(kind)
        if not LATER:
            read = _numbers(weights, first, seq, CHUNK) + tl.sum(scores.to(tl.float32), 1)
            tl.store(weights + first + place, read, mask=first + place < seq)
        mixed = tl.dot(of_a, state.to(kind), input_precision="ieee")
        mixed = tl.dot(scores, of_c, mixed, input_precision="ieee")
        out.store([batch, head, first, 0], mixed.to(kind).reshape(1, 1, CHUNK, D))
        state = tl.dot(tl.trans(of_b), of_c, state, input_precision="ieee")


@triton.jit
def _input_gradient(
    x, other, a, b, out, vectors, extra, x_level, other_level, heads, seq, eps,
    ARE_KEYS: tl.constexpr, N_FEATURES: tl.constexpr, CHUNK: tl.constexpr, SCALE: tl.constexpr,
    D: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Store the gradient of a head's queries, or, from the last chunk to the first, of its keys."""
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    numbers = tl.program_id(0).to(tl.int64) * seq
    place = tl.arange(0, CHUNK)
    seen = place[:, None] >= place[None, :] if ARE_KEYS else place[:, None] <= place[None, :]
    w = vectors.load([0, 0])
    kind = w.dtype
    state = tl.zeros([M, D], tl.float32)
    total = tl.zeros([M], tl.float32)
    n_chunks = tl.cdiv(seq, CHUNK)
    for number in range(n_chunks):
        first = (n_chunks - 1 - number if ARE_KEYS else number) * CHUNK
        of_other = other.load([batch, head, first, 0]).reshape(CHUNK, D)
        of_a = a.load([batch, head, first, 0]).reshape(CHUNK, D)
        of_b = b.load([batch, head, first, 0]).reshape(CHUNK, D)
        column = _numbers(extra + numbers, first, seq, CHUNK)
        scores = tl.dot(of_b, tl.trans(of_a), input_precision="ieee")
        scores += column[:, None] if ARE_KEYS else column[None, :]
        scores = tl.where(seen, scores, 0.0).to(kind)
        level = _numbers(other_level + numbers, first, seq, CHUNK)
        f = (_exponentials(of_other, w, level, SCALE, N_FEATURES) + eps).to(kind)
        slope = tl.dot(state.to(kind), tl.trans(of_a), input_precision="ieee")
        if ARE_KEYS:
            slope += total[:, None]
            total += tl.sum(f.to(tl.float32) * column[None, :], 1)
        else:
            slope += total[:, None] * column[None, :]
            total += tl.sum(f.to(tl.float32), 1)
        slope = tl.dot(f, scores, slope, input_precision="ieee")
        state = tl.dot(f, of_b, state, input_precision="ieee")
        of_x = x.load([batch, head, first, 0]).reshape(CHUNK, D)
        level = _numbers(x_level + numbers, first, seq, CHUNK)
        growth = slope * _exponentials(of_x, w, level, SCALE, N_FEATURES)
        found = tl.dot(tl.trans(w), growth.to(kind), input_precision="ieee") * SCALE
        found = tl.trans(found)
        if ARE_KEYS:
            found -= tl.sum(growth, 0)[:, None] * of_x.to(tl.float32) * (SCALE * SCALE)
        out.store([batch, head, first, 0], found.to(kind).reshape(1, 1, CHUNK, D))


@triton.jit
def _numbers(x, first, seq, CHUNK: tl.constexpr):
    """Return a number for each token of a chunk, zero beyond the last."""
    at = first + tl.arange(0, CHUNK)
    return tl.load(x + at, mask=at < seq, other=0.0)


@triton.jit
def _exponentials(x, w, level, SCALE: tl.constexpr, N_FEATURES: tl.constexpr):
    """Return the features of a chunk without eps, [features, tokens]."""
    exponent = tl.dot(w, tl.trans(x), input_precision="ieee") * (SCALE * _LOG2_E)
    if w.shape[0] > N_FEATURES:
        real = (tl.arange(0, w.shape[0]) < N_FEATURES)[:, None]
        exponent = tl.where(real, exponent, float("-inf"))
    return tl.exp2(exponent - level[None, :])
