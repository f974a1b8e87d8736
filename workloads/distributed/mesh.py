"""Device mesh of data x memory ranks: shards of tables and their replicas.

    memory ranks 2     memory 0   memory 1
    data 0             rank 0     rank 1      shard one copy of every table
    data 1             rank 2     rank 3      shard another

Each rank has tokens of its own, so all ranks are data-parallel for everything but the tables.
Neighbouring ranks shard a table: they are on one host, and lookups need the bandwidth.
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
        """The ranks that shard a copy of the tables with this one."""
        self.data = data or RankGroup()
        """The ranks that hold the same shard as this one."""
        self.n_chunks = 1
        """Chunks of a column-parallel lookup, of which one is sent while another is computed.

        Between two H200 of one host more than one gains nothing (docs/kernels.md); slower links may
        differ."""
        self._host = host or self.memory
        self._equal_bags = False

    @contextmanager
    def equal_bags(self, promised: bool = True) -> Iterator[None]:
        """Promise that within, ranks of a memory group read equally many bags at a time."""
        before, self._equal_bags = self._equal_bags, promised
        try:
            yield
        finally:
            self._equal_bags = before

    def bags_per_rank(self, n_bags: int) -> list[int]:
        """Return how many bags each rank of the memory group brings, given this rank's.

        Gathered on the host, where it is needed: no GPU waits, but this rank waits for the slowest.
        """
        if self._equal_bags:
            return [n_bags] * self.memory.size
        mine = torch.tensor([n_bags])
        everybodys = [torch.empty_like(mine) for _ in range(self.memory.size)]
        with communication_errors("gather"):
            dist.all_gather(everybodys, mine, group=self._host.group)
        return [int(n) for n in everybodys]


def make_mesh(world: RankGroup, *, memory: int) -> Mesh:
    """Return the mesh in which each `memory` neighbouring ranks shard the tables. Collective.

    Raises:
        ValueError: If `memory` does not divide the number of ranks.
    """
    if memory < 1 or world.size % memory:
        divisors = [n for n in range(1, world.size + 1) if world.size % n == 0]
        nearest = max(n for n in divisors if n <= max(1, memory))
        raise ValueError(
            f"memory_ranks must divide the number of ranks ({world.size}), got {memory}; "
            f"the nearest is {nearest}"
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
    """Return the group that this rank is in. All ranks make all groups, in order."""
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
