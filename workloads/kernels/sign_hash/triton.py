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
    rows, scores = empty_rows_and_scores(z, by_chunk=by_chunk)
    write(z, rows, scores, temperature=temperature, times_l1=times_l1)
    return rows, scores


def empty_rows_and_scores(
    z: Float[Tensor, "tokens chunks bits"], *, by_chunk: bool = True
) -> tuple[Int[Tensor, "tokens chunks"], Float[Tensor, "tokens chunks"]]:
    """Return open rows and scores of the types that `write` wants."""
    n_tokens, n_chunks, bits = z.shape

    def empty(kind: torch.dtype) -> Tensor:
        if by_chunk:
            return z.new_empty(n_chunks, n_tokens, dtype=kind).T
        return z.new_empty(n_tokens, n_chunks, dtype=kind)

    return empty(row_type(n_chunks, bits)), empty(torch.float32)


def write(
    z: Float[Tensor, "tokens chunks bits"],
    rows: Int[Tensor, "tokens chunks"] | None = None,
    scores: Float[Tensor, "tokens chunks"] | None = None,
    one_hot: Float[Tensor, "tokens rows"] | None = None,
    *,
    temperature: float,
    times_l1: bool,
) -> None:
    """Write what is not None of rows and scores (both or neither) and of the one-hot matrix.

    Args:
        z: As in the reference.
        rows: Of any strides.
        scores: Of the same strides.
        one_hot: A token's scores in the columns of its rows, and 0 elsewhere. Contiguous.
        temperature: As in the reference.
        times_l1: As in the reference.
    """
    n_tokens, n_chunks, bits = z.shape
    if z.numel():
        tile = _tile(bits) if one_hot is None else _matrix_tile(bits)
        strides = (0, 0) if rows is None else rows.stride()
        _forward[_grid(n_tokens, n_chunks, tile)](
            z.contiguous(), rows, scores, one_hot, n_tokens, n_chunks, *strides, 2 / temperature,
            TIMES_L1=times_l1, **tile,
        )  # fmt: skip


def backward(
    z: Float[Tensor, "tokens chunks bits"],
    grad: Float[Tensor, "tokens chunks"] | Float[Tensor, "tokens chunks codes"],
    *,
    temperature: float,
    times_l1: bool,
    out: Float[Tensor, "tokens chunks bits"] | None = None,
) -> Float[Tensor, "tokens chunks bits"]:
    """Return `reference.backward`; `grad` may have any strides.

    Args:
        z: As in the reference.
        grad: As in the reference; or of the scores that every row of a chunk would have had, of
            which that of the row read counts.
        temperature: As in the reference.
        times_l1: As in the reference.
        out: Where to write it, contiguous; None: in a new tensor.
    """
    n_tokens, n_chunks, bits = z.shape
    z_grad = torch.empty_like(z, memory_format=torch.contiguous_format) if out is None else out
    if z_grad.numel():
        per_code = grad.dim() == 3
        tile = _matrix_tile(bits) if per_code else _tile(bits)
        _backward[_grid(n_tokens, n_chunks, tile)](
            z.contiguous(), grad, z_grad, n_tokens, n_chunks, *grad.stride()[:2],
            grad.stride(-1) if per_code else 0, 2 / temperature,
            TIMES_L1=times_l1, PER_CODE=per_code, **tile,
        )  # fmt: skip
    return z_grad


_TOKENS, _CHUNKS = 32, 16
"""Of one program: 32 tokens are a cache line of each chunk's scores, 16 chunks of 8 bits two or
four of z."""
_MATRIX_TOKENS = 16
"""Of one program that writes or reads 2**bits numbers of each chunk."""


def _grid(n_tokens: int, n_chunks: int, tile: dict[str, int]) -> tuple[int, int]:
    return triton.cdiv(n_tokens, tile["TOKENS"]), triton.cdiv(n_chunks, tile["CHUNKS"])


def _tile(bits: int) -> dict[str, int]:
    places = triton.next_power_of_2(bits)
    return {
        "BITS": bits,
        "PLACES": places,
        "TOKENS": _TOKENS,
        "CHUNKS": _CHUNKS,
        "num_warps": max(1, min(8, places // 2)),
    }


def _matrix_tile(bits: int) -> dict[str, int]:
    """Return the tile of programs that write or read 2**bits numbers of each chunk."""
    return {**_tile(bits), "TOKENS": _MATRIX_TOKENS, "num_warps": 4}


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
    size = tl.abs(numbers)
    # One division for all bits: their product is 2**BITS at most.
    score = 1.0 / tl.reduce(1.0 + _rest(size, place, factor, BITS), 2, _product)
    if TIMES_L1:
        score *= tl.sum(size, axis=2)
    return _code(numbers, place, BITS), score


@triton.jit
def _code(numbers, place, BITS: tl.constexpr):
    # A NaN compares as negative, so whatever z holds, the row is one of the chunk's table.
    bit = tl.where((numbers >= 0) & (place < BITS), 1 << tl.maximum(BITS - 1 - place, 0), 0)
    return tl.sum(bit, axis=2)


@triton.jit
def _forward(
    z, rows, scores, one_hot, n_tokens, n_chunks, token_stride, chunk_stride, factor,
    TIMES_L1: tl.constexpr, BITS: tl.constexpr, PLACES: tl.constexpr,
    TOKENS: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    numbers, _, token, chunk, live, place = _chunks(
        z, n_tokens, n_chunks, BITS, PLACES, TOKENS, CHUNKS
    )
    code, score = code_and_score(numbers, place, factor, TIMES_L1, BITS)
    if rows is not None:
        row = (chunk.to(rows.dtype.element_ty) << BITS) + code  # [TOKENS, CHUNKS]
        at = token * token_stride + chunk.to(tl.int64) * chunk_stride
        tl.store(rows + at, row, mask=live)
        tl.store(scores + at, score, mask=live)
    if one_hot is not None:
        every = tl.arange(0, 1 << BITS)[None, None, :]
        hot = tl.where(code[:, :, None] == every, score[:, :, None], 0.0)
        at = ((token * n_chunks + chunk) << BITS)[:, :, None] + every
        tl.store(one_hot + at, hot.to(one_hot.dtype.element_ty), mask=live[:, :, None])


@triton.jit
def _backward(
    z, grad, z_grad, n_tokens, n_chunks, token_stride, chunk_stride, code_stride, factor,
    TIMES_L1: tl.constexpr, PER_CODE: tl.constexpr, BITS: tl.constexpr, PLACES: tl.constexpr,
    TOKENS: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    numbers, at, token, chunk, live, place = _chunks(
        z, n_tokens, n_chunks, BITS, PLACES, TOKENS, CHUNKS
    )
    size = tl.abs(numbers)
    rest = _rest(size, place, factor, BITS)
    of_score = token * token_stride + chunk.to(tl.int64) * chunk_stride
    if PER_CODE:
        of_score += _code(numbers, place, BITS) * code_stride
    found = tl.load(grad + of_score, mask=live, other=0.0)
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
