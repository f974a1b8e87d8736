"""Which ranks hold a table together, and which hold copies of the same part: a mesh of data × memory.

    memory ranks 2     memory 0   memory 1
    data 0             rank 0     rank 1      share one copy of every table
    data 1             rank 2     rank 3      share another

Each rank has tokens of its own, so for everything but the tables all ranks are data-parallel. Neighbours in rank
share a table: ranks of one host have neighbouring numbers, and reading a table is what needs the bandwidth.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from workloads.distributed.process_group import COLLECTIVE_TIMEOUT, RankGroup, communication_errors


class Mesh:
    """One rank's view of the mesh."""

    def __init__(
        self,
        *,
        world: RankGroup | None = None,
        memory: RankGroup | None = None,
        data: RankGroup | None = None,
        host: RankGroup | None = None,
    ) -> None:
        self.world = world or RankGroup()
        """All ranks."""
        self.memory = memory or RankGroup()
        """The ranks that hold a copy of the tables together with this one."""
        self.data = data or RankGroup()
        """The ranks that hold the same part of them as this one."""
        self.pieces = 1
        """Into how many pieces a read by columns is cut, to send one while another is read. Between two H200 of one host
        more than one gains nothing (docs/kernels.md); slower links may differ."""
        self._host = host or self.memory
        self._even = False

    @contextmanager
    def even(self, promised: bool = True) -> Iterator[None]:
        """Within, every rank of a memory group reads as many bags at a time as the others, so nobody has to ask."""
        before, self._even = self._even, promised
        try:
            yield
        finally:
            self._even = before

    def bags_of_each(self, n_bags: int) -> list[int]:
        """Return how many bags each rank of the memory group brings, given this rank's.

        Asked on the host, where the answer is needed: no GPU waits, though this rank waits for the slowest one.
        """
        if self._even:
            return [n_bags] * self.memory.size
        mine = torch.tensor([n_bags])
        everybodys = [torch.empty_like(mine) for _ in range(self.memory.size)]
        with communication_errors("gather"):
            dist.all_gather(everybodys, mine, group=self._host.group)
        return [int(n) for n in everybodys]


def make_mesh(world: RankGroup, *, memory: int) -> Mesh:
    """Return the mesh in which each `memory` neighbouring ranks share the tables. Every rank must call this.

    Raises:
        ValueError: If the ranks cannot be grouped so.
    """
    if memory < 1 or world.size % memory:
        divisors = [n for n in range(1, world.size + 1) if world.size % n == 0]
        nearest = max(n for n in divisors if n <= max(1, memory))
        raise ValueError(
            f"memory_ranks must divide the number of ranks ({world.size}), got {memory}; the nearest is {nearest}"
        )
    if memory == 1:
        return Mesh(world=world, data=world)
    in_memory = _parts(world, [range(i, i + memory) for i in range(0, world.size, memory)])
    in_data = _parts(world, [range(i, world.size, memory) for i in range(memory)])
    host = None
    if dist.get_backend() != "gloo":
        groups = [range(i, i + memory) for i in range(0, world.size, memory)]
        host = _parts(world, groups, backend="gloo")
    return Mesh(world=world, memory=in_memory, data=in_data, host=host)


def _parts(world: RankGroup, parts: list[range], *, backend: str | None = None) -> RankGroup:
    """Return this rank's view of the part that it is in. Groups are made by all ranks together, in order."""
    mine = RankGroup()
    for ranks in parts:
        if len(ranks) == 1:
            continue
        with communication_errors("start"):
            group = dist.new_group(list(ranks), backend=backend, timeout=COLLECTIVE_TIMEOUT)
        if world.rank in ranks:
            mine = RankGroup(rank=ranks.index(world.rank), size=len(ranks), group=group)
    return mine


def all_reduce_copy(world: RankGroup, value: Tensor) -> Tensor:
    """Return the sum of a tensor over ranks, in a tensor of its own."""
    total = value.clone()
    world.all_reduce_sum([total])
    return total
