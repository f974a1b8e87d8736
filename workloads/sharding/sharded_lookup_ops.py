"""Sharded lookups as custom operations of a compiled graph.

A graph keeps tensors only, so what the backward pass needs are further outputs of the forward
operation: sizes and the route's state, on the host, and ids and second tensor of the reads made
here (`sharded_lookup.Found`), all flat. Their lengths depend on the batches of other ranks, so none
is known before the operation has run.

Every rank must run its lookups in the same order. Where a lookup depends on the one before, as
through the residual stream, no compiler can change it. Others keep the program's order as long as
all ranks' batches have one shape, for then all ranks compile the same graph.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workloads.kernels.custom_op import or_empty, register_op
from workloads.layers.memory.handle_registry import resolve
from workloads.layers.memory.sparse_gradient import SparseGradient, copied
from workloads.layers.memory.sparse_gradient_ops import (
    NOT_REPLAYED,
    anchor_gradient,
    next_pass_number,
)
from workloads.sharding.sharded_lookup import OPERATIONS

if TYPE_CHECKING:
    from workloads.sharding.table_shard import TableShard


def read(
    operation: str,
    part: Tensor,
    ids: Tensor,
    second: Tensor,
    shard: "TableShard",
    sparse_gradient: SparseGradient | None,
) -> Tensor:
    """Return an operation of `sharded_lookup.OPERATIONS` on the whole table. Collective."""
    anchor, handle = None, None
    if sparse_gradient is not None:
        anchor, handle = sparse_gradient.anchor, sparse_gradient.handle
    output: Tensor = sharded_read(part, ids, second, anchor, operation, shard.number, handle)[0]
    return output


def _forward(
    part: Tensor,
    ids: Tensor,
    second: Tensor,
    anchor: Tensor | None,
    operation: str,
    shard: int,
    sparse_gradient: Tensor | None,
) -> list[Tensor]:
    route = resolve(shard).route(ids)
    found = OPERATIONS[operation].forward(part, second, route)
    numbers = [*found.ids.shape, *found.second.shape, *route.state()]
    kept = (found.ids, found.second)
    return [found.output, torch.tensor(numbers), *(each.reshape(-1) for each in kept)]


def _fake(
    part: Tensor, ids: Tensor, second: Tensor, _: object, operation: str, shard: int, __: object
) -> list[Tensor]:
    reader: TableShard = resolve(shard)
    trace = torch.library.get_ctx()
    width = reader.width if operation == "weighted_bag" else ids.shape[1]
    dtypes = (reader.id_dtype, second.dtype)
    return [
        part.new_empty(ids.shape[0], width),
        torch.empty(trace.new_dynamic_size(), dtype=torch.int64, device="cpu"),
        *(ids.new_empty(trace.new_dynamic_size(), dtype=each) for each in dtypes),
    ]


def _backward(
    grad: Tensor,
    part: Tensor,
    ids: Tensor,
    kept: list[Tensor],
    anchor: Tensor | None,
    operation: str,
    shard: int,
    sparse_gradient: Tensor | None,
    needs_part: bool,
    needs_second: bool,
    number: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of part, second tensor and anchor. `number` is `next_pass_number`."""
    host, held_ids, held_second = kept
    bags, size, second_bags, width, *state = host.tolist()
    held_ids, held_second = held_ids.view(bags, size), held_second.view(second_bags, width)
    route = resolve(shard).restore_route(ids, state)
    into: SparseGradient | None = None if sparse_gradient is None else resolve(sparse_gradient)
    if into is not None and needs_part:
        # Received messages are nobody's buffers; these two are the graph's.
        held_ids, held_second = copied(held_ids), copied(held_second)
    part_grad, second_grad = OPERATIONS[operation].backward(
        part,
        held_ids,
        held_second,
        grad,
        route,
        into,
        needs_part=needs_part,
        needs_second=needs_second,
    )
    found = (None if each is None else each.contiguous() for each in (part_grad, second_grad))
    part_grad, second_grad = (or_empty(each, grad) for each in found)
    return part_grad, second_grad, anchor_gradient(grad, anchor)


def _fake_backward(
    grad: Tensor,
    part: Tensor,
    ids: Tensor,
    kept: list[Tensor],
    anchor: Tensor | None,
    operation: str,
    shard: int,
    sparse_gradient: Tensor | None,
    needs_part: bool,
    needs_second: bool,
    number: int,
) -> tuple[Tensor, Tensor, Tensor]:
    dense = needs_part and sparse_gradient is None
    second = ids.shape if operation == "weighted_bag" else (ids.shape[0], resolve(shard).width)
    return (
        part.new_empty(part.shape if dense else 0),
        part.new_empty(second if needs_second else 0),
        anchor_gradient(grad, anchor),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    part, ids, _, anchor, ctx.operation, ctx.shard, sparse_gradient = inputs
    ctx.save_for_backward(part, ids, anchor, sparse_gradient, *output[1:])


def _gradients(
    backward: Callable[..., tuple[Tensor, ...]], ctx: Any, grads: list[Tensor]
) -> tuple[Tensor | None, ...]:
    part, ids, anchor, sparse_gradient, *kept = ctx.saved_tensors
    needs_part, _, needs_second, *_ = ctx.needs_input_grad
    added = anchor if needs_part else None
    names = ctx.operation, ctx.shard, sparse_gradient
    needs = needs_part, needs_second, next_pass_number()
    part_grad, second_grad, anchor_grad = backward(grads[0], part, ids, kept, added, *names, *needs)
    return (
        part_grad if needs_part and anchor is None else None,
        None,
        second_grad if needs_second else None,
        anchor_grad if added is not None else None,
        *(None, None, None),
    )


sharded_read, sharded_read_backward = register_op(
    "sharded_read",
    _forward,
    _backward,
    fake=_fake,
    fake_backward=_fake_backward,
    save=_save,
    gradients=_gradients,
    tags=NOT_REPLAYED,
)
