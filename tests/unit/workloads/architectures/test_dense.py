"""What is special about `dense`."""

import pytest
import torch

from workloads.architectures.dense import PRESETS, Config
from workloads.layers.modules.init import initialise

SMALL = {"d_model": 16, "n_layers": 2, "n_heads": 4, "d_ff": 24}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 0}, "d_model must be at least 1, got 0"),
        ({"n_heads": 3}, r"n_heads must divide d_model \(16\) into heads of even width, got 3"),
        ({"n_heads": 16}, r"n_heads must divide d_model \(16\) into heads of even width, got 16"),
        ({"n_kv_heads": 3}, r"n_kv_heads must divide n_heads \(4\), got 3"),
        ({"n_kv_heads": 0}, "n_kv_heads must be at least 1 or null, got 0"),
        ({"rope_base": 0.0}, "rope_base must be positive, got 0.0"),
        ({"norm_eps": -1.0}, "norm_eps must be positive, got -1.0"),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**{**SMALL, **fields})


def test_tied_embeddings_are_one_table():
    tied, untied = Config(**SMALL, tied_embeddings=True), Config(**SMALL)
    model = tied.build(11)

    assert untied.param_count(11).total - tied.param_count(11).total == 11 * 16
    assert not any(name.startswith("head") for name, _ in model.named_parameters())
    assert tied.flops_per_token(11, 8) == untied.flops_per_token(11, 8)


def test_grouped_keys_save_parameters_and_flops():
    full, grouped = Config(**SMALL), Config(**SMALL, n_kv_heads=1)

    assert full.param_count(11).attention - grouped.param_count(11).attention == 2 * 2 * 16 * 12
    assert grouped.flops_per_token(11, 8).attention < full.flops_per_token(11, 8).attention


def test_qk_norm_makes_attention_ignore_the_scale_of_queries():
    model = Config(**SMALL, qk_norm=True, norm_eps=1e-12).build(11)
    initialise(model, 0)
    tokens = torch.arange(10)[None]
    before = model(tokens)
    with torch.no_grad():
        for layer in model.layers:
            layer.mixer.query_key_value.weight[:16] *= 5.0

    torch.testing.assert_close(model(tokens), before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("preset", "size"), [("1m", 1e6), ("3m", 3e6), ("10m", 10e6), ("30m", 30e6)]
)
def test_small_presets_have_the_size_of_their_name(preset, size):
    assert Config(**PRESETS[preset]).param_count(1).non_embedding == pytest.approx(size, rel=0.02)


@pytest.mark.parametrize("width", [16, 24, 32, 48, 64])
def test_presets_named_by_width(width):
    config = Config(**PRESETS[f"d{width}"])

    assert (config.d_model, config.n_layers, config.tied_embeddings) == (width, 2, True)
