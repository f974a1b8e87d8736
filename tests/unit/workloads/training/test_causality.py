"""A model that sees later tokens is found out, and no other."""

from functools import partial

import pytest
import torch
from torch import nn

from orchestrator.sweep import registry
from workloads.layers.modules.init import initialise
from workloads.training import device
from workloads.training.causality import require_causal

CPU = torch.device("cpu")
VOCAB_SIZE = 64


def model_of(name: str) -> nn.Module:
    module = registry.architecture(name)
    model = module.Config(**module.PRESETS["d16"]).build(VOCAB_SIZE)
    initialise(model, 0)
    return model.train()


def ask(model: nn.Module, *, seq_len: int = 32, bf16: bool = False) -> None:
    autocast = partial(device.autocast, bf16=bf16, device=CPU)
    require_causal(model, VOCAB_SIZE, seq_len=seq_len, here=CPU, autocast=autocast)


class Leak(nn.Module):
    """Adds what the next position has, times a gate."""

    def __init__(self, block: nn.Module, gate: float) -> None:
        super().__init__()
        self.block, self.gate = block, nn.Parameter(torch.tensor(gate))

    def forward(self, x, context):
        return self.block(x + self.gate * x.roll(-1, 1), context)


def leaky(gate: float) -> nn.Module:
    model = model_of("dense")
    model.layers[0] = Leak(model.layers[0], gate)
    return model


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", registry.architectures())
def test_every_architecture_passes(name, bf16):
    model = model_of(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}

    ask(model, bf16=bf16)

    assert model.training
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    # What the passes left behind is good for training.
    model(torch.arange(16)[None]).square().mean().backward()


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("seq_len", [2, 3, 5, 64])
def test_a_model_that_sees_the_next_token_is_refused(seq_len, bf16):
    model = leaky(1.0)

    with pytest.raises(ValueError, match="tokens that come later"):
        ask(model, seq_len=seq_len, bf16=bf16)
    assert model.training


def test_attention_without_a_mask_is_refused(monkeypatch):
    attend = nn.functional.scaled_dot_product_attention
    model = model_of("dense")
    ask(model)
    monkeypatch.setattr(
        nn.functional,
        "scaled_dot_product_attention",
        lambda *args, is_causal=False, **rest: attend(*args, **rest),
    )

    with pytest.raises(ValueError, match="tokens that come later"):
        ask(model)


def test_what_begins_at_zero_is_found_later():
    model = leaky(0.0)
    ask(model)
    with torch.no_grad():
        model.layers[0].gate.fill_(0.3)

    with pytest.raises(ValueError, match="tokens that come later"):
        ask(model)


def test_one_token_has_no_later_one():
    ask(leaky(1.0), seq_len=1)
