"""Copies of rows: plain torch takes those that there are, and the kernel does the same."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.workloads.kernels.conftest import compile_for_sm90, interpreted
from workloads.layers.memory.held_rows import HeldRows, distinct
from workloads.layers.memory.row_copies import take_rows

__all__ = ["compile_for_sm90", "interpreted"]


@given(ids=st.lists(st.integers(0, 9), min_size=1, max_size=30), n_rows=st.sampled_from([10, 40]))
def test_distinct_ids_ascend_and_the_rest_names_no_row(ids, n_rows):
    room = min(len(ids), n_rows)

    found = distinct(torch.tensor(ids), n_rows=n_rows, room=room)

    named = sorted({*ids})
    assert found.tolist() == named + [n_rows] * (room - len(named))
    held = HeldRows(ids=found, values=torch.zeros(room, 1))
    assert found[held.places(torch.tensor(ids)).long()].tolist() == ids


def test_rows_are_taken_where_there_are_any():
    table = torch.arange(12.0).view(6, 2)
    rows = torch.full((3, 2), -1.0)

    take_rows(table, torch.tensor([4, 0, 6], dtype=torch.int32), rows)

    assert rows.tolist() == [[8.0, 9.0], [0.0, 1.0], [-1.0, -1.0]]


# 64 bytes, no whole number of words, a number a row, and wider than a program copies at a time.
SHAPES = [
    ((32,), torch.bfloat16),
    ((5,), torch.bfloat16),
    ((), torch.float32),
    ((2500,), torch.float32),
]


@pytest.mark.parametrize(("row", "dtype"), SHAPES)
def test_the_kernel_takes_the_same_rows(interpreted, row, dtype):
    kernels = pytest.importorskip("workloads.layers.memory.row_copies_triton")
    interpreted(kernels)
    table = torch.randn(90, *row).to(dtype)
    ids = distinct(torch.randint(90, (70,)), n_rows=90, room=70)
    rows = torch.randn(70, *row).to(dtype)
    expected = rows.clone()
    take_rows(table, ids, expected)

    kernels.take_rows(table, ids, rows)

    assert torch.equal(rows, expected)


@pytest.mark.long
@pytest.mark.parametrize("width", [16, 64])
def test_rows_are_copied_sixteen_bytes_at_a_time(compile_for_sm90, width):
    kernels = pytest.importorskip("workloads.layers.memory.row_copies_triton")
    made = compile_for_sm90(
        kernels._take,
        {
            **dict.fromkeys(("source", "into", "ids"), "*i32:16"),
            **dict.fromkeys(("n_ids", "n_rows"), "i32"),
        },
        {"WIDTH": width, "COLUMNS": width, "ROWS": kernels._WORDS // width},
        num_warps=4,
    )

    assert made.spills == 0
    assert made.registers <= 128
    assert made.sass.count("LDG.E.128") >= 4
    assert made.sass.count("STG.E.128") >= 4
