"""Threads of the CPU copy the rows that numpy's and torch's indexing name."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workloads.layers.memory import host_rows
from workloads.layers.memory.host_rows import HostRows, items_of

ROWS = [((32,), torch.bfloat16), ((5,), torch.bfloat16), ((), torch.float32), ((3, 7), torch.int64)]


@pytest.fixture(scope="module")
def host():
    return HostRows(3)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(host_rows, "_LEAST", 4)


@pytest.mark.parametrize(("row", "dtype"), ROWS)
@given(named=st.sets(st.integers(0, 49)), ids=st.sampled_from([np.int32, np.int64]))
def test_rows_are_gathered_and_scattered(host, row, dtype, named, ids):
    bits = torch.randint(0, 2**15, (50, *row)).to(dtype)
    table, places = bits.clone(), sorted(named)
    block = torch.zeros(60, *row, dtype=dtype)

    host.gather(items_of(table), np.asarray(places, dtype=ids), items_of(block))
    assert torch.equal(block[: len(places)], bits[places])
    assert not block[len(places) :].any()

    host.scatter(items_of(block + 1), np.asarray(places, dtype=ids), items_of(table))
    bits[places] = block[: len(places)] + 1
    assert torch.equal(table, bits)


def test_what_fails_in_a_thread_is_raised(host):
    table = torch.zeros(10, 2)

    with pytest.raises(IndexError, match="out of bounds"):
        host.scatter(items_of(table), np.asarray([1, 10]), items_of(table))
