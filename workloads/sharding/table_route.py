"""Routes of a lookup's scalars and vectors between ranks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Self, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.distributed.collectives import (
    Pending,
    TensorSpec,
    all_gather,
    all_to_all,
    packed_words,
    unpack,
)
from workloads.distributed.process_group import RankGroup

PendingReads: TypeAlias = Callable[[], tuple[Tensor, Tensor]]
"""Waits for a message; returns the ids of the reads to make here and what was sent with them.

Ids are [held_bags, bag_size], counted from the first row held here."""


class TableRoute(ABC):
    """The messages of one lookup, between this rank's bags and the held bags.

    Held bags are the bags of all ranks, in the order of the ranks: every rank makes every read, as
    far as it holds the row. So the lengths of all messages are known before, whatever the ids. A
    scalar belongs to a read, a vector to a bag. Every message is linear, and carries the gradient
    of the opposite one. Sums of messages are taken in fp32 or wider, in the order of the ranks. All
    are collective over the memory group.
    """

    HAS_GAPS: ClassVar[bool]
    """Whether rows of some reads are held elsewhere. Their id here is the number of rows here."""
    bags: slice
    """Which of this rank's bags take this route: all, but in a chunk."""

    def __init__(
        self,
        memory: RankGroup,
        ids: Int[Tensor, "bags bag_size"],
        *,
        bags: Sequence[int],
        n_chunks: int = 1,
        start: int = 0,
    ) -> None:
        """Take `bags` of each rank; those of this rank read `ids` and are numbered from `start`."""
        self.memory, self.ids, self.bags_per_rank = memory, ids, bags
        # Of each chunk, the range of every rank's bags.
        self._chunks = [
            [RankGroup(rank=i, size=n_chunks).local_range(n) for n in bags] for i in range(n_chunks)
        ]
        self.bags = slice(start, start + len(ids))

    @abstractmethod
    def part(self, ids: Int[Tensor, "bags bag_size"], *, bags: Sequence[int], start: int) -> Self:
        """Return the route of some of the bags."""

    @abstractmethod
    def send_vectors_with_ids(self, x: Float[Tensor, "bags width"]) -> PendingReads:
        """Send ids, and with each bag the columns of its vector that are held there."""

    @abstractmethod
    def return_scalars(self, x: Float[Tensor, "held_bags bag_size"]) -> Pending:
        """Return a scalar of each read from the ranks that hold its row; [bags, bag_size] arrives.

        Those of reads whose rows are held elsewhere may be anything.
        """

    @abstractmethod
    def send_vectors(self, x: Float[Tensor, "bags width"]) -> Pending:
        """Send the vectors alone; [held_bags, columns] arrives."""

    @abstractmethod
    def return_vectors(self, x: Float[Tensor, "held_bags columns"]) -> Pending:
        """Return a vector of each bag from all ranks; [bags, width] arrives."""

    def send_scalars_with_ids(self, x: Float[Tensor, "bags bag_size"]) -> PendingReads:
        """Send ids, and a scalar with each, to all ranks in one message."""
        return self._send_with_ids(
            x, write=lambda ids, scalars: (ids.copy_(self.ids), scalars.copy_(x))
        )

    def send_scalars(self, x: Float[Tensor, "bags bag_size"]) -> Pending:
        """Send the scalars alone to all ranks; [held_bags, bag_size] arrives."""
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

    def state(self) -> list[int]:
        """Return what `TableShard.restore_route` needs beside the ids.

        A compiled graph keeps tensors from one pass to the other, no routes.
        """
        return [len(self._chunks), *self.bags_per_rank]

    def chunks(self) -> Sequence["TableRoute"]:
        """Return routes of an equal part of every rank's bags each; as many on every rank."""
        if len(self._chunks) == 1:
            return [self]
        return [
            self.part(
                self.ids[own.start : own.stop],
                bags=[len(part) for part in chunk],
                start=own.start,
            )
            for chunk in self._chunks
            for own in [chunk[self.memory.rank]]
        ]

    def join_chunks(self, chunks: Sequence[Tensor]) -> Tensor:
        """Return what arrived here in chunks as it would have arrived by this route."""
        if len(chunks) == 1:
            return chunks[0]
        parts = [
            torch.split(chunk, [len(part) for part in ranges])
            for chunk, ranges in zip(chunks, self._chunks, strict=True)
        ]
        return torch.cat([part for of_rank in zip(*parts, strict=True) for part in of_rank])

    def split_chunks(self, whole: Tensor) -> Sequence[Tensor]:
        """Return the chunks of a whole."""
        if len(self._chunks) == 1:
            return [whole]
        of_ranks = torch.split(whole, list(self.bags_per_rank))
        return [
            torch.cat(
                [bags[part.start : part.stop] for bags, part in zip(of_ranks, chunk, strict=True)]
            )
            for chunk in self._chunks
        ]

    def _send_with_ids(
        self, second: Tensor, *, write: Callable[[Tensor, Tensor], object]
    ) -> PendingReads:
        """Send ids and scalars, or vectors, of all bags to all ranks in one message.

        Args:
            second: What is sent with the ids.
            write: Fills the message, given where in it ids and second tensor belong.
        """
        specs = [[self._spec(n, each) for each in (self.ids, second)] for n in self.bags_per_rank]
        # Collectives want equal lengths, so shorter messages are padded with arbitrary numbers.
        message = self.ids.new_empty(max(map(packed_words, specs)), dtype=torch.int64)
        own = specs[self.memory.rank]
        write(*unpack(message[: packed_words(own)], own))
        pending = all_gather(self.memory, message)

        def wait() -> tuple[Tensor, Tensor]:
            messages = zip(pending(), specs, strict=True)
            unpacked = [unpack(message[: packed_words(spec)], spec) for message, spec in messages]
            held, seconds = zip(*unpacked, strict=True)
            return self._local_ids(held), torch.cat(seconds)

        return wait

    def _local_ids(self, ids: Sequence[Int[Tensor, "_ bag_size"]]) -> Int[Tensor, "_ bag_size"]:
        """Return what arrived of all ranks as one tensor, counted from the first row here."""
        return torch.cat(list(ids))

    def _of_own_bags(self, x: Float[Tensor, "held_bags n"]) -> Pending:
        """Send each rank what is of its bags; [ranks, bags, n] arrives."""
        n_bags, n = len(self.ids), x.shape[1]
        pending = self._all_to_all(
            x.reshape(-1),
            sent=[bags * n for bags in self.bags_per_rank],
            received=[n_bags * n] * self.memory.size,
        )
        return lambda: pending().view(self.memory.size, n_bags, n)

    def _all_to_all(self, x: Tensor, *, sent: Sequence[int], received: Sequence[int]) -> Pending:
        if not any(self.bags_per_rank):
            empty = x.new_empty(0)
            return lambda: empty
        return all_to_all(self.memory, x, sent=sent, received=received)

    def _spec(self, n_bags: int, like: Tensor) -> TensorSpec:
        return (n_bags, *like.shape[1:]), like.dtype


def added_up(parts: Float[Tensor, "ranks bags n"]) -> Float[Tensor, "bags n"]:
    """Return the sum over the ranks, taken in fp32 or wider."""
    # torch sums numbers of 16 bits in fp32. To ask for that would write the wide sums and read them
    # again, which autocast does where no type is named.
    return parts.sum(0, dtype=parts.dtype)
