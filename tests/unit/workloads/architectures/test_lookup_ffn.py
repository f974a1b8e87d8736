"""What is special about `lookup_ffn`."""

import itertools
import math

import pytest
import scipy.linalg
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from workloads.architectures.lookup_ffn import (
    PRESETS,
    BlockHadamard,
    BlockHadamardShape,
    Config,
    LookupFFN,
)
from workloads.layers.context import Context
from workloads.layers.modules.init import initialise

SMALL = {"d_model": 24, "n_layers": 2, "n_heads": 3, "total_tables": 17, "tau": 4}
"""9 tables in the first layer, 8 in the second: 36 and 32 numbers to hash, hence two bh4
projections and one."""
VOCAB_SIZE = 11


def _config(**fields: object) -> Config:
    return Config(**{**SMALL, **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"total_tables": 1},
            r"total_tables must be at least one per layer \(2\), got 1; the nearest is 2",
        ),
        ({"tau": 0}, "tau must be at least 1, got 0; the nearest is 1"),
        ({"block_width": 0}, "block_width must be at least 1 or null, got 0; the nearest is 1"),
        (
            {"block_width": 6},
            r"block_width must divide d_model's next power of two \(32\), got 6; the nearest is 4",
        ),
        ({"block_width": 64}, "got 64; the nearest is 32"),
        ({"projection": "BH4"}, "projection must be one of bh4, dense, got 'BH4'"),
        ({"score": "l1"}, "score must be one of prob, l1_prob, got 'l1'"),
        ({"temperature": -1.0}, "temperature must be positive, got -1.0"),
        ({"table_std": 0.0}, "table_std must be positive, got 0.0"),
        ({"n_heads": 5}, "n_heads must divide d_model"),
        ({"d_model": 0}, "d_model must be at least 1, got 0"),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(ValueError, match=message):
        _config(**fields)


def _projection(shape: BlockHadamardShape) -> BlockHadamard:
    layer = BlockHadamard(shape)
    initialise(layer, 0)
    with torch.no_grad():
        layer.bias.normal_(generator=torch.Generator().manual_seed(1))
    return layer.double()


