"""Reads whose table gradient is deferred, as operations that `torch.compile` keeps in its graph.

Their backward passes do two things that a graph knows nothing of, and would spoil:

* They leave reads in a `SparseGradient`. So that no compiler takes such a pass for dead where nobody wants the
  gradient that it returns, it also returns that of `SparseGradient.anchor`, which is zero and always wanted. So that
  no two are taken for one where a bag is read twice with the same weights, each has a number.
* What they leave outlives the graph, whose buffers a compiler reuses as soon as the graph is done with them. So copies
  are left.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import Tensor

from workloads.kernels.gathered_dot.op import gathered_dot
from workloads.kernels.weighted_bag.op import weighted_bag
from workloads.layers.memory.handle_registry import Named, named

_cudagraph_unsafe = getattr(torch.Tag, "cudagraph_unsafe", None)
NOT_REPLAYED = () if _cudagraph_unsafe is None else (_cudagraph_unsafe,)
"""Tags of operations that act outside the graph, which a CUDA graph that is replayed would leave out."""
numbers = count()
"""Of backward passes, as they are traced."""


class LookupGradSink(Named, ABC):
    """Where reads are left."""

    @abstractmethod
    def add(self, n_rows: int, ids: Tensor, weights: Tensor, x: Tensor) -> None:
        """Keep the reads of one backward pass, of a table of `n_rows`."""


def _register(
    name: str,
    read: Callable[[Tensor, Tensor, Tensor], Tensor],
    read_back: Callable[[Tensor, Tensor, Tensor], Tensor],
    *,
    new_output: Callable[[Tensor, Tensor, Tensor], Tensor],
    weights_and_x: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
) -> Callable[..., Tensor]:
    """Return the custom operation `memscale::deferred_NAME`.

    Its arguments are the rows and the places among them that are read (`SparseGradient.fetch`), the ids that these
    are in the table, the third argument of `read`, the anchor, and name and rows of the table.

    Args:
        name: Of the operation.
        read: Of rows, places and a third tensor.
        read_back: The gradient of the third tensor, of rows, places and the output's gradient.
        new_output: Makes an open output of `read`'s arguments.
        weights_and_x: Of the third tensor and the output's gradient, which are the weights and x of `LookupGrad`.
    """

    @torch.library.custom_op(f"memscale::deferred_{name}", mutates_args=(), tags=NOT_REPLAYED)
    def forward(
        rows: Tensor,
        places: Tensor,
        ids: Tensor,
        third: Tensor,
        anchor: Tensor | None,
        gradient: str,
        n_rows: int,
    ) -> Tensor:
        return read(rows, places, third)

    @forward.register_fake
    def _(
        rows: Tensor,
        places: Tensor,
        ids: Tensor,
        third: Tensor,
        anchor: Tensor | None,
        gradient: str,
        n_rows: int,
    ) -> Tensor:
        return new_output(rows, places, third)

    @torch.library.custom_op(
        f"memscale::deferred_{name}_backward", mutates_args=(), tags=NOT_REPLAYED
    )
    def backward(
        grad: Tensor,
        rows: Tensor,
        places: Tensor,
        ids: Tensor,
        third: Tensor,
        anchor: Tensor | None,
        gradient: str,
        n_rows: int,
        needs_third: bool,
        number: int,
    ) -> tuple[Tensor, Tensor]:
        if anchor is not None:
            left = ids, *weights_and_x(third, grad)
            where = named(LookupGradSink, gradient)  # type: ignore[type-abstract]
            where.add(n_rows, *(copied(each) for each in left))
        return (
            read_back(rows, places, grad).contiguous() if needs_third else grad.new_empty(0),
            anchor_gradient(grad, anchor),
        )

    @backward.register_fake
    def _(
        grad: Tensor,
        rows: Tensor,
        places: Tensor,
        ids: Tensor,
        third: Tensor,
        anchor: Tensor | None,
        gradient: str,
        n_rows: int,
        needs_third: bool,
        number: int,
    ) -> tuple[Tensor, Tensor]:
        third_grad = third.new_empty(third.shape) if needs_third else grad.new_empty(0)
        return third_grad, anchor_gradient(grad, anchor)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.gradient, ctx.n_rows = inputs
        ctx.save_for_backward(*tensors)

    def gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, anchor = ctx.saved_tensors
        needs_table, _, _, needs_third, *_ = ctx.needs_input_grad
        third_grad, anchor_grad = backward(
            grad,
            *tensors,
            anchor if needs_table else None,
            ctx.gradient,
            ctx.n_rows,
            needs_third,
            next(numbers),
        )
        return (
            *(None, None, None),
            third_grad if needs_third else None,
            anchor_grad if needs_table and anchor is not None else None,
            *(None, None),
        )

    forward.register_autograd(gradients, setup_context=keep)
    return forward


def copied(tensor: Tensor) -> Tensor:
    """Return a tensor that no buffer of a graph is."""
    return tensor.clone(memory_format=torch.contiguous_format)


def anchor_gradient(like: Tensor, anchor: Tensor | None) -> Tensor:
    """Return the gradient of an anchor; an operation returns tensors: an empty one says none."""
    return like.new_empty(0) if anchor is None else torch.zeros_like(anchor)


bag = _register(
    "weighted_bag",
    weighted_bag,
    gathered_dot,
    new_output=lambda rows, places, weights: rows.new_empty(places.shape[0], rows.shape[1]),
    weights_and_x=lambda weights, grad: (weights, grad),
)
products = _register(
    "gathered_dot",
    gathered_dot,
    weighted_bag,
    new_output=lambda rows, places, x: rows.new_empty(places.shape),
    weights_and_x=lambda x, grad: (grad, x),
)
