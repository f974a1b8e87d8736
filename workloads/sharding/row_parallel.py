"""A table by rows: every rank holds some whole rows, and sums those it holds for the bags of all ranks.

    weighted sums   each id and weight to the rank that holds the row, sum there, partial sums back and added up
    products        each id to the rank that holds the row and with it the bag's x, multiply, products back

Bags keep whole rows of any width together, at the price of sending each output once per rank that it reads from, and of
work as uneven as the reading is (`usage_stats.shard_imbalance`). A GPU must be waited for once per read, to learn how many reads go where; so
reads are not cut into pieces.

Source of the scheme: "number-wise" in UltraMem (arXiv 2411.12364), with sums sent in the place of rows.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
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
from workloads.kernels.weighted_bag.op import weighted_bag
from workloads.sharding.table_route import ArrivingReads, TableRoute
from workloads.sharding.table_shard import TableShard


class RowParallelShard(TableShard):
    """All columns of some rows."""

    STATE_DTYPES = (torch.int64, torch.int64, torch.int64, torch.bool, torch.int64)

    def __init__(self, mesh: Mesh, *, n_rows: int, width: int) -> None:
        super().__init__(mesh, n_rows=n_rows, width=width)
        self.rows, self.columns = mesh.memory.local_range(n_rows), range(width)

    def route(self, ids: Int[Tensor, "bags bag_size"]) -> "RowParallelRoute":
        """Return the route of a read of these bags. Collective; waits for the GPU."""
        return RowParallelRoute(self.mesh.memory, ids, n_rows=self.n_rows, id_dtype=self.id_dtype)

    def restore_route(
        self, ids: Int[Tensor, "bags bag_size"], numbers: Sequence[int], tensors: Sequence[Tensor]
    ) -> "RowParallelRoute":
        """Return the route of a read, for its backward pass."""
        return RowParallelRoute.again(self.mesh.memory, tuple(ids.shape), numbers, tensors)


class RowParallelRoute(TableRoute):
    """Each number to the rank that holds its row; each vector to the ranks that hold some row of its bag.

    What a rank is to read of one bag makes one bag there, in the order that it had. Bags held here are filled up to the
    longest of them with a row that they read anyway, and weight 0: no row may count as read that was not.
    """

    def __init__(
        self,
        memory: RankGroup,
        ids: Int[Tensor, "bags bag_size"],
        *,
        n_rows: int,
        id_dtype: torch.dtype,
    ) -> None:
        """Find who holds what, and tell each other how much of it there is."""
        self._memory, self._shape = memory, tuple(ids.shape)
        self.bags = slice(0, len(ids))
        size, n_bags = memory.size, len(ids)
        ranks = torch.arange(size, device=ids.device)
        # `RankGroup.local_range` begins at rank * n_rows // size; this is the last rank for which that is at most the id.
        holder = ((ids.long() + 1) * size - 1) // n_rows
        counts = (holder[:, :, None] == ranks).sum(1)  # [bags, ranks]
        reads = counts > 0
        # The reads by rank, each rank's in the order of the bags.
        self._order = holder.flatten().to(torch.int16).sort(stable=True).indices
        first = holder * n_rows // size
        self._ids = (ids - first).flatten()[self._order].to(id_dtype)
        self._counts = counts.T.to(torch.int32).contiguous()

        longest = torch.cat([counts, counts.new_zeros(1, size)]).amax(0)
        own = torch.cat([counts.sum(0), reads.sum(0), longest, counts.new_full((1,), n_bags)])
        everybodys = gather(memory, own)().tolist()
        of_each = [
            (row[:size], row[size : 2 * size], row[2 * size : 3 * size]) for row in everybodys
        ]
        mine = memory.rank
        self._sent, self._bags_sent, _ = of_each[mine]
        self._received = [numbers[mine] for numbers, _, _ in of_each]
        self._bags_received = [bags[mine] for _, bags, _ in of_each]
        self._longest = max(longest[mine] for _, _, longest in of_each)
        self._asked = [row[-1] for row in everybodys]

        # Of each rank the bags that it reads some row of; and where its sum of a bag stands among all that come back.
        # Where it reads none of a bag, another rank's sum of that bag is named, with weight 0.
        flat = reads.T.flatten()
        self._bag_of_each = _set(flat, sum(self._bags_sent)) % max(1, n_bags)
        self._places = (flat.cumsum(0) - 1).view(size, n_bags).T
        if n_bags:
            some = reads.to(torch.uint8).argmax(1, keepdim=True)
            self._places = torch.where(reads, self._places, self._places.gather(1, some))
        self._there = reads

    def state(self) -> tuple[list[int], list[Tensor]]:
        """Return how much goes where, and which of it: all but the ids and what only finding them took."""
        numbers = [
            self._longest,
            *self._sent,
            *self._bags_sent,
            *self._received,
            *self._bags_received,
            *self._asked,
        ]
        return numbers, [
            self._order,
            self._bag_of_each,
            self._places,
            self._there,
            self._held_places,
        ]

    @classmethod
    def again(
        cls,
        memory: RankGroup,
        shape: tuple[int, ...],
        numbers: Sequence[int],
        tensors: Sequence[Tensor],
    ) -> "RowParallelRoute":
        """Return the route of bags of this shape that had this state, for their gradients' messages."""
        route = cls.__new__(cls)
        route._memory, route._shape, route.bags = memory, shape, slice(0, shape[0])
        route._longest, *of_ranks = numbers
        size = memory.size
        route._sent, route._bags_sent, route._received, route._bags_received, route._asked = (
            of_ranks[i : i + size] for i in range(0, 5 * size, size)
        )
        route._order, route._bag_of_each, places, there, route._held_places = tensors
        route._places, route._there = (each.view(shape[0], size) for each in (places, there))
        return route

    def with_numbers(self, x: Float[Tensor, "bags bag_size"]) -> ArrivingReads:
        """Send to each rank the ids and numbers of its rows, and how many of each bag."""
        numbers = x.flatten()[self._order]
        arriving = self._parcels(numbers, sent=self._sent, received=self._received)

        def arrive() -> tuple[Tensor, Tensor]:
            ids, numbers = arriving()
            return ids, self._filled_up(numbers)

        return arrive

    def with_vectors(self, x: Float[Tensor, "bags width"]) -> ArrivingReads:
        """Send to each rank the ids of its rows, how many of each bag, and the vectors of these bags."""
        vectors = x[self._bag_of_each]
        return self._parcels(vectors, sent=self._bags_sent, received=self._bags_received)

    def numbers_there(self, x: Float[Tensor, "bags bag_size"]) -> Arrival:
        """Send to each rank the numbers of its rows. After `with_numbers` or `with_vectors`."""
        arriving = self._exchange(
            x.flatten()[self._order], sent=self._sent, received=self._received
        )
        return lambda: self._filled_up(arriving())

    def numbers_back(self, x: Float[Tensor, "held_bags held_size"]) -> Arrival:
        """Return each number to the rank that sent its id."""
        real = x.flatten()[self._held_places]
        arriving = self._exchange(real, sent=self._received, received=self._sent)

        def arrive() -> Tensor:
            found = arriving()
            return torch.empty_like(found).index_copy_(0, self._order, found).view(self._shape)

        return arrive

    def vectors_there(self, x: Float[Tensor, "bags width"]) -> Arrival:
        """Send to each rank the vectors of the bags that read some row of it."""
        width = x.shape[1]
        arriving = self._exchange(
            x[self._bag_of_each].flatten(),
            sent=[n * width for n in self._bags_sent],
            received=[n * width for n in self._bags_received],
        )
        return lambda: arriving().view(-1, width)

    def vectors_back(self, x: Float[Tensor, "held_bags width"]) -> Arrival:
        """Return the partial sums, and add them up: a weighted bag of what comes back, of one read per rank."""
        width = x.shape[1]
        arriving = self._exchange(
            x.reshape(-1),
            sent=[n * width for n in self._bags_received],
            received=[n * width for n in self._bags_sent],
        )

        def arrive() -> Tensor:
            parts = arriving().view(-1, width)
            if not parts.numel():
                return parts.new_zeros(len(self._there), width)
            return weighted_bag(parts, self._places, self._there.to(parts.dtype))

        return arrive

    def _parcels(
        self, values: Tensor, *, sent: Sequence[int], received: Sequence[int]
    ) -> ArrivingReads:
        """Send each rank its ids, its counts of all bags and its share of `values`; note what comes."""
        per_row = tuple(values.shape[1:])

        def contents(n_ids: int, n_bags: int, n_values: int) -> list[Content]:
            ids, counts = ((n_ids,), self._ids.dtype), ((n_bags,), torch.int32)
            return [ids, counts, ((n_values, *per_row), values.dtype)]

        n_bags = len(self._there)
        there = [contents(n, n_bags, m) for n, m in zip(self._sent, sent, strict=True)]
        here = [contents(*each) for each in zip(self._received, self._asked, received, strict=True)]
        n_there, n_here = ([words(each) for each in side] for side in (there, here))
        parcels = self._ids.new_empty(sum(n_there), dtype=torch.int64)
        for each, parcel, ids, counts, own in zip(
            there,
            torch.split(parcels, n_there),
            torch.split(self._ids, self._sent),
            self._counts,
            torch.split(values, list(sent)),
            strict=True,
        ):
            pack([ids, counts, own], each, parcel)
        arriving = self._exchange(parcels, sent=n_there, received=n_here)

        def arrive() -> tuple[Tensor, Tensor]:
            opened = zip(torch.split(arriving(), n_here), here, strict=True)
            ids, counts, arrived = zip(*(unpack(*each) for each in opened), strict=True)
            return self._hold(torch.cat(ids), torch.cat(counts)), torch.cat(arrived)

        return arrive

    def _hold(self, ids: Int[Tensor, " reads"], counts: Int[Tensor, " all_bags"]) -> Tensor:
        """Note where in the bags held here each read goes; return their ids."""
        n_held, longest = sum(self._bags_received), self._longest
        asked = _set(counts > 0, n_held)
        held = counts[asked].long()
        first = held.cumsum(0) - held
        bags = torch.arange(n_held, device=ids.device)
        of_read = bags.repeat_interleave(held, output_size=len(ids))
        within = torch.arange(len(ids), device=ids.device) - first[of_read]
        self._held_places = of_read * longest + within
        filled = ids[first][:, None].expand(n_held, longest).flatten()
        return filled.index_copy(0, self._held_places, ids).view(n_held, longest)

    def _filled_up(self, numbers: Float[Tensor, " reads"]) -> Float[Tensor, "held_bags held_size"]:
        n_held, longest = sum(self._bags_received), self._longest
        zeros = numbers.new_zeros(n_held * longest)
        return zeros.index_copy_(0, self._held_places, numbers).view(n_held, longest)

    def _exchange(self, x: Tensor, *, sent: Sequence[int], received: Sequence[int]) -> Arrival:
        if not any(self._asked):
            empty = x.new_empty(0)
            return lambda: empty
        return exchange(self._memory, x, sent=sent, received=received)


def _set(mask: Bool[Tensor, " n"], how_many: int) -> Int[Tensor, " set"]:
    """Return where a mask is set; the host knows how often, so it need not wait as `nonzero` does."""
    return (~mask).to(torch.uint8).sort(stable=True).indices[:how_many]
