"""Entry point of routed experts on a GPU."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from workloads.kernels.backend import uses_triton
from workloads.kernels.custom_op import register_op


def is_fused(x: Tensor) -> bool:
    """Whether `expert_mlp` computes what is made of `x`: 16-bit numbers on a GPU."""
    return uses_triton(x) and x.dtype in (torch.bfloat16, torch.float16)


def expert_mlp(
    x: Float[Tensor, "tokens d_model"],
    gate: Float[Tensor, "experts d_model d_expert"],
    up: Float[Tensor, "experts d_model d_expert"],
    down: Float[Tensor, "experts d_expert d_model"],
    weights: Float[Tensor, " rows"],
    token_of_row: Int[Tensor, " rows"],
    rows_by_token: Int[Tensor, " rows"],
    starts: Int[Tensor, " tokens"],
    ends: Int[Tensor, " experts"],
) -> Float[Tensor, "tokens d_model"]:
    """Return `sum over rows r of a token: weights[r] (silu(x gate_e) * (x up_e)) down_e`.

    Row r is a pair of a token and an expert e; the rows of an expert lie together. Products
    accumulate in fp32 and a token's sum runs in the order of its rows, so all is deterministic.
    Keeps both products with x for the backward pass, 2 d_expert numbers a row, and nothing else.
    Experts of any width run as those of the next multiple of 16 (`padded`).

    Args:
        x: One vector per token.
        gate: Of every expert, like `up` and `down` of the type of x.
        up: Of every expert.
        down: Of every expert.
        weights: Of each row.
        token_of_row: A token may have any number of rows, or none.
        rows_by_token: All rows, those of the first token first.
        starts: Where each token's rows start in `rows_by_token`.
        ends: Where each expert's rows end; the last is the number of rows.
    """
    output: Tensor = _expert_mlp(
        x, *padded(gate, up, down), weights, token_of_row, rows_by_token, starts, ends
    )[0]
    return output


DIVISOR = 16
"""Triton reads rows in whole vectors if it knows their width for a multiple of this."""


def padded(
    gate: Float[Tensor, "experts d_model d_expert"],
    up: Float[Tensor, "experts d_model d_expert"],
    down: Float[Tensor, "experts d_expert d_model"],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights with hidden units of zeros, up to the next multiple of `DIVISOR`.

    Of another width the kernels read and write number by number, and keep addresses where registers
    have run out (`docs/kernels.md`). A unit of zeros is silu(0) * 0 = 0 and has no weights onwards,
    so it adds nothing to outputs and gradients; autograd cuts its own gradients off. Outside of the
    custom operation, so that the compiler makes one pass of this and the cast to 16 bits.
    """
    more = -gate.shape[2] % DIVISOR
    if not more:
        return gate, up, down
    gate, up = (functional.pad(each, (0, more)) for each in (gate, up))
    return gate, up, functional.pad(down, (0, 0, 0, more))


def _triton() -> Any:
    return import_module("workloads.kernels.expert_mlp.triton")


def _forward(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    weights: Tensor,
    token_of_row: Tensor,
    rows_by_token: Tensor,
    starts: Tensor,
    ends: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    result: tuple[Tensor, Tensor, Tensor] = _triton().forward(
        x, gate, up, down, weights, token_of_row, rows_by_token, starts, ends
    )
    return result


def _fake(
    x: Tensor, gate: Tensor, up: Tensor, down: Tensor, weights: Tensor, *_: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    shape = (len(weights), gate.shape[2])
    return x.new_empty(x.shape), x.new_empty(shape), x.new_empty(shape)


def _backward(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    weights: Tensor,
    token_of_row: Tensor,
    rows_by_token: Tensor,
    starts: Tensor,
    ends: Tensor,
    gated: Tensor,
    upped: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    result: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = _triton().backward(
        x, gate, up, down, weights, token_of_row, rows_by_token, starts, ends, gated, upped, grad
    )
    return result


def _fake_backward(*arguments: Tensor) -> tuple[Tensor, ...]:
    return tuple(each.new_empty(each.shape) for each in arguments[:5])


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, *output[1:])
    # The products have no readers, so no gradients: none are made up for them.
    ctx.set_materialize_grads(False)


def _gradients(
    backward: Callable[..., tuple[Tensor, ...]], ctx: Any, grad: Tensor | None, *_: None
) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 9
    return (*backward(*ctx.saved_tensors, grad), None, None, None, None)


_expert_mlp, _ = register_op(
    "expert_mlp",
    _forward,
    _backward,
    fake=_fake,
    fake_backward=_fake_backward,
    save=_save,
    gradients=_gradients,
)
