"""What is special about `memory_plus`."""

import pytest
import torch

from workloads.architectures import dense
from workloads.architectures.memory_plus import PRESETS, Config, MemoryPlus
from workloads.layers.memory.product_key_memory import ProductKeyMemory
from workloads.layers.modules.init import initialise

SMALL = {
    "d_model": 16,
    "n_layers": 6,
    "n_heads": 2,
    "d_ff": 24,
    "n_keys": 8,
    "n_memory_heads": 2,
    "knn": 4,
}


def _model(**fields: object) -> MemoryPlus:
    model = Config(**{**SMALL, **fields}).build(11)
    initialise(model, 0)
    assert isinstance(model, MemoryPlus)
    return model


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"knn": 9}, r"knn must lie in 1\.\.n_keys \(8\), got 9"),
        ({"knn": 0}, "knn must be at least 1, got 0"),
        ({"n_keys": 0}, "n_keys must be at least 1, got 0"),
        ({"n_memory_heads": 0}, "n_memory_heads must be at least 1, got 0"),
        ({"key_dim": 7}, "key_dim must be even, for two halves, got 7"),
        ({"value_dim": 6}, "key_dim must be even, for two halves, got 3, half of value_dim"),
        ({"value_dim": 0}, "value_dim must be at least 1 or null, got 0"),
        ({"value_dim": 1}, "key_dim must be even, for two halves, got 0, half of value_dim"),
        ({"memory_layers": ()}, "memory_layers must name at least one layer, got none"),
        (
            {"memory_layers": (1, 6)},
            r"memory_layers must stay within 0\.\.n_layers - 1 \(5\), got \[1, 6\]",
        ),
        (
            {"memory_layers": (-1,)},
            r"memory_layers must stay within 0\.\.n_layers - 1 \(5\), got \[-1\]",
        ),
        (
            {"memory_layers": (3, 1)},
            r"memory_layers must be rising without repetition, got \[3, 1\]",
        ),
        (
            {"memory_layers": (1,), "memory_stride": 2},
            "memory_stride must be null when memory_layers is given, got 2",
        ),
        (
            {"memory_count": 7, "memory_stride": 1},
            r"memory_first with memory_stride and memory_count must stay within",
        ),
        ({"memory_count": 0}, "memory_count must be at least 1 or null, got 0"),
        ({"memory_first": 5}, r"must stay within 0\.\.n_layers - 1 \(5\), got \[5, 7, 9\]"),
        ({"n_heads": 3}, r"n_heads must divide d_model"),
        (
            {"gate": "sigmoid"},
            "gate must be one of swilu, silu, scalar, none or null, got 'sigmoid'",
        ),
        ({"output_bias": True}, "output_bias does nothing with gate swilu, or where value_dim is"),
        ({"output_bias": True, "gate": "none"}, "output_bias does nothing .*; remove it"),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**{**SMALL, **fields})


@pytest.mark.parametrize(
    ("preset", "layers"),
    [
        # Berges et al. 2024: three, centred, stride 4 at 134M and 8 at the others; 4, 12, 20 at
        # 373M in their ablation.
        ("134m", (2, 6, 10)),
        ("373m", (4, 12, 20)),
        ("720m", (3, 11, 19)),
        ("1.3b", (3, 11, 19)),
        ("8b", (8, 16, 24)),
        ("d32", (1,)),
    ],
)
def test_placement_of_presets(preset, layers):
    assert Config(**PRESETS[preset]).placement == layers


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({"memory_layers": (0, 5)}, (0, 5)),
        ({"memory_count": 1}, (3,)),
        ({"memory_count": 2, "memory_stride": 2}, (2, 4)),
        ({"memory_first": 0, "memory_stride": 1}, (0, 1, 2)),
        ({"memory_first": 1, "memory_stride": 2, "memory_count": 3}, (1, 3, 5)),
    ],
)
def test_placement(fields, layers):
    model = _model(**fields)

    assert Config(**{**SMALL, **fields}).placement == layers
    found = [
        i
        for i, layer in enumerate(model.layers)
        if isinstance(layer.feed_forward, ProductKeyMemory)
    ]
    assert tuple(found) == layers


def test_paper_presets_have_the_dense_backbone():
    backbone = {
        "d_model",
        "n_layers",
        "n_heads",
        "n_kv_heads",
        "d_ff",
        "tied_embeddings",
        "rope_base",
    }
    for preset, fields in PRESETS.items():
        shared = {name: value for name, value in fields.items() if name in backbone}
        assert shared == dense.PRESETS[preset]
    assert Config(**PRESETS["1.3b"]).memory.lookup.key_dim == 1024


