"""Row-parallel tables: every rank holds some whole rows.

| lookup       | to the rank that holds the row | here         | back                   |
|--------------|--------------------------------|--------------|------------------------|
| weighted_bag | each id and weight             | partial sums | partial sums, added up |
| gathered_dot | each id, and once the bag's x  | dot products | dot products           |

Rows stay whole, whatever their width. The costs: each output is sent once per rank that it reads
from, and work is as uneven as the reading (`usage_stats.shard_imbalance`). The host waits for the
GPU once per lookup, to learn how many reads go where, so lookups have no chunks.

Source of the scheme: "number-wise" in UltraMem (arXiv 2411.12364), with sums sent in the place of
rows.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import chain

import torch
from jaxtyping import Bool, Float, Int
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
from workloads.kernels.weighted_bag.op import weighted_bag
from workloads.sharding.table_route import PendingReads, TableRoute
from workloads.sharding.table_shard import TableShard


class RowParallelShard(TableShard):
    """All columns of some rows."""

    STATE_DTYPES = (torch.int64, torch.int64, torch.int64, torch.bool, torch.int64)

    def __init__(self, mesh: Mesh, *, n_rows: int, width: int) -> None:
        super().__init__(mesh, n_rows=n_rows, width=width)
        self.rows, self.columns = mesh.memory.local_range(n_rows), range(width)

    def route(self, ids: Int[Tensor, "bags bag_size"]) -> "RowParallelRoute":
        """Return the route of a lookup of these ids. Collective; waits for the GPU."""
        memory = self.mesh.memory
        # `local_range` begins at rank * n_rows // size; this is the last rank for which that is at
        # most the id.
        holder = ((ids.long() + 1) * memory.size - 1) // self.n_rows
        ranks = torch.arange(memory.size, device=ids.device)
        reads = (holder[:, :, None] == ranks).sum(1)  # [bags, ranks]
        counts = _Counts.exchange(memory, reads)
        order = holder.flatten().to(torch.int16).sort(stable=True).indices
        first_row = holder * self.n_rows // memory.size
        local_ids = (ids - first_row).flatten()[order].to(self.id_dtype)
        route = RowParallelRoute(memory, tuple(ids.shape), counts, order, *_returned(reads, counts))
        route.local_ids, route.reads = local_ids, reads.T.to(torch.int32).contiguous()
        return route

    def restore_route(
        self, ids: Int[Tensor, "bags bag_size"], numbers: Sequence[int], tensors: Sequence[Tensor]
    ) -> "RowParallelRoute":
        """Return the route of a lookup, for its backward pass."""
        memory = self.mesh.memory
        order, bag_of_vector, positions, has_reads, held_positions = tensors
        per_rank = (each.view(len(ids), memory.size) for each in (positions, has_reads))
        counts = _Counts.of(numbers, memory.size)
        route = RowParallelRoute(memory, tuple(ids.shape), counts, order, bag_of_vector, *per_rank)
        route.held_positions = held_positions
        return route


@dataclass(frozen=True, kw_only=True)
class _Counts:
    """How much each rank sends and receives in one lookup, known on the host."""

    longest: list[int]
    """One number: the most reads here of one bag."""
    sent: list[int]
    """Reads sent to each rank."""
    bags_sent: list[int]
    """Bags of which some read is sent to each rank."""
    received: list[int]
    bags_received: list[int]
    bags_per_rank: list[int]
    """Bags that each rank brings."""

    @classmethod
    def exchange(cls, memory: RankGroup, reads: Int[Tensor, "bags ranks"]) -> "_Counts":
        """Tell every rank how much of it is read; the host waits for the answers."""
        size, mine = memory.size, memory.rank
        longest = torch.cat([reads, reads.new_zeros(1, size)]).amax(0)
        own = [reads.sum(0), (reads > 0).sum(0), longest, reads.new_full((1,), len(reads))]
        rows = all_gather(memory, torch.cat(own))().tolist()
        return cls(
            longest=[max(row[2 * size + mine] for row in rows)],
            sent=rows[mine][:size],
            bags_sent=rows[mine][size : 2 * size],
            received=[row[mine] for row in rows],
            bags_received=[row[size + mine] for row in rows],
            bags_per_rank=[row[-1] for row in rows],
        )

    @classmethod
    def of(cls, numbers: Sequence[int], size: int) -> "_Counts":
        """Return the counts of `numbers`."""
        lists = [list(numbers[i : i + size]) for i in range(1, len(numbers), size)]
        names = ("sent", "bags_sent", "received", "bags_received", "bags_per_rank")
        return cls(longest=[numbers[0]], **dict(zip(names, lists, strict=True)))

    def numbers(self) -> list[int]:
        """Return all counts in one list."""
        return [*chain(*astuple(self))]


def _returned(
    reads: Int[Tensor, "bags ranks"], counts: _Counts
) -> tuple[Int[Tensor, " vectors"], Int[Tensor, "bags ranks"], Bool[Tensor, "bags ranks"]]:
    """Return the bag of each vector that comes back, and position and presence of each rank's sum.

    Where a rank reads none of a bag, another rank's sum of that bag is named, to get weight 0.
    """
    n_bags, size = reads.shape
    has_reads = reads > 0
    flat = has_reads.T.flatten()
    bag_of_vector = _true_positions(flat, sum(counts.bags_sent)) % max(1, n_bags)
    positions = (flat.cumsum(0) - 1).view(size, n_bags).T
    if n_bags:
        some = has_reads.to(torch.uint8).argmax(1, keepdim=True)
        positions = torch.where(has_reads, positions, positions.gather(1, some))
    return bag_of_vector, positions, has_reads


class RowParallelRoute(TableRoute):
    """Each scalar to the rank that holds its row.

    Each vector to the ranks that hold rows of its bag.

    The reads that a rank makes of one bag are one bag there, in the same order. Held bags are
    padded to the longest of them with weight 0 of a row that they read anyway: no row may count as
    read that was not.
    """

    local_ids: Int[Tensor, " reads"]
    """Ids of the reads by rank, counted from the first row of each. Not in a restored route."""
    reads: Int[Tensor, "ranks bags"]
    """Reads of each bag by rank. Not in a restored route."""
    held_positions: Int[Tensor, " received"]
    """Where in the held bags each received read is. There once ids have arrived."""

    def __init__(
        self,
        memory: RankGroup,
        shape: tuple[int, ...],
        counts: _Counts,
        order: Int[Tensor, " reads"],
        bag_of_vector: Int[Tensor, " vectors"],
        positions: Int[Tensor, "bags ranks"],
        has_reads: Bool[Tensor, "bags ranks"],
    ) -> None:
        """Take ids of `shape`.

        `order` sorts the reads by rank, the other tensors are `_returned`.
        """
        self.memory, self._shape, self._counts = memory, shape, counts
        self.bags, self.bags_per_rank = slice(0, shape[0]), counts.bags_per_rank
        self._order, self._bag_of_vector = order, bag_of_vector
        self._positions, self._has_reads = positions, has_reads
        self._held_shape = sum(counts.bags_received), counts.longest[0]

    def state(self) -> tuple[list[int], list[Tensor]]:
        """Return the counts and what is sent where, without the ids."""
        return self._counts.numbers(), [
            self._order,
            self._bag_of_vector,
            self._positions,
            self._has_reads,
            self.held_positions,
        ]

    def send_scalars_with_ids(self, x: Float[Tensor, "bags bag_size"]) -> PendingReads:
        """Send to each rank the ids and scalars of its rows, and how many of each bag."""
        scalars, counts = x.flatten()[self._order], self._counts
        pending = self._send_with_ids(scalars, sent=counts.sent, received=counts.received)

        def wait() -> tuple[Tensor, Tensor]:
            ids, scalars = pending()
            return ids, self._padded(scalars)

        return wait

    def send_vectors_with_ids(self, x: Float[Tensor, "bags width"]) -> PendingReads:
        """Send to each rank the ids of its rows, how many of each bag, and these bags' vectors."""
        vectors, counts = x[self._bag_of_vector], self._counts
        return self._send_with_ids(vectors, sent=counts.bags_sent, received=counts.bags_received)

    def send_scalars(self, x: Float[Tensor, "bags bag_size"]) -> Pending:
        """Send to each rank the scalars of its rows, once ids have arrived."""
        scalars, counts = x.flatten()[self._order], self._counts
        pending = self._all_to_all(scalars, sent=counts.sent, received=counts.received)
        return lambda: self._padded(pending())

    def return_scalars(self, x: Float[Tensor, "held_bags held_size"]) -> Pending:
        """Return each scalar to the rank that sent its id."""
        scalars, counts = x.flatten()[self.held_positions], self._counts
        pending = self._all_to_all(scalars, sent=counts.received, received=counts.sent)

        def wait() -> Tensor:
            found = pending()
            return torch.empty_like(found).index_copy_(0, self._order, found).view(self._shape)

        return wait

    def send_vectors(self, x: Float[Tensor, "bags width"]) -> Pending:
        """Send to each rank the vectors of the bags that read some row of it."""
        width, counts = x.shape[1], self._counts
        pending = self._all_to_all(
            x[self._bag_of_vector].flatten(),
            sent=[n * width for n in counts.bags_sent],
            received=[n * width for n in counts.bags_received],
        )
        return lambda: pending().view(-1, width)

    def return_vectors(self, x: Float[Tensor, "held_bags width"]) -> Pending:
        """Return the partial sums, and add them up: a weighted bag with one read per rank."""
        width, counts = x.shape[1], self._counts
        pending = self._all_to_all(
            x.reshape(-1),
            sent=[n * width for n in counts.bags_received],
            received=[n * width for n in counts.bags_sent],
        )

        def wait() -> Tensor:
            parts = pending().view(-1, width)
            if not parts.numel():
                return parts.new_zeros(len(self._has_reads), width)
            return weighted_bag(parts, self._positions, self._has_reads.to(parts.dtype))

        return wait

    def _send_with_ids(
        self, values: Tensor, *, sent: Sequence[int], received: Sequence[int]
    ) -> PendingReads:
        """Send each rank its ids, its reads of all bags and its share of `values`."""
        ids = self.local_ids
        row_shape = tuple(values.shape[1:])

        def specs(n_ids: int, n_bags: int, n_values: int) -> list[TensorSpec]:
            shapes = [((n_ids,), ids.dtype), ((n_bags,), torch.int32)]
            return [*shapes, ((n_values, *row_shape), values.dtype)]

        n_bags, counts = len(self._has_reads), self._counts
        there = [specs(n, n_bags, m) for n, m in zip(counts.sent, sent, strict=True)]
        numbers = zip(counts.received, self.bags_per_rank, received, strict=True)
        here = [specs(*each) for each in numbers]
        n_there, n_here = ([packed_words(each) for each in side] for side in (there, here))
        messages = ids.new_empty(sum(n_there), dtype=torch.int64)
        for spec, message, *tensors in zip(
            there,
            torch.split(messages, n_there),
            torch.split(ids, counts.sent),
            self.reads,
            torch.split(values, list(sent)),
            strict=True,
        ):
            pack(tensors, spec, message)
        pending = self._all_to_all(messages, sent=n_there, received=n_here)

        def wait() -> tuple[Tensor, Tensor]:
            received = zip(torch.split(pending(), n_here), here, strict=True)
            ids, reads, values = zip(*(unpack(*each) for each in received), strict=True)
            return self._held_ids(torch.cat(ids), torch.cat(reads)), torch.cat(values)

        return wait

    def _held_ids(
        self, ids: Int[Tensor, " received"], reads: Int[Tensor, " all_bags"]
    ) -> Int[Tensor, "held_bags held_size"]:
        """Return the ids of the held bags; note where in them each received read is."""
        n_held, longest = self._held_shape
        lengths = reads[_true_positions(reads > 0, n_held)].long()
        first = lengths.cumsum(0) - lengths
        bags = torch.arange(n_held, device=ids.device)
        bag_of_read = bags.repeat_interleave(lengths, output_size=len(ids))
        within = torch.arange(len(ids), device=ids.device) - first[bag_of_read]
        self.held_positions = bag_of_read * longest + within
        padded = ids[first][:, None].expand(n_held, longest).flatten()
        return padded.index_copy(0, self.held_positions, ids).view(n_held, longest)

    def _padded(self, scalars: Float[Tensor, " received"]) -> Float[Tensor, "held_bags held_size"]:
        n_held, longest = self._held_shape
        zeros = scalars.new_zeros(n_held * longest)
        return zeros.index_copy_(0, self.held_positions, scalars).view(n_held, longest)


def _true_positions(mask: Bool[Tensor, " n"], n_true: int) -> Int[Tensor, " n_true"]:
    """Return where a mask is true.

    The host knows how often that is, so it need not wait for a GPU as `nonzero` does.
    """
    return (~mask).to(torch.uint8).sort(stable=True).indices[:n_true]
