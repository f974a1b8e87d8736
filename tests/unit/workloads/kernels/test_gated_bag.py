"""The gated bag, plain and interpreted, against its formula in float64."""

import pytest
import torch
from torch import Tensor

from workloads.kernels.gated_bag import op, reference

SHAPES = [(1, 1, 1, 1, 1), (7, 5, 3, 3, 2), (13, 1, 2, 11, 17), (64, 24, 37, 16, 16)]
"""Rows, widths of values and pre-values, bags, rows per bag."""


def _case(shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    rows, width, pre_width, bags, bag_size = shape
    generator = torch.Generator().manual_seed(sum(shape))
    draw = lambda *sizes: torch.randn(sizes, generator=generator)  # noqa: E731
    ids = torch.randint(rows, (bags, bag_size), generator=generator)
    return (
        draw(rows, width),
        draw(rows, pre_width),
        ids,
        draw(bags, bag_size),
        draw(bags, pre_width),
    )


def _expected(
    values: Tensor, pre_values: Tensor, ids: Tensor, scores: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    weights = scores * torch.einsum("bgw,bw->bg", pre_values[ids], x)
    return torch.einsum("bg,bgw->bw", weights, values[ids]), weights


def _exact(case: tuple[Tensor, ...]) -> list[Tensor]:
    return [x.double().requires_grad_() if x.is_floating_point() else x for x in case]


def _close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_plain_torch_is_the_formula(shape):
    exact = _exact(_case(shape))
    of = [x for x in exact if x.requires_grad]
    expected, weights = _expected(*exact)

    found, found_weights = reference.gated_bag(*exact)

    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found_weights, weights)
    grad = torch.ones_like(found)
    for one, other in zip(
        torch.autograd.grad(found, of, grad), torch.autograd.grad(expected, of, grad), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_are_the_formula(shape, interpreted, poisoned):
    pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")
    from workloads.kernels.gated_bag import triton as kernels
    from workloads.kernels.segment_sum import triton as segment_sum
    from workloads.kernels.weighted_bag import triton as weighted_bag

    for module in (segment_sum, weighted_bag):
        interpreted(module)
    case = _case(shape)
    exact = _exact(case)
    expected, _ = _expected(*exact)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0))
    of = [x for x in exact if x.requires_grad]
    expected_grads = torch.autograd.grad(expected, of, grad.double())

    output, products = kernels.forward(*case)
    found = kernels.backward(grad, products, *case, needs_tables=True)

    _close(output, expected)
    for one, other in zip(found, expected_grads, strict=True):
        _close(one, other)
    assert kernels.backward(grad, products, *case, needs_tables=False)[:2] == (None, None)


def test_the_operator_keeps_its_promises(interpreted):
    pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")
    from workloads.kernels.segment_sum import triton as segment_sum
    from workloads.kernels.weighted_bag import triton as weighted_bag

    for module in (segment_sum, weighted_bag):
        interpreted(module)
    case = [x.requires_grad_() if x.is_floating_point() else x for x in _case(SHAPES[1])]

    torch.library.opcheck(
        op._forward_op,
        tuple(case),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
    output, _ = op._forward_op(*case)
    expected, _ = reference.gated_bag(*case)
    of = [x for x in case if x.requires_grad]
    for one, other in zip(
        torch.autograd.grad(output.sum(), of), torch.autograd.grad(expected.sum(), of), strict=True
    ):
        torch.testing.assert_close(one, other)
