"""The weighted bag equals its definition, forward and backward."""

import pytest
import torch
from torch import Tensor

from workloads.kernels.weighted_bag import op, reference


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("id_type", [torch.int64, torch.int32])
def test_equals_the_definition_with_all_gradients(make_gather, shape, dtype, tolerance, id_type):
    table, ids, weights, grad = make_gather(shape, dtype)
    expected = torch.einsum("bg,bgv->bv", weights, table[ids])
    expected_grads = torch.autograd.grad(expected, (table, weights), grad)

    found = op.weighted_bag(table, ids.to(id_type), weights)
    found_grads = torch.autograd.grad(found, (table, weights), grad)

    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found_grads, expected_grads, rtol=tolerance, atol=tolerance)


def test_gradients_by_finite_differences(make_gather):
    table, ids, weights, _ = make_gather((5, 3, 4, 6), torch.float64)

    assert torch.autograd.gradcheck(lambda t, w: op.weighted_bag(t, ids, w), (table, weights))


def test_a_row_read_twice_in_a_bag_counts_twice():
    table = torch.tensor([[1.0, 10.0], [2.0, 20.0]], requires_grad=True)
    ids = torch.tensor([[1, 1, 0]])
    weights = torch.tensor([[0.5, 0.25, 2.0]])

    result = op.weighted_bag(table, ids, weights)
    result.sum().backward()

    assert result.tolist() == [[3.5, 35.0]]
    assert table.grad is not None
    assert table.grad.tolist() == [[2.0, 2.0], [0.75, 0.75]]


def test_rows_that_nobody_reads_get_a_zero_gradient():
    table = torch.full((6, 2), 3.0, requires_grad=True)

    op.weighted_bag(table, torch.tensor([[0], [5]]), torch.ones(2, 1)).sum().backward()

    assert table.grad is not None
    assert table.grad.sum(dim=1).tolist() == [2.0, 0.0, 0.0, 0.0, 0.0, 2.0]


@pytest.mark.parametrize("shape", [(64, 24, 37, 16), (7, 5, 3, 2), (4, 3, 0, 2), (4, 3, 2, 0)])
def test_products_are_the_same_gathered_or_not_and_in_pieces_or_at_once(make_gather, shape):
    table, ids, _, x = make_gather(shape, torch.float64)
    table = table.detach()

    whole = reference.gathered_products(table, ids, x)
    pieces = reference.gathered_products(table, ids, x, at_once=5 * 16 * 24)

    assert torch.equal(whole, pieces)
    torch.testing.assert_close(whole, reference.row_products(table, ids.int(), x))


def test_gradient_that_is_not_contiguous(make_gather):
    table, ids, weights, grad = make_gather((13, 4, 6, 5), torch.float64)
    result = op.weighted_bag(table, ids, weights)
    expected = torch.autograd.grad(result, table, grad, retain_graph=True)[0]

    found = torch.autograd.grad(result, table, grad.T.contiguous().T)[0]

    assert torch.equal(found, expected)


def test_only_what_wants_a_gradient_gets_one(make_gather):
    table, ids, weights, _ = make_gather((7, 5, 3, 2), torch.float32)

    op.weighted_bag(table.detach(), ids, weights).sum().backward()

    assert table.grad is None
    assert weights.grad is not None


def test_repeats_are_bit_equal(make_gather):
    table, ids, weights, grad = make_gather((64, 24, 37, 16), torch.float32)

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(op.weighted_bag(table, ids, weights), (table, weights), grad)

    first, second = gradients(), gradients()

    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_is_a_sound_custom_operation(make_gather):
    table, ids, weights, _ = make_gather((13, 4, 6, 5), torch.float64)

    torch.library.opcheck(torch.ops.memscale.weighted_bag.default, (table, ids, weights))


@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # dynamo's own
def test_compile_keeps_one_graph(make_gather):
    table, ids, weights, grad = make_gather((13, 4, 6, 5), torch.float32)
    compiled = torch.compile(op.weighted_bag, backend="aot_eager", fullgraph=True)

    found = torch.autograd.grad(compiled(table, ids, weights), (table, weights), grad)

    expected = torch.autograd.grad(op.weighted_bag(table, ids, weights), (table, weights), grad)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_bags_that_are_all_empty(make_gather):
    table, ids, weights, grad = make_gather((13, 4, 6, 0), torch.float32)

    bags = op.weighted_bag(table, ids, weights)
    table_grad, weights_grad = torch.autograd.grad(bags, (table, weights), grad)

    assert not bags.any()
    assert not table_grad.any()
    assert weights_grad.shape == (6, 0)
