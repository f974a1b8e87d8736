"""Linear maps of one token in Triton, at memory bandwidth.

Rows of the matrix are read once. A program reads some rows and, from the L2 cache, the whole token.
A norm before the map costs no kernel: its scale is a factor of the sums, found beside them. What
follows the map (a gate, a residual) is applied to the sums. Of more tokens than one the library's
products are as fast.
"""

import torch
import triton
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from triton import language as tl

from workloads.kernels.decode_step.elementwise import rms_norm, silu_product

DEPTH = 512
"""Columns that a program reads at a time."""
ROWS = {True: 4, False: 8}
"""Rows of a program; fewer where each has a second row, of the gated map."""
FEW_ROWS = 4096
"""Matrices of fewer rows are cut finer, so that all multiprocessors have some."""
WARPS = 4
_NONE, _MAP, _FACTOR = (tl.constexpr(n) for n in range(3))


def linear(
    x: Float[Tensor, "tokens inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None = None,
    *,
    gain: Float[Tensor, " inputs"] | None = None,
    eps: float = 0.0,
    residual: Float[Tensor, "tokens outputs"] | None = None,
) -> Float[Tensor, "tokens outputs"]:
    """Return `reference.linear`."""
    if len(x) == 1:
        return one_token(x, weight, bias, gain=gain, eps=eps, residual=residual)
    n = x.to(weight.dtype) if gain is None else rms_norm(x, gain, eps, weight.dtype)
    if residual is not None and bias is None and residual.dtype == weight.dtype:
        return torch.addmm(residual, n, weight.T)
    y = functional.linear(n, weight, bias)
    return y if residual is None else residual + y.to(residual.dtype)


def swiglu(
    x: Float[Tensor, "tokens inputs"],
    gate_up: Float[Tensor, "2*d_ff inputs"],
    *,
    gain: Float[Tensor, " inputs"],
    eps: float,
) -> Float[Tensor, "tokens d_ff"]:
    """Return `reference.swiglu`."""
    if len(x) == 1:
        gate, up = gate_up.chunk(2)
        return one_token(x, gate, gain=gain, eps=eps, up=up)
    both = functional.linear(rms_norm(x, gain, eps, gate_up.dtype), gate_up)
    return silu_product(both)


def gated(
    x: Float[Tensor, "tokens inputs"],
    gate: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
    factor: Float[Tensor, "tokens outputs"],
    *,
    gain: Float[Tensor, " inputs"],
    eps: float,
) -> Float[Tensor, "tokens outputs"]:
    """Return `reference.gated`."""
    if len(x) == 1:
        return one_token(x, gate, bias, gain=gain, eps=eps, factor=factor)
    found = functional.linear(rms_norm(x, gain, eps, gate.dtype), gate, bias)
    return silu_product(found, factor)


def one_token(
    x: Float[Tensor, "1 inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None = None,
    *,
    gain: Float[Tensor, " inputs"] | None = None,
    eps: float = 0.0,
    residual: Float[Tensor, "1 outputs"] | None = None,
    up: Float[Tensor, "outputs inputs"] | None = None,
    factor: Float[Tensor, "1 outputs"] | None = None,
    rows: int | None = None,
    depth: int = DEPTH,
    warps: int = WARPS,
) -> Float[Tensor, "1 outputs"]:
    """Return `residual + weight norm(x) + bias`, or its silu times `up norm(x)` or `factor`.

    Args:
        x: The token.
        weight: Contiguous, as `up`.
        bias: Added to the product.
        gain: Of the norm; without one there is none.
        eps: Of the norm.
        residual: Added to the result, whose type it then has.
        up: A second matrix, without bias.
        factor: What a gate is multiplied with.
        rows: Of a program; None: as many as the module says.
        depth: Columns read at a time.
        warps: Of a program.
    """
    n, k = weight.shape
    out = torch.empty_like(residual) if residual is not None else weight.new_empty(1, n)
    rows = rows or max(1, ROWS[up is not None] // (2 if n < FEW_ROWS else 1))
    gate = _NONE if up is None and factor is None else (_FACTOR if up is None else _MAP)
    depth = min(depth, triton.next_power_of_2(k))
    _one_token[(triton.cdiv(n, rows),)](
        x, gain, weight, bias, up, factor, residual, out, n, k, eps,
        ROWS=rows, DEPTH=depth, NORM=gain is not None, BIAS=bias is not None, GATE=gate.value,
        RESIDUAL=residual is not None, EVEN=k % depth == 0, num_warps=warps,
    )  # fmt: skip
    return out


@triton.jit
def _one_token(
    x, gain, weight, bias, up, factor, residual, out, n, k, eps,
    ROWS: tl.constexpr, DEPTH: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr,
    GATE: tl.constexpr, RESIDUAL: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < n
    first = tl.where(inside, row, 0).to(tl.int64)[:, None] * k
    sums = tl.zeros([ROWS, DEPTH], tl.float32)
    others = tl.zeros([ROWS, DEPTH], tl.float32)
    squares = tl.zeros([DEPTH], tl.float32)
    for start in range(0, k, DEPTH):
        column = start + tl.arange(0, DEPTH)
        live = column < k
        if EVEN:
            w = tl.load(weight + first + column[None, :])
        else:
            w = tl.load(weight + first + column[None, :], mask=live[None, :], other=0.0)
        if GATE == _MAP:
            if EVEN:
                u = tl.load(up + first + column[None, :])
            else:
                u = tl.load(up + first + column[None, :], mask=live[None, :], other=0.0)
        token = tl.load(x + column, mask=live, other=0.0).to(tl.float32)
        if NORM:
            squares += token * token
            token *= tl.load(gain + column, mask=live, other=0.0).to(tl.float32)
        sums += w.to(tl.float32) * token[None, :]
        if GATE == _MAP:
            others += u.to(tl.float32) * token[None, :]
    y = tl.sum(sums, 1)
    other = tl.sum(others, 1)
    if NORM:
        scale = 1.0 / tl.sqrt(tl.sum(squares, 0) / k + eps)
        y *= scale
        other *= scale
    if BIAS:
        y += tl.load(bias + row, mask=inside, other=0.0).to(tl.float32)
    if GATE == _FACTOR:
        other = tl.load(factor + row, mask=inside, other=0.0).to(tl.float32)
    if GATE != _NONE:
        y = y / (1.0 + tl.exp(-y)) * other
    if RESIDUAL:
        y += tl.load(residual + row, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row, y.to(out.dtype.element_ty), mask=inside)
