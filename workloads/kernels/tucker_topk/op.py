"""Entry point of selection by Tucker-decomposed scores."""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.custom_op import register_op
from workloads.kernels.tucker_topk import reference


def tucker_topk(
    query: Float[Tensor, "2 heads queries tokens half_key_dim"],
    sub_keys: Float[Tensor, "2 heads rank n_keys half_key_dim"],
    core: Float[Tensor, "heads rank rank"],
    knn: int,
) -> tuple[Float[Tensor, "tokens heads knn"], Int[Tensor, "tokens heads knn"]]:
    """Return scores and ids of about the best `knn` of n_keys**2 slots (`reference.tucker_topk`).

    On CUDA by Triton kernels (`triton.applies` says for which sizes). There a bf16 query is
    compared with sub-keys of fp16's 11 bits, as many as plain torch takes in TF32. Gradients are
    sums in a fixed order, so a second run gives the same bits.
    """
    if query.is_cuda:
        # As a statement, which torch.compile sees through.
        from workloads.kernels.tucker_topk import triton as kernels

        if kernels.applies(query, sub_keys, core, knn):
            scores, ids, _ = _select(query, sub_keys, core, knn)
            return scores, ids
    return reference.tucker_topk(query, sub_keys, core, knn)


def _kernels(name: str = "triton") -> ModuleType:
    return import_module(f"workloads.kernels.tucker_topk.{name}")


def _forward(
    query: Tensor, sub_keys: Tensor, core: Tensor, knn: int
) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = _kernels().select(query, sub_keys, core, knn)
    return found


def _fake(query: Tensor, sub_keys: Tensor, core: Tensor, knn: int) -> tuple[Tensor, Tensor, Tensor]:
    _, n_heads, _, n_tokens, _ = query.shape
    books = 2 << (core.shape[1] - 1).bit_length()
    return (
        query.new_empty(n_tokens, n_heads, knn, dtype=torch.float32),
        query.new_empty(n_tokens, n_heads, knn, dtype=torch.int64),
        query.new_empty(n_heads, books, knn, n_tokens, dtype=torch.float32),
    )


def _backward(
    grad: Tensor, ids: Tensor, products: Tensor, query: Tensor, sub_keys: Tensor, core: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = _kernels("backward").gradients(
        grad, ids, products, query, sub_keys, core
    )
    return found


def _fake_backward(
    grad: Tensor, ids: Tensor, products: Tensor, query: Tensor, sub_keys: Tensor, core: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        query.new_empty(query.shape),
        sub_keys.new_empty(sub_keys.shape),
        core.new_empty(core.shape),
    )


def _save(
    ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: tuple[Tensor, Tensor, Tensor]
) -> None:
    _, ids, products = output
    ctx.mark_non_differentiable(ids, products)
    ctx.save_for_backward(ids, products, *inputs[:3])


def _gradients(
    backward: Callable[..., tuple[Tensor, Tensor, Tensor]], ctx: Any, grad: Tensor, *_: Tensor
) -> tuple[Tensor, Tensor, Tensor, None]:
    return *backward(grad, *ctx.saved_tensors), None


_select, _ = register_op(
    "tucker_topk",
    _forward,
    _backward,
    fake=_fake,
    fake_backward=_fake_backward,
    save=_save,
    gradients=_gradients,
)
