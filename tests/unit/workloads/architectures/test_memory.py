"""What is special about `memory`."""

from typing import Any

import pytest
import torch
from torch import nn

from workloads.architectures import dense
from workloads.architectures.memory import PRESETS, Config, SwiGLUAndMemory
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.memory.product_key_memory import ProductKeyMemory
from workloads.layers.modules.feed_forward import SwiGLU
from workloads.layers.modules.init import initialise

SMALL: dict[str, Any] = {
    "d_model": 16,
    "n_layers": 3,
    "n_heads": 2,
    "d_ff": 24,
    "n_keys": 8,
    "n_memory_heads": 2,
    "knn": 4,
}
TOKENS = torch.arange(11)[None]


def _model(**fields: object) -> Transformer:
    model = Config(**{**SMALL, **fields}).build(11)
    initialise(model, 0)
    assert isinstance(model, Transformer)
    return model


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"knn": 9}, r"knn must lie in 1\.\.n_keys \(8\), got 9; the nearest is 8"),
        ({"knn": 0}, "knn must be at least 1, got 0; the nearest is 1"),
        ({"n_keys": 0}, "n_keys must be at least 1, got 0; the nearest is 1"),
        ({"n_memory_heads": 0}, "n_memory_heads must be at least 1, got 0; the nearest is 1"),
        ({"key_dim": 7}, "key_dim must be even, for two halves, got 7; the nearest is 8"),
        (
            {"value_dim": 6},
            "key_dim must be even, for two halves, got 3, half of value_dim; the nearest is 4",
        ),
        ({"value_dim": 0}, "value_dim must be at least 1 or null, got 0; the nearest is 1"),
        (
            {"memory_layer": 3},
            r"memory_layer must stay within 0\.\.n_layers - 1 \(2\), got 3; the nearest is 2",
        ),
        (
            {"memory_layer": -1},
            r"memory_layer must stay within 0\.\.n_layers - 1 \(2\), got -1; the nearest is 0",
        ),
        (
            {"score": "tanh"},
            "score must be one of softmax, softmax_sink, sigmoid, relu, got 'tanh'",
        ),
        ({"key_init": "half"}, "key_init must be one of key_dim, half_key_dim, got 'half'"),
        ({"n_heads": 3}, "n_heads must divide d_model"),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**{**SMALL, **fields})


@pytest.mark.parametrize(
    ("fields", "layer"), [({}, 1), ({"n_layers": 4}, 2), ({"memory_layer": 0}, 0)]
)
def test_the_memory_replaces_one_feed_forward_block(fields, layer):
    slots = [block.feed_forward for block in _model(**fields).layers]

    assert isinstance(slots.pop(layer), ProductKeyMemory)
    assert all(type(slot) is SwiGLU for slot in slots)


def test_presets_of_the_paper_have_the_dense_backbone_and_the_middle_layer():
    for preset, layer in {"134m": 6, "373m": 12, "720m": 11, "1.3b": 11}.items():
        config = Config(**PRESETS[preset])
        assert config.placement == (layer,)
        shared = {name: PRESETS[preset][name] for name in dense.PRESETS[preset]}
        assert shared == dense.PRESETS[preset]
        assert config.memory.lookup.key_dim == 256
        assert config.non_causal_reasons == {}


def test_pkm2019_has_the_papers_memory():
    lookup = Config(**PRESETS["pkm2019"]).memory.lookup

    assert (lookup.key_dim, lookup.n_heads, lookup.knn, lookup.n_keys) == (256, 4, 32, 512)
    assert lookup.query_batch_norm
    assert lookup.key_init == "half_key_dim"


def test_beside_an_empty_table_the_block_is_that_of_dense():
    beside = _model(beside_ffn=True)
    plain = dense.Config(
        **{name: SMALL[name] for name in ("d_model", "n_layers", "n_heads", "d_ff")}
    )
    expected = plain.build(11)
    initialise(expected, 0)
    with torch.no_grad():
        beside.memory_table.weight.zero_()

    assert torch.equal(beside(TOKENS), expected(TOKENS))
    missing, unexpected = beside.load_state_dict(expected.state_dict(), strict=False)
    assert not unexpected
    assert all(
        name.startswith(("memory_table.", "layers.1.feed_forward.memory.")) for name in missing
    )


