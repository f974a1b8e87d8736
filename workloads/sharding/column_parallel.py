"""Column-parallel tables: every rank holds a slice of every row.

| lookup       | there                          | here                 | back                    |
|--------------|--------------------------------|----------------------|-------------------------|
| weighted_bag | ids and weights to all         | sums of row slices   | slices to their bags    |
| gathered_dot | ids to all, x's columns to all | partial dot products | added up at their bags  |

Source of the scheme: Berges et al. 2024 (arXiv 2412.09764), section 3.1; "dimension-wise" in
UltraMem (arXiv 2411.12364).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.distributed.collectives import (
    Pending,
    TensorSpec,
    all_gather,
    pack,
    packed_words,
    unpack,
)
from workloads.distributed.mesh import Mesh
from workloads.distributed.process_group import RankGroup
from workloads.sharding.table_route import PendingReads, TableRoute
from workloads.sharding.table_shard import TableShard

ALIGNED = 8
"""Unit of columns: 16 bytes of bf16, so that the rows of a part begin where wide loads can."""


class ColumnParallelShard(TableShard):
    """Some columns of all rows."""

    STATE_DTYPES = ()

    def __init__(self, mesh: Mesh, *, n_rows: int, width: int) -> None:
        super().__init__(mesh, n_rows=n_rows, width=width)
        self.columns_per_rank = split_columns(width, mesh.memory.size)
        self.rows, self.columns = range(n_rows), self.columns_per_rank[mesh.memory.rank]

    def route(self, ids: Int[Tensor, "bags bag_size"]) -> "ColumnParallelRoute":
        """Return the route of a lookup of these ids. Collective."""
        bags = self.mesh.bags_per_rank(len(ids))
        return self._route(ids, bags, n_chunks=max(1, min(self.mesh.n_chunks, max(bags))))

    def restore_route(
        self, ids: Int[Tensor, "bags bag_size"], numbers: Sequence[int], tensors: Sequence[Tensor]
    ) -> "ColumnParallelRoute":
        """Return the route of a lookup, for its backward pass."""
        n_chunks, *bags = numbers
        return self._route(ids, bags, n_chunks=n_chunks)

    def _route(self, ids: Tensor, bags: Sequence[int], *, n_chunks: int) -> "ColumnParallelRoute":
        return ColumnParallelRoute(
            self.mesh.memory,
            ids.to(self.id_dtype),
            bags=bags,
            columns=self.columns_per_rank,
            n_chunks=n_chunks,
        )


class ColumnParallelRoute(TableRoute):
    """Scalars to all ranks, of vectors to each rank its columns: every rank makes every read."""

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
        """Take `bags` of each rank; those of this rank read `ids` and are numbered from `start`."""
        self.memory, self._ids = memory, ids
        self.bags_per_rank, self._columns = bags, columns
        self._n_bags, self._n_columns = len(ids), len(columns[memory.rank])
        # Of each chunk, the range of every rank's bags.
        self._chunks = [
            [RankGroup(rank=i, size=n_chunks).local_range(n) for n in bags] for i in range(n_chunks)
        ]
        self.bags = slice(start, start + len(ids))

    def state(self) -> tuple[list[int], list[Tensor]]:
        """Return the number of chunks and of each rank's bags; ids are at hand later."""
        return [len(self._chunks), *self.bags_per_rank], []

    def chunks(self) -> Sequence["ColumnParallelRoute"]:
        """Return routes of an equal part of every rank's bags each."""
        if len(self._chunks) == 1:
            return [self]
        return [
            ColumnParallelRoute(
                self.memory,
                self._ids[own.start : own.stop],
                bags=[len(part) for part in chunk],
                columns=self._columns,
                start=own.start,
            )
            for chunk in self._chunks
            for own in [chunk[self.memory.rank]]
        ]

    def join_chunks(self, chunks: Sequence[Tensor]) -> Tensor:
        """Return the bags in the order of the ranks."""
        if len(chunks) == 1:
            return chunks[0]
        parts = [
            torch.split(chunk, [len(part) for part in ranges])
            for chunk, ranges in zip(chunks, self._chunks, strict=True)
        ]
        return torch.cat([part for of_rank in zip(*parts, strict=True) for part in of_rank])

    def split_chunks(self, whole: Tensor) -> Sequence[Tensor]:
        """Return the bags in the order of the chunks."""
        if len(self._chunks) == 1:
            return [whole]
        of_ranks = torch.split(whole, list(self.bags_per_rank))
        return [
            torch.cat(
                [bags[part.start : part.stop] for bags, part in zip(of_ranks, chunk, strict=True)]
            )
            for chunk in self._chunks
        ]

    def send_scalars_with_ids(self, x: Float[Tensor, "bags bag_size"]) -> PendingReads:
        """Gather both in one message."""
        specs = [[self._spec(n, self._ids), self._spec(n, x)] for n in self.bags_per_rank]
        # Collectives want equal lengths, so shorter messages are padded with arbitrary numbers.
        message = self._ids.new_empty(max(map(packed_words, specs)), dtype=torch.int64)
        own = specs[self.memory.rank]
        pack([self._ids, x], own, message[: packed_words(own)])
        pending = all_gather(self.memory, message)

        def wait() -> tuple[Tensor, Tensor]:
            messages = zip(pending(), specs, strict=True)
            unpacked = [unpack(message[: packed_words(spec)], spec) for message, spec in messages]
            ids, scalars = zip(*unpacked, strict=True)
            return torch.cat(ids), torch.cat(scalars)

        return wait

    def send_vectors_with_ids(self, x: Float[Tensor, "bags width"]) -> PendingReads:
        """Send to each rank its columns and the ids in one message."""
        own = self._spec(self._n_bags, self._ids)
        sent = [[own, ((self._n_bags, len(columns)), x.dtype)] for columns in self._columns]
        received = [
            [self._spec(n, self._ids), ((n, self._n_columns), x.dtype)] for n in self.bags_per_rank
        ]
        n_sent, n_received = ([packed_words(spec) for spec in side] for side in (sent, received))
        messages = self._ids.new_empty(sum(n_sent), dtype=torch.int64)
        for rank, message in enumerate(torch.split(messages, n_sent)):
            pack([self._ids, self._slice(x, rank)], sent[rank], message)
        pending = self._all_to_all(messages, sent=n_sent, received=n_received)

        def wait() -> tuple[Tensor, Tensor]:
            messages = zip(torch.split(pending(), n_received), received, strict=True)
            ids, vectors = zip(*(unpack(*each) for each in messages), strict=True)
            return torch.cat(ids), torch.cat(vectors)

        return wait

    def send_scalars(self, x: Float[Tensor, "bags bag_size"]) -> Pending:
        """Gather them."""
        most = max(self.bags_per_rank)
        padded = x
        if len(x) < most:
            padded = x.new_empty(most, x.shape[1])
            padded[: len(x)] = x
        pending = all_gather(self.memory, padded.reshape(-1))

        def wait() -> Tensor:
            of_ranks = pending().view(self.memory.size, most, x.shape[1])
            if min(self.bags_per_rank) == most:
                return of_ranks.flatten(0, 1)
            return torch.cat([own[:n] for own, n in zip(of_ranks, self.bags_per_rank, strict=True)])

        return wait

    def return_scalars(self, x: Float[Tensor, "held_bags bag_size"]) -> Pending:
        """Send each rank its bags, where they are added up: no more is sent than a ring sends."""
        bag_size = x.shape[1]
        pending = self._all_to_all(
            x.reshape(-1),
            sent=[n * bag_size for n in self.bags_per_rank],
            received=[self._n_bags * bag_size] * self.memory.size,
        )

        def wait() -> Tensor:
            wide = torch.promote_types(x.dtype, torch.float32)
            parts = pending().view(self.memory.size, self._n_bags, bag_size)
            return parts.sum(0, dtype=wide).to(x.dtype)

        return wait

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

    def _spec(self, n_bags: int, like: Tensor) -> TensorSpec:
        return (n_bags, self._ids.shape[1]), like.dtype

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
