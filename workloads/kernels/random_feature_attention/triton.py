"""Performer's sums in Triton: features in one pass, and gradients that never leave a program.

The features `f(x) = exp(w . y - largest) + eps` of y = x / d_head^(1/4) are written once and summed
by the kernel of `linear_attention`, as is the gradient of values. The gradient of the features,
of which there are several times as many numbers as of queries and keys, is not written: with g the
gradient of the sums and e that of the sums of weights, the slopes

    of queries: s_t = sum over j <= t of (g_t . v_j + e_t) f(k_j)
    of keys:    s_j = sum over t >= j of (v_j . g_t + e_t) f(q_t)

become gradients within the program that sums them, by `s * (f(x) - eps)` and a product with w.

A program takes one head of a sequence, chunk after chunk. It makes the features of a chunk again,
which costs less than to read them. What the chunks before added up, a matrix of features x d_head,
stays in its registers in fp32. Features are the rows of all products: so two groups of warps have
half of them each, where with 64 rows each group would do all the work.
"""

import math
from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor
from triton import language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from workloads.kernels.linear_attention import triton as linear_attention

CHUNK = 32
"""Tokens of a chunk of the gradients: beside a state, slopes of 64 tokens spill."""
TOKENS = 64
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
    of_query, query_level = features(query, vectors, eps, are_keys=False)
    of_key, key_level = features(key, vectors, eps, are_keys=True)
    sums, weights = linear_attention.forward(of_query, of_key, value, weigh=True)
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
        linear_attention.mix(of_key, of_query, grad, query.shape[:-1], later=True),
    )


def features(
    x: Float[Tensor, "batch heads seq d_head"],
    vectors: Float[Tensor, "features d_head"],
    eps: float,
    *,
    are_keys: bool,
) -> tuple[Float[Tensor, "batch heads seq features"], Float[Tensor, "batch heads seq"]]:
    """Return the features of queries or keys in their type, and what was subtracted, in fp32.

    It is an exponent of 2.
    """
    (batch, heads, seq, width), n_features = x.shape, len(vectors)
    out = x.new_empty(batch, heads, seq, n_features)
    level = x.new_empty(batch, heads, seq, dtype=torch.float32)
    if out.numel():
        constants = padded(width, n_features)
        _features[(batch * heads, triton.cdiv(seq, TOKENS))](
            _tiles(_aligned(x), TOKENS), _whole(vectors, constants), out, level, heads, seq, eps,
            ARE_KEYS=are_keys, N_FEATURES=n_features, TOKENS=TOKENS, **constants, num_warps=4,
        )  # fmt: skip
    return out, level


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
    out = own[0].new_empty(batch, heads, seq, width)
    if out.numel():
        constants = padded(width, len(vectors))
        tiles = (_tiles(x, CHUNK) for x in (own[0], other[0], a, b, out))
        _input_gradient[(batch * heads,)](
            *tiles, _whole(vectors, constants), extra, own[1], other[1], heads, seq, eps,
            ARE_KEYS=are_keys, N_FEATURES=len(vectors), CHUNK=CHUNK, **constants,
            num_warps=8, num_stages=2,
        )  # fmt: skip
    return out


def padded(width: int, n_features: int) -> dict[str, Any]:
    """Return the factor of y = SCALE x, and the sizes of tiles."""
    return {
        "SCALE": width**-0.25,
        "D": max(32, triton.next_power_of_2(width)),
        "M": max(128, triton.next_power_of_2(n_features)),
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
    x, vectors, out, level, heads, seq, eps,
    ARE_KEYS: tl.constexpr, N_FEATURES: tl.constexpr, TOKENS: tl.constexpr, SCALE: tl.constexpr,
    D: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Store the features of some tokens of a head, and what was subtracted from the exponents."""
    pair, first = tl.program_id(0), tl.program_id(1) * TOKENS
    tokens = x.load([pair // heads, pair % heads, first, 0]).reshape(TOKENS, D)
    w = vectors.load([0, 0])
    exponent = tl.dot(tokens, tl.trans(w), input_precision="ieee") * (SCALE * _LOG2_E)
    col = tl.arange(0, M)[None, :]
    if ARE_KEYS:
        wide = tokens.to(tl.float32)
        largest = tl.sum(wide * wide, 1) * (SCALE * SCALE / 2 * _LOG2_E)
    elif N_FEATURES < M:
        largest = tl.max(tl.where(col < N_FEATURES, exponent, float("-inf")), 1)
    else:
        largest = tl.max(exponent, 1)
    found = (tl.exp2(exponent - largest[:, None]) + eps).to(out.dtype.element_ty)
    row = first + tl.arange(0, TOKENS)
    at = pair.to(tl.int64) * seq + row
    tl.store(level + at, largest, mask=row < seq)
    into = out + at[:, None] * N_FEATURES + col
    if N_FEATURES < M:
        tl.store(into, found, mask=(row < seq)[:, None] & (col < N_FEATURES))
    else:
        tl.store(into, found, mask=(row < seq)[:, None])


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
        slope = tl.dot(f, scores, slope, input_precision="ieee").to(kind)
        state = tl.dot(f, of_b, state, input_precision="ieee")
        of_x = x.load([batch, head, first, 0]).reshape(CHUNK, D)
        level = _numbers(x_level + numbers, first, seq, CHUNK)
        growth = slope.to(tl.float32) * _exponentials(of_x, w, level, SCALE, N_FEATURES)
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
