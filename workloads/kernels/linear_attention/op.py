"""Entry point of causal linear attention on a GPU."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from workloads.kernels.backend import uses_triton
from workloads.kernels.custom_op import register_op

MAX_WIDTH = 256
"""Of features and values: a state of so many rows is kept in registers."""


def is_fused(
    query: Float[Tensor, "batch heads seq key_width"],
    key: Float[Tensor, "... seq key_width"],
    value: Float[Tensor, "... seq value_width"],
) -> bool:
    """Whether `linear_attention` computes these: 16-bit numbers on a GPU, at most 256 wide."""
    return (
        uses_triton(query)
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.dtype == key.dtype == value.dtype
        and max(query.shape[-1], value.shape[-1]) <= MAX_WIDTH
    )


def linear_attention(
    query: Float[Tensor, "batch heads seq key_width"],
    key: Float[Tensor, "... seq key_width"],
    value: Float[Tensor, "... seq value_width"],
    *,
    weigh: bool = False,
) -> tuple[Float[Tensor, "batch heads seq value_width"], Float[Tensor, "batch heads seq"] | None]:
    """Return `sum over j <= t of (query_t . key_j) value_j` for every t, and the sums of weights.

    The sums `sum over j <= t of query_t . key_j` are fp32, and None without `weigh`. Sums and the
    state are fp32. Nothing but the arguments is kept for the backward pass, and no states or
    scores are written to memory. All sums have a fixed order, so both passes are deterministic.

    Args:
        query: Features of queries.
        key: Features of keys, (batch, heads, seq, width); (seq, width) if all heads share them.
        value: Values, (batch, heads, seq, width); (seq, width) if all heads share them.
        weigh: Return the sums of weights.
    """
    mixed, weights = _linear_attention(query, key, value, weigh)
    return mixed, weights if weigh else None


def _triton() -> Any:
    return import_module("workloads.kernels.linear_attention.triton")


def _forward(query: Tensor, key: Tensor, value: Tensor, weigh: bool) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = _triton().forward(query, key, value, weigh=weigh)
    return result


def _fake(query: Tensor, key: Tensor, value: Tensor, weigh: bool) -> tuple[Tensor, Tensor]:
    return (
        query.new_empty(*query.shape[:-1], value.shape[-1]),
        query.new_empty(query.shape[:-1] if weigh else 0, dtype=torch.float32),
    )


def _backward(
    query: Tensor, key: Tensor, value: Tensor, grad: Tensor, weights_grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    result: tuple[Tensor, Tensor, Tensor] = _triton().backward(
        query, key, value, grad, weights_grad if weights_grad.numel() else None
    )
    return result


def _fake_backward(
    query: Tensor, key: Tensor, value: Tensor, grad: Tensor, weights_grad: Tensor
) -> tuple[Tensor, ...]:
    return tuple(each.new_empty(each.shape) for each in (query, key, value))


def _save(
    ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, bool], output: tuple[Tensor, Tensor]
) -> None:
    ctx.save_for_backward(*inputs[:3])


def _gradients(
    backward: Callable[..., tuple[Tensor, ...]], ctx: Any, grad: Tensor, weights_grad: Tensor
) -> tuple[Tensor | None, ...]:
    return (*backward(*ctx.saved_tensors, grad, weights_grad), None)


_linear_attention, _ = register_op(
    "linear_attention",
    _forward,
    _backward,
    fake=_fake,
    fake_backward=_fake_backward,
    save=_save,
    gradients=_gradients,
)
