"""In which order a read starts its messages, waits for them and computes.

What overlaps follows from it.
"""

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from workloads.distributed.process_group import RankGroup
from workloads.layers.memory.sparse_gradient import SparseGradient
from workloads.sharding import sharded_lookup
from workloads.sharding.table_route import TableRoute

IDS = torch.tensor([[0, 1], [2, 2], [1, 0], [3, 1]])


class Alone(TableRoute):
    """A route from one rank to itself, in chunks, that logs what starts and what arrives."""

    HAS_GAPS = False

    def __init__(self, log: list[str], bags: slice, number: str = "", n_chunks: int = 1) -> None:
        ids = IDS[bags]
        super().__init__(RankGroup(), ids, bags=[len(ids)], n_chunks=n_chunks, start=bags.start)
        self._log, self._number = log, number

    def part(self, ids: Tensor, *, bags: Sequence[int], start: int) -> "Alone":
        return Alone(self._log, slice(start, start + len(ids)), str(start // len(ids)))

    def _sent(self, what: str, x: Tensor) -> Callable[[], Tensor]:
        self._log.append(f"start {what}{self._number}")

        def arrive() -> Tensor:
            self._log.append(f"wait {what}{self._number}")
            return x

        return arrive

    def _with_ids(self, x: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
        arrive = self._sent("there", x)
        return lambda: (self.ids, arrive())

    send_scalars_with_ids = send_vectors_with_ids = _with_ids

    def _there(self, x: Tensor) -> Callable[[], Tensor]:
        return self._sent("there", x)

    def _back(self, x: Tensor) -> Callable[[], Tensor]:
        return self._sent("back", x)

    send_scalars = send_vectors = _there
    return_scalars = return_vectors = _back


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []

    def logged(act: Callable, word: str) -> Callable:
        def acting(*args, **kwargs):
            seen.append(word)
            return act(*args, **kwargs)

        return acting

    for name in ("weighted_bag", "gathered_dot", "sorted_reads"):
        word = "sort" if name == "sorted_reads" else "compute"
        monkeypatch.setattr(sharded_lookup, name, logged(getattr(sharded_lookup, name), word))
    return seen


PIPELINED = [
    "start there0", "start there1",
    "wait there0", "compute", "start back0",
    "wait there1", "compute", "start back1",
]  # fmt: skip
RETURNED = ["wait back0", "wait back1"]


def part_and_second(operation: str) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    part = torch.randn(4, 3, generator=draw, requires_grad=True)
    shape = IDS.shape if operation == "weighted_bag" else (len(IDS), 3)
    return part, torch.randn(shape, generator=draw, requires_grad=True)


@pytest.mark.parametrize("operation", ["weighted_bag", "gathered_dot"])
def test_a_piece_is_read_while_later_ones_arrive_and_earlier_ones_go_back(log, operation):
    route = Alone(log, slice(0, 4), n_chunks=2)

    sharded_lookup.read(operation, *part_and_second(operation), route, None)

    assert log == PIPELINED + RETURNED


def test_the_reads_are_sorted_while_gradients_travel_and_once(log):
    output = sharded_lookup.read(
        "weighted_bag", *part_and_second("weighted_bag"), Alone(log, slice(0, 4), n_chunks=2), None
    )
    log.clear()
    output.sum().backward()

    assert log == ["start there", "sort", "wait there", "start back", "wait back"]


def test_the_gradients_of_x_travel_while_the_tables_is_summed(log):
    output = sharded_lookup.read(
        "gathered_dot", *part_and_second("gathered_dot"), Alone(log, slice(0, 4), n_chunks=2), None
    )
    log.clear()
    output.sum().backward()

    assert log == [*PIPELINED, "sort", *RETURNED]


@pytest.mark.parametrize("operation", ["weighted_bag", "gathered_dot"])
def test_a_backward_pass_that_leaves_the_tables_gradient_has_chunks_too(log, operation):
    part, second = part_and_second(operation)
    deferred = SparseGradient()
    output = sharded_lookup.read(
        operation, part, second, Alone(log, slice(0, 4), n_chunks=2), deferred
    )
    log.clear()
    output.sum().backward()

    assert log == PIPELINED + RETURNED
    assert part.grad is None
    hits = deferred.take()
    assert hits is not None
    assert torch.equal(hits.ids.long(), IDS)


@pytest.mark.parametrize("operation", ["weighted_bag", "gathered_dot"])
def test_a_frozen_table_gets_no_gradient_and_a_frozen_second_no_message(log, operation):
    part, second = part_and_second(operation)
    whole = Alone(log, slice(0, 4))
    read_it = partial(sharded_lookup.read, operation)
    (gradient,) = torch.autograd.grad(read_it(part.detach(), second, whole, None).sum(), second)
    (expected,) = torch.autograd.grad(read_it(part, second, whole, None).sum(), second)
    assert torch.equal(gradient, expected)

    output = read_it(part, second.detach(), whole, None)
    log.clear()
    output.sum().backward()

    assert "start back" not in log
    assert part.grad is not None
