"""Entry point of sums by random features on a GPU."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from workloads.kernels.backend import uses_triton
from workloads.kernels.custom_op import register_op
from workloads.kernels.random_feature_attention.memory_layout import empty_by_token, padded_features

MAX_D_HEAD, MAX_FEATURES = 64, 256
"""A state of so many rows and columns is kept in registers."""


def is_fused(
    query: Float[Tensor, "batch heads seq d_head"],
    key: Float[Tensor, "batch heads seq d_head"],
    value: Float[Tensor, "batch heads seq d_head"],
    vectors: Float[Tensor, "features d_head"],
) -> bool:
    """Whether `random_feature_sums` computes these: 16-bit numbers on a GPU, not too wide.

    The copy engine wants rows of a multiple of 16 bytes.
    """
    return (
        uses_triton(query)
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.dtype == key.dtype == value.dtype == vectors.dtype
        and value.shape[-1] <= MAX_D_HEAD
        and not value.shape[-1] % 8
        and len(vectors) <= MAX_FEATURES
    )


def random_feature_sums(
    query: Float[Tensor, "batch heads seq d_head"],
    key: Float[Tensor, "batch heads seq d_head"],
    value: Float[Tensor, "batch heads seq d_head"],
    vectors: Float[Tensor, "features d_head"],
    *,
    eps: float,
) -> tuple[Float[Tensor, "batch heads seq d_head"], Float[Tensor, "batch heads seq"]]:
    """Return `sum over j <= t of (f(q_t) . f(k_j)) v_j` for every t, and the sums of weights, fp32.

    The features f are Performer's (`workloads/architectures/performer.py`), of
    y = x / d_head^(1/4): `exp(w . y - largest) + eps` of a query, `exp(w . y - |y|^2 / 2) + eps` of
    a key. Exponents, sums and the state are fp32. Features are kept for the backward pass; their
    gradients, scores and states are never written. All sums have a fixed order, so both passes are
    deterministic. What is subtracted from exponents has no gradient but |y|^2 / 2.
    """
    sums, weights, *_ = _random_feature_sums(query, key, value, vectors, eps)
    return sums, weights


def _triton() -> Any:
    return import_module("workloads.kernels.random_feature_attention.triton")


def _forward(
    query: Tensor, key: Tensor, value: Tensor, vectors: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    result: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor] = _triton().forward(
        query, key, value, vectors, eps
    )
    return result


def _fake(
    query: Tensor, key: Tensor, value: Tensor, vectors: Tensor, eps: float
) -> tuple[Tensor, ...]:
    leading = query.shape[:-1]
    weights, *levels = (query.new_empty(leading, dtype=torch.float32) for _ in range(3))
    columns = padded_features(len(vectors))
    features = (query.new_empty(*leading, columns) for _ in range(2))
    return empty_by_token(value), weights, *features, *levels


def _backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    vectors: Tensor,
    eps: float,
    kept: list[Tensor],
    grad: Tensor,
    weights_grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    result: tuple[Tensor, Tensor, Tensor] = _triton().backward(
        query, key, value, vectors, eps, *kept, grad, weights_grad
    )
    return result


def _fake_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    vectors: Tensor,
    eps: float,
    kept: list[Tensor],
    grad: Tensor,
    weights_grad: Tensor,
) -> tuple[Tensor, ...]:
    return tuple(empty_by_token(x) for x in (query, key, value))


def _save(
    ctx: Any,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor, float],
    output: tuple[Tensor, ...],
) -> None:
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors, *output[2:])
    ctx.mark_non_differentiable(*output[2:])


def _gradients(
    backward: Callable[..., tuple[Tensor, ...]], ctx: Any, *grads: Tensor
) -> tuple[Tensor | None, ...]:
    *inputs, a, b, c, d = ctx.saved_tensors
    return (*backward(*inputs, ctx.eps, [a, b, c, d], *grads[:2]), None, None)


_random_feature_sums, _ = register_op(
    "random_feature_sums",
    _forward,
    _backward,
    fake=_fake,
    fake_backward=_fake_backward,
    save=_save,
    gradients=_gradients,
)
