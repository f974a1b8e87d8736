"""Column-parallel tables: every rank holds a slice of every row.

| lookup       | there                          | here                 | back                    |
|--------------|--------------------------------|----------------------|-------------------------|
| weighted_bag | ids and weights to all         | sums of row slices   | slices to their bags    |
| gathered_dot | ids to all, x's columns to all | partial dot products | added up at their bags  |

Source of the scheme: Berges et al. 2024 (arXiv 2412.09764), section 3.1; "dimension-wise" in
UltraMem (arXiv 2411.12364).
"""

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.distributed.collectives import Pending, pack, packed_words, unpack
from workloads.distributed.mesh import Mesh
from workloads.distributed.process_group import RankGroup
from workloads.sharding.table_route import PendingReads, TableRoute, added_up
from workloads.sharding.table_shard import TableShard

ALIGNED = 8
"""Unit of columns: 16 bytes of bf16, so that the rows of a part begin where wide loads can."""


class ColumnParallelShard(TableShard):
    """Some columns of all rows."""

    def __init__(self, mesh: Mesh, *, n_rows: int, width: int) -> None:
        super().__init__(mesh, n_rows=n_rows, width=width)
        self.columns_per_rank = split_columns(width, mesh.memory.size)
        self.rows, self.columns = range(n_rows), self.columns_per_rank[mesh.memory.rank]

    def route_of(self, ids: Tensor, bags: Sequence[int], *, n_chunks: int) -> "ColumnParallelRoute":
        """Return the route of a lookup to which each rank brings `bags`."""
        return ColumnParallelRoute(
            self.mesh.memory, ids, bags=bags, columns=self.columns_per_rank, n_chunks=n_chunks
        )


class ColumnParallelRoute(TableRoute):
    """Scalars to all ranks, of vectors to each rank its columns."""

    HAS_GAPS = False

    def __init__(
        self,
        memory: RankGroup,
        ids: Int[Tensor, "bags bag_size"],
        *,
        bags: Sequence[int],
        columns: Sequence[range],
        n_chunks: int = 1,
        start: int = 0,
    ) -> None:
        """Take also the columns of each rank."""
        super().__init__(memory, ids, bags=bags, n_chunks=n_chunks, start=start)
        self._columns = columns
        self._n_bags, self._n_columns = len(ids), len(columns[memory.rank])

    def part(self, ids: Tensor, *, bags: Sequence[int], start: int) -> Self:
        """Return the route of some of the bags."""
        return type(self)(self.memory, ids, bags=bags, columns=self._columns, start=start)

    def send_vectors_with_ids(self, x: Float[Tensor, "bags width"]) -> PendingReads:
        """Send to each rank its columns and the ids in one message."""
        own = self._spec(self._n_bags, self.ids)
        sent = [[own, ((self._n_bags, len(columns)), x.dtype)] for columns in self._columns]
        received = [
            [self._spec(n, self.ids), ((n, self._n_columns), x.dtype)] for n in self.bags_per_rank
        ]
        n_sent, n_received = ([packed_words(spec) for spec in side] for side in (sent, received))
        messages = self.ids.new_empty(sum(n_sent), dtype=torch.int64)
        for rank, message in enumerate(torch.split(messages, n_sent)):
            pack([self.ids, self._slice(x, rank)], sent[rank], message)
        pending = self._all_to_all(messages, sent=n_sent, received=n_received)

        def wait() -> tuple[Tensor, Tensor]:
            messages = zip(torch.split(pending(), n_received), received, strict=True)
            ids, vectors = zip(*(unpack(*each) for each in messages), strict=True)
            return torch.cat(ids), torch.cat(vectors)

        return wait

    def return_scalars(self, x: Float[Tensor, "held_bags bag_size"]) -> Pending:
        """Send each rank its bags, where they are added up: no more is sent than a ring sends."""
        pending = self._of_own_bags(x)
        return lambda: added_up(pending())

    def send_vectors(self, x: Float[Tensor, "bags width"]) -> Pending:
        """Send each rank its columns."""
        sent = [self._n_bags * len(columns) for columns in self._columns]
        parts = x.new_empty(sum(sent))
        for rank, part in enumerate(torch.split(parts, sent)):
            part.view(self._n_bags, len(self._columns[rank])).copy_(self._slice(x, rank))
        received = [n * self._n_columns for n in self.bags_per_rank]
        pending = self._all_to_all(parts, sent=sent, received=received)
        return lambda: pending().view(sum(self.bags_per_rank), self._n_columns)

    def return_vectors(self, x: Float[Tensor, "held_bags columns"]) -> Pending:
        """Send each rank its bags' columns held here."""
        sent = [n * self._n_columns for n in self.bags_per_rank]
        received = [self._n_bags * len(columns) for columns in self._columns]
        pending = self._all_to_all(x.reshape(-1), sent=sent, received=received)

        def wait() -> Tensor:
            parts = zip(torch.split(pending(), received), self._columns, strict=True)
            return torch.cat([part.view(self._n_bags, len(c)) for part, c in parts], dim=1)

        return wait

    def _slice(self, x: Tensor, rank: int) -> Tensor:
        columns = self._columns[rank]
        return x[:, columns.start : columns.stop]


def split_columns(width: int, n_ranks: int) -> list[range]:
    """Return the columns of every rank: contiguous, complete, in units of ALIGNED if possible."""
    unit = ALIGNED if width % ALIGNED == 0 and width >= ALIGNED * n_ranks else 1
    parts = (
        RankGroup(rank=rank, size=n_ranks).local_range(width // unit) for rank in range(n_ranks)
    )
    return [range(unit * part.start, unit * part.stop) for part in parts]
