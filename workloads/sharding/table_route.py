"""Routes of a lookup's scalars and vectors between ranks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

from jaxtyping import Float
from torch import Tensor

from workloads.distributed.collectives import Pending, all_to_all
from workloads.distributed.process_group import RankGroup

PendingReads: TypeAlias = Callable[[], tuple[Tensor, Tensor]]
"""Waits for a message; returns the ids of the reads to make here and what was sent with them.

Ids are [held_bags, held_size], counted from the first row held here."""


class TableRoute(ABC):
    """The messages of one lookup, between this rank's bags and the held bags.

    Held bags are the bags of all ranks as far as this rank makes their reads. A scalar belongs to a
    read, a vector to a bag. Every message is linear, and carries the gradient of the opposite one.
    Sums of messages are taken in fp32 or wider, in the order of the ranks. All are collective over
    the memory group.
    """

    memory: RankGroup
    bags: slice
    """Which of this rank's bags take this route: all, but in a chunk."""
    bags_per_rank: Sequence[int]
    """Bags that each rank brings."""

    @abstractmethod
    def send_scalars_with_ids(self, x: Float[Tensor, "bags bag_size"]) -> PendingReads:
        """Send ids, and a scalar with each."""

    @abstractmethod
    def send_vectors_with_ids(self, x: Float[Tensor, "bags width"]) -> PendingReads:
        """Send ids, and with each bag the columns of its vector that are held there."""

    @abstractmethod
    def send_scalars(self, x: Float[Tensor, "bags bag_size"]) -> Pending:
        """Send the scalars alone; [held_bags, held_size] arrives."""

    @abstractmethod
    def return_scalars(self, x: Float[Tensor, "held_bags held_size"]) -> Pending:
        """Return a scalar of each read, summed over the ranks that made it.

        [bags, bag_size] arrives.
        """

    @abstractmethod
    def send_vectors(self, x: Float[Tensor, "bags width"]) -> Pending:
        """Send the vectors alone; [held_bags, columns] arrives."""

    @abstractmethod
    def return_vectors(self, x: Float[Tensor, "held_bags columns"]) -> Pending:
        """Return a vector of each bag, summed over the ranks that made reads of it.

        [bags, width] arrives.
        """

    @abstractmethod
    def state(self) -> tuple[list[int], list[Tensor]]:
        """Return, after the forward pass, what `TableShard.restore_route` needs.

        A compiled graph keeps tensors from one pass to the other, no routes.
        """

    def chunks(self) -> Sequence["TableRoute"]:
        """Return routes of some of the bags each; the same number on every rank."""
        return [self]

    def join_chunks(self, chunks: Sequence[Tensor]) -> Tensor:
        """Return what arrived here in chunks as it would have arrived by this route."""
        (whole,) = chunks
        return whole

    def split_chunks(self, whole: Tensor) -> Sequence[Tensor]:
        """Return the chunks of a whole."""
        return [whole]

    def _all_to_all(self, x: Tensor, *, sent: Sequence[int], received: Sequence[int]) -> Pending:
        if not any(self.bags_per_rank):
            empty = x.new_empty(0)
            return lambda: empty
        return all_to_all(self.memory, x, sent=sent, received=received)
