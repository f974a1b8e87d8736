"""Norms and gates of a decoding step in Triton, one kernel each."""

import torch
import triton
from jaxtyping import Float
from torch import Tensor
from triton import language as tl


def rms_norm(
    x: Float[Tensor, "tokens width"], gain: Float[Tensor, " width"], eps: float, dtype: torch.dtype
) -> Float[Tensor, "tokens width"]:
    """Return `reference.normed` in another type."""
    tokens, width = x.shape
    out = torch.empty(tokens, width, dtype=dtype, device=x.device)
    _rms_norm[(tokens,)](x, gain, out, width, eps, WIDTH=triton.next_power_of_2(width), num_warps=8)
    return out


def silu_product(
    x: Float[Tensor, "tokens columns"], factor: Float[Tensor, "tokens width"] | None = None
) -> Float[Tensor, "tokens width"]:
    """Return `silu(x) * factor`; without a factor, it is the second half of the columns."""
    tokens, columns = x.shape
    width = columns // 2 if factor is None else columns
    out = x.new_empty(tokens, width)
    _silu_product[(tokens, triton.cdiv(width, 1024))](
        x, factor, out, width, columns, HALVES=factor is None, COLS=1024, num_warps=4
    )
    return out


@triton.jit
def _rms_norm(x, gain, out, width, eps, WIDTH: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < width
    value = tl.load(x + token * width + column, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / width + eps)
    y = value * scale * tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * width + column, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _silu_product(x, factor, out, width, columns, HALVES: tl.constexpr, COLS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = column < width
    gate = tl.load(x + token * columns + column, mask=inside, other=0.0).to(tl.float32)
    if HALVES:
        other = tl.load(x + token * columns + width + column, mask=inside, other=0.0)
    else:
        other = tl.load(factor + token * width + column, mask=inside, other=0.0)
    y = gate / (1.0 + tl.exp(-gate)) * other.to(tl.float32)
    tl.store(out + token * width + column, y.to(out.dtype.element_ty), mask=inside)
