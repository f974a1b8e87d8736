"""Reads of a table that ranks share out, as operations that `torch.compile` keeps in its graph.

What a read's backward pass needs of its forward pass are further outputs of the forward operation, as a graph keeps
tensors only: [how long everything is and what the route had of numbers, on the host; ids and second tensor of the reads
made here (`read.Found`); the route's tensors], all flat. How long they are depends on the batches of other ranks, so no
length is known before the operation has run.

Every rank must run its reads in the same order. Where a read depends on the one before, as through the residual stream,
no compiler can change it; others stay in the order of the program as long as all ranks' batches have one shape, for then
what is compiled is the same on all.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.layers.memory.handle_registry import Named, named
from workloads.layers.memory.sparse_gradient import SparseGradient
from workloads.layers.memory.sparse_gradient_ops import NOT_REPLAYED, anchor_gradient, copied
from workloads.layers.memory.sparse_gradient_ops import numbers as backward_passes
from workloads.sharding import sharded_lookup
from workloads.sharding.table_route import TableRoute

_OPERATIONS = {"weighted_sums": sharded_lookup.WEIGHTED_SUMS, "products": sharded_lookup.PRODUCTS}


class RouteFactory(Named, ABC):
    """What an operation must know of a table that ranks share out."""

    STATE: ClassVar[tuple[torch.dtype, ...]]
    """Types of the tensors of a route's state."""
    n_rows: int
    width: int

    @property
    def id_type(self) -> torch.dtype:
        """The type in which ids travel: half the bytes of what is sent most."""
        return torch.int32 if self.n_rows < 2**31 else torch.int64

    @abstractmethod
    def route(self, ids: Int[Tensor, "bags bag_size"]) -> TableRoute:
        """Return how a read finds the rows that `ids` name. Collective."""

    @abstractmethod
    def route_again(
        self,
        ids: Int[Tensor, "bags bag_size"],
        numbers: Sequence[int],
        tensors: Sequence[Tensor],
    ) -> TableRoute:
        """Return for a backward pass the route of `ids` that had this state; its tensors come flattened."""


def weighted_sums(
    part: Float[Tensor, "rows columns"],
    ids: Int[Tensor, "bags bag_size"],
    weights: Float[Tensor, "bags bag_size"],
    shard: str,
    deferred: SparseGradient | None,
) -> Float[Tensor, "bags width"]:
    """Return `read.weighted_sums` by the shard of this name."""
    return _read(part, ids, weights, shard, deferred, "weighted_sums")


def products(
    part: Float[Tensor, "rows columns"],
    ids: Int[Tensor, "bags bag_size"],
    x: Float[Tensor, "bags width"],
    shard: str,
    deferred: SparseGradient | None,
) -> Float[Tensor, "bags bag_size"]:
    """Return `read.products` by the shard of this name."""
    return _read(part, ids, x, shard, deferred, "products")


def _read(
    part: Tensor,
    ids: Tensor,
    second: Tensor,
    shard: str,
    deferred: SparseGradient | None,
    operation: str,
) -> Tensor:
    anchor, name = (None, None) if deferred is None else (deferred.anchor, deferred.name)
    output: Tensor = shared_read(part, ids, second, anchor, operation, shard, name)[0]
    return output


@torch.library.custom_op("memscale::shared_read", mutates_args=(), tags=NOT_REPLAYED)
def shared_read(
    part: Tensor,
    ids: Tensor,
    second: Tensor,
    anchor: Tensor | None,
    operation: str,
    shard: str,
    deferred: str | None,
) -> list[Tensor]:
    """Return a read's output, and what its backward pass needs. Collective."""
    route = _routes(shard).route(ids)
    found = _OPERATIONS[operation].forward(part, second, route)
    numbers, tensors = route.state()
    numbers = [*found.ids.shape, *found.second.shape, *numbers]
    kept = [found.ids, found.second, *tensors]
    return [found.output, torch.tensor(numbers), *(each.reshape(-1) for each in kept)]


