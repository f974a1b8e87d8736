"""Stochastic rounding to bf16 by hashes of position and step.

The random numbers do not depend on the rank or device that draws them.

`bits(key, row, column)` is the same on every rank, device and layout: two rounds of a 32-bit mixing
function (C. Wellons' lowbias32, public domain). Philox would take 80 instructions a number and more
time than the memory traffic of an update.
"""

import torch
from jaxtyping import BFloat16, Float32, Int64
from torch import Tensor

COLUMN_STRIDE = 0x9E3779B9
_LOW = 0xFFFFFFFF


def round_to_bf16(
    values: Float32[Tensor, "rows width"],
    rows: Int64[Tensor, " rows"],
    *,
    key: int,
    first_column: int = 0,
) -> BFloat16[Tensor, "rows width"]:
    """Return one of each value's two bf16 neighbours, the nearer one the more often.

    Right on average.

    What bf16 holds exactly is kept; infinities and NaN stay what they are.
    """
    bits = values.view(torch.int32)
    random = random_bits(rows, values.shape[1], key=key, first_column=first_column) >> 16
    rounded = (bits.long() + random) & 0xFFFF0000
    rounded = torch.where(rounded >= 2**31, rounded - 2**32, rounded).int().view(torch.float32)
    return torch.where(values.isfinite(), rounded, values).to(torch.bfloat16)


def random_bits(
    rows: Int64[Tensor, " rows"], width: int, *, key: int, first_column: int = 0
) -> Int64[Tensor, "rows width"]:
    """Return 32 random bits for every column of the rows, from `first_column` on."""
    columns = torch.arange(first_column, first_column + width, device=rows.device)
    return _mix((_mix(rows & _LOW) ^ key)[:, None] + columns * COLUMN_STRIDE & _LOW)


def _mix(x: Tensor) -> Tensor:
    # In 64 bits: a product that wraps around keeps its low 32.
    x = (x ^ (x >> 16)) * 0x7FEB352D & _LOW
    x = (x ^ (x >> 15)) * 0x846CA68B & _LOW
    return x ^ (x >> 16)
