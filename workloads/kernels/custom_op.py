"""Registration of custom operations of torch.

One node of a compiled graph, with a gradient of its own.

An operation is described once, by annotated functions: `forward` and `backward` give the schemas,
`fake` and `fake_backward` make outputs without values for tracing, `save` and `gradients` connect
the two for autograd.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from workloads.kernels.backend import implementation


def register_op(
    name: str,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    *,
    fake: Callable[..., Any],
    fake_backward: Callable[..., Any],
    save: Callable[..., None],
    gradients: Callable[..., Any],
    tags: Sequence[torch.Tag] = (),
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Register `memscale::NAME` and its gradient `memscale::NAME_backward`; return both.

    torch's caches know a graph by the names in it. So an operation that comes to return tensors of
    other shapes takes another name, or a graph compiled before reads what is not there.

    Args:
        name: Of the operation.
        forward: Computes the outputs; its annotations are the operation's schema.
        backward: Computes the gradients as tensors; an empty tensor stands for none (`or_empty`).
        fake: Makes outputs without values, of the arguments of `forward`.
        fake_backward: Makes gradients without values, of the arguments of `backward`.
        save: Keeps in `ctx` what the backward pass needs, of `ctx`, inputs and output.
        gradients: Returns the gradients of all inputs, of the backward operation, `ctx` and the
            outputs' gradients.
        tags: Of both operations.
    """
    operation, gradient = (
        torch.library.custom_op(f"memscale::{each}", function, mutates_args=(), tags=tags)
        for each, function in ((name, forward), (f"{name}_backward", backward))
    )
    operation.register_fake(fake)
    gradient.register_fake(fake_backward)
    operation.register_autograd(partial(gradients, gradient), setup_context=save)
    return operation, gradient


def or_empty(gradient: Tensor | None, like: Tensor) -> Tensor:
    """Return a gradient, or an empty tensor in the place of none.

    An operation returns tensors only.
    """
    return like.new_empty(0) if gradient is None else gradient


def register_lookup(
    name: str,
    *,
    second: str,
    new_output: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the custom operation `memscale::NAME` of a table, row ids and a second tensor.

    Gradients reach the table (dense) and the second tensor.

    Args:
        name: Of the operation and its folder. The modules there have `forward(table, ids, second)`
            and `backward(table, ids, second, grad, needs_table=…, needs_SECOND=…)`, which returns
            None for a gradient that is not needed.
        second: What these modules call the second tensor.
        new_output: Makes an open output, as `forward` returns it, of the operation's arguments.
    """

    def forward(table: Tensor, ids: Tensor, x: Tensor) -> Tensor:
        result: Tensor = implementation(name, table).forward(table, ids, x)
        return result

    def backward(
        table: Tensor, ids: Tensor, x: Tensor, grad: Tensor, needs_table: bool, needs_x: bool
    ) -> tuple[Tensor, Tensor]:
        needs = {"needs_table": needs_table, f"needs_{second}": needs_x}
        table_grad, x_grad = implementation(name, table).backward(table, ids, x, grad, **needs)
        return or_empty(table_grad, table), or_empty(x_grad, table)

    def fake_backward(
        table: Tensor, ids: Tensor, x: Tensor, grad: Tensor, needs_table: bool, needs_x: bool
    ) -> tuple[Tensor, Tensor]:
        return (
            table.new_empty(table.shape if needs_table else 0),
            x.new_empty(x.shape) if needs_x else table.new_empty(0),
        )

    def save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    def gradients(
        backward: Callable[..., tuple[Tensor, Tensor]], ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, None, Tensor | None]:
        needs_table, _, needs_x = ctx.needs_input_grad
        table_grad, x_grad = backward(*ctx.saved_tensors, grad, needs_table, needs_x)
        return table_grad if needs_table else None, None, x_grad if needs_x else None

    operation, _ = register_op(
        name,
        forward,
        backward,
        fake=new_output,
        fake_backward=fake_backward,
        save=save,
        gradients=gradients,
    )
    return operation
