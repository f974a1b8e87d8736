"""The two-step gradients of a weighted bag are those of its backward pass."""

import pytest
import torch

from workloads.kernels.weighted_bag.reference import backward
from workloads.kernels.weighted_bag.sorted_reads import _with_triton, sorted_reads


def case(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    table, weights, grad = (
        torch.randn(shape, generator=draw).to(dtype) for shape in ((19, 24), (13, 5), (13, 24))
    )
    ids = torch.randint(19, (13, 5), generator=draw, dtype=torch.int32)
    return [table, ids, weights, grad]


@pytest.mark.parametrize("products", [True, False])
def test_on_a_cpu(products):
    table, ids, weights, grad = case()
    expected = backward(table, ids, weights, grad, needs_table=True, needs_weights=products)

    found = sorted_reads(table, ids, weights, products=products)(grad)

    assert torch.equal(found[0], expected[0])
    assert found[1] is None if not products else torch.equal(found[1], expected[1])


@pytest.mark.parametrize("products", [True, False])
def test_with_triton(interpreted, products):
    pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")
    from workloads.kernels.segment_sum import triton as row_reduction

    interpreted(row_reduction)
    table, ids, weights, grad = case(torch.float32)
    expected = backward(table, ids, weights, grad, needs_table=True, needs_weights=products)

    found = _with_triton(table, ids, weights, products=products)(grad)

    torch.testing.assert_close(found[0], expected[0])
    assert (found[1] is None) == (expected[1] is None)
    if products:
        torch.testing.assert_close(found[1], expected[1])


@pytest.mark.parametrize("shape", [(0, 4), (5, 0)])
def test_of_nothing_are_zeros(shape):
    table, weights = torch.ones(shape), torch.ones(3, 2)

    found = sorted_reads(table, torch.zeros(3, 2, dtype=torch.int32), weights, products=True)

    table_grad, weights_grad = found(torch.ones(3, shape[1]))
    assert torch.equal(table_grad, torch.zeros(shape))
    assert weights_grad.tolist() == [[0.0, 0.0]] * 3
