"""Sparse-gradient lookups as custom operations of a compiled graph.

Their backward passes do two things that a graph does not know of:

* They add to a `SparseGradient`. A compiler would drop a backward pass whose gradient nobody
  wants. So it also returns the gradient of `SparseGradient.anchor`, which is zero and always
  wanted, unless the second tensor gets one, which is wanted as well. A compiler would also merge
  two equal lookups, so each backward pass has a number.
* What they add outlives the graph, which reuses its buffers. So copies are added.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from workloads.kernels.custom_op import or_empty, register_op
from workloads.kernels.gathered_dot.op import gathered_dot
from workloads.kernels.weighted_bag.op import weighted_bag
from workloads.layers.memory.handle_registry import resolve

_cudagraph_unsafe = getattr(torch.Tag, "cudagraph_unsafe", None)
NOT_REPLAYED = () if _cudagraph_unsafe is None else (_cudagraph_unsafe,)
"""Tags of operations with effects outside the graph, which replaying a CUDA graph would skip."""
_numbers: WeakKeyDictionary[object, Iterator[int]] = WeakKeyDictionary()
"""Numbers of backward passes of each graph that is traced."""


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """One of the two lookups of a table; each is the other's gradient of the second tensor."""

    read: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Of the rows, the positions among them that are read, and the second tensor."""
    second_gradient: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Of rows, positions and the output's gradient."""
    weights_and_x: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    """Of the second tensor and the output's gradient: the weights and x of a `LookupGrad`."""

    new_output: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Makes an open output of the arguments of `read`."""


LOOKUPS = {
    "weighted_bag": Lookup(
        read=weighted_bag,
        second_gradient=gathered_dot,
        weights_and_x=lambda weights, grad: (weights, grad),
        new_output=lambda rows, ids, weights: rows.new_empty(ids.shape[0], rows.shape[1]),
    ),
    "gathered_dot": Lookup(
        read=gathered_dot,
        second_gradient=weighted_bag,
        weights_and_x=lambda x, grad: (grad, x),
        new_output=lambda rows, ids, x: rows.new_empty(ids.shape),
    ),
}


def _register(name: str, lookup: Lookup) -> Callable[..., Tensor]:
    """Return the custom operation `memscale::sparse_NAME` (signature: `forward` below).

    `rows` and `positions` are what `SparseGradient.fetch` returned for `ids` of a table of `n_rows`
    rows; `gradient` is the handle of the `SparseGradient`, a tensor, so that all share one graph.
    """

    def forward(
        rows: Tensor,
        positions: Tensor,
        ids: Tensor,
        second: Tensor,
        anchor: Tensor | None,
        gradient: Tensor,
        n_rows: int,
    ) -> Tensor:
        return lookup.read(rows, positions, second)

    # Tells a compiler shapes and types, without a number being read.
    def fake(rows: Tensor, positions: Tensor, ids: Tensor, second: Tensor, *_: object) -> Tensor:
        return lookup.new_output(rows, positions, second)

    def backward(
        grad: Tensor,
        rows: Tensor,
        positions: Tensor,
        ids: Tensor,
        second: Tensor,
        anchor: Tensor | None,
        gradient: Tensor,
        n_rows: int,
        needs_second: bool,
        number: int,
    ) -> tuple[Tensor, Tensor]:
        # The one effect outside the graph. An anchor is handed over only where the table trains.
        if anchor is not None:
            resolve(gradient).add_copies(n_rows, ids, *lookup.weights_and_x(second, grad))
        second_grad = None
        if needs_second:
            second_grad = lookup.second_gradient(rows, positions, grad).contiguous()
        return or_empty(second_grad, grad), anchor_gradient(grad, None if needs_second else anchor)

    operation, _ = register_op(
        f"sparse_{name}",
        forward,
        backward,
        fake=fake,
        fake_backward=_fake_backward,
        save=_save,
        gradients=_gradients,
        tags=NOT_REPLAYED,
    )
    return operation


def _fake_backward(
    grad: Tensor,
    rows: Tensor,
    positions: Tensor,
    ids: Tensor,
    second: Tensor,
    anchor: Tensor | None,
    gradient: Tensor,
    n_rows: int,
    needs_second: bool,
    number: int,
) -> tuple[Tensor, Tensor]:
    """Tell a compiler the shapes and types of `backward` in `_register`."""
    second_grad = second.new_empty(second.shape) if needs_second else grad.new_empty(0)
    return second_grad, anchor_gradient(grad, None if needs_second else anchor)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    # Autograd watches over saved tensors alone; a number is kept beside them.
    *tensors, ctx.n_rows = inputs
    ctx.save_for_backward(*tensors)


def _gradients(
    backward: Callable[..., tuple[Tensor, Tensor]], ctx: Any, grad: Tensor
) -> tuple[Tensor | None, ...]:
    # The table's gradient is never made. Whether it is wanted decides who gets the lookups.
    *tensors, anchor, gradient = ctx.saved_tensors
    needs_table, _, _, needs_second, *_ = ctx.needs_input_grad
    added = anchor if needs_table else None
    # A number of its own, or a compiler takes two equal passes for one.
    numbers = ctx.n_rows, needs_second, next_pass_number()
    second_grad, anchor_grad = backward(grad, *tensors, added, gradient, *numbers)
    return (
        *(None, None, None),
        second_grad if needs_second else None,
        anchor_grad if added is not None and not needs_second else None,
        *(None, None),
    )


def next_pass_number() -> int:
    """Return the number of a backward pass in its graph, in the order of tracing.

    The numbers of each graph begin anew, so that it is the same graph whatever was traced before in
    this process, and caches hit. Outside of tracing it is 0.
    """
    trace = torch._guards.TracingContext.try_get()
    return 0 if trace is None else next(_numbers.setdefault(trace, count()))


def anchor_gradient(like: Tensor, anchor: Tensor | None) -> Tensor:
    """Return the gradient of an anchor: zero, or empty where there is no anchor."""
    return or_empty(None if anchor is None else torch.zeros_like(anchor), like)


COMPILED = {name: _register(name, lookup) for name, lookup in LOOKUPS.items()}
"""The custom operation of each lookup."""
