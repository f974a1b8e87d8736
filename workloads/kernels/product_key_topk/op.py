"""The one entry to product-key selection."""

from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.product_key_topk import reference


def product_key_topk(
    query: Float[Tensor, "tokens heads key_dim"],
    sub_keys: Float[Tensor, "2 heads n_keys half_key_dim"],
    knn: int,
) -> tuple[Float[Tensor, "tokens heads knn"], Int[Tensor, "tokens heads knn"]]:
    """Return scores and ids of the best `knn` of n_keys**2 slots (`reference.product_key_topk`).

    On CUDA by Triton kernels, which a CPU build of torch comes without, up to 64 slots of 11,585 sub-keys a half. Their
    gradients are sums in a fixed order, so a second run gives the same bits.
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


@torch.library.custom_op("memscale::product_key_topk", mutates_args=())
def _select(query: Tensor, sub_keys: Tensor, knn: int) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = _kernels().select(query, sub_keys, knn)
    return found


@_select.register_fake
def _(query: Tensor, sub_keys: Tensor, knn: int) -> tuple[Tensor, Tensor]:
    shape = (query.shape[0], query.shape[1], knn)
    return query.new_empty(shape, dtype=torch.float32), query.new_empty(shape, dtype=torch.int64)


@torch.library.custom_op("memscale::product_key_topk_backward", mutates_args=())
def _gradients(grad: Tensor, ids: Tensor, query: Tensor, sub_keys: Tensor) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = _kernels("gradients").gradients(grad, ids, query, sub_keys)
    return found


@_gradients.register_fake
def _(grad: Tensor, ids: Tensor, query: Tensor, sub_keys: Tensor) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), sub_keys.new_empty(sub_keys.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: tuple[Tensor, Tensor]) -> None:
    query, sub_keys, _ = inputs
    ctx.save_for_backward(query, sub_keys, output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None]:
    query, sub_keys, ids = ctx.saved_tensors
    return *_gradients(grad, ids, query, sub_keys), None


_select.register_autograd(_backward, setup_context=_keep)
