"""Row-parallel tables: every rank holds some whole rows, chosen by a hash.

| lookup       | there                  | here                  | back                             |
|--------------|------------------------|-----------------------|----------------------------------|
| weighted_bag | ids and weights to all | sums of the rows here | added up at their bags           |
| gathered_dot | ids and x to all       | products of rows here | each from the rank with its row  |

Rows stay whole, whatever their width. The cost: each rank sends a sum for every bag of all ranks,
so up to as many times the columns' messages as there are ranks. Reads of rows held elsewhere are
skipped by the kernels, so work is as uneven as the reading (`usage_stats.shard_imbalance`), which a
hash evens out but for the hottest rows. Ids here are places (`distributed/hash_partition.py`). A
rank sends the reads of a bag in the order of the ranks that hold their rows: what a rank has to
read of it stands side by side.

Source of the scheme: "number-wise" in UltraMem (arXiv 2411.12364), with sums sent in the place of
rows.
"""

from collections.abc import Sequence
from typing import Self

from jaxtyping import Float, Int
from torch import Tensor

from workloads.distributed.collectives import Pending
from workloads.distributed.hash_partition import HashPartition
from workloads.distributed.mesh import Mesh
from workloads.distributed.process_group import RankGroup
from workloads.kernels.block_bucketize.op import bucketize, local_ids, unbucketize
from workloads.sharding.table_route import PendingReads, TableRoute, added_up
from workloads.sharding.table_shard import TableShard


class RowParallelShard(TableShard):
    """All columns of the rows in a range of places."""

    def __init__(self, mesh: Mesh, *, n_rows: int, width: int) -> None:
        super().__init__(mesh, n_rows=n_rows, width=width)
        self.rows, self.columns = mesh.memory.local_range(n_rows), range(width)
        self.partition = HashPartition(n_rows)

    def route_of(self, ids: Tensor, bags: Sequence[int], *, n_chunks: int) -> "RowParallelRoute":
        """Return the route of a lookup to which each rank brings `bags`."""
        return RowParallelRoute(
            self.mesh.memory, ids, bags=bags, n_rows=self.n_rows, n_chunks=n_chunks
        )


class RowParallelRoute(TableRoute):
    """Scalars and vectors to all ranks, and back from those that hold the row."""

    HAS_GAPS = True

    def __init__(
        self,
        memory: RankGroup,
        ids: Int[Tensor, "bags bag_size"],
        *,
        bags: Sequence[int],
        n_rows: int,
        n_chunks: int = 1,
        start: int = 0,
    ) -> None:
        """Take also the rows of the whole table."""
        super().__init__(memory, ids, bags=bags, n_chunks=n_chunks, start=start)
        self._n_rows = n_rows

    def part(self, ids: Tensor, *, bags: Sequence[int], start: int) -> Self:
        """Return the route of some of the bags."""
        return type(self)(self.memory, ids, bags=bags, n_rows=self._n_rows, start=start)

    def send_scalars_with_ids(self, x: Float[Tensor, "bags bag_size"]) -> PendingReads:
        """Send ids and scalars to all ranks in one message."""
        return self._send_with_ids(
            x, write=lambda *message: self._by_holder(self.ids, x, out=message)
        )

    def send_vectors_with_ids(self, x: Float[Tensor, "bags width"]) -> PendingReads:
        """Send ids and whole vectors to all ranks in one message."""
        return self._send_with_ids(
            x,
            write=lambda ids, vectors: (
                self._by_holder(self.ids, out=[ids]),
                vectors.copy_(x),
            ),
        )

    def send_scalars(self, x: Float[Tensor, "bags bag_size"]) -> Pending:
        """Send the scalars to all ranks."""
        return super().send_scalars(*self._by_holder(x))

    def send_vectors(self, x: Float[Tensor, "bags width"]) -> Pending:
        """Send whole vectors to all ranks."""
        return super().send_scalars(x)

    def return_scalars(self, x: Float[Tensor, "held_bags bag_size"]) -> Pending:
        """Send each rank its bags, where each scalar is taken from the rank that holds its row."""
        pending = self._of_own_bags(x)
        return lambda: unbucketize(self.ids, pending(), n_rows=self._n_rows)

    def return_vectors(self, x: Float[Tensor, "held_bags width"]) -> Pending:
        """Send each rank its bags' sums, where they are added up."""
        pending = self._of_own_bags(x)
        return lambda: added_up(pending())

    def _by_holder(self, *scalars: Tensor, out: Sequence[Tensor] | None = None) -> Sequence[Tensor]:
        """Return scalars of own reads, in each bag in the order of the ranks that hold the rows."""
        return bucketize(self.ids, scalars, n_rows=self._n_rows, n_ranks=self.memory.size, out=out)

    def _local_ids(self, ids: Sequence[Int[Tensor, "_ bag_size"]]) -> Int[Tensor, "_ bag_size"]:
        """Return ids counted from the first row here; of rows held elsewhere, the number here."""
        return local_ids(ids, self.memory.local_range(self._n_rows))
