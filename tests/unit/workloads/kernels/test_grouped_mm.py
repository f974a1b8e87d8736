"""The grouped product equals one product per group, forward and backward."""

import pytest
import torch
from torch import Tensor

from workloads.kernels.grouped_mm import grouped_mm

SHAPES = [
    # inputs, outputs, rows of each group
    (1, 1, [1]),
    (5, 3, [0, 4, 0, 7, 1, 0]),
    (16, 24, [13, 2]),
    (8, 8, [0, 0]),
]


def _case(
    inputs: int, outputs: int, sizes: list[int], dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(inputs)
    x = torch.randn(sum(sizes), inputs, dtype=dtype, generator=generator, requires_grad=True)
    weights = torch.randn(
        len(sizes), inputs, outputs, dtype=dtype, generator=generator, requires_grad=True
    )
    grad = torch.randn(sum(sizes), outputs, dtype=dtype, generator=generator)
    return x, weights, torch.tensor(sizes).cumsum(0).int(), grad


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("id_type", [torch.int32, torch.int64])
def test_equals_the_definition_with_all_gradients(shape, id_type):
    x, weights, ends, grad = _case(*shape)
    groups = torch.repeat_interleave(torch.arange(len(shape[2])), torch.tensor(shape[2]))
    expected = torch.einsum("ri,rio->ro", x, weights[groups])
    expected_grads = torch.autograd.grad(expected, (x, weights), grad)

    found = grouped_mm(x, weights, ends.to(id_type))
    found_grads = torch.autograd.grad(found, (x, weights), grad)

    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found_grads, expected_grads)


def test_gradients_by_finite_differences():
    x, weights, ends, _ = _case(3, 2, [2, 0, 3])

    assert torch.autograd.gradcheck(lambda *t: grouped_mm(*t, ends), (x, weights))


def test_an_empty_group_gets_a_zero_gradient():
    x, weights, ends, grad = _case(4, 4, [3, 0, 2], torch.float32)

    (found,) = torch.autograd.grad(grouped_mm(x, weights, ends), weights, grad)

    assert found[1].eq(0).all()
    assert found[0].any()
    assert found[2].any()


def test_a_gradient_that_is_not_contiguous():
    x, weights, ends, grad = _case(4, 3, [3, 2])
    expected = torch.autograd.grad(grouped_mm(x, weights, ends), (x, weights), grad)

    found = torch.autograd.grad(grouped_mm(x, weights, ends), (x, weights), grad.T.contiguous().T)

    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_only_what_wants_a_gradient_gets_one():
    x, weights, ends, _ = _case(4, 3, [3, 2])

    grouped_mm(x.detach(), weights, ends).sum().backward()
    grouped_mm(x, weights.detach(), ends).sum().backward()

    assert x.grad is not None
    assert weights.grad is not None


def test_the_last_group_ends_with_the_rows():
    x, weights, ends, _ = _case(4, 3, [3, 2])

    with pytest.raises(RuntimeError, match="split"):
        grouped_mm(x, weights, ends - 1)
