"""The Triton kernels of the weighted bag, run by Triton's interpreter, equal the reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workloads.kernels.gathered_dot import reference as gathered_dot_reference
from workloads.kernels.weighted_bag import reference

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from workloads.kernels.gathered_dot import triton as gathered_dot
from workloads.kernels.segment_sum import triton as row_reduction
from workloads.kernels.weighted_bag import triton as kernel

INTERPRETED = settings.get_profile("interpreted")
# Ids far from even: 0 is read in most places.
SHAPES = st.tuples(
    st.sampled_from([1, 2, 5, 17, 40]),  # rows
    st.sampled_from([1, 3, 16, 24, 33]),  # width
    st.sampled_from([0, 1, 2, 7]),  # bags
    st.sampled_from([0, 1, 3, 9]),  # bag size
)


def _case(
    shape: tuple[int, int, int, int], seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, width, bags, bag_size = shape
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(rows, (bags, bag_size), generator=generator)
    ids = ids * (torch.rand(bags, bag_size, generator=generator) < 0.5)
    return (
        torch.randn(rows, width, generator=generator).to(dtype),
        ids,
        torch.randn(bags, bag_size, generator=generator).to(dtype),
        torch.randn(bags, width, generator=generator).to(dtype),
    )


@pytest.fixture(autouse=True)
def _interpreted(interpreted, poisoned):
    interpreted(row_reduction)
    interpreted(kernel)


@INTERPRETED
@given(shape=SHAPES, seed=st.integers(0, 9), id_type=st.sampled_from([torch.int32, torch.int64]))
def test_forward_equals_the_reference(shape, seed, id_type):
    table, ids, weights, _ = _case(shape, seed)

    found = kernel.forward(table, ids.to(id_type), weights, block_width=16, block_rows=2)

    torch.testing.assert_close(found, reference.forward(table, ids, weights))


@INTERPRETED
@given(shape=SHAPES, seed=st.integers(0, 9), chunk=st.sampled_from([2, 5, 2048]))
def test_gradients_equal_the_reference(shape, seed, chunk):
    table, ids, weights, grad = _case(shape, seed)
    expected = reference.backward(table, ids, weights, grad, needs_table=True, needs_weights=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_reduction, "CHUNK", chunk)
        reads = row_reduction.sort_reads(ids, weights, len(table))

        sums, products = row_reduction.reduce_rows(
            reads,
            grad,
            table,
            sums_dtype=table.dtype,
            products_dtype=table.dtype,
            block_width=16,
            block_reads=2,
            group=4,
        )

    torch.testing.assert_close(sums, expected[0])
    torch.testing.assert_close(products.view(ids.shape), expected[1])


@INTERPRETED
@given(shape=SHAPES, seed=st.integers(0, 9))
def test_products_alone_equal_the_reference(shape, seed):
    table, ids, _, grad = _case(shape, seed)

    found = kernel.row_products(table, ids, grad)

    torch.testing.assert_close(found, reference.row_products(table, ids, grad))


@pytest.mark.parametrize("width", [1, 64, 130, 192])
@pytest.mark.parametrize("bag_size", [1, 7, 64])
def test_products_of_rows_with_many_reads_add_up_by_columns(width, bag_size):
    generator = torch.Generator().manual_seed(width)
    table = torch.randn(5, width, generator=generator)
    ids = torch.randint(5, (11, bag_size), generator=generator)
    x = torch.randn(11, width, generator=generator)
    assert ids.numel() >= kernel.READS_OF_A_ROW * len(table)

    found = kernel.row_products(table, ids, x)

    torch.testing.assert_close(found, (table[ids] * x[:, None]).sum(-1), rtol=1e-5, atol=1e-5)


def test_nothing_need_be_contiguous():
    table, ids, weights, grad = _case((17, 24, 7, 9))
    apart = tuple(tensor.T.contiguous().T for tensor in (table, ids, weights, grad))
    assert not any(tensor.is_contiguous() for tensor in apart)

    def everything(table: Tensor, ids: Tensor, weights: Tensor, grad: Tensor) -> list[Tensor]:
        both = kernel.backward(table, ids, weights, grad, needs_table=True, needs_weights=True)
        x_side = gathered_dot.backward(table, ids, grad, weights, needs_table=True, needs_x=True)
        return [
            kernel.forward(table, ids, weights),
            *both,
            gathered_dot.forward(table, ids, grad),
            *x_side,
        ]

    for found, expected in zip(
        everything(*apart), everything(table, ids, weights, grad), strict=True
    ):
        assert torch.equal(found, expected)


@INTERPRETED
@given(shape=SHAPES, seed=st.integers(0, 9))
def test_row_dot_equals_its_reference(shape, seed):
    table, ids, grad, x = _case(shape, seed)

    found = gathered_dot.backward(table, ids, x, grad, needs_table=True, needs_x=True)

    expected = gathered_dot_reference.backward(table, ids, x, grad, needs_table=True, needs_x=True)
    torch.testing.assert_close(
        gathered_dot.forward(table, ids, x), gathered_dot_reference.forward(table, ids, x)
    )
    torch.testing.assert_close(found, expected)


def test_sums_without_products():
    table, ids, weights, grad = _case((17, 24, 7, 9))

    found, none = kernel.backward(table, ids, weights, grad, needs_table=True, needs_weights=False)

    torch.testing.assert_close(found, reference.table_gradient(17, ids, weights, grad))
    assert none is None


def test_fp16_is_summed_in_fp32():
    table, ids, weights, _ = _case(
        (17, 24, 7, 9), dtype=torch.float16
    )  # the interpreter truncates to bf16
    wide = reference.forward(table.double(), ids, weights.double())

    torch.testing.assert_close(kernel.forward(table, ids, weights), wide.half(), rtol=1e-3, atol=0)


@INTERPRETED
@given(
    shape=SHAPES,
    seed=st.integers(0, 9),
    chunk=st.sampled_from([2, 512]),
    block=st.sampled_from([(16, 2), (None, None)]),
)
def test_reads_of_rows_elsewhere_are_skipped(shape, seed, chunk, block):
    rows, _, bags, bag_size = shape
    table, ids, weights, x = _case((rows + 1, *shape[1:]), seed)
    ids = ids.sort(1, descending=seed % 2 == 1).values  # those that are made stand side by side
    part, here = table[:rows].contiguous(), ids < rows
    own = torch.where(here, weights, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_reduction, "CHUNK", chunk)

        bag = kernel.forward(
            part, ids, weights, gaps=True, block_width=block[0], block_rows=block[1]
        )
        products = kernel.row_products(part, ids, x, gaps=True)
        reads = row_reduction.sort_reads(ids, weights, rows)
        sums, _ = row_reduction.reduce_rows(
            reads, x, part, sums_dtype=part.dtype, products_dtype=part.dtype
        )

    torch.testing.assert_close(bag, reference.forward(table, ids, own))
    expected = reference.row_products(table, ids, x)
    torch.testing.assert_close(products[here], expected[here])
    wanted = reference.table_gradient(rows + 1, ids, weights, x) if bags * bag_size else 0 * table
    torch.testing.assert_close(sums, wanted[:rows])
