"""A table's gradient as lookups, or as the sums of the rows that they name."""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from workloads.kernels.weighted_bag.sorted_reads import segment_sum


@dataclass(frozen=True, kw_only=True)
class LookupGrad:
    """A term of a table's gradient, as large as the batch.

    `d_table[r] = sum over (b, i) with ids[b, i] = r of weights[b, i] * x[b]`.
    """

    ids: Int[Tensor, "bags bag_size"]
    weights: Float[Tensor, "bags bag_size"]
    x: Float[Tensor, "bags width"]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self.ids.nbytes + self.weights.nbytes + self.x.nbytes

    def widened(self, bag_size: int) -> "LookupGrad":
        """Return bags of `bag_size`, padded with weight 0 of a row that the bag names anyway."""
        size = self.ids.shape[1]
        if size == bag_size:
            return self
        if not size:  # It names no row to pad with, and adds nothing.
            none = torch.empty(0, bag_size, device=self.x.device)
            return LookupGrad(
                ids=none.to(self.ids.dtype), weights=none.to(self.weights.dtype), x=self.x[:0]
            )
        return LookupGrad(
            ids=torch.cat([self.ids, self.ids[:, :1].expand(-1, bag_size - size)], dim=1),
            weights=functional.pad(self.weights, (0, bag_size - size)),
            x=self.x,
        )

    def summed(self) -> "LookupGrad":
        """Return the same gradient with one bag of one read for each row: its sum, in fp32.

        Rows ascend. Sums are taken in an order fixed by `ids`. The host waits for the number of
        rows.
        """
        rows, places = torch.unique(self.ids, return_inverse=True)
        return _of_sums(rows, segment_sum(len(rows), places, self.weights, self.x))


JoinedIds: TypeAlias = dict[tuple[int, ...], Tensor]
"""Ids of several terms in one tensor, by `id` of each term's."""


def concatenated(terms: list[LookupGrad], joined: JoinedIds | None = None) -> LookupGrad:
    """Return the sum of several terms: all their lookups, bags padded to the largest.

    Args:
        terms: In the order of the sum.
        joined: Joined ids of other tables, added to here: terms with the very same id tensors get
            the same joined tensor. Keyed by `id`, so it is valid only while all tables' terms live.
    """
    if len(terms) == 1:
        return terms[0]
    key = tuple(id(each.ids) for each in terms)
    largest = max(each.ids.shape[1] for each in terms)
    terms = [each.widened(largest) for each in terms]
    joined = {} if joined is None else joined
    if key not in joined:
        joined[key] = torch.cat([each.ids for each in terms])
    return LookupGrad(
        ids=joined[key],
        weights=torch.cat([each.weights for each in terms]),
        x=torch.cat([each.x for each in terms]),
    )


def added(first: LookupGrad, second: LookupGrad) -> LookupGrad:
    """Return the sum of two terms that `summed` returned, of the same form."""
    rows = torch.unique(torch.cat([first.ids, second.ids]))
    sums = first.x.new_zeros(len(rows), first.x.shape[1])
    for each in (first, second):
        # No row twice in either, so the order of additions is fixed.
        sums.index_add_(0, torch.searchsorted(rows, each.ids[:, 0]), each.x)
    return _of_sums(rows, sums)


def sums_bytes(n_rows: int, width: int) -> int:
    """Return the bytes of `summed` where every row is read: a sum, an id and a weight."""
    return n_rows * 4 * (width + 2)


def _of_sums(rows: Tensor, sums: Tensor) -> LookupGrad:
    return LookupGrad(ids=rows[:, None], weights=sums.new_ones(len(rows), 1), x=sums)