def test_beside_a_block_both_are_added():
    model = _model(beside_ffn=True)
    slot = model.layers[1].feed_forward
    assert isinstance(slot, SwiGLUAndMemory)
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    context = model.context(TOKENS, None)

    found = slot(x, context)

    expected = slot.down(nn.functional.silu(slot.gate(x)) * slot.up(x)) + slot.memory(x, context)
    torch.testing.assert_close(found, expected)


def test_output_ratio_is_that_of_the_memory_alone():
    model = _model(beside_ffn=True)
    with torch.no_grad():
        model.layers[1].feed_forward.down.weight.mul_(100.0)
        model.memory_table.weight.fill_(0.0)

    model(TOKENS)

    assert model.statistics()["memory/layer_01/output_ratio"] == 0.0


def test_statistics_name_the_layer():
    model = _model()
    model(TOKENS)

    values = model.statistics()

    assert values["memory/usage"] == values["memory/layer_01/usage"] > 0.0
    assert {"memory/layer_01/kl", "memory/layer_01/distinct_rows"} <= values.keys()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"score": "sigmoid", "query_batch_norm": True},
        {"score": "relu", "memory_qk_norm": True},
        {"beside_ffn": True, "value_dim": 3},
        {"gate": "scalar", "score": "softmax_sink", "value_dim": 3, "output_bias": True},
        {"gate": "silu", "score": "softmax_sink"},
        {"memory_qk_norm": True, "query_batch_norm": True, "memory_layer": 0},
    ],
    ids=str,
)
def test_gradients_of_the_whole_model_by_finite_differences(check_gradients, fields):
    tiny = {"d_model": 4, "n_layers": 2, "n_heads": 1, "d_ff": 3, "n_keys": 4, "knn": 3}

    check_gradients(Config(**{**tiny, "n_memory_heads": 2, "key_dim": 2, **fields}))


def test_query_batch_norm_is_declared_not_to_be_causal_in_training_and_is_not():
    config = Config(**SMALL, query_batch_norm=True)
    assert set(config.non_causal_reasons) == {"training"}
    model = _model(query_batch_norm=True)
    changed = TOKENS.clone()
    changed[:, -1] = 0

    def of_all_but_the_last(tokens: torch.Tensor) -> torch.Tensor:
        return model(tokens)[:, :-1]

    assert not torch.equal(of_all_but_the_last(TOKENS), of_all_but_the_last(changed))
    model.eval()
    torch.testing.assert_close(of_all_but_the_last(TOKENS), of_all_but_the_last(changed))


def test_without_query_batch_norm_nothing_leaks():
    assert Config(**SMALL).non_causal_reasons == {}


VARIANTS: list[dict[str, Any]] = [
    {},
    {"value_dim": 12},
    {"query_batch_norm": True},
    {"query_batch_norm": True, "memory_qk_norm": True},
    {"score": "relu", "knn": 8, "n_memory_heads": 5},
    {"score": "sigmoid", "knn": 8, "n_memory_heads": 5},
    {"beside_ffn": True, "key_init": "half_key_dim"},
    {"gate": "silu", "value_dim": 12, "output_bias": True},
    {"gate": "silu"},
    {"gate": "scalar"},
    {"gate": "swilu", "score": "softmax_sink"},
]


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_parameters_and_flops_are_those_of_the_modules(check_flops, fields):
    config = Config(**{**SMALL, **fields})

    assert config.param_count(11).total == sum(p.numel() for p in _model(**fields).parameters())
    check_flops(config, unseen=2 * config.memory.lookup.rows_read * config.memory.value_dim)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_activations_are_those_that_autograd_keeps(check_activations, fields, precision):
    check_activations(Config(**{**SMALL, **fields}), precision, rel=0.025)


def test_a_token_reads_rows_and_not_the_table():
    config = Config(**PRESETS["1.3b"])

    values = config.bytes_per_token(32_000)["memory_values"]

    assert values == pytest.approx(128 * 2048 * 2, rel=1e-4)
    count = config.param_count(32_000)
    unread = count.memory_values - 128 * 2048
    assert config.active_param_count(32_000) == count.non_embedding - unread


@pytest.mark.parametrize("size", [100_000, 3_000_000, 50_000_000])
def test_members_of_the_family_have_about_the_size_asked_for(size):
    config = Config.nearest_size(size)

    assert config.param_count(1).non_embedding == pytest.approx(size, rel=0.05)
    assert 2 < config.param_count(1).memory_values / (size / 5) < 6
