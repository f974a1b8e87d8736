"""Dispatch of tokens to experts and the sum of their outputs, in plain torch."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


def spread(
    x: Float[Tensor, "tokens width"],
    token_of_row: Int[Tensor, " rows"],
    rows_by_token: Int[Tensor, " rows"],
    starts: Int[Tensor, " tokens"],
) -> Float[Tensor, "rows width"]:
    """Return `y[r] = x[token_of_row[r]]`.

    Args:
        x: One vector per token.
        token_of_row: A token may have any number of rows, or none.
        rows_by_token: All rows, those of the first token first: for the gradient, which sums each
            token's rows in this order, so the sum is deterministic.
        starts: Where each token's rows start in `rows_by_token`.
    """
    result: Tensor = _Spread.apply(  # type: ignore[no-untyped-call]
        x, token_of_row, rows_by_token, starts
    )
    return result


def collect(
    rows: Float[Tensor, "rows width"],
    token_of_row: Int[Tensor, " rows"],
    rows_by_token: Int[Tensor, " rows"],
    starts: Int[Tensor, " tokens"],
) -> Float[Tensor, "tokens width"]:
    """Return for every token the sum of its rows, zero where it has none.

    What `spread` does, backwards.
    """
    result: Tensor = _Collect.apply(  # type: ignore[no-untyped-call]
        rows, token_of_row, rows_by_token, starts
    )
    return result


class _Spread(torch.autograd.Function):
    """Each of the two is the other's gradient; neither keeps what it moved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token_of_row: Tensor, *by_token: Tensor) -> Tensor:
        ctx.save_for_backward(*by_token)
        return x.index_select(0, token_of_row)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _sums(grads[0].contiguous(), *ctx.saved_tensors), None, None, None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, token_of_row: Tensor, *by_token: Tensor) -> Tensor:
        ctx.save_for_backward(token_of_row)
        return _sums(rows, *by_token)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (token_of_row,) = ctx.saved_tensors
        return grads[0].index_select(0, token_of_row), None, None, None


def _sums(rows: Tensor, rows_by_token: Tensor, starts: Tensor) -> Tensor:
    return functional.embedding_bag(rows_by_token, rows, starts, mode="sum")
