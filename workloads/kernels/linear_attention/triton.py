"""Causal linear attention in Triton: one kernel for output and gradients.

Its three other calls are the gradients. `mix(a, b, c)_t = sum over j <= t of (a_t . b_j) c_j` is
the output for query, key and value. With g the output's gradient, and `later` for the same sum over
j >= t:

    d_query = mix(g, value, key), d_key = later(value, g, query), d_value = later(key, query, g)

A program takes one head of a sequence and a block of c's columns, chunk after chunk. The state
`sum of b_j c_j^T` of the chunks before stays in its registers, in fp32; neither it nor scores are
written to memory. Sums of weights, the denominator of normalised attention, are the output of a c
of ones. As a column of its own it would double the width, which is a power of two, so it is summed
beside the others; the same holds for its gradient, a column of g beside a column of ones in value.
"""

from dataclasses import dataclass

import torch
import triton
from jaxtyping import Float
from torch import Tensor
from triton import language as tl

CHUNK = 64
"""Tokens of a chunk: fewer give small products, more waste half of a larger square."""

NOTHING, OF_A, OF_B = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class StateTile:
    """What one program holds of a state."""

    inner: int
    """Columns of a and b, all of them: rows of the state."""
    cols: int
    """Columns of c."""
    warps: int
    stages: int
    """Chunks that are on their way at once."""


