"""Entry point of product-key selection."""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.custom_op import register_op
from workloads.kernels.product_key_topk import reference


def product_key_topk(
    query: Float[Tensor, "tokens heads key_dim"],
    sub_keys: Float[Tensor, "2 heads n_keys half_key_dim"],
    knn: int,
) -> tuple[Float[Tensor, "tokens heads knn"], Int[Tensor, "tokens heads knn"]]:
    """Return scores and ids of the best `knn` of n_keys**2 slots (`reference.product_key_topk`).

    On CUDA by Triton kernels, which a CPU build of torch comes without, up to 64 slots of 11,585
    sub-keys a half. Their gradients are sums in a fixed order, so a second run gives the same bits.
    """
    if query.is_cuda:
        # As a statement, which torch.compile sees through.
        from workloads.kernels.product_key_topk import triton as kernels

        if kernels.applies(query, sub_keys, knn):
            scores, ids = _select(query, sub_keys, knn)
            return scores, ids
    return reference.product_key_topk(query, sub_keys, knn)


def _kernels(name: str = "triton") -> ModuleType:
    return import_module(f"workloads.kernels.product_key_topk.{name}")


def _forward(query: Tensor, sub_keys: Tensor, knn: int) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = _kernels().select(query, sub_keys, knn)
    return found


def _fake(query: Tensor, sub_keys: Tensor, knn: int) -> tuple[Tensor, Tensor]:
    shape = (query.shape[0], query.shape[1], knn)
    return query.new_empty(shape, dtype=torch.float32), query.new_empty(shape, dtype=torch.int64)


def _backward(grad: Tensor, ids: Tensor, query: Tensor, sub_keys: Tensor) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = _kernels("backward").gradients(grad, ids, query, sub_keys)
    return found


def _fake_backward(
    grad: Tensor, ids: Tensor, query: Tensor, sub_keys: Tensor
) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), sub_keys.new_empty(sub_keys.shape)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: tuple[Tensor, Tensor]) -> None:
    query, sub_keys, _ = inputs
    ctx.save_for_backward(query, sub_keys, output[1])


def _gradients(
    backward: Callable[..., tuple[Tensor, Tensor]], ctx: Any, grad: Tensor, _: Tensor
) -> tuple[Tensor, Tensor, None]:
    query, sub_keys, ids = ctx.saved_tensors
    return *backward(grad, ids, query, sub_keys), None


_select, _ = register_op(
    "product_key_topk",
    _forward,
    _backward,
    fake=_fake,
    fake_backward=_fake_backward,
    save=_save,
    gradients=_gradients,
)
