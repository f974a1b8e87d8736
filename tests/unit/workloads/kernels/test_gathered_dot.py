"""Products of rows equal their definition, forward and backward."""

import pytest
import torch
from torch import Tensor

from workloads.kernels.gathered_dot import op
from workloads.kernels.weighted_bag import op as weighted_bag


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("id_type", [torch.int64, torch.int32])
def test_equals_the_definition_with_all_gradients(make_gather, shape, dtype, tolerance, id_type):
    table, ids, grad, x = make_gather(shape, dtype)
    expected = torch.einsum("bgv,bv->bg", table[ids], x)
    expected_grads = torch.autograd.grad(expected, (table, x), grad)

    found = op.gathered_dot(table, ids.to(id_type), x)
    found_grads = torch.autograd.grad(found, (table, x), grad)

    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found_grads, expected_grads, rtol=tolerance, atol=tolerance)


def test_gradients_by_finite_differences(make_gather):
    table, ids, _, x = make_gather((5, 3, 4, 6), torch.float64)

    assert torch.autograd.gradcheck(lambda t, y: op.gathered_dot(t, ids, y), (table, x))


def test_a_row_named_twice_counts_twice():
    table = torch.tensor([[1.0, 10.0], [2.0, 20.0]], requires_grad=True)
    ids = torch.tensor([[1, 1, 0]])
    x = torch.tensor([[3.0, 0.5]], requires_grad=True)

    result = op.gathered_dot(table, ids, x)
    result.backward(torch.tensor([[1.0, 2.0, 4.0]]))

    assert result.tolist() == [[16.0, 16.0, 8.0]]
    assert table.grad is not None
    assert table.grad.tolist() == [[12.0, 2.0], [9.0, 1.5]]
    assert x.grad is not None
    assert x.grad.tolist() == [[10.0, 100.0]]


def test_rows_that_nobody_names_get_a_zero_gradient():
    table = torch.full((6, 2), 3.0, requires_grad=True)

    op.gathered_dot(table, torch.tensor([[0], [5]]), torch.ones(2, 2)).sum().backward()

    assert table.grad is not None
    assert table.grad.sum(dim=1).tolist() == [2.0, 0.0, 0.0, 0.0, 0.0, 2.0]


def test_no_bags():
    table = torch.ones(4, 2, requires_grad=True)
    x = torch.ones(0, 2, requires_grad=True)

    result = op.gathered_dot(table, torch.zeros(0, 3, dtype=torch.long), x)
    result.sum().backward()

    assert result.shape == (0, 3)
    assert table.grad is not None
    assert not table.grad.any()
    assert x.grad is not None
    assert x.grad.shape == (0, 2)


def test_gradient_and_input_that_are_not_contiguous(make_gather):
    table, ids, grad, x = make_gather((13, 4, 6, 5), torch.float64)
    expected = torch.autograd.grad(op.gathered_dot(table, ids, x), (table, x), grad)

    strided = op.gathered_dot(table, ids, x.T.contiguous().T)
    found = torch.autograd.grad(strided, (table, x), grad.T.contiguous().T)

    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)


def test_only_what_wants_a_gradient_gets_one(make_gather):
    table, ids, _, x = make_gather((7, 5, 3, 2), torch.float32)

    op.gathered_dot(table.detach(), ids, x).sum().backward()

    assert table.grad is None
    assert x.grad is not None


def test_repeats_are_bit_equal(make_gather):
    table, ids, grad, x = make_gather((64, 24, 37, 16), torch.float32)

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(op.gathered_dot(table, ids, x), (table, x), grad)

    first, second = gradients(), gradients()

    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_autocast_does_not_round_the_rows(make_gather):
    table, ids, _, x = make_gather((64, 24, 37, 16), torch.float32)
    expected = op.gathered_dot(table, ids, x)

    with torch.autocast("cpu", torch.bfloat16):
        found = op.gathered_dot(table, ids, x)

    assert torch.equal(found, expected)


def test_is_the_weights_gradient_of_the_weighted_bag(make_gather):
    """Bit for bit: one is the backward pass of the other."""
    table, ids, weights, x = make_gather((64, 24, 37, 16), torch.float32)
    bag = weighted_bag.weighted_bag(table, ids, weights)
    table_grad, weights_grad = torch.autograd.grad(bag, (table, weights), x.detach())

    products = op.gathered_dot(table, ids, x)

    assert torch.equal(products, weights_grad)
    assert torch.equal(torch.autograd.grad(products, table, weights)[0], table_grad)


def test_is_a_sound_custom_operation(make_gather):
    table, ids, _, x = make_gather((13, 4, 6, 5), torch.float64)

    torch.library.opcheck(torch.ops.memscale.gathered_dot.default, (table, ids, x))