@pytest.mark.parametrize(
    ("d_input", "d_output", "block_width"),
    # Padded or not, one block or many, cut off or not.
    [(8, 8, 2), (12, 40, 4), (16, 5, 16), (6, 20, 1), (1, 3, 1), (64, 130, 8)],
)
def test_bh4_is_the_product_of_its_matrices(d_input, d_output, block_width):
    shape = BlockHadamardShape(d_input=d_input, d_output=d_output, block_width=block_width)
    layer, width = _projection(shape), shape.padded
    x = torch.randn(5, d_input, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    padded = torch.cat((x, x.new_zeros(5, width - d_input)), dim=1)
    transform = torch.tensor(scipy.linalg.hadamard(width)).double() / width**0.5
    copies = []
    for copy in range(shape.copies):
        y = padded
        for step in layer.blocks:
            y = y @ torch.block_diag(*step[copy]) @ transform
        copies.append(0.7 * y + 0.3 * padded)
    expected = torch.cat(copies, dim=1)[:, :d_output] + layer.bias

    torch.testing.assert_close(layer(x), expected)


def test_bh4_keeps_the_size_of_what_it_maps():
    shape = BlockHadamardShape(d_input=256, d_output=256, block_width=32)
    layer = BlockHadamard(shape)
    initialise(layer, 0)
    x = torch.randn(2000, 256, generator=torch.Generator().manual_seed(0))

    z = layer(x)

    assert not layer.bias.any()
    assert z.std().item() == pytest.approx((0.7**2 + 0.3**2) ** 0.5, rel=0.03)


@pytest.mark.parametrize(
    ("d_model", "block_width"), [(2, 2), (8, 2), (12, 2), (64, 8), (512, 64), (768, 128)]
)
def test_default_block_width(d_model, block_width):
    assert _config(d_model=d_model, n_heads=1).block_hadamard(9).block_width == block_width


@pytest.mark.parametrize("score", ["prob", "l1_prob"])
@pytest.mark.parametrize("projection", ["bh4", "dense"])
def test_is_a_look_up_behind_a_projection(score, projection):
    config = _config(score=score, projection=projection, temperature=0.8, table_std=1.0)
    layer = LookupFFN(config, 9)
    initialise(layer, 0)
    layer.double()
    x = torch.randn(6, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    places = torch.tensor([8, 4, 2, 1])
    chunks = layer.projection(x).unflatten(-1, (9, 4))
    tables = layer.memory.table.weight.unflatten(0, (9, 16))
    weights = (2 * chunks.abs() / 0.8).sigmoid().prod(dim=-1)
    if score == "l1_prob":
        weights = weights * chunks.abs().sum(dim=-1)
    rows = tables[torch.arange(9), ((chunks >= 0) * places).sum(dim=-1)]
    expected = torch.einsum("tk,tkd->td", weights, rows) + layer.memory.bias

    found = layer(x, Context(tokens=torch.zeros(1, 6, dtype=torch.long)))

    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("projection", ["bh4", "dense"])
def test_flops_are_those_that_torch_counts(projection):
    """Exact, but for what torch sees otherwise: the whole square of scores, no bag, and transforms as products."""
    config = _config(projection=projection)
    model = config.build(VOCAB_SIZE)
    initialise(model, 0)
    counter = FlopCounterMode(display=False)
    with counter, nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        model(torch.zeros(1, 7, dtype=torch.long))
    flops = config.flops_per_token(VOCAB_SIZE, 7).total
    unseen_half = 2 * 7 * config.n_layers * config.d_model
    bag = 2 * config.total_tables * config.d_model
    transforms = 0
    for n_tables in config.tables_per_layer if projection == "bh4" else ():
        shape = config.block_hadamard(n_tables)
        over_blocks = 7 * 4 * shape.copies * 2 * shape.padded * shape.n_blocks
        of_weights = 2 * shape.weights * shape.block_width
        transforms += over_blocks + of_weights

    assert counter.get_total_flops() == 7 * (flops + unseen_half - bag) + transforms


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "fields",
    [{}, {"projection": "dense"}, {"score": "prob", "d_model": 32, "n_heads": 2, "qk_norm": True}],
    ids=str,
)
def test_activations_are_those_that_autograd_keeps(fields, precision, bytes_kept):
    config = _config(**fields)
    model = config.build(VOCAB_SIZE)
    initialise(model, 0)
    model.recording_usage = False

    kept = bytes_kept(model, torch.zeros(64, 64, dtype=torch.long), precision) / 64**2

    # Logits and probabilities belong to the loss, which is not taken here.
    loss = (8 if precision == "fp32" else 6) * VOCAB_SIZE
    expected = config.activation_bytes_per_token(VOCAB_SIZE, 64, precision=precision) - loss
    assert kept == pytest.approx(expected, rel=0.015)


@pytest.mark.parametrize("projection", ["bh4", "dense"])
def test_gradients_by_finite_differences(projection, check_gradients):
    check_gradients(_config(d_model=8, n_heads=2, n_layers=1, projection=projection, table_std=0.5))


def test_statistics_name_the_layer():
    model = _config().build(VOCAB_SIZE)
    initialise(model, 0)
    model(_tokens())

    report = model.statistics()

    assert {name.split("/")[1] for name in report if name.count("/") == 2} == {
        "layer_00",
        "layer_01",
    }
    assert 1.0 <= report["memory/effective_rows"] <= 9.0
    assert report["memory/layer_01/output_ratio"] > 0


def _tokens() -> Tensor:
    return torch.randint(VOCAB_SIZE, (2, 7), generator=torch.Generator().manual_seed(0))


def test_presets_hash_twice_as_many_numbers_as_the_stream_has():
    for name, fields in PRESETS.items():
        config = Config(**fields)
        hashed = {config.memory(n_tables).d_input for n_tables in config.tables_per_layer}
        assert hashed == {2 * config.d_model}, name
        assert config.projection == "bh4"


def test_tables_are_shared_out_evenly_the_first_layers_get_those_left_over():
    config = _config(n_layers=3, total_tables=17)

    model = config.build(VOCAB_SIZE)

    assert config.tables_per_layer == (6, 6, 5)
    found = [layer.feed_forward.memory.shape.n_chunks for layer in model.layers]
    assert found == [6, 6, 5]


def test_one_table_more_is_at_most_one_projection_more():
    """So a model's cost rises by one layer's step at a time, which is what `match:` needs."""
    one_projection = BlockHadamardShape(d_input=24, d_output=32, block_width=4).weights
    counts = [
        _config(n_layers=8, total_tables=n).active_param_count(VOCAB_SIZE) for n in range(8, 200)
    ]

    rises = [after - before for before, after in itertools.pairwise(counts)]

    assert min(rises) == 4 + 24
    assert max(rises) == 4 + 24 + one_projection


@pytest.mark.parametrize(
    ("size", "overrides"),
    [(10_000, {}), (1_000_000, {"projection": "dense"}), (10**9, {"tau": 8}), (10**9, {})],
)
def test_sized(size, overrides):
    config = Config.nearest_size(size, **overrides)

    found = config.param_count(1).non_embedding
    assert abs(math.log(found / size)) <= math.log(1.25)
    assert all(getattr(config, name) == value for name, value in overrides.items())
