"""How an operation that reads a table is made known to torch: as one node of a graph, with a gradient of its own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def register_read(
    name: str,
    implementation: Callable[[Tensor], Any],
    *,
    third: str,
    new_output: Callable[[Tensor, Tensor, Tensor], Tensor],
    new_third_gradient: Callable[[Tensor, Tensor], Tensor] = lambda table, x: x.new_empty(x.shape),
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the custom operation `memscale::NAME` of a table, row numbers and a third tensor, which `third` names.

    Gradients reach table and third tensor, through `memscale::NAME_backward`.

    Args:
        name: Of the operation.
        implementation: Of a table, the module with `forward(table, ids, third)` and `backward(table, ids, third, grad,
            needs_table=…, needs_THIRD=…)`, which returns None for a gradient that is not needed.
        third: What `implementation` calls the third tensor.
        new_output: Makes an open output, as `forward` returns it, of the operation's arguments.
        new_third_gradient: Makes the third tensor's open gradient, of table and third tensor.
    """

    @torch.library.custom_op(f"memscale::{name}", mutates_args=())
    def forward(table: Tensor, ids: Tensor, x: Tensor) -> Tensor:
        result: Tensor = implementation(table).forward(table, ids, x)
        return result

    @torch.library.custom_op(f"memscale::{name}_backward", mutates_args=())
    def backward(
        table: Tensor, ids: Tensor, x: Tensor, grad: Tensor, needs_table: bool, needs_x: bool
    ) -> tuple[Tensor, Tensor]:
        needs = {"needs_table": needs_table, f"needs_{third}": needs_x}
        table_grad, x_grad = implementation(table).backward(table, ids, x, grad, **needs)
        # An operation returns tensors: an empty one says none.
        return (
            table.new_empty(0) if table_grad is None else table_grad,
            table.new_empty(0) if x_grad is None else x_grad,
        )

    @backward.register_fake
    def _(
        table: Tensor, ids: Tensor, x: Tensor, grad: Tensor, needs_table: bool, needs_x: bool
    ) -> tuple[Tensor, Tensor]:
        contiguous = torch.contiguous_format
        return (
            torch.empty_like(table, memory_format=contiguous)
            if needs_table
            else table.new_empty(0),
            new_third_gradient(table, x) if needs_x else table.new_empty(0),
        )

    def keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    def gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        needs_table, _, needs_x = ctx.needs_input_grad
        table_grad, x_grad = backward(*ctx.saved_tensors, grad, needs_table, needs_x)
        return table_grad if needs_table else None, None, x_grad if needs_x else None

    forward.register_fake(new_output)
    forward.register_autograd(gradients, setup_context=keep)
    return forward