@shared_read.register_fake
def _(
    part: Tensor,
    ids: Tensor,
    second: Tensor,
    anchor: Tensor | None,
    operation: str,
    shard: str,
    deferred: str | None,
) -> list[Tensor]:
    here, trace = _routes(shard), torch.library.get_ctx()
    width = here.width if operation == "weighted_sums" else ids.shape[1]
    types = (here.id_type, second.dtype, *here.STATE)
    return [
        part.new_empty(ids.shape[0], width),
        torch.empty(trace.new_dynamic_size(), dtype=torch.int64, device="cpu"),
        *(ids.new_empty(trace.new_dynamic_size(), dtype=each) for each in types),
    ]


@torch.library.custom_op("memscale::shared_read_backward", mutates_args=(), tags=NOT_REPLAYED)
def shared_read_backward(
    grad: Tensor,
    part: Tensor,
    ids: Tensor,
    kept: list[Tensor],
    anchor: Tensor | None,
    operation: str,
    shard: str,
    deferred: str | None,
    needs_part: bool,
    needs_second: bool,
    number: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of part, second tensor and anchor, empty where there is none. Collective.

    `number` is that of the pass (`deferred_read.py`).
    """
    host, held_ids, held_second, *tensors = kept
    bags, size, of_second, width, *numbers = host.tolist()
    held_ids, held_second = held_ids.view(bags, size), held_second.view(of_second, width)
    route = _routes(shard).route_again(ids, numbers, tensors)
    leave = None if deferred is None else named(SparseGradient, deferred)
    if leave is not None and needs_part:
        # What comes by message is nobody's buffer; these are the graph's.
        held_ids, held_second = copied(held_ids), copied(held_second)
    part_grad, second_grad = _OPERATIONS[operation].backward(
        part,
        held_ids,
        held_second,
        grad,
        route,
        leave,
        needs_part=needs_part,
        needs_second=needs_second,
    )
    return (
        grad.new_empty(0) if part_grad is None else part_grad.contiguous(),
        grad.new_empty(0) if second_grad is None else second_grad.contiguous(),
        anchor_gradient(grad, anchor),
    )


@shared_read_backward.register_fake
def _(
    grad: Tensor,
    part: Tensor,
    ids: Tensor,
    kept: list[Tensor],
    anchor: Tensor | None,
    operation: str,
    shard: str,
    deferred: str | None,
    needs_part: bool,
    needs_second: bool,
    number: int,
) -> tuple[Tensor, Tensor, Tensor]:
    bags, width = ids.shape[0], _routes(shard).width
    second = ids.shape if operation == "weighted_sums" else (bags, width)
    return (
        part.new_empty(part.shape) if needs_part and deferred is None else grad.new_empty(0),
        part.new_empty(second) if needs_second else grad.new_empty(0),
        anchor_gradient(grad, anchor),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    part, ids, _, anchor, *ctx.how = inputs
    ctx.save_for_backward(part, ids, anchor, *output[1:])


def _gradients(ctx: Any, grads: list[Tensor]) -> tuple[Tensor | None, ...]:
    part, ids, anchor, *kept = ctx.saved_tensors
    operation, shard, deferred = ctx.how
    needs_part, _, needs_second, *_ = ctx.needs_input_grad
    part_grad, second_grad, anchor_grad = shared_read_backward(
        grads[0],
        part,
        ids,
        kept,
        anchor if needs_part else None,
        operation,
        shard,
        deferred,
        needs_part,
        needs_second,
        next(backward_passes),
    )
    return (
        part_grad if needs_part and deferred is None else None,
        None,
        second_grad if needs_second else None,
        anchor_grad if needs_part and deferred is not None else None,
        *(None, None, None),
    )


shared_read.register_autograd(_gradients, setup_context=_keep)


def _routes(name: str) -> RouteFactory:
    return named(RouteFactory, name)  # type: ignore[type-abstract]
