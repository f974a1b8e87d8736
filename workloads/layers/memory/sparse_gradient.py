"""Sparse gradient of a memory table.

The lookups that make it, kept until the optimizer's update.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from workloads.layers.memory.handle_registry import Registered
from workloads.layers.memory.lookup_grad import (
    JoinedIds,
    LookupGrad,
    added,
    concatenated,
    sums_bytes,
)
from workloads.layers.memory.sparse_gradient_ops import COMPILED, LOOKUPS, Lookup

REDUCED_FROM = 2
"""Times the bytes of all rows' sums that lookups take before they are summed. Adding two sums takes
as much again."""


class SparseGradient(Registered):
    """The sparse gradient of one table, accumulated over the layers and micro-batches of a step.

    Lookups through here give the table no dense gradient. Their backward pass keeps ids, weights
    and the output's gradient (`gathered_dot`: the output's gradient and x), which are as large as
    the batch, not as the table. `weights` and `x` get their gradients at once, by one more gather
    of the rows: 2 bytes a number in bf16 of every row read. The pass that also sums would sort
    first, and be run again for the update.

    Passes add up like any gradient: over layers, micro-batches, activation checkpointing, and a
    graph that is run backward again. Passes without gradients add nothing. Between micro-batches
    lookups that take more memory than their rows' sums are replaced by these (`reduce`).

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
        self._sums: LookupGrad | None = None
        """Of earlier micro-batches, by row."""
        self.same_reads_as: SparseGradient | None = None
        """That of a table of which each backward pass adds the same ids just before; compiled
        graphs keep them once."""
        self._newest_ids: tuple[int, Tensor] | None = None
        """Address of the ids that were added last, and their copy, for the gradient whose
        `same_reads_as` this is."""
        self._n_rows = 0
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
        narrow = ids.to(_id_type(n_rows))
        self._grads.append(LookupGrad(ids=narrow, weights=weights.detach(), x=x.detach()))
        self._n_rows = n_rows

    def add_copies(self, n_rows: int, ids: Tensor, weights: Tensor, x: Tensor) -> None:
        """Add lookups that lie in buffers of a compiled graph, which uses them again."""
        newest = None
        # Taken over once: later the graph may have other ids at the same address.
        if self.same_reads_as is not None:
            newest, self.same_reads_as._newest_ids = self.same_reads_as._newest_ids, None
        if newest is None or newest[0] != ids.data_ptr() or newest[1].shape != ids.shape:
            kept = ids.to(_id_type(n_rows), copy=True, memory_format=torch.contiguous_format)
            newest = ids.data_ptr(), kept
        self._newest_ids = newest
        self.add(n_rows, newest[1], copied(weights), copied(x))

    def reduce(self) -> None:
        """Sum the lookups so far by row, if they take several times the bytes of all rows' sums.

        For use between micro-batches: what waits for the update then grows with the table and the
        micro-batch, not with the batch. Sums are fp32, in an order fixed by the ids.
        """
        if not self._grads:
            return
        width = self._grads[0].x.shape[1]
        if sum(each.nbytes for each in self._grads) > REDUCED_FROM * sums_bytes(
            self._n_rows, width
        ):
            self._sums = self._summed()

    @property
    def reduced(self) -> bool:
        """Whether lookups have been replaced by sums."""
        return self._sums is not None

    def take_sums(self) -> LookupGrad | None:
        """Return the sums of all rows that were read, ascending, and clear; None if empty."""
        taken = self._summed() if self._grads else self._sums
        self._sums = None
        return taken

    def _summed(self) -> LookupGrad:
        sums, self._sums = self._sums, None
        self._newest_ids = None
        while self._grads:
            # One by one, so that they are gone when the next is summed.
            term = self._grads.pop(0).summed()
            sums = term if sums is None else added(sums, term)
        assert sums is not None, "there is something to sum"
        return sums

    def clear(self) -> None:
        """Discard everything."""
        self._grads.clear()
        self._sums = self._newest_ids = None

    def take(self, joined: JoinedIds | None = None) -> LookupGrad | None:
        """Return all terms as one, in the order of the backward passes, and clear; None if empty.

        Bags of different sizes are padded to the largest. After a `reduce`, they are rows' sums.
        `joined` as in `concatenated`.
        """
        if self.reduced:
            return self.take_sums()
        taken = concatenated(self._grads, joined) if self._grads else None
        self.clear()
        return taken


def copied(tensor: Tensor) -> Tensor:
    """Return a contiguous copy, which is no buffer of a graph."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _id_type(n_rows: int) -> torch.dtype:
    return torch.int32 if n_rows < 2**31 else torch.int64


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
