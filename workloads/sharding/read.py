"""A table read by the ranks that hold it together: local kernels between messages, while messages travel.

    weighted sums   forward   ids and weights there -> weighted_bag -> sums back
                    backward  gradients of sums there (meanwhile: sort) -> table, products -> products back
    products        forward   ids and x there -> row_dot -> products back
                    backward  their gradients there -> weighted_bag -> gradients of x back (meanwhile: table)

Where the route has pieces, one is read while the next ones arrive and the ones before go back. The table's gradient is
one pass over the reads of all pieces: it sorts them, and it writes the whole table, so two halves would cost twice as
much. The products of a bag's backward pass come out of the same pass, hence all at once; where the pass is left to the
optimizer (`DeferredGradient`) they are made in pieces too.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from workloads.kernels.row_dot.op import row_dot
from workloads.kernels.row_reduction.op import sorted_reads
from workloads.kernels.weighted_bag.op import weighted_bag
from workloads.layers.deferred_gradient import DeferredGradient
from workloads.sharding.messages import Arrival
from workloads.sharding.route import Route


def weighted_sums(
    part: Float[Tensor, "rows columns"],
    weights: Float[Tensor, "bags bag_size"],
    route: Route,
    deferred: DeferredGradient | None,
) -> Float[Tensor, "bags width"]:
    """Return `weighted_bag` of the whole table and what `route` was made for; the gradient of `part` goes to `deferred`."""
    result: Tensor = _WeightedSums.apply(part, weights, route, deferred)  # type: ignore[no-untyped-call]
    return result


def products(
    part: Float[Tensor, "rows columns"],
    x: Float[Tensor, "bags width"],
    route: Route,
    deferred: DeferredGradient | None,
) -> Float[Tensor, "bags bag_size"]:
    """Return `row_dot` of the whole table and what `route` was made for; the gradient of `part` goes to `deferred`."""
    result: Tensor = _Products.apply(part, x, route, deferred)  # type: ignore[no-untyped-call]
    return result


class _WeightedSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, part: Tensor, weights: Tensor, route: Route, deferred: DeferredGradient | None
    ) -> Tensor:
        pieces = route.pieces()
        arriving = [piece.with_numbers(weights[piece.bags]) for piece in pieces]
        held, leaving = [], []
        for piece, reads in zip(pieces, arriving, strict=True):
            held.append(reads())
            leaving.append(piece.vectors_back(_bag(part, *held[-1])))
        ids, all_weights = (route.join(each) for each in zip(*held, strict=True))
        ctx.save_for_backward(part, ids, all_weights)
        ctx.route, ctx.deferred = route, deferred
        return _whole(leaving)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        part, ids, weights = ctx.saved_tensors
        needs_table, needs_weights, _, _ = ctx.needs_input_grad
        route: Route = ctx.route
        if needs_table and ctx.deferred is None:
            arriving = route.vectors_there(grad)
            gradients = sorted_reads(part, ids, weights, products=needs_weights)
            table_grad, products = gradients(arriving())
            return (
                table_grad,
                None if products is None else route.numbers_back(products)(),
                None,
                None,
            )
        pieces = route.pieces()
        travelling = [piece.vectors_there(grad[piece.bags]) for piece in pieces]
        arrived, leaving = [], []
        for piece, its_ids, vectors in zip(pieces, route.cut(ids), travelling, strict=True):
            arrived.append(vectors())
            if needs_weights:
                leaving.append(piece.numbers_back(_products(part, its_ids, arrived[-1])))
        if needs_table:
            ctx.deferred.add(len(part), ids, weights, route.join(arrived))
        return None, _whole(leaving) if needs_weights else None, None, None


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, part: Tensor, x: Tensor, route: Route, deferred: DeferredGradient | None
    ) -> Tensor:
        pieces = route.pieces()
        arriving = [piece.with_vectors(x[piece.bags]) for piece in pieces]
        held, leaving = [], []
        for piece, reads in zip(pieces, arriving, strict=True):
            held.append(reads())
            leaving.append(piece.numbers_back(_products(part, *held[-1])))
        ids, all_x = (route.join(each) for each in zip(*held, strict=True))
        ctx.save_for_backward(part, ids, all_x)
        ctx.route, ctx.deferred = route, deferred
        return _whole(leaving)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        part, ids, x = ctx.saved_tensors
        needs_table, needs_x, _, _ = ctx.needs_input_grad
        route: Route = ctx.route
        pieces = route.pieces()
        travelling = [piece.numbers_there(grad[piece.bags]) for piece in pieces]
        arrived, leaving = [], []
        for piece, its_ids, numbers in zip(pieces, route.cut(ids), travelling, strict=True):
            arrived.append(numbers())
            if needs_x:
                leaving.append(piece.vectors_back(_bag(part, its_ids, arrived[-1])))
        table_grad = None
        if needs_table and ctx.deferred is not None:
            ctx.deferred.add(len(part), ids, route.join(arrived), x)
        elif needs_table:
            gradients = sorted_reads(part, ids, route.join(arrived), products=False)
            table_grad, _ = gradients(x)
        return table_grad, _whole(leaving) if needs_x else None, None, None


def _whole(pieces: Sequence[Arrival]) -> Tensor:
    arrived = [piece() for piece in pieces]
    return arrived[0] if len(arrived) == 1 else torch.cat(arrived)


def _bag(part: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    # A rank may hold no column and no row, or be asked for nothing.
    if not part.numel() or not ids.numel():
        return part.new_zeros(len(ids), part.shape[1])
    return weighted_bag(part, ids, weights)


def _products(part: Tensor, ids: Tensor, x: Tensor) -> Tensor:
    if not part.numel() or not ids.numel():
        return part.new_zeros(ids.shape)
    return row_dot(part, ids, x)
