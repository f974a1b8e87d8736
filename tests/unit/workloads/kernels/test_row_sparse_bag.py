"""The row-sparse gradient of a weighted bag is the dense one without the rows that nobody read."""

import pytest
import torch
from torch import Tensor

from workloads.kernels.weighted_bag import op

SHAPES = [(64, 24, 37, 16), (7, 5, 3, 2), (1, 1, 1, 1), (13, 4, 6, 0), (9, 4, 0, 3), (9, 0, 4, 3)]


def gradients(case: tuple[Tensor, ...], *, sparse: bool) -> tuple[Tensor, ...]:
    table, ids, weights, grad = case
    bags = op.weighted_bag(table, ids, weights, sparse=sparse)
    return bags.detach(), *torch.autograd.grad(bags, (table, weights), grad)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_the_dense_gradient_to_the_bit(make_gather, shape, dtype):
    case = make_gather(shape, dtype)

    found, expected = gradients(case, sparse=True), gradients(case, sparse=False)

    assert found[1].is_sparse
    assert found[1].is_coalesced()
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1].to_dense(), expected[1])
    assert torch.equal(found[2], expected[2])


def test_holds_each_row_that_was_read_once():
    table = torch.arange(12.0).reshape(6, 2).requires_grad_()
    ids = torch.tensor([[5, 1, 1], [1, 5, 4]])

    op.weighted_bag(table, ids, torch.ones(2, 3), sparse=True).sum().backward()

    assert table.grad is not None
    assert table.grad._nnz() == 3
    kept = table.grad.coalesce()  # which torch forgets that it is
    assert kept.indices().tolist() == [[1, 4, 5]]
    assert kept.values()[:, 0].tolist() == [3.0, 1.0, 2.0]


def test_is_torchs_own_row_sparse_gradient(make_gather):
    table, ids, weights, grad = make_gather((64, 24, 37, 16), torch.float64)
    bags = torch.nn.functional.embedding(ids, table, sparse=True).mul(weights[..., None]).sum(1)
    (expected,) = torch.autograd.grad(bags, table, grad)

    found = gradients((table, ids, weights, grad), sparse=True)[1]

    torch.testing.assert_close(found.to_dense(), expected.to_dense(), rtol=1e-12, atol=1e-12)
    assert torch.equal(found.indices(), expected.coalesce().indices())


def test_sparse_adam_takes_it_and_leaves_other_rows_alone(make_gather):
    table, ids, weights, grad = make_gather((64, 24, 2, 3), torch.float32)
    optimizer = torch.optim.SparseAdam([table], lr=0.1)
    before = table.detach().clone()

    op.weighted_bag(table, ids, weights, sparse=True).backward(grad)
    optimizer.step()

    moved = (table.detach() != before).any(1)
    assert moved.nonzero().flatten().tolist() == ids.unique().tolist()


def test_two_reads_of_one_table_add_up(make_gather):
    case = table, ids, weights, grad = make_gather((13, 4, 6, 5), torch.float64)
    bags = op.weighted_bag(table, ids, weights, sparse=True)
    bags = bags + op.weighted_bag(table, ids.flip(0), weights, sparse=True)

    (found,) = torch.autograd.grad(bags, table, grad)

    expected = (
        gradients(case, sparse=False)[1]
        + gradients((table, ids.flip(0), weights, grad), sparse=False)[1]
    )
    torch.testing.assert_close(found.to_dense(), expected, rtol=1e-12, atol=1e-12)


def test_weights_alone_get_the_gradient_that_they_get_without(make_gather):
    table, ids, weights, grad = make_gather((13, 4, 6, 5), torch.float64)

    found, expected = (
        torch.autograd.grad(
            op.weighted_bag(table.detach(), ids, weights, sparse=kind), weights, grad
        )
        for kind in (True, False)
    )

    assert torch.equal(*found, *expected)
