"""Lookups in a part of a table, whose other reads are skipped, against lookups that lack them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from workloads.kernels.table_update import reference as table_update
from workloads.kernels.table_update.update_rules import Rule, new_state
from workloads.kernels.weighted_bag import gaps
from workloads.kernels.weighted_bag.sorted_reads import sorted_reads

SHAPES = st.tuples(
    st.sampled_from([1, 2, 17]),  # rows
    st.sampled_from([1, 16, 70]),  # width
    st.sampled_from([1, 2, 7]),  # bags
    st.sampled_from([1, 3, 9, 64]),  # bag size
)


def case(shape: tuple[int, int, int, int], seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a table whose last row stands for all that are elsewhere, and reads, most of it."""
    rows, width, bags, bag_size = shape
    draw = torch.Generator().manual_seed(seed)
    table = torch.randn(rows + 1, width, generator=draw)
    ids = torch.randint(rows + 1, (bags, bag_size), generator=draw, dtype=torch.int32)
    # Those that are made stand side by side, as reads sent in the order of ranks do.
    lo, hi = torch.randint(bag_size + 1, (2, bags, 1), generator=draw).sort(0).values
    place = torch.arange(bag_size)
    ids[(ids == rows) & (lo <= place) & (place < hi)] = 0
    ids[(place < lo) | (place >= hi)] = rows
    return (
        table,
        ids,
        torch.randn(bags, bag_size, generator=draw),
        torch.randn(bags, width, generator=draw),
    )


def check(shape: tuple[int, int, int, int], seed: int) -> None:
    table, ids, weights, x = case(shape, seed)
    rows = shape[0]
    here, part = ids < rows, table[:rows].contiguous()
    own = torch.where(here, weights, 0)
    gathered = table[ids.long()]

    bags = gaps.bag_with_gaps(part, ids, weights)
    products = gaps.products_with_gaps(part, ids, x)
    table_grad, second_grad = sorted_reads(part, ids, weights, products=True, gaps=True)(x)

    torch.testing.assert_close(bags, (own[:, :, None] * gathered).sum(1), rtol=1e-4, atol=1e-5)
    dots = (gathered * x[:, None]).sum(2)[here]
    torch.testing.assert_close(products[here], dots, rtol=1e-4, atol=1e-5)
    assert second_grad is not None
    torch.testing.assert_close(second_grad[here], dots, rtol=1e-4, atol=1e-5)
    expected = torch.zeros_like(table).index_add_(
        0, ids.flatten().long(), (own[:, :, None] * x[:, None]).flatten(0, 1)
    )
    torch.testing.assert_close(table_grad, expected[:rows], rtol=1e-4, atol=1e-5)


@given(shape=SHAPES, seed=st.integers(0, 9))
def test_the_references_skip_reads_of_rows_elsewhere(shape, seed):
    check(shape, seed)


@given(shape=SHAPES, seed=st.integers(0, 9), kind=st.sampled_from(["lazy_adamw", "rowwise"]))
def test_an_update_takes_no_row_for_read_that_was_skipped(shape, seed, kind):
    table, ids, weights, x = case(shape, seed)
    rows = shape[0]
    part, whole = table[:rows].contiguous(), table.clone()
    rule = Rule(kind=kind, step=1, lr=0.1, eps=1e-3, weight_decay=0.2, seed=4)
    state, expected = new_state(kind, part), new_state(kind, whole)

    table_update.ReferenceRowSums(part, ids, weights, x).update_(state, rule)

    table_update.ReferenceRowSums(whole, ids, weights, x).update_(expected, rule)
    assert torch.equal(part, whole[:rows])
    for name, kept in state.items():
        assert torch.equal(kept, expected[name][:rows])


def test_the_reads_made_of_a_bag_are_found(interpreted):
    pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")
    from workloads.kernels.weighted_bag import triton as kernel

    interpreted(kernel)
    ids = torch.tensor([[9, 3, 0, 9, 9], [9, 9, 9, 9, 9], [1, 2, 3, 4, 5], [0, 9, 9, 9, 9]])
    assert kernel.reads_made(ids, 9).tolist() == [[1, 3], [8, 8], [0, 5], [0, 1]]


@pytest.mark.parametrize("rows", [2**16 - 1, 2**16, 2**16 + 1])
def test_skipped_reads_are_told_from_rows_where_ids_fill_sixteen_bits(interpreted, rows):
    pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")
    from workloads.kernels.segment_sum import triton

    interpreted(triton)
    ids = torch.tensor([[0, rows, rows - 1, 5]], dtype=torch.int32)

    reads = triton.sort_reads(ids, torch.ones(1, 4), rows)

    assert reads.rows.tolist() == [0, 5, rows - 1, rows]
    assert reads.starts[[0, 1, 5, 6, rows - 1, rows]].tolist() == [0, 1, 1, 2, 2, 3]