def test_layers_share_one_table_that_each_of_them_trains():
    model = _model(memory_layers=(1, 4))
    tables = [name for name, p in model.named_parameters() if p.shape == (64, 16)]
    assert tables == ["memory_table.weight"]
    tokens = torch.arange(11)[None]

    def gradient() -> torch.Tensor:
        return torch.autograd.grad(model(tokens).logsumexp(-1).sum(), model.memory_table.weight)[0]

    both = gradient()
    for index in (1, 4):
        muted = _model(memory_layers=(1, 4))
        muted.layers[index].feed_forward.output.weight.data.zero_()
        model = muted
        assert gradient().any()
        assert not torch.allclose(gradient(), both)


def test_layers_with_tables_of_their_own_read_only_theirs():
    fields = {"share_values": False, "memory_layers": (1, 4), "gate": "none"}
    model = _model(**fields)
    first, second = (table.weight for table in model.memory_tables)
    assert not torch.equal(first, second)
    with torch.no_grad():
        first.zero_()
    tokens = torch.arange(11)[None]

    silent = model.layers[1].feed_forward(torch.ones(1, 11, 16), model.context(tokens, None))

    assert not silent.any()
    gradients = torch.autograd.grad(model(tokens).logsumexp(-1).sum(), [first, second])
    assert all(gradient.any() for gradient in gradients)
    config = Config(**{**SMALL, **fields})
    assert config.param_count(11).memory_values == 2 * 64 * 16
    assert config.param_count(11).total == sum(p.numel() for p in model.parameters())


def test_value_dim_may_differ_from_the_width_of_the_model():
    model = _model(value_dim=12, key_dim=6)

    assert model.memory_table.weight.shape == (64, 12)
    assert model(torch.arange(11)[None]).shape == (1, 11, 11)


def test_statistics_are_means_over_the_layers():
    model = _model(memory_layers=(1, 4))
    model(torch.arange(11)[None])
    usages = [float((model.layers[i].feed_forward.usage.reads > 0).double().mean()) for i in (1, 4)]

    values = model.statistics()

    assert values["memory/layer_01/usage"] == usages[0]
    assert values["memory/layer_04/usage"] == usages[1]
    assert values["memory/usage"] == sum(usages) / 2
    assert 2.0 <= values["memory/effective_rows"] <= 8.0


def test_active_parameters_count_rows_read_not_the_table():
    config = Config(**{**SMALL, "n_keys": 100, "memory_layers": (2, 4)})
    count = config.param_count(11)
    assert config.active_param_count(11) == count.non_embedding - 100**2 * 16 + 2 * 2 * 4 * 16

    config = Config(**{**SMALL, "n_keys": 4, "memory_layers": (2, 4)})
    count = config.param_count(11)
    # 16 slots, 16 rows read by each of the two layers
    assert config.active_param_count(11) == count.non_embedding


def test_bytes_of_values_are_the_rows_read_until_the_batch_covers_the_table():
    config = Config(**PRESETS["1.3b"])
    row_bytes = 2 * 2048

    alone = config.bytes_per_token(32_000)["memory_values"]
    together = config.bytes_per_token(32_000, batch_tokens=10**6)["memory_values"]

    # 512 KiB per token and layer: 4 heads of 32 rows
    assert alone == pytest.approx(3 * 128 * row_bytes, rel=1e-4)
    assert alone == pytest.approx(3 * 512 * 1024, rel=1e-4)
    assert together == pytest.approx(3 * 1024**2 * row_bytes / 10**6, rel=1e-3)


def test_memory_qk_norm_makes_the_choice_ignore_the_scale_of_keys():
    model = _model(memory_qk_norm=True)
    tokens = torch.arange(11)[None]
    before = model(tokens)
    with torch.no_grad():
        for memory in model.modules():
            if isinstance(memory, ProductKeyMemory):
                memory.sub_keys *= 9.0

    torch.testing.assert_close(model(tokens), before)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"memory_qk_norm": True, "value_dim": 8},
        {"memory_layers": (1,), "key_dim": 6},
        {"share_values": False, "gate": "scalar", "score": "softmax_sink"},
    ],
    ids=str,
)
def test_gradients_of_the_whole_model_by_finite_differences(check_gradients, fields):
    tiny = {
        "d_model": 4,
        "n_layers": 2,
        "n_heads": 1,
        "d_ff": 3,
        "n_keys": 4,
        "n_memory_heads": 2,
        "knn": 3,
        "memory_layers": (0, 1),
    }

    check_gradients(Config(**{**tiny, **fields}))
