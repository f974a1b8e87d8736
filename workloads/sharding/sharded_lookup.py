"""A table read by the ranks that hold it together: local kernels between messages, while messages travel.

    weighted sums   forward   ids and weights there -> weighted_bag -> sums back
                    backward  gradients of sums there (meanwhile: sort) -> table, products -> products back
    products        forward   ids and x there -> gathered_dot -> products back
                    backward  their gradients there -> weighted_bag -> gradients of x back (meanwhile: table)

Where the route has pieces, one is read while the next ones arrive and the ones before go back. The table's gradient is
one pass over the reads of all pieces: it sorts them, and it writes the whole table, so two halves would cost twice as
much. The products of a bag's backward pass come out of the same pass, hence all at once; where the pass is left to the
optimizer (`SparseGradient`) they are made in pieces too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from workloads.distributed.collectives import Arrival
from workloads.kernels.gathered_dot.op import gathered_dot
from workloads.kernels.segment_sum.op import sorted_reads
from workloads.kernels.weighted_bag.op import weighted_bag
from workloads.layers.memory.sparse_gradient import SparseGradient
from workloads.sharding.table_route import TableRoute


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a read returns, and what it keeps for its backward pass: the reads that were made here."""

    output: Tensor
    ids: Int[Tensor, "held_bags held_size"]
    second: Tensor
    """Of a weighted sum the weights, [held_bags, held_size], of products x, [held_bags, columns]."""


class Backward(Protocol):
    """The backward pass of a read."""

    def __call__(
        self,
        part: Tensor,
        ids: Tensor,
        second: Tensor,
        grad: Tensor,
        route: TableRoute,
        sparse_gradient: SparseGradient | None,
        /,
        *,
        needs_part: bool,
        needs_second: bool,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of the part, None where `sparse_gradient` has it, and of the read's second tensor."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A read's two passes; what it reads with is its second tensor, weights or x."""

    forward: Callable[[Tensor, Tensor, TableRoute], Found]
    backward: Backward


def read(
    operation: str,
    part: Float[Tensor, "rows columns"],
    second: Tensor,
    route: TableRoute,
    sparse_gradient: SparseGradient | None,
) -> Tensor:
    """Return an operation of `OPERATIONS` on the whole table, of the ids that `route` is for.

    The gradient of `part` is added to `sparse_gradient` if there is one.
    """
    found: Tensor = _Read.apply(part, second, route, sparse_gradient, OPERATIONS[operation])  # type: ignore[no-untyped-call]
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
        ctx.route, ctx.sparse_gradient, ctx.operation = route, sparse_gradient, operation
        return found.output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        needs_part, needs_second, *_ = ctx.needs_input_grad
        part_grad, second_grad = ctx.operation.backward(
            *ctx.saved_tensors,
            grad,
            ctx.route,
            ctx.sparse_gradient,
            needs_part=needs_part,
            needs_second=needs_second,
        )
        return part_grad, second_grad, None, None, None


def _bag_forward(part: Tensor, weights: Tensor, route: TableRoute) -> Found:
    pieces = route.pieces()
    arriving = [piece.with_numbers(weights[piece.bags]) for piece in pieces]
    held, leaving = [], []
    for piece, reads in zip(pieces, arriving, strict=True):
        held.append(reads())
        leaving.append(piece.vectors_back(_local_bag(part, *held[-1])))
    ids, all_weights = (route.join(each) for each in zip(*held, strict=True))
    return Found(output=_concatenated(leaving), ids=ids, second=all_weights)


def _bag_backward(
    part: Tensor,
    ids: Tensor,
    weights: Tensor,
    grad: Tensor,
    route: TableRoute,
    sparse_gradient: SparseGradient | None,
    *,
    needs_part: bool,
    needs_second: bool,
) -> tuple[Tensor | None, Tensor | None]:
    if needs_part and sparse_gradient is None:
        arriving = route.vectors_there(grad)
        gradients = sorted_reads(part, ids, weights, products=needs_second)
        part_grad, products = gradients(arriving())
        return part_grad, None if products is None else route.numbers_back(products)()
    pieces = route.pieces()
    travelling = [piece.vectors_there(grad[piece.bags]) for piece in pieces]
    arrived, leaving = [], []
    for piece, its_ids, vectors in zip(pieces, route.cut(ids), travelling, strict=True):
        arrived.append(vectors())
        if needs_second:
            leaving.append(piece.numbers_back(_local_dot(part, its_ids, arrived[-1])))
    if needs_part and sparse_gradient is not None:
        sparse_gradient.add(len(part), ids, weights, route.join(arrived))
    return None, _concatenated(leaving) if needs_second else None


def _dot_forward(part: Tensor, x: Tensor, route: TableRoute) -> Found:
    pieces = route.pieces()
    arriving = [piece.with_vectors(x[piece.bags]) for piece in pieces]
    held, leaving = [], []
    for piece, reads in zip(pieces, arriving, strict=True):
        held.append(reads())
        leaving.append(piece.numbers_back(_local_dot(part, *held[-1])))
    ids, all_x = (route.join(each) for each in zip(*held, strict=True))
    return Found(output=_concatenated(leaving), ids=ids, second=all_x)


def _dot_backward(
    part: Tensor,
    ids: Tensor,
    x: Tensor,
    grad: Tensor,
    route: TableRoute,
    sparse_gradient: SparseGradient | None,
    *,
    needs_part: bool,
    needs_second: bool,
) -> tuple[Tensor | None, Tensor | None]:
    pieces = route.pieces()
    travelling = [piece.numbers_there(grad[piece.bags]) for piece in pieces]
    arrived, leaving = [], []
    for piece, its_ids, numbers in zip(pieces, route.cut(ids), travelling, strict=True):
        arrived.append(numbers())
        if needs_second:
            leaving.append(piece.vectors_back(_local_bag(part, its_ids, arrived[-1])))
    part_grad = None
    if needs_part and sparse_gradient is not None:
        sparse_gradient.add(len(part), ids, route.join(arrived), x)
    elif needs_part:
        gradients = sorted_reads(part, ids, route.join(arrived), products=False)
        part_grad, _ = gradients(x)
    return part_grad, _concatenated(leaving) if needs_second else None


OPERATIONS = {
    "weighted_bag": Operation(forward=_bag_forward, backward=_bag_backward),
    "gathered_dot": Operation(forward=_dot_forward, backward=_dot_backward),
}
"""The two lookups of a sharded table, by the names of those of a whole one."""


def _concatenated(pieces: Sequence[Arrival]) -> Tensor:
    arrived = [piece() for piece in pieces]
    return arrived[0] if len(arrived) == 1 else torch.cat(arrived)


def _local_bag(part: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    # A rank may hold no column and no row, or be asked for nothing.
    if not part.numel() or not ids.numel():
        return part.new_zeros(len(ids), part.shape[1])
    return weighted_bag(part, ids, weights)


def _local_dot(part: Tensor, ids: Tensor, x: Tensor) -> Tensor:
    if not part.numel() or not ids.numel():
        return part.new_zeros(ids.shape)
    return gathered_dot(part, ids, x)
