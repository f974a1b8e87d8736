"""The one entry to the weighted bag."""

from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.weighted_bag import reference


def weighted_bag(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    weights: Float[Tensor, "bags bag_size"],
) -> Float[Tensor, "bags width"]:
    """Return for each bag the weighted sum of the rows it names: `y[b] = sum_g weights[b, g] * table[ids[b, g]]`.

    A row may occur several times in a bag. Gradients reach `table` (dense) and `weights`. Both passes are
    deterministic: every sum is taken in an order fixed by `ids`. `torch.compile` sees one operation.
    """
    if not table.is_cuda:
        # A custom operation costs half a millisecond more, which small models feel, and says nothing new.
        return reference.weighted_bag(table, ids, weights)
    result: Tensor = _forward(table, ids, weights)
    return result


def _implementation(table: Tensor) -> ModuleType:
    # Triton is not there where torch has no CUDA, and its kernels have no float64.
    on_gpu = table.is_cuda and table.dtype != torch.float64
    return import_module("workloads.kernels.weighted_bag.triton") if on_gpu else reference


@torch.library.custom_op("memscale::weighted_bag", mutates_args=())
def _forward(table: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    result: Tensor = _implementation(table).forward(table, ids, weights)
    return result


@_forward.register_fake
def _(table: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    return table.new_empty(ids.shape[0], table.shape[1])


@torch.library.custom_op("memscale::weighted_bag_backward", mutates_args=())
def _backward(
    table: Tensor,
    ids: Tensor,
    weights: Tensor,
    grad: Tensor,
    needs_table: bool,
    needs_weights: bool,
) -> tuple[Tensor, Tensor]:
    table_grad, weights_grad = _implementation(table).backward(
        table, ids, weights, grad, needs_table=needs_table, needs_weights=needs_weights
    )
    # An operation returns tensors: an empty one says none.
    return (
        table.new_empty(0) if table_grad is None else table_grad,
        table.new_empty(0) if weights_grad is None else weights_grad,
    )


@_backward.register_fake
def _(
    table: Tensor,
    ids: Tensor,
    weights: Tensor,
    grad: Tensor,
    needs_table: bool,
    needs_weights: bool,
) -> tuple[Tensor, Tensor]:
    return (
        torch.empty_like(table, memory_format=torch.contiguous_format)
        if needs_table
        else table.new_empty(0),
        weights.new_empty(weights.shape) if needs_weights else table.new_empty(0),
    )


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
    needs_table, _, needs_weights = ctx.needs_input_grad
    table_grad, weights_grad = _backward(*ctx.saved_tensors, grad, needs_table, needs_weights)
    return table_grad if needs_table else None, None, weights_grad if needs_weights else None


_forward.register_autograd(_gradients, setup_context=_keep)
