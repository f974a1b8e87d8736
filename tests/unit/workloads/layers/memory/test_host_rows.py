"""Rows are copied as numpy's and torch's indexing name them, in C and without a compiler."""

import logging

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workloads.layers.memory import host_rows
from workloads.layers.memory.host_rows import gather, items_of, scatter

ROWS = [
    ((32,), torch.bfloat16),
    ((5,), torch.bfloat16),
    ((), torch.float32),
    ((3, 7), torch.int64),
    ((2500,), torch.float32),
]


@pytest.fixture(params=["C", "numpy"])
def way(request, monkeypatch):
    compiled = host_rows._compiled()
    assert compiled is not None  # tests of the C would pass without it
    monkeypatch.setattr(host_rows, "_compiled", lambda: compiled if request.param == "C" else None)


@pytest.fixture(autouse=True)
def _several_threads(monkeypatch):
    monkeypatch.setattr(host_rows, "LEAST_OF_A_THREAD", 4)
    monkeypatch.setattr(host_rows.os, "sched_getaffinity", lambda _: range(7))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("row", "dtype"), ROWS)
@given(named=st.sets(st.integers(0, 49)), ids=st.sampled_from([np.int32, np.int64]))
def test_rows_of_tables_are_gathered_and_scattered(row, dtype, named, ids):
    places = sorted(named)
    names = np.asarray(places, dtype=ids)
    before = [torch.randint(0, 2**15, (50, *row)).to(dtype), torch.randn(50)]
    tables = [each.clone() for each in before]
    blocks = [torch.zeros(60, *row, dtype=dtype), torch.zeros(60)]

    gather([items_of(each) for each in tables], names, [items_of(each) for each in blocks])
    for block, bits in zip(blocks, before, strict=True):
        assert torch.equal(block[: len(places)], bits[places])
        assert not block[len(places) :].any()
        block += 1
        bits[places] = block[: len(places)]

    scatter([items_of(each) for each in blocks], names, [items_of(each) for each in tables])
    for table, bits in zip(tables, before, strict=True):
        assert torch.equal(table, bits)


def test_many_rows_in_any_order():
    """More than a thread looks ahead, and each thread has some."""
    table, ids = torch.randn(20_000, 33), torch.randperm(20_000)[:9000]
    block = torch.zeros(9000, 33)

    gather([items_of(table)], ids.numpy(), [items_of(block)])

    assert torch.equal(block, table[ids])


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("outside", [10, 2**31 - 1])
def test_an_id_that_names_no_row_is_an_error(outside):
    table, block = torch.zeros(10, 2), torch.zeros(2, 2)

    for ids in (np.asarray([1, outside]), np.asarray([1, outside], np.int32)):
        with pytest.raises(IndexError, match="out of bounds"):
            scatter([items_of(block)], ids, [items_of(table)])
        with pytest.raises(IndexError, match="out of bounds"):
            gather([items_of(table)], ids, [items_of(block)])


def test_without_a_compiler_it_is_said_that_one_thread_copies(monkeypatch, caplog):
    host_rows._compiled.cache_clear()
    monkeypatch.setenv("CC", "/no/compiler")
    monkeypatch.setattr("triton.runtime.build.get_cache_manager", lambda _: _NoCache())

    with caplog.at_level(logging.WARNING):
        assert host_rows._compiled() is None

    assert "install a C compiler" in caplog.text
    host_rows._compiled.cache_clear()


class _NoCache:
    def get_file(self, _):
        return None
