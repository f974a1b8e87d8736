"""Sparse gradient of a memory table.

The lookups that make it, kept until the optimizer's update.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from workloads.layers.memory.handle_registry import Registered
from workloads.layers.memory.sparse_gradient_ops import COMPILED, LOOKUPS, Lookup


@dataclass(frozen=True, kw_only=True)
class LookupGrad:
    """A term of a table's gradient, as large as the batch.

    `d_table[r] = sum over (b, i) with ids[b, i] = r of weights[b, i] * x[b]`.
    """

    ids: Int[Tensor, "bags bag_size"]
    weights: Float[Tensor, "bags bag_size"]
    x: Float[Tensor, "bags width"]

    def widened(self, bag_size: int) -> "LookupGrad":
        """Return bags of `bag_size`, padded with weight 0 of a row that the bag names anyway."""
        size = self.ids.shape[1]
        if size == bag_size:
            return self
        if not size:  # It names no row to pad with, and adds nothing.
            none = torch.empty(0, bag_size, device=self.x.device)
            return LookupGrad(
                ids=none.to(self.ids.dtype), weights=none.to(self.weights.dtype), x=self.x[:0]
            )
        return LookupGrad(
            ids=torch.cat([self.ids, self.ids[:, :1].expand(-1, bag_size - size)], dim=1),
            weights=functional.pad(self.weights, (0, bag_size - size)),
            x=self.x,
        )


class SparseGradient(Registered):
    """The sparse gradient of one table, accumulated over the layers and micro-batches of a step.

    Lookups through here give the table no dense gradient. Their backward pass keeps ids, weights
    and the output's gradient (`gathered_dot`: the output's gradient and x), which are as large as
    the batch, not as the table. `weights` and `x` get their gradients at once, by one more gather
    of the rows: 2 bytes a number in bf16 of every row read. The pass that also sums would sort
    first, and be run again for the update.

    Passes add up like any gradient: over layers, micro-batches, activation checkpointing, and a
    graph that is run backward again. Passes without gradients add nothing.

    Not supported: gradients of gradients (torch raises); `torch.autograd.grad`, which would add its
    lookups here although it is asked for another gradient; `model.zero_grad()`, which does not know
    of them (`clear` does).

    `torch.compile` keeps one graph (`sparse_gradient_ops.py`). The number of fetched rows depends
    on the ids: that needs `fullgraph=True`, without which torch breaks the graph there.
    """

    def __init__(
        self,
        fetch: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
        *,
        device: torch.device | None = None,
    ) -> None:
        """Start empty.

        Args:
            fetch: Returns rows, and the positions of ids among them, of a table whose values are
                elsewhere (`host_offload.fetch_rows`). Rows are kept for the backward pass.
            device: Of the table. Another device works, but costs a compiled graph operations there.
        """
        super().__init__()
        self._grads: list[LookupGrad] = []
        self.fetch = fetch or _in_place
        somewhere = None if device is None or device.type == "meta" else device
        self.anchor = torch.zeros(1, device=somewhere or "cpu", requires_grad=True)
        """Gets a zero gradient from compiled lookups, so that no backward pass is dropped."""

    def weighted_bag(
        self,
        table: Float[Tensor, "rows width"],
        ids: Int[Tensor, "bags bag_size"],
        weights: Float[Tensor, "bags bag_size"],
    ) -> Float[Tensor, "bags width"]:
        """Return `weighted_bag`, whose backward pass adds to this gradient."""
        return self._read("weighted_bag", table, ids, weights)

    def gathered_dot(
        self,
        table: Float[Tensor, "rows width"],
        ids: Int[Tensor, "bags bag_size"],
        x: Float[Tensor, "bags width"],
    ) -> Float[Tensor, "bags bag_size"]:
        """Return `gathered_dot`, whose backward pass adds to this gradient."""
        return self._read("gathered_dot", table, ids, x)

    def _read(self, name: str, table: Tensor, ids: Tensor, second: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            rows, positions = self.fetch(table, ids)
            return COMPILED[name](
                rows, positions, ids, second, self.anchor, self.handle, len(table)
            )
        lookup = LOOKUPS[name]
        result: Tensor = _SparseLookup.apply(  # type: ignore[no-untyped-call]
            table, ids, second, lookup, self
        )
        return result

    def add(self, n_rows: int, ids: Tensor, weights: Tensor, x: Tensor) -> None:
        """Add the lookups of one backward pass, of a table of `n_rows`."""
        narrow = torch.int32 if n_rows < 2**31 else torch.int64
        self._grads.append(LookupGrad(ids=ids.to(narrow), weights=weights.detach(), x=x.detach()))

    def clear(self) -> None:
        """Discard everything."""
        self._grads.clear()

    def take(self) -> LookupGrad | None:
        """Return all terms as one, in the order of the backward passes, and clear; None if empty.

        Bags of different sizes are padded to the largest.
        """
        largest = max((each.ids.shape[1] for each in self._grads), default=0)
        grads = [each.widened(largest) for each in self._grads]
        self.clear()
        if len(grads) < 2:
            return grads[0] if grads else None
        return LookupGrad(
            ids=torch.cat([each.ids for each in grads]),
            weights=torch.cat([each.weights for each in grads]),
            x=torch.cat([each.x for each in grads]),
        )


def _in_place(table: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    return table, ids


class _SparseLookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, table: Tensor, ids: Tensor, second: Tensor, lookup: Lookup, into: SparseGradient
    ) -> Tensor:
        rows, positions = into.fetch(table, ids)
        ctx.save_for_backward(rows, positions, ids, second)
        ctx.lookup, ctx.into, ctx.n_rows = lookup, into, len(table)
        return lookup.read(rows, positions, second)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor | None, None, None]:
        rows, positions, ids, second = ctx.saved_tensors
        needs_table, _, needs_second, *_ = ctx.needs_input_grad
        if needs_table:
            ctx.into.add(ctx.n_rows, ids, *ctx.lookup.weights_and_x(second, grad))
        second_grad = None
        if needs_second:
            second_grad = ctx.lookup.second_gradient(rows, positions, grad)
        return None, None, second_grad, None, None
