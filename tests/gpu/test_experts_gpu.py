"""Experts on a GPU: the fused product equals the loop, and nothing waits for the device."""

import pytest
import torch
from torch import Tensor

from workloads.kernels.grouped_mm import grouped_mm, is_fused, reference
from workloads.layers.context import Context
from workloads.layers.modules.init import initialise
from workloads.layers.modules.moe import MixtureOfExperts, MixtureShape

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

FIELDS = [
    {"top_k": 3, "n_shared_experts": 1, "renormalise": True, "selection_bias": True},
    {"top_k": 1, "routing": "expert_choice", "capacity": 2.0},
]


def _layer(fields: dict[str, object]) -> MixtureOfExperts:
    sizes = {"d_model": 64, "n_experts": 8, "d_expert": 40, "balance_loss": 0.1, "z_loss": 0.1}
    layer = MixtureOfExperts(MixtureShape(**sizes, **fields))
    initialise(layer, 0)
    return layer


def _x() -> Tensor:
    return torch.randn(4, 96, 64, generator=torch.Generator().manual_seed(0))


def _pass(layer: MixtureOfExperts, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    context = Context(tokens=torch.zeros(x.shape[:2], dtype=torch.long), record_usage=True)
    output = layer(x, context)
    layer.record_usage(output, x)
    loss = output.float().square().sum() + sum(context.losses)
    return output, list(torch.autograd.grad(loss, [x, *layer.parameters()]))


@pytest.mark.parametrize("sizes", [[5, 0, 130, 1, 0, 64], [0, 0, 7, 0, 0, 0]], ids=str)
@pytest.mark.parametrize("widths", [(64, 40), (8, 256)])
def test_the_fused_product_is_the_loop(sizes, widths):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sum(sizes), widths[0], generator=generator)
    weights = torch.randn(len(sizes), *widths, generator=generator) / widths[0] ** 0.5
    grad = torch.randn(sum(sizes), widths[1], generator=generator)
    ends = torch.tensor(sizes).cumsum(0).int()
    # What bf16 rounds the inputs to, computed in fp32.
    exact = [t.bfloat16().float().requires_grad_() for t in (x, weights)]
    expected = reference(*exact, ends)
    expected_grads = torch.autograd.grad(expected, exact, grad.bfloat16().float())

    rounded = [t.bfloat16().cuda().requires_grad_() for t in (x, weights)]
    assert is_fused(rounded[0], *widths)
    found = grouped_mm(*rounded, ends.cuda())
    found_grads = torch.autograd.grad(found, rounded, grad.bfloat16().cuda())

    # bf16 keeps 8 bits; sums are fp32.
    for a, b in zip((found, *found_grads), (expected, *expected_grads), strict=True):
        torch.testing.assert_close(a.float().cpu(), b, rtol=0.01, atol=0.01 * b.abs().max().item())
    empty = torch.tensor(sizes) == 0
    assert found_grads[1][empty.cuda()].eq(0).all()


@pytest.mark.parametrize("fields", FIELDS, ids=["tokens", "experts"])
def test_a_layer_is_that_of_the_cpu(fields):
    on_cpu, on_gpu = _layer(fields), _layer(fields).cuda()
    expected, expected_grads = _pass(on_cpu, _x().requires_grad_())

    found, found_grads = _pass(on_gpu, _x().cuda().requires_grad_())

    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    for a, b in zip(found_grads, expected_grads, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-4 * b.abs().max().item())
    assert on_gpu.usage.report() == pytest.approx(on_cpu.usage.report(), rel=1e-4)


@pytest.mark.parametrize("fields", FIELDS, ids=["tokens", "experts"])
def test_in_bf16_nothing_waits_for_the_device(fields, never_waiting):
    layer, x = _layer(fields).cuda(), _x().cuda().requires_grad_()
    expected, expected_grads = _pass(layer, x)
    with torch.autocast("cuda", torch.bfloat16):
        _pass(layer, x)
        with never_waiting():
            found, found_grads = _pass(layer, x)

    assert found.dtype == torch.bfloat16
    # Experts are chosen in fp32, so they are the same; the rest is rounded.
    torch.testing.assert_close(found.float(), expected, rtol=0.03, atol=0.03)
    for a, b in zip(found_grads[:-1], expected_grads[:-1], strict=True):
        torch.testing.assert_close(a, b, rtol=0.1, atol=0.03 * b.abs().max().item())
