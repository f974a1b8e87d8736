"""A table by columns: every rank holds a slice of every row, so all work alike however uneven the reading is.

    bag        gather ids and weights, sum slices of rows for the bags of all ranks, bring the slices to their bags
    products   gather ids, bring slices of x to their columns, multiply, add up the partial products

Source of the scheme: Berges et al. 2024 (arXiv 2412.09764), section 3.1; "dimension-wise" in UltraMem (2411.12364).
"""

from jaxtyping import Float, Int
from torch import Tensor

# `torch.compiler.disable` without its two seconds of import.
from torch._compile import _disable_dynamo

from workloads.kernels.row_dot.op import row_dot
from workloads.kernels.weighted_bag.op import weighted_bag
from workloads.ranks import World
from workloads.sharding.mesh import Mesh
from workloads.sharding.messages import Messages
from workloads.sharding.shard import Shard, nothing

ALIGNED = 8
"""Columns are dealt out in units of as many: 16 bytes of bf16, so that the rows of a part begin where wide loads can."""


class Columns(Shard):
    """Some columns of all rows."""

    def __init__(self, mesh: Mesh, *, n_rows: int, width: int) -> None:
        super().__init__(mesh, n_rows=n_rows, width=width)
        self.of_each = columns_of_each(width, mesh.memory.size)
        self.rows, self.columns = range(n_rows), self.of_each[mesh.memory.rank]

    def messages(self, n_bags: int) -> Messages:
        """Return the messages of a read to which this rank brings `n_bags` bags."""
        return Messages(self.mesh.memory, self.mesh.bags_of_each(n_bags), self.of_each)

    @_disable_dynamo
    def bag(
        self,
        part: Float[Tensor, "rows columns"],
        ids: Int[Tensor, "bags bag_size"],
        weights: Float[Tensor, "bags bag_size"],
    ) -> Float[Tensor, "bags width"]:
        """Return the weighted sums of rows of the whole table. Collective."""
        messages = self.messages(len(ids))
        all_ids = messages.ids(ids, n_rows=self.n_rows)
        all_weights = messages.gather(weights)
        if all_ids.numel() and self.columns:
            slices = weighted_bag(part, all_ids, all_weights)
        else:
            slices = nothing(len(all_ids), len(self.columns), after=(part, all_weights))
        return messages.to_bags(slices)

    @_disable_dynamo
    def products(
        self,
        part: Float[Tensor, "rows columns"],
        ids: Int[Tensor, "bags bag_size"],
        x: Float[Tensor, "bags width"],
    ) -> Float[Tensor, "bags bag_size"]:
        """Return the products of rows of the whole table with `x`. Collective."""
        messages = self.messages(len(ids))
        all_ids = messages.ids(ids, n_rows=self.n_rows)
        slices = messages.to_columns(x)
        if all_ids.numel() and self.columns:
            partial = row_dot(part, all_ids, slices)
        else:
            partial = nothing(*all_ids.shape, after=(part, slices))
        return messages.add_up(partial)


def columns_of_each(width: int, n_ranks: int) -> list[range]:
    """Return the columns of every rank: contiguous, complete, in units of ALIGNED where every rank gets one."""
    unit = ALIGNED if width % ALIGNED == 0 and width >= ALIGNED * n_ranks else 1
    shares = (World(rank=rank, size=n_ranks).share(width // unit) for rank in range(n_ranks))
    return [range(unit * share.start, unit * share.stop) for share in shares]
