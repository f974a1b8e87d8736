"""A table by rows: every rank holds some whole rows, and sums those it holds for the bags of all ranks.

    bag        gather ids and weights, sum the rows held here, add up the partial sums
    products   gather ids and x, multiply with the rows held here, add up: of each product all ranks but one have 0

Bags keep whole rows of any width together, at the price of sending each output once per rank, and of work as uneven
as the reading is (`skew`). A GPU must be waited for once per read, to learn how many rows are held here.

Source of the scheme: "number-wise" in UltraMem (arXiv 2411.12364), with sums sent in the place of rows.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

# `torch.compiler.disable` without its two seconds of import.
from torch._compile import _disable_dynamo

from workloads.kernels.row_dot.op import row_dot
from workloads.kernels.weighted_bag.op import weighted_bag
from workloads.ranks import World
from workloads.sharding.mesh import Mesh
from workloads.sharding.messages import Messages
from workloads.sharding.shard import Shard, nothing


class Rows(Shard):
    """All columns of some rows."""

    def __init__(self, mesh: Mesh, *, n_rows: int, width: int) -> None:
        super().__init__(mesh, n_rows=n_rows, width=width)
        self.rows, self.columns = mesh.memory.share(n_rows), range(width)

    def messages(self, n_bags: int) -> Messages:
        """Return the messages of a read to which this rank brings `n_bags` bags."""
        return Messages(self.mesh.memory, self.mesh.bags_of_each(n_bags), [])

    @_disable_dynamo
    def bag(
        self,
        part: Float[Tensor, "rows columns"],
        ids: Int[Tensor, "bags bag_size"],
        weights: Float[Tensor, "bags bag_size"],
    ) -> Float[Tensor, "bags width"]:
        """Return the weighted sums of rows of the whole table. Collective."""
        messages = self.messages(len(ids))
        all_weights = messages.gather(weights)
        held = held_here(messages.ids(ids, n_rows=self.n_rows), self.rows)
        if not len(held.bags):
            return messages.add_up(nothing(len(all_weights), self.width, after=(part, all_weights)))
        found = all_weights.flatten().gather(0, held.places.flatten()).view(held.places.shape)
        sums = weighted_bag(part, held.ids, found.masked_fill(~held.real, 0.0))
        whole = sums.new_zeros(len(all_weights), self.width)
        return messages.add_up(whole.index_copy(0, held.bags, sums))

    @_disable_dynamo
    def products(
        self,
        part: Float[Tensor, "rows columns"],
        ids: Int[Tensor, "bags bag_size"],
        x: Float[Tensor, "bags width"],
    ) -> Float[Tensor, "bags bag_size"]:
        """Return the products of rows of the whole table with `x`. Collective."""
        messages = self.messages(len(ids))
        all_x = messages.gather(x)
        all_ids = messages.ids(ids, n_rows=self.n_rows)
        held = held_here(all_ids, self.rows)
        if not len(held.bags):
            return messages.add_up(nothing(*all_ids.shape, after=(part, all_x)))
        found = row_dot(part, held.ids, all_x.index_select(0, held.bags))
        # The places of all that is not real are places of rows held elsewhere, where 0 is right.
        found = found.masked_fill(~held.real, 0.0).flatten()
        whole = found.new_zeros(all_ids.numel()).scatter(0, held.places.flatten(), found)
        return messages.add_up(whole.view(all_ids.shape))


@dataclass(frozen=True, kw_only=True)
class Held:
    """What of some bags is held here: bags of one size, shorter ones filled up."""

    bags: Int64[Tensor, " held"]
    """Number of each bag that reads a row held here."""
    ids: Int[Tensor, "held longest"]
    """Rows that it reads, counted from the first one held here. Where filled up, one that it reads anyway: no row may
    count as read that was not."""
    places: Int64[Tensor, "held longest"]
    """Where each stands in the flattened bags; no place twice."""
    real: Bool[Tensor, "held longest"]
    """False where filled up."""


@torch.no_grad()
def held_here(ids: Int[Tensor, "bags bag_size"], rows: range) -> Held:
    """Find what is held here; it keeps the order of each bag."""
    mine = (ids >= rows.start) & (ids < rows.stop)
    counts = mine.sum(1)
    bags = counts.nonzero()[:, 0]
    longest = int(counts.max()) if len(bags) else 0
    first, order = mine[bags].to(torch.uint8).sort(dim=1, descending=True, stable=True)
    real, order = first[:, :longest].bool(), order[:, :longest]
    found = ids[bags].gather(1, order) - rows.start
    return Held(
        bags=bags,
        ids=torch.where(real, found, found[:, :1]),
        places=bags[:, None] * ids.shape[1] + order,
        real=real,
    )


def skew(reads: Int[Tensor, " rows"], n_ranks: int) -> float:
    """Return the reads of the rank that reads most over the mean rank's, given the reads of every row."""
    shares = (World(rank=rank, size=n_ranks).share(len(reads)) for rank in range(n_ranks))
    of_each = torch.stack([reads[share.start : share.stop].sum() for share in shares]).double()
    return float(of_each.max() / of_each.mean())
