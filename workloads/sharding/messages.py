"""The four messages by which ranks read a table that they hold together.

Every message is linear, and its gradient travels by its adjoint:

    gather       (bags of this rank, n) -> (bags of all, n)                           adjoint: add_up
    add_up       (bags of all, n) -> (bags of this rank, n), summed over ranks        adjoint: gather
    to_columns   (bags of this rank, all columns) -> (bags of all, this rank's)       adjoint: to_bags
    to_bags      (bags of all, this rank's columns) -> (bags of this rank, all)       adjoint: to_columns

What is moved travels in the type it has, so nothing is rounded on the way; what is summed is summed in fp32 or wider,
in the order of the ranks, whatever the network does. `add_up` is the reduce-scatter: each rank gets its bags from all
others and adds them up itself, which sends no more than a ring does.

All calls are collective over the memory group. They return when the result may be used on the current stream, not
when it is there: on a GPU a rank goes on queueing work. Reading could begin before the messages of all bags are there,
in pieces of bags; that would be done here, with `async_op`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

from workloads.ranks import World, named_failure

# torch 2.13 has another name for it, and warns of this one.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True)
class Messages:
    """The messages of one read."""

    memory: World
    """The ranks that hold the table together."""
    bags: list[int]
    """How many bags each of them brings."""
    columns: list[range]
    """The columns that each of them holds; in a layout by rows, unused."""

    def ids(
        self, ids: Int[Tensor, "bags bag_size"], *, n_rows: int
    ) -> Int[Tensor, "all_bags bag_size"]:
        """Gather row numbers: as int32 where they fit, which halves the largest message there is."""
        return self._gather(ids.to(torch.int32 if n_rows < 2**31 else torch.int64))

    def gather(self, x: Float[Tensor, "bags n"]) -> Float[Tensor, "all_bags n"]:
        """Return the bags of all ranks, in the order of the ranks."""
        return _Linear.of(x, self._gather, self._add_up)

    def add_up(self, x: Float[Tensor, "all_bags n"]) -> Float[Tensor, "bags n"]:
        """Return this rank's bags, summed over the ranks."""
        return _Linear.of(x, self._add_up, self._gather)

    def to_columns(self, x: Float[Tensor, "bags width"]) -> Float[Tensor, "all_bags share"]:
        """Return this rank's columns of the bags of all ranks."""
        return _Linear.of(x, self._to_columns, self._to_bags)

    def to_bags(self, x: Float[Tensor, "all_bags share"]) -> Float[Tensor, "bags width"]:
        """Return all columns of this rank's bags."""
        return _Linear.of(x, self._to_bags, self._to_columns)

    def _gather(self, x: Shaped[Tensor, "bags n"]) -> Shaped[Tensor, "all_bags n"]:
        most = max(self.bags)
        # Collectives want equal parts, so an uneven one is filled up; what it is filled with is never looked at.
        padded = x.contiguous() if len(x) == most else _lengthened(x, most)
        everybodys = x.new_empty(self.memory.size * most, x.shape[1])
        if everybodys.numel():
            with named_failure("gather"):
                _all_gather(everybodys, padded, group=self.memory.group)
        if min(self.bags) == most:
            return everybodys
        parts = zip(torch.split(everybodys, most), self.bags, strict=True)
        return torch.cat([part[:n] for part, n in parts])

    def _add_up(self, x: Float[Tensor, "all_bags n"]) -> Float[Tensor, "bags n"]:
        mine = self.bags[self.memory.rank]
        received = self._exchange(
            x.contiguous(),
            sent=[n * x.shape[1] for n in self.bags],
            received=[mine * x.shape[1]] * self.memory.size,
        )
        sums = received.view(self.memory.size, mine, x.shape[1]).sum(
            0, dtype=torch.promote_types(x.dtype, torch.float32)
        )
        return sums.to(x.dtype)

    def _to_columns(self, x: Float[Tensor, "bags width"]) -> Float[Tensor, "all_bags share"]:
        mine = len(self.columns[self.memory.rank])
        parts = [x[:, c.start : c.stop].reshape(-1) for c in self.columns]
        received = self._exchange(
            torch.cat(parts),
            sent=[part.numel() for part in parts],
            received=[n * mine for n in self.bags],
        )
        return received.view(sum(self.bags), mine)

    def _to_bags(self, x: Float[Tensor, "all_bags share"]) -> Float[Tensor, "bags width"]:
        mine = self.bags[self.memory.rank]
        sizes = [mine * len(c) for c in self.columns]
        received = self._exchange(
            x.contiguous(), sent=[n * x.shape[1] for n in self.bags], received=sizes
        )
        parts = zip(torch.split(received, sizes), self.columns, strict=True)
        return torch.cat([part.view(mine, len(c)) for part, c in parts], dim=1)

    def _exchange(self, x: Tensor, *, sent: list[int], received: list[int]) -> Tensor:
        result = x.new_empty(sum(received))
        if any(self.bags):
            with named_failure("exchange"):
                dist.all_to_all_single(result, x.flatten(), received, sent, group=self.memory.group)
        return result


class _Linear(torch.autograd.Function):
    """A linear map, and its adjoint for the gradient."""

    @classmethod
    def of(
        cls, x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return `there(x)`."""
        result: Tensor = cls.apply(x, there, back)  # type: ignore[no-untyped-call]
        return result

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(grads[0]), None, None


def _lengthened(x: Tensor, length: int) -> Tensor:
    longer = x.new_zeros(length, x.shape[1])
    longer[: len(x)] = x
    return longer
