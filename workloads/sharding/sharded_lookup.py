"""Sharded lookups: local kernels between messages.

| lookup       | pass     | there                        | here                | back           |
|--------------|----------|------------------------------|---------------------|----------------|
| weighted_bag | forward  | ids and weights              | weighted_bag        | sums           |
|              | backward | gradients of sums, with sort | table, dot products | dot products   |
| gathered_dot | forward  | ids and x                    | gathered_dot        | dot products   |
|              | backward | their gradients              | weighted_bag, table | gradients of x |

The reads are sorted, and the table's gradient of `gathered_dot` summed, while messages travel.

Where the route has chunks, one is computed while the next ones arrive and those before return. The
table's gradient is one pass over the reads of all chunks: it sorts them and writes the whole table,
so two halves would cost twice as much. In the backward pass of `weighted_bag` the dot products come
out of that same pass, so they return all at once. With a `SparseGradient` the optimizer makes that
pass, and the backward pass has chunks too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from workloads.distributed.collectives import Pending
from workloads.kernels.gathered_dot.op import gathered_dot
from workloads.kernels.weighted_bag.gaps import bag_with_gaps, products_with_gaps
from workloads.kernels.weighted_bag.op import weighted_bag
from workloads.kernels.weighted_bag.sorted_reads import sorted_reads
from workloads.layers.memory.sparse_gradient import SparseGradient
from workloads.layers.memory.sparse_gradient_ops import LOOKUPS
from workloads.sharding.table_route import PendingReads, TableRoute


@dataclass(frozen=True, kw_only=True)
class Found:
    """The output of a lookup, and the reads made here, which its backward pass needs."""

    output: Tensor
    ids: Int[Tensor, "held_bags held_size"]
    second: Tensor
    """weighted_bag: weights [held_bags, held_size]; gathered_dot: x [held_bags, columns]."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A lookup's messages and local kernels; its second tensor is weights or x."""

    name: str
    send_second: Callable[[TableRoute, Tensor], PendingReads]
    local: Callable[[Tensor, Tensor, Tensor, bool], Tensor]
    return_output: Callable[[TableRoute, Tensor], Pending]
    send_grad: Callable[[TableRoute, Tensor], Pending]
    local_backward: Callable[[Tensor, Tensor, Tensor, bool], Tensor]
    return_second_grad: Callable[[TableRoute, Tensor], Pending]
    one_pass: bool
    """Whether the pass that sums the table's gradient also makes that of the second tensor."""

    def forward(self, part: Tensor, second: Tensor, route: TableRoute) -> Found:
        """Return the lookup of the whole table. Collective."""
        chunks = route.chunks()
        pending = [self.send_second(chunk, second[chunk.bags]) for chunk in chunks]
        held, returning = [], []
        for chunk, reads in zip(chunks, pending, strict=True):
            held.append(reads())
            returning.append(self.return_output(chunk, self.local(part, *held[-1], route.HAS_GAPS)))
        ids, held_second = (route.join_chunks(each) for each in zip(*held, strict=True))
        return Found(output=_concatenated(returning), ids=ids, second=held_second)

    def backward(
        self,
        part: Tensor,
        ids: Tensor,
        second: Tensor,
        grad: Tensor,
        route: TableRoute,
        sparse_gradient: SparseGradient | None,
        *,
        needs_part: bool,
        needs_second: bool,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of the part and of the second tensor, given the output's.

        That of the part is None where it is added to `sparse_gradient`. Collective.
        """
        if self.one_pass and needs_part and sparse_gradient is None:
            arriving = self.send_grad(route, grad)
            gradients = sorted_reads(part, ids, second, products=needs_second, gaps=route.HAS_GAPS)
            table_grad, products = gradients(arriving())
            return table_grad, None if products is None else route.return_scalars(products)()
        chunks = route.chunks()
        pending = [self.send_grad(chunk, grad[chunk.bags]) for chunk in chunks]
        arrived, returning = [], []
        for chunk, its_ids, its_grad in zip(chunks, route.split_chunks(ids), pending, strict=True):
            arrived.append(its_grad())
            if needs_second:
                found = self.local_backward(part, its_ids, arrived[-1], route.HAS_GAPS)
                returning.append(self.return_second_grad(chunk, found))
        part_grad: Tensor | None = None
        if needs_part:
            weights_and_x = LOOKUPS[self.name].weights_and_x
            weights, x = weights_and_x(second, route.join_chunks(arrived))
            if sparse_gradient is not None:
                sparse_gradient.add(len(part), ids, weights, x)
            else:
                part_grad, _ = sorted_reads(
                    part, ids, weights, products=False, gaps=route.HAS_GAPS
                )(x)
        return part_grad, _concatenated(returning) if needs_second else None


def read(
    operation: str,
    part: Float[Tensor, "rows columns"],
    second: Tensor,
    route: TableRoute,
    sparse_gradient: SparseGradient | None,
) -> Tensor:
    """Return an operation of `OPERATIONS` on the whole table, of the ids that `route` is for.

    The gradient of `part` is added to `sparse_gradient` if there is one. Collective.
    """
    found: Tensor = _Read.apply(  # type: ignore[no-untyped-call]
        part, second, route, sparse_gradient, OPERATIONS[operation]
    )
    return found


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        part: Tensor,
        second: Tensor,
        route: TableRoute,
        sparse_gradient: SparseGradient | None,
        operation: Operation,
    ) -> Tensor:
        found = operation.forward(part, second, route)
        ctx.save_for_backward(part, found.ids, found.second)
        ctx.objects, ctx.operation = (route, sparse_gradient), operation
        return found.output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        needs_part, needs_second, *_ = ctx.needs_input_grad
        part_grad, second_grad = ctx.operation.backward(
            *ctx.saved_tensors, grad, *ctx.objects, needs_part=needs_part, needs_second=needs_second
        )
        return part_grad, second_grad, None, None, None


def _concatenated(chunks: Sequence[Pending]) -> Tensor:
    arrived = [chunk() for chunk in chunks]
    return arrived[0] if len(arrived) == 1 else torch.cat(arrived)


def _local_bag(part: Tensor, ids: Tensor, weights: Tensor, gaps: bool) -> Tensor:
    # A rank may hold no column and no row, or be asked for nothing.
    if not part.numel() or not ids.numel():
        return part.new_zeros(len(ids), part.shape[1])
    return bag_with_gaps(part, ids, weights) if gaps else weighted_bag(part, ids, weights)


def _local_dot(part: Tensor, ids: Tensor, x: Tensor, gaps: bool) -> Tensor:
    if not part.numel() or not ids.numel():
        return part.new_zeros(ids.shape)
    return products_with_gaps(part, ids, x) if gaps else gathered_dot(part, ids, x)


OPERATIONS = {
    "weighted_bag": Operation(
        name="weighted_bag",
        send_second=lambda route, weights: route.send_scalars_with_ids(weights),
        local=_local_bag,
        return_output=lambda route, sums: route.return_vectors(sums),
        send_grad=lambda route, grad: route.send_vectors(grad),
        local_backward=_local_dot,
        return_second_grad=lambda route, products: route.return_scalars(products),
        one_pass=True,
    ),
    "gathered_dot": Operation(
        name="gathered_dot",
        send_second=lambda route, x: route.send_vectors_with_ids(x),
        local=_local_dot,
        return_output=lambda route, products: route.return_scalars(products),
        send_grad=lambda route, grad: route.send_scalars(grad),
        local_backward=_local_bag,
        return_second_grad=lambda route, sums: route.return_vectors(sums),
        one_pass=False,
    ),
}
"""The two lookups of a sharded table, by the names of those of a whole one."""
