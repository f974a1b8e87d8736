"""The one entry to moving tokens to experts and back."""

from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.expert_dispatch import reference


def spread(
    x: Float[Tensor, "tokens width"],
    token_of_row: Int[Tensor, " rows"],
    rows_by_token: Int[Tensor, " rows"],
    starts: Int[Tensor, " tokens"],
) -> Float[Tensor, "rows width"]:
    """Return the token of every row (`reference.spread`)."""
    return reference.spread(x, token_of_row, rows_by_token, starts)


def collect(
    rows: Float[Tensor, "rows width"],
    token_of_row: Int[Tensor, " rows"],
    rows_by_token: Int[Tensor, " rows"],
    starts: Int[Tensor, " tokens"],
) -> Float[Tensor, "tokens width"]:
    """Return the sum of every token's rows (`reference.collect`)."""
    return reference.collect(rows, token_of_row, rows_by_token, starts)
