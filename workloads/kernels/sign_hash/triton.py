"""Sign hash in Triton: one pass over the numbers each way, in fp32."""

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from triton import language as tl

from workloads.kernels.sign_hash.reference import row_type


def forward(
    z: Float[Tensor, "tokens chunks bits"],
    *,
    temperature: float,
    times_l1: bool,
    by_chunk: bool = True,
) -> tuple[Int[Tensor, "tokens chunks"], Float[Tensor, "tokens chunks"]]:
    """Return `reference.forward`, stored chunk by chunk or, if not `by_chunk`, token by token."""
    n_tokens, n_chunks, bits = z.shape

    def empty(kind: torch.dtype) -> Tensor:
        if by_chunk:
            return z.new_empty(n_chunks, n_tokens, dtype=kind).T
        return z.new_empty(n_tokens, n_chunks, dtype=kind)

    rows, scores = empty(row_type(n_chunks, bits)), empty(torch.float32)
    if rows.numel():
        _forward[_grid(n_tokens, n_chunks)](
            z.contiguous(), rows, scores, n_tokens, n_chunks, *rows.stride(), 2 / temperature,
            TIMES_L1=times_l1, **_tile(bits),
        )  # fmt: skip
    return rows, scores


def backward(
    z: Float[Tensor, "tokens chunks bits"],
    grad: Float[Tensor, "tokens chunks"],
    *,
    temperature: float,
    times_l1: bool,
) -> Float[Tensor, "tokens chunks bits"]:
    """Return `reference.backward`; `grad` may have any strides."""
    n_tokens, n_chunks, bits = z.shape
    z_grad = torch.empty_like(z, memory_format=torch.contiguous_format)
    if z_grad.numel():
        _backward[_grid(n_tokens, n_chunks)](
            z.contiguous(), grad, z_grad, n_tokens, n_chunks, *grad.stride(), 2 / temperature,
            TIMES_L1=times_l1, **_tile(bits),
        )  # fmt: skip
    return z_grad


_TOKENS, _CHUNKS = 32, 16
"""Of one program: 32 tokens are a cache line of each chunk's scores, 16 chunks of 8 bits two or
four of z."""


def _grid(n_tokens: int, n_chunks: int) -> tuple[int, int]:
    return triton.cdiv(n_tokens, _TOKENS), triton.cdiv(n_chunks, _CHUNKS)


def _tile(bits: int) -> dict[str, int]:
    places = triton.next_power_of_2(bits)
    return {
        "BITS": bits,
        "PLACES": places,
        "TOKENS": _TOKENS,
        "CHUNKS": _CHUNKS,
        "num_warps": max(1, min(8, places // 2)),
    }


@triton.jit
def _product(a, b):
    return a * b


@triton.jit
def _chunks(
    z, n_tokens, n_chunks,
    BITS: tl.constexpr, PLACES: tl.constexpr, TOKENS: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Return this program's numbers, their offsets, and masks of existing chunks and places."""
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None]
    chunk = tl.program_id(1) * CHUNKS + tl.arange(0, CHUNKS)[None, :]
    place = tl.arange(0, PLACES)[None, None, :]
    live = (token < n_tokens) & (chunk < n_chunks)
    at = (token * n_chunks + chunk)[:, :, None] * BITS + place
    numbers = tl.load(z + at, mask=live[:, :, None] & (place < BITS), other=0.0)
    return numbers.to(tl.float32), at, token, chunk, live, place  # [TOKENS, CHUNKS, PLACES]


@triton.jit
def _rest(size, place, factor, BITS: tl.constexpr):
    """Return exp(-2 |z| / t), which is the other sign's probability over this one's.

    0 beyond the last bit.
    """
    return tl.where(place < BITS, tl.exp(-factor * size), 0.0)


@triton.jit
def code_and_score(numbers, place, factor, TIMES_L1: tl.constexpr, BITS: tl.constexpr):
    """Return code and score [a, b] of fp32 numbers [a, b, places], of which BITS exist."""
    # A NaN compares as negative, so whatever z holds, the row is one of the chunk's table.
    bit = tl.where((numbers >= 0) & (place < BITS), 1 << tl.maximum(BITS - 1 - place, 0), 0)
    size = tl.abs(numbers)
    # One division for all bits: their product is 2**BITS at most.
    score = 1.0 / tl.reduce(1.0 + _rest(size, place, factor, BITS), 2, _product)
    if TIMES_L1:
        score *= tl.sum(size, axis=2)
    return tl.sum(bit, axis=2), score


@triton.jit
def _forward(
    z, rows, scores, n_tokens, n_chunks, token_stride, chunk_stride, factor,
    TIMES_L1: tl.constexpr, BITS: tl.constexpr, PLACES: tl.constexpr,
    TOKENS: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    numbers, _, token, chunk, live, place = _chunks(
        z, n_tokens, n_chunks, BITS, PLACES, TOKENS, CHUNKS
    )
    code, score = code_and_score(numbers, place, factor, TIMES_L1, BITS)
    row = (chunk.to(rows.dtype.element_ty) << BITS) + code  # [TOKENS, CHUNKS]
    at = token * token_stride + chunk.to(tl.int64) * chunk_stride
    tl.store(rows + at, row, mask=live)
    tl.store(scores + at, score, mask=live)


@triton.jit
def _backward(
    z, grad, z_grad, n_tokens, n_chunks, token_stride, chunk_stride, factor,
    TIMES_L1: tl.constexpr, BITS: tl.constexpr, PLACES: tl.constexpr,
    TOKENS: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    numbers, at, token, chunk, live, place = _chunks(
        z, n_tokens, n_chunks, BITS, PLACES, TOKENS, CHUNKS
    )
    size = tl.abs(numbers)
    rest = _rest(size, place, factor, BITS)
    found = tl.load(
        grad + token * token_stride + chunk.to(tl.int64) * chunk_stride, mask=live, other=0.0
    )
    scale = found.to(tl.float32) / tl.reduce(1.0 + rest, 2, _product)
    slope = factor * rest / (1.0 + rest)
    if TIMES_L1:
        slope = slope * tl.sum(size, axis=2)[:, :, None] + 1.0
    sign = tl.where(numbers > 0, 1.0, tl.where(numbers < 0, -1.0, 0.0))
    tl.store(
        z_grad + at,
        (slope * sign * scale[:, :, None]).to(z_grad.dtype.element_ty),
        mask=live[:, :, None] & (place < BITS),
    )
