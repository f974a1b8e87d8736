"""Saved tables in the order of a hash partition, read in any other."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workloads.checkpoint import hashed_rows
from workloads.checkpoint.hashed_rows import HashedRows, read_rows
from workloads.checkpoint.tensor_block import SavedTensor
from workloads.distributed.hash_partition import HashPartition


class InMemory(SavedTensor):
    """Counts the numbers that are read."""

    def __init__(self, tensor):
        self.tensor, self.whole, self.read_numbers = tensor, tuple(tensor.shape), 0

    def read(self, offsets, sizes):
        spans = (slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))
        part = self.tensor[tuple(spans)].clone()
        self.read_numbers += part.numel()
        return part


@pytest.fixture(autouse=True)
def few_rows_at_a_time(monkeypatch):
    monkeypatch.setattr(hashed_rows, "_READ_BYTES", 3 * 4 * 4)


@given(n_rows=st.integers(1, 40), first=st.integers(0, 39), end=st.integers(0, 40))
def test_a_hashed_table_is_read_in_its_own_order(n_rows, first, end):
    first, end = min(first, n_rows), min(max(first, end), n_rows)
    table = torch.arange(4.0 * n_rows).view(n_rows, 4)
    stored = table[HashPartition(n_rows).rows(range(n_rows))]

    found = HashedRows(InMemory(stored)).read([first, 1], [end - first, 2])

    assert torch.equal(found, table[first:end, 1:3])
    squares = HashedRows(InMemory(stored[:, 0])).read([first], [end - first])
    assert torch.equal(squares, table[first:end, 0])


@given(rows=st.lists(st.integers(0, 30), unique=True))
def test_rows_come_in_the_order_that_was_asked_for_and_none_is_read_twice(rows):
    saved = InMemory(torch.randn(31, 4))

    found = read_rows(saved, torch.tensor(rows, dtype=torch.int64), [2], [2])

    assert torch.equal(found, saved.tensor[rows, 2:4])
    assert saved.read_numbers <= 2 * len(range(min(rows, default=0), max(rows, default=-1) + 1))
