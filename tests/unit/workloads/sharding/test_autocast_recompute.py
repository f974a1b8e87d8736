"""Copies of weights that are made anew.

The same bits, and nothing kept of them between the passes.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional

from workloads.layers.modules.linear import Linear
from workloads.layers.modules.norms import RMSNorm
from workloads.sharding import autocast_recompute
from workloads.sharding.autocast_recompute import recompute_autocast_copies

WIDTH = 16


class Layer(nn.Module):
    """Products of all kinds.

    With a bias and without, a copy of one's own, a part of one, a weight used twice.
    """

    def __init__(self):
        super().__init__()
        self.plain, self.biased = Linear(WIDTH, WIDTH), Linear(WIDTH, WIDTH, bias=True)
        self.norm = RMSNorm(WIDTH, eps=1e-6)
        self.stack = nn.Parameter(torch.empty(2, WIDTH, WIDTH))

    def forward(self, x):
        stack = self.stack.to(torch.bfloat16)
        y = functional.silu(self.plain(self.norm(x))) + self.biased(x)
        y = torch.bmm(torch.stack((y, y)), stack).sum(0) + y @ stack[1]
        return x + self.plain(y).exp().tanh()


@pytest.fixture
def layers():
    torch.manual_seed(0)
    model = nn.Sequential(Layer(), Layer())
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    return model


def passes(model, between=lambda: None):
    model.zero_grad()
    x = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1), requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x).square().sum()
        between()
    loss.backward()
    return [loss.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("may_compile", [False, True])
def test_gradients_have_the_bits_of_kept_copies(layers, may_compile):
    wanted = passes(layers)
    for layer in layers:
        recompute_autocast_copies(layer, may_compile=may_compile)

    found = passes(layers)

    assert all(torch.equal(*both) for both in zip(found, wanted, strict=True))


def test_weights_are_read_again_in_the_backward_pass(layers):
    """What is gathered again may lie in the same place as before.

    Without copies, other values give other gradients.
    """
    wanted = passes(layers)
    for layer in layers:
        recompute_autocast_copies(layer)

    def change():
        for layer in layers:
            layer.plain.weight.data.zero_()
            layer.stack.data.zero_()

    found = passes(layers, change)

    assert torch.equal(found[0], wanted[0])
    # Only the bias's side of the sum and the residual stream still reach the first layer.
    assert not torch.equal(found[1], wanted[1])
    assert float(found[1].abs().sum()) > 0


def test_of_weights_in_another_type_only_a_part_of_one_is_kept(layers, monkeypatch):
    kept = []
    original = autocast_recompute.kept
    monkeypatch.setattr(
        autocast_recompute, "kept", lambda saved: kept.append(original(saved)) or kept[-1]
    )
    recompute_autocast_copies(layers[0])
    passes(layers)

    # The plain weight is used twice; of the stack, all of it once and one of its matrices once.
    assert sum(not isinstance(each, torch.Tensor) for each in kept) == 4
    tensors = [each for each in kept if isinstance(each, torch.Tensor)]
    assert [tuple(t.shape) for t in tensors if t.numel() >= WIDTH * WIDTH] == [(WIDTH, WIDTH)]


def test_a_block_that_fails_leaves_others_as_they_were(layers):
    wanted = passes(layers[1:])
    recompute_autocast_copies(layers[0])
    with pytest.raises(RuntimeError):
        layers[0](torch.ones(3, WIDTH + 1))

    found = passes(layers[1:])
    assert not torch._C._autograd._top_saved_tensors_default_hooks(True)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
