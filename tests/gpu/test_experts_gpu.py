"""Experts on a GPU: the fused product equals the loop, and nothing waits for the device."""

import pytest
import torch
from torch import Tensor

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


def _layer(fields: dict[str, object], d_expert: int = 40) -> MixtureOfExperts:
    sizes = {"d_model": 64, "n_experts": 8, "balance_loss": 0.1, "z_loss": 0.1}
    layer = MixtureOfExperts(MixtureShape(**sizes, d_expert=d_expert, **fields))
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


@pytest.mark.parametrize("fields", FIELDS, ids=["tokens", "experts"])
def test_a_layer_is_that_of_the_cpu(fields):
    on_cpu, on_gpu = _layer(fields), _layer(fields).cuda()
    expected, expected_grads = _pass(on_cpu, _x().requires_grad_())

    found, found_grads = _pass(on_gpu, _x().cuda().requires_grad_())

    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    for a, b in zip(found_grads, expected_grads, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-4 * b.abs().max().item())
    assert on_gpu.usage.report() == pytest.approx(on_cpu.usage.report(), rel=1e-4)


@pytest.mark.parametrize("d_expert", [20, 40, 48, 220])
@pytest.mark.parametrize("fields", FIELDS, ids=["tokens", "experts"])
def test_in_bf16_nothing_waits_for_the_device(fields, d_expert, never_waiting):
    layer, x = _layer(fields, d_expert).cuda(), _x().cuda().requires_grad_()
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
