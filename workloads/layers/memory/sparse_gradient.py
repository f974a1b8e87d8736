"""A table's gradient kept as the reads that make it, until the optimizer turns them into one update."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from workloads.kernels.gathered_dot.op import gathered_dot
from workloads.kernels.weighted_bag.op import weighted_bag
from workloads.layers.memory import sparse_gradient_ops


@dataclass(frozen=True, kw_only=True)
class LookupGrad:
    """Reads whose part of the gradient is `d_table[r] = sum over (b, i) with ids[b, i] = r of weights[b, i] * x[b]`."""

    ids: Int[Tensor, "bags bag_size"]
    weights: Float[Tensor, "bags bag_size"]
    x: Float[Tensor, "bags width"]

    def widened(self, bag_size: int) -> "LookupGrad":
        """Return bags of `bag_size` reads, filled up with reads of a row that the bag names anyway, of weight 0."""
        size = self.ids.shape[1]
        if size == bag_size:
            return self
        if not size:  # It names no row that it could be filled up with, and adds nothing.
            none = torch.empty(0, bag_size, device=self.x.device)
            return LookupGrad(
                ids=none.to(self.ids.dtype), weights=none.to(self.weights.dtype), x=self.x[:0]
            )
        return LookupGrad(
            ids=torch.cat([self.ids, self.ids[:, :1].expand(-1, bag_size - size)], dim=1),
            weights=functional.pad(self.weights, (0, bag_size - size)),
            x=self.x,
        )


class SparseGradient(sparse_gradient_ops.LookupGradSink):
    """What the backward passes of a step found, of all layers and micro batches that read one table.

    Reads through here give the table no gradient: their backward pass leaves bags, weights and the output's gradient
    (`gathered_dot`: the output's gradient and the input), which are as large as the batch, not as the table. `weights` and
    `x` get their gradients at once, by one more gather of the rows: 2 bytes a number in bf16 of every row read, where
    the pass that also sums would sort first and be run again for the update.

    Passes add up like any gradient: over layers, micro batches, activation checkpointing, and a graph that is run
    backward again. Passes without gradients leave nothing. Not supported: gradients of gradients (torch says so);
    `torch.autograd.grad`, which would leave its reads here too although it is asked for another gradient;
    `model.zero_grad()`, which does not know of them (`clear` does).

    `torch.compile` keeps one graph (`deferred_read.py`). Rows that are fetched are as many as ids differ: that needs
    `fullgraph=True`, without which torch breaks the graph there.
    """

    def __init__(
        self,
        fetch: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
        *,
        device: torch.device | None = None,
    ) -> None:
        """Begin with nothing; `fetch` says how rows are had that lie elsewhere (`host_memory.fetch_rows`).

        What was fetched is kept for the backward pass. `device` is the table's; another works too, and costs a compiled
        graph operations there.
        """
        super().__init__()
        self._grads: list[LookupGrad] = []
        self.fetch = fetch or _in_place
        somewhere = None if device is None or device.type == "meta" else device
        self.anchor = torch.zeros(1, device=somewhere or "cpu", requires_grad=True)
        """What compiled reads give a gradient of zero, for which their backward passes are never left out."""

    def weighted_bag(
        self,
        table: Float[Tensor, "rows width"],
        ids: Int[Tensor, "bags bag_size"],
        weights: Float[Tensor, "bags bag_size"],
    ) -> Float[Tensor, "bags width"]:
        """Return `weighted_bag`, whose backward pass leaves its reads here."""
        if torch.compiler.is_compiling():
            return sparse_gradient_ops.bag(
                *self.fetch(table, ids), ids, weights, self.anchor, self.name, len(table)
            )
        result: Tensor = _WeightedBag.apply(table, ids, weights, self)  # type: ignore[no-untyped-call]
        return result

    def gathered_dot(
        self,
        table: Float[Tensor, "rows width"],
        ids: Int[Tensor, "bags bag_size"],
        x: Float[Tensor, "bags width"],
    ) -> Float[Tensor, "bags bag_size"]:
        """Return `gathered_dot`, whose backward pass leaves its reads here."""
        if torch.compiler.is_compiling():
            return sparse_gradient_ops.products(
                *self.fetch(table, ids), ids, x, self.anchor, self.name, len(table)
            )
        result: Tensor = _GatheredDot.apply(table, ids, x, self)  # type: ignore[no-untyped-call]
        return result

    def add(self, n_rows: int, ids: Tensor, weights: Tensor, x: Tensor) -> None:
        """Keep the reads of one backward pass, of a table of `n_rows`."""
        narrow = torch.int32 if n_rows < 2**31 else torch.int64
        self._grads.append(LookupGrad(ids=ids.to(narrow), weights=weights.detach(), x=x.detach()))

    def clear(self) -> None:
        """Forget all reads."""
        self._grads.clear()

    def take(self) -> LookupGrad | None:
        """Return all reads, in the order of the backward passes, and forget them; None where there were none.

        Bags of different sizes become as large as the largest of them.
        """
        largest = max((each.ids.shape[1] for each in self._grads), default=0)
        hits = [each.widened(largest) for each in self._grads]
        self.clear()
        if len(hits) < 2:
            return hits[0] if hits else None
        return LookupGrad(
            ids=torch.cat([each.ids for each in hits]),
            weights=torch.cat([each.weights for each in hits]),
            x=torch.cat([each.x for each in hits]),
        )


def _in_place(table: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    return table, ids


class _WeightedBag(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, table: Tensor, ids: Tensor, weights: Tensor, gradient: SparseGradient
    ) -> Tensor:
        rows, places = gradient.fetch(table, ids)
        ctx.save_for_backward(rows, places, ids, weights)
        ctx.gradient, ctx.n_rows = gradient, len(table)
        return weighted_bag(rows, places, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor | None, None]:
        rows, places, ids, weights = ctx.saved_tensors
        needs_table, _, needs_weights, _ = ctx.needs_input_grad
        if needs_table:
            ctx.gradient.add(ctx.n_rows, ids, weights, grad)
        return None, None, gathered_dot(rows, places, grad) if needs_weights else None, None


class _GatheredDot(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, table: Tensor, ids: Tensor, x: Tensor, gradient: SparseGradient
    ) -> Tensor:
        rows, places = gradient.fetch(table, ids)
        ctx.save_for_backward(rows, places, ids, x)
        ctx.gradient, ctx.n_rows = gradient, len(table)
        return gathered_dot(rows, places, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor | None, None]:
        rows, places, ids, x = ctx.saved_tensors
        needs_table, _, needs_x, _ = ctx.needs_input_grad
        if needs_table:
            ctx.gradient.add(ctx.n_rows, ids, grad, x)
        return None, None, weighted_bag(rows, places, grad) if needs_x else None, None
