"""First moments in one byte a number: int8, and one fp32 scale for each row and block of 128 columns.

Blocks as in Dettmers et al. 2021 (arXiv 2110.02861); linear steps rounded stochastically instead of their dynamic tree
rounded to nearest, so that what is stored is right on average. With m the values of a block and u random in [0, 1):

    scale = max |m| / 127;  q = floor(m / scale + u);  m is read as q * scale

A value errs by less than one scale, and has a variance of at most scale^2 / 4: of a block's largest value that is
little, of values a hundred times smaller it is as much as they are. The update itself takes m before it is rounded.

128 columns, because each tile of columns in the GPU kernels (256 of bf16 gradients, 128 of fp32) holds whole blocks: no
result depends on tiles. Blocks count from the first column of what is updated; a part of a table whose columns begin at a
multiple of 128 has the whole's blocks, another one has blocks of its own and equals the whole on average.
"""

import torch
from jaxtyping import Float, Int8, Int64
from torch import Tensor
from torch.nn import functional

from workloads.kernels.table_update.stochastic_rounding import random_bits

BLOCK = 128
"""Columns that share a scale."""
LARGEST = 127
FRACTION = 23
"""Bits of u, and of m / scale behind the point: with the sign and 127 they fill 31 of 32."""
SMALLEST = 2.0**-96
"""A block of values that are all below has scale 0: 2^FRACTION * 127 / max |m| is to fit fp32. Next to eps they are nothing."""


def n_scales(width: int) -> int:
    """Return how many scales a row of `width` columns has."""
    return -(-width // BLOCK)


def quantise(
    values: Float[Tensor, "rows width"],
    rows: Int64[Tensor, " rows"],
    *,
    key: int,
    first_column: int = 0,
) -> tuple[Int8[Tensor, "rows width"], Float[Tensor, "rows scales"]]:
    """Return numbers and scales, these of the type of the values; whole multiples of a scale are kept.

    A block that is all 0 has scale 0. One with a value that is not finite has a scale that is not, so that none of it is
    finite when it is read.

    Args:
        values: Of some rows.
        rows: Which rows of the whole table those are.
        key: Names the random numbers (`rounding.py`).
        first_column: Of the whole table, where the values begin.
    """
    blocks = _blocks(values)
    largest = blocks.abs().amax(2)
    scales = torch.where(largest < SMALLEST, 0.0, largest * (1 / LARGEST))
    per_scale = LARGEST * 2.0**FRACTION / largest.clamp(min=SMALLEST)
    steps = (blocks * per_scale[..., None]).flatten(1)[:, : values.shape[1]].nan_to_num(0.0).long()
    random = random_bits(rows, values.shape[1], key=key, first_column=first_column)
    numbers = (steps + (random >> 32 - FRACTION)) >> FRACTION
    # -127 may become -128 where it is less than exact, which int8 has; 127 must not become 128.
    return numbers.clamp(max=LARGEST).to(torch.int8), scales


def dequantise(
    numbers: Int8[Tensor, "rows width"], scales: Float[Tensor, "rows scales"]
) -> Float[Tensor, "rows width"]:
    """Return the values that are stored, in the type of the scales."""
    values = _blocks(numbers.to(scales.dtype)) * scales[..., None]
    return values.flatten(1)[:, : numbers.shape[1]]


def _blocks(
    values: Float[Tensor, "rows width"],
) -> Float[Tensor, "rows scales {BLOCK}"]:
    """Return rows in blocks, the last one filled up with 0."""
    n_rows, width = values.shape
    return functional.pad(values, (0, -width % BLOCK)).reshape(n_rows, n_scales(width), BLOCK)
