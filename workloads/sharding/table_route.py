"""How the numbers of a read find the ranks that hold its rows, and how what they find comes back."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

from jaxtyping import Float
from torch import Tensor

from workloads.distributed.collectives import Arrival

ArrivingReads: TypeAlias = Callable[[], tuple[Tensor, Tensor]]
"""Returns, once they have arrived, the ids of the reads to be made here, [held_bags, held_size] and counted from the
first row held here, and what was sent with them."""


class TableRoute(ABC):
    """The messages of one read: between this rank's bags, and bags whose reads this rank makes for all (held here).

    Every message is linear, and carries the gradient of the one opposite to it. What is summed on the way is summed in
    fp32 or wider in the order of the ranks, whatever the network does. All are collective over the memory group.
    """

    bags: slice
    """Which of this rank's bags take this route: all but in a piece."""

    @abstractmethod
    def with_numbers(self, x: Float[Tensor, "bags bag_size"]) -> ArrivingReads:
        """Send ids, and a number with each."""

    @abstractmethod
    def with_vectors(self, x: Float[Tensor, "bags width"]) -> ArrivingReads:
        """Send ids, and a vector with each bag: the columns of it that are held there."""

    @abstractmethod
    def numbers_there(self, x: Float[Tensor, "bags bag_size"]) -> Arrival:
        """Send the numbers alone; [held_bags, held_size] arrives."""

    @abstractmethod
    def numbers_back(self, x: Float[Tensor, "held_bags held_size"]) -> Arrival:
        """Return a number of each read, summed over the ranks that made it; [bags, bag_size] arrives."""

    @abstractmethod
    def vectors_there(self, x: Float[Tensor, "bags width"]) -> Arrival:
        """Send the vectors alone; [held_bags, columns] arrives."""

    @abstractmethod
    def vectors_back(self, x: Float[Tensor, "held_bags columns"]) -> Arrival:
        """Return a vector of each bag, summed over ranks that made reads of it; [bags, width] arrives."""

    @abstractmethod
    def state(self) -> tuple[list[int], list[Tensor]]:
        """Return what a backward pass needs to make this route again (`Shard.route_again`), after its forward pass.

        A compiled graph keeps tensors from one pass to the other, no routes.
        """

    def pieces(self) -> Sequence["TableRoute"]:
        """Return routes that some of the bags take each, all of them together; the same number on every rank."""
        return [self]

    def join(self, pieces: Sequence[Tensor]) -> Tensor:
        """Return of what arrived here in pieces the whole, as it would have arrived by this route."""
        (whole,) = pieces
        return whole

    def cut(self, whole: Tensor) -> Sequence[Tensor]:
        """Return the pieces of a whole."""
        return [whole]