def tile(inner: int, width: int) -> StateTile:
    """Return the tile for a and b of width `inner`, and c of `width`.

    A state of 8,192 numbers takes 64 registers of each of 128 threads. Beside rows of 256 numbers
    there is no room for more: a block of 64 columns spills.
    """
    inner = max(16, triton.next_power_of_2(inner))
    fewest = 32 if inner == 256 else 64
    cols = max(16, min(triton.next_power_of_2(width), max(fewest, 8192 // inner), 256))
    return StateTile(inner=inner, cols=cols, warps=4 if inner * cols <= 8192 else 8, stages=2)


def forward(
    query: Float[Tensor, "batch heads seq key_width"],
    key: Float[Tensor, "... seq key_width"],
    value: Float[Tensor, "... seq value_width"],
    *,
    weigh: bool,
) -> tuple[Float[Tensor, "batch heads seq value_width"], Float[Tensor, "..."]]:
    """Return the mixture, and the sums of weights in fp32, which are empty without `weigh`."""
    leading = query.shape[:-1]
    weights = query.new_empty(leading if weigh else 0, dtype=torch.float32)
    mixed = mix(query, key, value, leading, weights=weights if weigh else None)
    return mixed, weights


def backward(
    query: Float[Tensor, "batch heads seq key_width"],
    key: Float[Tensor, "... seq key_width"],
    value: Float[Tensor, "... seq value_width"],
    grad: Float[Tensor, "batch heads seq value_width"],
    weights_grad: Float[Tensor, "batch heads seq"] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value; what heads share has the sum of theirs."""
    leading = query.shape[:-1]
    if weights_grad is not None:
        weights_grad = weights_grad.float().contiguous()
    of_query = mix(grad, value, key, leading, extra=weights_grad, extra_is=OF_A)
    of_key = mix(value, grad, query, leading, later=True, extra=weights_grad, extra_is=OF_B)
    of_value = mix(key, query, grad, leading, later=True)
    return of_query, _summed_like(key, of_key), _summed_like(value, of_value)


def _summed_like(x: Tensor, gradient: Tensor) -> Tensor:
    return gradient.sum((0, 1)) if x.dim() == 2 else gradient


def mix(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    leading: torch.Size,
    *,
    later: bool = False,
    extra: Tensor | None = None,
    extra_is: int = NOTHING,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the sums of the module's docstring, (*leading, width of c); each may be shared.

    Args:
        a: What each position reads with.
        b: What it is compared with.
        c: What is summed.
        leading: Batch, heads and seq.
        later: Sum over this and later positions, not this and earlier ones.
        extra: One more column of a or of b, in fp32; the other has ones there.
        extra_is: Whose column that is.
        weights: Where the sums for a c of ones go.
    """
    out = c.new_empty(*leading, c.shape[-1])
    if not out.numel():
        return out
    a, b, c = (x if x.stride(-1) == 1 else x.contiguous() for x in (a, b, c))
    batch, heads, seq = leading
    held = tile(a.shape[-1], c.shape[-1])
    blocks = triton.cdiv(c.shape[-1], held.cols)
    _chunks[(blocks * batch * heads,)](
        a, b, c, out,
        out if extra is None else extra, out if weights is None else weights,
        heads, seq, *_strides(a), *_strides(b), *_strides(c),
        A_ROW=a.stride(-2), B_ROW=b.stride(-2), C_ROW=c.stride(-2),
        A_WIDTH=a.shape[-1], WIDTH=c.shape[-1], CHUNK=CHUNK, INNER=held.inner, COLS=held.cols,
        EVEN=not (seq % CHUNK or a.shape[-1] % held.inner or c.shape[-1] % held.cols),
        LATER=later, EXTRA=NOTHING if extra is None else extra_is, WEIGH=weights is not None,
        num_warps=held.warps, num_stages=held.stages,
    )  # fmt: skip
    return out


def _strides(x: Tensor) -> tuple[int, int]:
    """Return the steps between batches and heads: none in what is shared."""
    return (0, 0) if x.dim() == 2 else (x.stride(0), x.stride(1))


@triton.jit
def _chunks(
    a, b, c, out, extra, weights, heads, seq,
    a_batch, a_head, b_batch, b_head, c_batch, c_head,
    A_ROW: tl.constexpr, B_ROW: tl.constexpr, C_ROW: tl.constexpr,
    A_WIDTH: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, INNER: tl.constexpr,
    COLS: tl.constexpr, EVEN: tl.constexpr,
    LATER: tl.constexpr, EXTRA: tl.constexpr, WEIGH: tl.constexpr,
):  # fmt: skip
    """Store the sums of one head of a sequence, for a block of c's columns."""
    blocks: tl.constexpr = (WIDTH + COLS - 1) // COLS
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    col = tl.program_id(0) % blocks * COLS
    a += pair // heads * a_batch + pair % heads * a_head
    b += pair // heads * b_batch + pair % heads * b_head
    c += pair // heads * c_batch + pair % heads * c_head + col
    out += pair * seq * WIDTH + col
    extra += pair * seq
    weights += pair * seq
    kind = out.dtype.element_ty
    place = tl.arange(0, CHUNK)
    seen = place[:, None] <= place[None, :] if LATER else place[:, None] >= place[None, :]
    state = tl.zeros([INNER, COLS], tl.float32)
    c_sum = tl.zeros([COLS], tl.float32)
    b_sum = tl.zeros([INNER], tl.float32)
    n_chunks = tl.cdiv(seq, CHUNK)
    for number in range(n_chunks):
        first = (n_chunks - 1 - number if LATER else number) * CHUNK
        left = seq - first
        of_a = _load(a + first * A_ROW, left, A_WIDTH, A_ROW, CHUNK, INNER, EVEN)
        of_b = _load(b + first * B_ROW, left, A_WIDTH, B_ROW, CHUNK, INNER, EVEN)
        of_c = _load(c + first * C_ROW, left, WIDTH - col, C_ROW, CHUNK, COLS, EVEN)
        if WEIGH:
            # Not as products with a c of ones: Triton 3.6 gives wrong ones for Hopper at width 16.
            read = tl.sum(of_a.to(tl.float32) * b_sum[None, :], 1)
            b_sum += tl.sum(of_b.to(tl.float32), 0)
        mixed = tl.dot(of_a, state.to(kind), input_precision="ieee")
        scores = tl.dot(of_a, tl.trans(of_b), input_precision="ieee")
        if EXTRA:
            column = tl.load(extra + first + place, mask=place < left, other=0.0)
            scores += column[:, None] if EXTRA == 1 else column[None, :]
        scores = tl.where(seen, scores, 0.0).to(kind)
        mixed = tl.dot(scores, of_c, mixed, input_precision="ieee")
        if WEIGH:
            read += tl.sum(scores.to(tl.float32), 1)
            tl.store(weights + first + place, read, mask=(place < left) & (col == 0))
        if EXTRA == 1:
            mixed += column[:, None] * c_sum[None, :]
            c_sum += tl.sum(of_c.to(tl.float32), 0)
        elif EXTRA == 2:
            mixed += c_sum[None, :]
            c_sum += tl.sum(of_c.to(tl.float32) * column[:, None], 0)
        at = out + first * WIDTH + place[:, None] * WIDTH + tl.arange(0, COLS)[None, :]
        if EVEN:
            tl.store(at, mixed.to(kind))
        else:
            inside = (place < left)[:, None] & (tl.arange(0, COLS) < WIDTH - col)[None, :]
            tl.store(at, mixed.to(kind), mask=inside)
        state = tl.dot(tl.trans(of_b), of_c, state, input_precision="ieee")


@triton.jit
def _load(
    x, rows, width, ROW: tl.constexpr, CHUNK: tl.constexpr, COLS: tl.constexpr, EVEN: tl.constexpr
):
    """Return a chunk of x, zero beyond the last row and column."""
    row, col = tl.arange(0, CHUNK)[:, None], tl.arange(0, COLS)[None, :]
    at = x + (row * ROW + col)
    # Each mask takes registers, of which there are none to spare.
    if EVEN:
        return tl.load(at)
    else:
        return tl.load(at, mask=(row < rows) & (col < width), other=0.0)
