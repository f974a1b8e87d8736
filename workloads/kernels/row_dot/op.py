"""The one entry to the products of rows."""

from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.row_dot import reference


def row_dot(
    table: Float[Tensor, "rows width"],
    ids: Int[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags width"],
) -> Float[Tensor, "bags bag_size"]:
    """Return the product of each bag's `x` with every row that it names: `y[b, g] = table[ids[b, g]] . x[b]`.

    A row may occur several times in a bag. Table and `x` have one type, which autocast leaves alone. Gradients reach
    `table` (dense) and `x`. Both passes are deterministic: every sum is taken in an order fixed by `ids`.
    `torch.compile` sees one operation.
    """
    if not table.is_cuda:
        # A custom operation costs half a millisecond more, which small models feel, and says nothing new.
        return reference.row_dot(table, ids, x)
    result: Tensor = _forward(table, ids, x)
    return result


def _implementation(table: Tensor) -> ModuleType:
    # Triton is not there where torch has no CUDA, and its kernels have no float64.
    on_gpu = table.is_cuda and table.dtype != torch.float64
    return import_module("workloads.kernels.row_dot.triton") if on_gpu else reference


@torch.library.custom_op("memscale::row_dot", mutates_args=())
def _forward(table: Tensor, ids: Tensor, x: Tensor) -> Tensor:
    result: Tensor = _implementation(table).forward(table, ids, x)
    return result


@_forward.register_fake
def _(table: Tensor, ids: Tensor, x: Tensor) -> Tensor:
    return table.new_empty(ids.shape)


@torch.library.custom_op("memscale::row_dot_backward", mutates_args=())
def _backward(
    table: Tensor,
    ids: Tensor,
    x: Tensor,
    grad: Tensor,
    needs_table: bool,
    needs_x: bool,
) -> tuple[Tensor, Tensor]:
    table_grad, x_grad = _implementation(table).backward(
        table, ids, x, grad, needs_table=needs_table, needs_x=needs_x
    )
    # An operation returns tensors: an empty one says none.
    return (
        table.new_empty(0) if table_grad is None else table_grad,
        table.new_empty(0) if x_grad is None else x_grad,
    )


@_backward.register_fake
def _(
    table: Tensor,
    ids: Tensor,
    x: Tensor,
    grad: Tensor,
    needs_table: bool,
    needs_x: bool,
) -> tuple[Tensor, Tensor]:
    return (
        torch.empty_like(table, memory_format=torch.contiguous_format)
        if needs_table
        else table.new_empty(0),
        x.new_empty(x.shape) if needs_x else table.new_empty(0),
    )


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
    needs_table, _, needs_x = ctx.needs_input_grad
    table_grad, x_grad = _backward(*ctx.saved_tensors, grad, needs_table, needs_x)
    return table_grad if needs_table else None, None, x_grad if needs_x else None


_forward.register_autograd(_gradients, setup_context=_keep)
