"""Entry point of the gated bag."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.backend import uses_triton
from workloads.kernels.custom_op import or_empty, register_op
from workloads.kernels.gated_bag import reference


def gated_bag(
    values: Float[Tensor, "rows width"],
    pre_values: Float[Tensor, "rows pre_width"],
    ids: Int[Tensor, "bags bag_size"],
    scores: Float[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags pre_width"],
) -> tuple[Float[Tensor, "bags width"], Float[Tensor, "bags bag_size"]]:
    """Return weighted sums of rows and their weights (`reference.gated_bag`).

    On CUDA the gradients of both tables come of one sort of the reads. Every sum is taken in an
    order fixed by `ids`. `torch.compile` sees one operation. `x` has the tables' type.
    """
    if not uses_triton(values):
        return reference.gated_bag(values, pre_values, ids, scores, x)
    output, products = _forward_op(values, pre_values, ids, scores, x)
    return output, scores.detach() * products


def _kernels() -> Any:
    return import_module("workloads.kernels.gated_bag.triton")


def _forward(
    values: Tensor, pre_values: Tensor, ids: Tensor, scores: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = _kernels().forward(values, pre_values, ids, scores, x)
    return found


def _fake(
    values: Tensor, pre_values: Tensor, ids: Tensor, scores: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    return values.new_empty(len(ids), values.shape[1]), values.new_empty(ids.shape)


def _backward(
    grad: Tensor,
    products: Tensor,
    values: Tensor,
    pre_values: Tensor,
    ids: Tensor,
    scores: Tensor,
    x: Tensor,
    needs_tables: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    value_grad, pre_value_grad, scores_grad, x_grad = _kernels().backward(
        grad, products, values, pre_values, ids, scores, x, needs_tables=needs_tables
    )
    return or_empty(value_grad, values), or_empty(pre_value_grad, values), scores_grad, x_grad


def _fake_backward(
    grad: Tensor,
    products: Tensor,
    values: Tensor,
    pre_values: Tensor,
    ids: Tensor,
    scores: Tensor,
    x: Tensor,
    needs_tables: bool,
) -> tuple[Tensor, ...]:
    tables = (each.new_empty(each.shape if needs_tables else 0) for each in (values, pre_values))
    return *tables, scores.new_empty(scores.shape), x.new_empty(x.shape)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1], *inputs)


def _gradients(
    backward: Callable[..., tuple[Tensor, ...]], ctx: Any, grad: Tensor, _: Tensor
) -> tuple[Tensor | None, ...]:
    needs_values, needs_pre_values, *_ = ctx.needs_input_grad
    value_grad, pre_value_grad, scores_grad, x_grad = backward(
        grad, *ctx.saved_tensors, needs_values or needs_pre_values
    )
    return (
        value_grad if needs_values else None,
        pre_value_grad if needs_pre_values else None,
        None,
        scores_grad,
        x_grad,
    )


_forward_op, _ = register_op(
    "gated_bag",
    _forward,
    _backward,
    fake=_fake,
    fake_backward=_fake_backward,
    save=_save,
    gradients=_gradients,
)
