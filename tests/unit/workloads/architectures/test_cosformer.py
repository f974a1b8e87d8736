"""What is special about `cosformer`: its weights, against the formula in float64."""

import math

import pytest
import torch

from workloads.architectures import pythia
from workloads.architectures.cosformer import PRESETS, Config, CosAttention
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.context import Context
from workloads.layers.mixers.attention import rotate, rotation_table
from workloads.layers.modules.init import initialise

SMALL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24, "max_seq_len": 32}


def _model(**fields: object) -> Transformer:
    model = Config(**{**SMALL, **fields}).build(11)
    initialise(model, 0)
    return model


@pytest.mark.parametrize("chunk", [3, 64])
@pytest.mark.parametrize("rotary_fraction", [0.0, 0.5])
def test_equals_the_formula(chunk, rotary_fraction):
    config = Config(**SMALL, chunk_tokens=chunk, rotary_fraction=rotary_fraction)
    mixer = config.mixer(CosAttention, max_seq_len=32).double()
    initialise(mixer, 0)
    x = torch.randn(2, 10, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rotation = rotation_table(10, 4, base=100.0, device=x.device).double()
    if not rotary_fraction:
        rotation = None
    weight, bias = mixer.query_key_value.weight, mixer.query_key_value.bias
    query, key, value = ((x @ weight.T + bias)[..., i * 16 :][..., :16] for i in range(3))
    query, key, value = (y.unflatten(-1, (2, 8)) for y in (query, key, value))
    query, key = (rotate(y, rotation).relu() for y in (query, key))
    position = torch.arange(10, dtype=torch.float64)
    fall = torch.cos(math.pi / 2 * (position[:, None] - position) / 32)
    weights = (torch.einsum("bqhd,bkhd->bhqk", query, key) * fall).tril()
    assert (weights >= 0).all()
    weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-6)
    mixed = torch.einsum("bhqk,bkhd->bqhd", weights, value).flatten(2)
    expected = mixed @ mixer.output.weight.T + mixer.output.bias

    found = mixer(x, Context(tokens=torch.zeros(2, 10, dtype=torch.long), rotation=rotation))

    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_gradients(check_gradients):
    check_gradients(Config(**SMALL, chunk_tokens=2))


def test_a_longer_pass_leaves_the_logits_of_its_prefix_unchanged():
    tokens = torch.randint(11, (1, 32), generator=torch.Generator().manual_seed(0))
    model = _model()

    torch.testing.assert_close(model(tokens)[:, :9], model(tokens[:, :9]))


def test_says_how_long_a_sequence_may_be():
    assert Config(**SMALL).longest_sequence == 32
    assert Config(**PRESETS["160m"]).longest_sequence == 2048
    assert Config(**PRESETS["d32"]).longest_sequence == 512


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_heads": 3}, r"n_heads must divide d_model \(16\), got 3; the nearest is 2"),
        (
            {"rotary_fraction": 1.5},
            r"rotary_fraction must lie in 0\.\.1, got 1.5; the nearest is 1",
        ),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**{**SMALL, **fields})


def test_has_pythias_parameters_and_a_cost_that_does_not_grow_with_the_length():
    ours, base = Config(**PRESETS["410m"]), pythia.Config(**pythia.PRESETS["410m"])

    assert ours.param_count(50_304) == base.param_count(50_304)
    # Per layer of 16 heads: half a chunk's square, read and write of a state of 128 x 65.
    mixing = 16 * (64 * (128 + 65) + 4 * 128 * 65)
    assert ours.flops_per_token(50_304, 2048).attention == 24 * (8 * 1024**2 + mixing)
    assert ours.flops_per_token(50_304, 2**20) == ours.flops_per_token(50_304, 2048)
    assert ours.flops_per_token(50_304, 2048).total < base.flops_per_token(50_304, 2048).total
