"""Split fp32 master weights: a bf16 half that models read, and the rest.

The first half is the bf16 number nearest to each value, the second is the difference.

With `bits` the 32 bits of a value, `high = (bits + 2^15) >> 16` are those of the nearest bf16
number (of two equally near the one further from zero), and `low = bits - (high << 16)` fits 16 bits
with a sign: nothing is lost, in 4 bytes.
"""

import torch
from jaxtyping import BFloat16, Float, Float32, Int16
from torch import Tensor


def split(
    values: Float32[Tensor, "*shape"],
) -> tuple[BFloat16[Tensor, "*shape"], Int16[Tensor, "*shape"]]:
    """Return the two halves. Of infinities and NaN the first half says all, the other is 0."""
    bits = values.contiguous().view(torch.int32)
    high = (bits + 0x8000) >> 16
    low = bits - (high << 16)
    finite = values.isfinite()
    return (
        torch.where(finite, high.to(torch.int16).view(torch.bfloat16), values.to(torch.bfloat16)),
        torch.where(finite, low, 0).to(torch.int16),
    )


def join(
    high: BFloat16[Tensor, "*shape"], low: Int16[Tensor, "*shape"]
) -> Float32[Tensor, "*shape"]:
    """Return the values that were split."""
    bits = (high.contiguous().view(torch.int16).int() << 16) + low
    return bits.view(torch.float32)


def write_halves(
    values: Float[Tensor, "rows width"],
    *,
    high: BFloat16[Tensor, "rows width"],
    low: Int16[Tensor, "rows width"],
    at_once: int = 2**22,
) -> None:
    """Split `values`, of any type, into two given tensors, about `at_once` numbers at a time.

    In pieces, because a table may be too large for what splitting takes beside it.
    """
    n_rows = max(1, at_once // max(1, values.shape[1]))
    for first in range(0, len(values), n_rows):
        rows = slice(first, first + n_rows)
        for half, found in zip((high, low), split(values[rows].float()), strict=True):
            half[rows].copy_(found)
