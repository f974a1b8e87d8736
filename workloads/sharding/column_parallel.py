"""A table by columns: every rank holds a slice of every row, so all work alike however uneven the reading is.

    weighted sums   ids and weights to all, sum slices of rows for the bags of all ranks, slices to their bags
    products        ids to all and with them slices of x to their columns, multiply, add up the partial products

Source of the scheme: Berges et al. 2024 (arXiv 2412.09764), section 3.1; "dimension-wise" in UltraMem (2411.12364).
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.distributed.collectives import (
    Arrival,
    Content,
    exchange,
    gather,
    pack,
    unpack,
    words,
)
from workloads.distributed.mesh import Mesh
from workloads.distributed.process_group import RankGroup
from workloads.sharding.table_route import ArrivingReads, TableRoute
from workloads.sharding.table_shard import TableShard

ALIGNED = 8
"""Columns are dealt out in units of as many: 16 bytes of bf16, so that the rows of a part begin where wide loads can."""


class ColumnParallelShard(TableShard):
    """Some columns of all rows."""

    STATE_DTYPES = ()

    def __init__(self, mesh: Mesh, *, n_rows: int, width: int) -> None:
        super().__init__(mesh, n_rows=n_rows, width=width)
        self.of_each = columns_of_each(width, mesh.memory.size)
        self.rows, self.columns = range(n_rows), self.of_each[mesh.memory.rank]

    def route(self, ids: Int[Tensor, "bags bag_size"]) -> "ColumnParallelRoute":
        """Return the route of a read of these bags. Collective."""
        bags = self.mesh.bags_of_each(len(ids))
        return self._route(ids, bags, n_pieces=max(1, min(self.mesh.pieces, max(bags))))

    def restore_route(
        self, ids: Int[Tensor, "bags bag_size"], numbers: Sequence[int], tensors: Sequence[Tensor]
    ) -> "ColumnParallelRoute":
        """Return the route of a read, for its backward pass."""
        n_pieces, *bags = numbers
        return self._route(ids, bags, n_pieces=n_pieces)

    def _route(self, ids: Tensor, bags: Sequence[int], *, n_pieces: int) -> "ColumnParallelRoute":
        return ColumnParallelRoute(
            self.mesh.memory,
            ids.to(self.id_dtype),
            bags=bags,
            columns=self.of_each,
            n_pieces=n_pieces,
        )


class ColumnParallelRoute(TableRoute):
    """Numbers to all ranks, of vectors to each its columns: every rank makes every read."""

    def __init__(
        self,
        memory: RankGroup,
        ids: Int[Tensor, "bags bag_size"],
        *,
        bags: Sequence[int],
        columns: Sequence[range],
        n_pieces: int = 1,
        start: int = 0,
    ) -> None:
        """Take `bags` of each rank, of this one those that read `ids` and are numbered from `start`."""
        self._memory, self._ids = memory, ids
        self._bags_of_each, self._columns = bags, columns
        self._mine, self._held = len(ids), len(columns[memory.rank])
        self._pieces = [
            [RankGroup(rank=i, size=n_pieces).local_range(n) for n in bags] for i in range(n_pieces)
        ]
        self.bags = slice(start, start + len(ids))

    def state(self) -> tuple[list[int], list[Tensor]]:
        """Return the number of pieces and the bags of each rank; ids are at hand in the backward pass."""
        return [len(self._pieces), *self._bags_of_each], []

    def pieces(self) -> Sequence["ColumnParallelRoute"]:
        """Return routes of an equal part of every rank's bags each."""
        if len(self._pieces) == 1:
            return [self]
        mine = [shares[self._memory.rank] for shares in self._pieces]
        return [
            ColumnParallelRoute(
                self._memory,
                self._ids[own.start : own.stop],
                bags=[len(share) for share in shares],
                columns=self._columns,
                start=own.start,
            )
            for own, shares in zip(mine, self._pieces, strict=True)
        ]

    def join(self, pieces: Sequence[Tensor]) -> Tensor:
        """Return the bags in the order of the ranks."""
        if len(pieces) == 1:
            return pieces[0]
        of_pieces = [
            torch.split(piece, [len(share) for share in shares])
            for piece, shares in zip(pieces, self._pieces, strict=True)
        ]
        return torch.cat([part for of_rank in zip(*of_pieces, strict=True) for part in of_rank])

    def cut(self, whole: Tensor) -> Sequence[Tensor]:
        """Return the bags in the order of the pieces."""
        if len(self._pieces) == 1:
            return [whole]
        firsts = [0, *accumulate(self._bags_of_each)]
        return [
            torch.cat(
                [
                    whole[first + share.start : first + share.stop]
                    for first, share in zip(firsts, shares, strict=False)
                ]
            )
            for shares in self._pieces
        ]

    def with_numbers(self, x: Float[Tensor, "bags bag_size"]) -> ArrivingReads:
        """Gather both in one message."""
        of_each = [[self._numbers(n, self._ids), self._numbers(n, x)] for n in self._bags_of_each]
        # Collectives want equal parts, so an uneven one is filled up; what it is filled with is never looked at.
        parcel = self._ids.new_empty(max(words(each) for each in of_each), dtype=torch.int64)
        mine = of_each[self._memory.rank]
        pack([self._ids, x], mine, parcel[: words(mine)])
        arriving = gather(self._memory, parcel)

        def arrive() -> tuple[Tensor, Tensor]:
            parcels = zip(arriving(), of_each, strict=True)
            opened = [unpack(parcel[: words(each)], each) for parcel, each in parcels]
            ids, numbers = zip(*opened, strict=True)
            return torch.cat(ids), torch.cat(numbers)

        return arrive

    def with_vectors(self, x: Float[Tensor, "bags width"]) -> ArrivingReads:
        """Send to each rank its columns and the ids in one message."""
        own = self._numbers(self._mine, self._ids)
        sent = [[own, ((self._mine, len(columns)), x.dtype)] for columns in self._columns]
        received = [
            [self._numbers(n, self._ids), ((n, self._held), x.dtype)] for n in self._bags_of_each
        ]
        n_sent, n_received = ([words(each) for each in side] for side in (sent, received))
        parcels = self._ids.new_empty(sum(n_sent), dtype=torch.int64)
        for rank, parcel in enumerate(torch.split(parcels, n_sent)):
            pack([self._ids, self._slice(x, rank)], sent[rank], parcel)
        arriving = self._exchange(parcels, sent=n_sent, received=n_received)

        def arrive() -> tuple[Tensor, Tensor]:
            of_each = zip(torch.split(arriving(), n_received), received, strict=True)
            ids, vectors = zip(*(unpack(*each) for each in of_each), strict=True)
            return torch.cat(ids), torch.cat(vectors)

        return arrive

    def numbers_there(self, x: Float[Tensor, "bags bag_size"]) -> Arrival:
        """Gather them."""
        most = max(self._bags_of_each)
        padded = x
        if len(x) < most:
            padded = x.new_empty(most, x.shape[1])
            padded[: len(x)] = x
        arriving = gather(self._memory, padded.reshape(-1))

        def arrive() -> Tensor:
            of_each = arriving().view(self._memory.size, most, x.shape[1])
            if min(self._bags_of_each) == most:
                return of_each.flatten(0, 1)
            return torch.cat([own[:n] for own, n in zip(of_each, self._bags_of_each, strict=True)])

        return arrive

    def numbers_back(self, x: Float[Tensor, "held_bags bag_size"]) -> Arrival:
        """Send each rank its bags, where they are added up: no more is sent than a ring sends."""
        each = x.shape[1]
        arriving = self._exchange(
            x.reshape(-1),
            sent=[n * each for n in self._bags_of_each],
            received=[self._mine * each] * self._memory.size,
        )

        def arrive() -> Tensor:
            wide = torch.promote_types(x.dtype, torch.float32)
            parts = arriving().view(self._memory.size, self._mine, each)
            return parts.sum(0, dtype=wide).to(x.dtype)

        return arrive

    def vectors_there(self, x: Float[Tensor, "bags width"]) -> Arrival:
        """Send each rank its columns."""
        sent = [self._mine * len(columns) for columns in self._columns]
        parts = x.new_empty(sum(sent))
        for rank, part in enumerate(torch.split(parts, sent)):
            part.view(self._mine, len(self._columns[rank])).copy_(self._slice(x, rank))
        arriving = self._exchange(
            parts, sent=sent, received=[n * self._held for n in self._bags_of_each]
        )
        return lambda: arriving().view(sum(self._bags_of_each), self._held)

    def vectors_back(self, x: Float[Tensor, "held_bags columns"]) -> Arrival:
        """Send each rank its bags' columns held here."""
        received = [self._mine * len(columns) for columns in self._columns]
        arriving = self._exchange(
            x.reshape(-1), sent=[n * self._held for n in self._bags_of_each], received=received
        )

        def arrive() -> Tensor:
            parts = zip(torch.split(arriving(), received), self._columns, strict=True)
            return torch.cat([part.view(self._mine, len(c)) for part, c in parts], dim=1)

        return arrive

    def _numbers(self, n_bags: int, like: Tensor) -> Content:
        return (n_bags, self._ids.shape[1]), like.dtype

    def _slice(self, x: Tensor, rank: int) -> Tensor:
        columns = self._columns[rank]
        return x[:, columns.start : columns.stop]

    def _exchange(self, x: Tensor, *, sent: Sequence[int], received: Sequence[int]) -> Arrival:
        if not any(self._bags_of_each):
            empty = x.new_empty(0)
            return lambda: empty
        return exchange(self._memory, x, sent=sent, received=received)


def columns_of_each(width: int, n_ranks: int) -> list[range]:
    """Return the columns of every rank: contiguous, complete, in units of ALIGNED where every rank gets one."""
    unit = ALIGNED if width % ALIGNED == 0 and width >= ALIGNED * n_ranks else 1
    shares = (
        RankGroup(rank=rank, size=n_ranks).local_range(width // unit) for rank in range(n_ranks)
    )
    return [range(unit * share.start, unit * share.stop) for share in shares]
