"""What is special about `engram`."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.architectures import dense, memory_plus
from workloads.architectures.engram import (
    PRESETS,
    Config,
    Engram,
    EngramBlock,
    EngramTransformer,
    agreement,
)
from workloads.layers.cache import Cache
from workloads.layers.context import Context
from workloads.layers.modules.init import initialise

BACKBONE = {"d_model": 16, "n_layers": 4, "n_heads": 2, "d_ff": 24}
SMALL = {**BACKBONE, "rows_per_head": 50, "n_hash_heads": 2}
VOCAB_SIZE = 11


def _model(**fields: object) -> EngramTransformer:
    model = Config(**{**SMALL, **fields}).build(VOCAB_SIZE)
    initialise(model, 0)
    assert isinstance(model, EngramTransformer)
    return model


def _tokens(seed: int = 0, batch: int = 2, seq: int = 13) -> Tensor:
    return torch.randint(VOCAB_SIZE, (batch, seq), generator=torch.Generator().manual_seed(seed))


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rows_per_head": 0}, "rows_per_head must be at least 1, got 0; the nearest is 1"),
        ({"max_order": 1}, "max_order must be at least 2, got 1; the nearest is 2"),
        ({"n_hash_heads": 0}, "n_hash_heads must be at least 1, got 0; the nearest is 1"),
        ({"ngram_dim": 0}, "ngram_dim must be at least 1 or null, got 0; the nearest is 1"),
        ({"conv_kernel": 0}, "conv_kernel must be at least 1 or null, got 0; the nearest is 1"),
        (
            {"n_hash_heads": 3},
            r"n_hash_heads must divide ngram_dim \(8, half of d_model\), got 3; the nearest is 2",
        ),
        (
            {"ngram_dim": 9},
            r"n_hash_heads must divide ngram_dim \(9\), got 2; the nearest is 1",
        ),
        ({"engram_layers": ()}, "engram_layers must name at least one layer, got none"),
        (
            {"engram_layers": (1, 4)},
            r"engram_layers must stay within 0\.\.n_layers - 1 \(3\), got \[1, 4\]; the nearest are \[1, 3\]",
        ),
        ({"engram_layers": (2, 1)}, "engram_layers must be rising without repetition"),
        ({"n_heads": 3}, "n_heads must divide d_model"),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**{**SMALL, **fields})


@pytest.mark.parametrize(
    ("n_layers", "layers"),
    [(1, (0,)), (2, (1,)), (3, (1,)), (4, (1, 2)), (12, (1, 6)), (30, (1, 15))],
)
def test_the_second_layer_and_the_middle_one_have_a_memory(n_layers, layers):
    model = _model(n_layers=n_layers)

    assert Config(**{**SMALL, "n_layers": n_layers}).placement == layers
    found = [i for i, layer in enumerate(model.layers) if isinstance(layer, EngramBlock)]
    assert tuple(found) == layers


def test_tables_have_the_rows_of_a_released_model():
    """DeepSeek-V4.1-Flash: layers 1 and 14, orders 2 to 4, 8 heads of 16,000,000 rows of 256 or a little more.

    Rows as its checkpoint has them, reported in ROCm/ATOM#2185 and ggml-org/llama.cpp#28696.
    """
    released = {"max_order": 4, "n_hash_heads": 8, "ngram_dim": 2048, "rows_per_head": 16_000_000}
    config = Config(**{**BACKBONE, **released, "n_layers": 15, "engram_layers": (1, 14)})

    rows = [sum(map(sum, primes)) for primes in config.table_primes]

    assert rows == [384_006_168, 384_016_682]
    assert config.param_count(1).memory_values == 256 * sum(rows)
    assert round(256 * sum(rows) / 1e9) == 197  # "196B"


def test_every_head_has_a_prime_of_its_own():
    primes = Config(**{**SMALL, "engram_layers": (0, 1, 3), "max_order": 4}).table_primes
    flat = [prime for table in primes for order in table for prime in order]

    assert [len(primes), len(primes[0]), len(primes[0][0])] == [3, 3, 2]
    assert flat == sorted(set(flat))
    assert min(flat) == 53  # the first prime from 50 on


@pytest.mark.parametrize("shared_table", [False, True])
def test_tables_and_rows_of_the_layers(shared_table):
    model = _model(shared_table=shared_table)
    first, second = (model.layers[i].engram for i in (1, 2))
    tokens = _tokens()

    same = torch.equal(first.ngrams.rows(tokens), second.ngrams.rows(tokens))

    assert same == shared_table
    assert len(model.memory_tables) == (1 if shared_table else 2)
    assert (first.table.module is second.table.module) == shared_table


def test_the_seed_of_the_hash_changes_the_rows_and_nothing_else():
    one, other = _model(), _model(hash_seed=1)
    tokens = _tokens()

    assert not torch.equal(
        one.layers[1].engram.ngrams.rows(tokens), other.layers[1].engram.ngrams.rows(tokens)
    )
    for (name, a), (_, b) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(
    ("z", "gate"),
    [
        (4.0, 0.8807970779778823),  # sigmoid(2)
        (-9.0, 0.04742587317756678),  # sigmoid(-3)
        (0.25, 0.6224593312018546),  # sigmoid(1/2)
        (0.0, 0.5),
    ],
)
def test_the_gate_by_hand(z, gate):
    # Two columns: z is the product over sqrt(2).
    query = torch.tensor([[[1.0, 2.0]]], dtype=torch.float64)
    key = torch.tensor([[[z * math.sqrt(2), 0.0]]], dtype=torch.float64)

    assert agreement(query, key).item() == pytest.approx(gate, abs=1e-15)


def test_the_gate_has_a_finite_slope_everywhere():
    key = torch.tensor([0.0, 1e-12, 1e-3, -1e-3], dtype=torch.float64)[:, None, None]
    key.requires_grad_()

    agreement(torch.ones_like(key), key).sum().backward()

    expected = 0.5 / math.sqrt(1e-3) * torch.sigmoid(torch.tensor(1e-3).sqrt()) * 0.5
    assert torch.isfinite(key.grad).all()
    assert key.grad.flatten()[2:].tolist() == pytest.approx([float(expected)] * 2, rel=0.05)


@pytest.mark.parametrize("conv_kernel", [4, 2, 1, None])
def test_a_memory_is_its_formula(conv_kernel):
    """The convolution against torch's, with positions the highest order apart."""
    model = _model(conv_kernel=conv_kernel)
    memory: Engram = model.layers[1].engram.double()
    table = model.memory_tables[0].double().weight
    tokens, x = _tokens(), _random(2, 13, 16)
    if memory.conv is not None:
        with torch.no_grad():
            memory.conv.weight.copy_(_random(conv_kernel, 16, seed=1))
    e = table[memory.ngrams.rows(tokens)].flatten(2)

    def norm(y: Tensor) -> Tensor:
        return y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    z = (norm(x) * norm(e @ memory.key.weight.T)).sum(-1, keepdim=True) / 4
    expected = torch.sigmoid(z.sign() * z.abs().sqrt()) * (e @ memory.value.weight.T)
    if memory.conv is not None:
        padded = functional.pad(norm(expected).mT, ((conv_kernel - 1) * 3, 0))
        kernel = memory.conv.weight.T[:, None]
        conv = functional.conv1d(padded, kernel, groups=16, dilation=3)
        expected = expected + functional.silu(conv).mT

    torch.testing.assert_close(memory(x, Context(tokens=tokens)), expected)


def test_the_memory_is_added_before_attention():
    block = _model().layers[1]
    tokens, x = _tokens(), _random(2, 13, 16).float()
    context = Context(tokens=tokens)
    read = x + block.engram(x, context)
    mixed = read + block.mixer(block.mixer_norm(read), context)

    expected = mixed + block.feed_forward(block.feed_forward_norm(mixed))

    torch.testing.assert_close(block(x, context), expected)


def test_the_convolution_begins_as_if_it_were_not_there_and_learns():
    with_conv, without = _model(), _model(conv_kernel=None)

    logits = with_conv(_tokens())
    logits.logsumexp(-1).sum().backward()

    torch.testing.assert_close(logits, without(_tokens()))
    for index in (1, 2):
        assert with_conv.layers[index].engram.conv.weight.grad.any(dim=1).all()


def test_without_its_output_a_model_is_the_dense_one():
    model, base = _model(), dense.Config(**BACKBONE).build(VOCAB_SIZE)
    initialise(base, 0)
    for index in (1, 2):
        nn.init.zeros_(model.layers[index].engram.value.weight)

    torch.testing.assert_close(model(_tokens()), base(_tokens()))


@pytest.mark.parametrize("pieces", [[1] * 13, [2, 1, 7, 3], [12, 1]], ids=str)
def test_decoding_with_a_convolution_that_has_learnt(pieces):
    model = _model(max_order=4).eval()
    for layer in model.layers[1:3]:
        nn.init.normal_(layer.engram.conv.weight, generator=torch.Generator().manual_seed(0))
    cache = Cache(2, 13)

    with torch.no_grad():
        parts = [model(piece, cache) for piece in _tokens().split(pieces, dim=1)]
        whole = model(_tokens())

    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-5)
    # The last three tokens, and what the convolution reaches back to: three times four positions.
    assert cache.layers[1].tensors["ngram_tokens"].shape == (2, 3)
    assert cache.layers[1].tensors["ngram_values"].shape == (2, 12, 16)
    assert "ngram_tokens" not in cache.layers[0].tensors


def test_only_rows_that_are_read_get_a_gradient():
    model = _model(n_layers=2)
    model(_tokens()).logsumexp(-1).sum().backward()
    read = model.layers[1].engram.ngrams.rows(_tokens()).unique()

    touched = model.memory_tables[0].weight.grad.any(dim=1).nonzero().flatten()

    assert torch.equal(touched, read)


@pytest.mark.parametrize("shared_table", [False, True])
def test_counts_by_hand(shared_table):
    """Tables sum of prime * D / heads; per layer two projections of 2 d sum(D), convolution 4 d, norms 2 d."""
    config = Config(**{**SMALL, "ngram_dim": 6, "shared_table": shared_table})
    plain = dense.Config(**BACKBONE).param_count(VOCAB_SIZE)
    d, total = 16, 2 * 6
    # Two orders of two heads, and as many again for the second layer.
    primes = [53, 59, 61, 67] if shared_table else [53, 59, 61, 67, 71, 73, 79, 83]

    count = config.param_count(VOCAB_SIZE)

    assert count.memory_values == sum(prime * 6 // 2 for prime in primes)
    assert count.memory_keys == 2 * (2 * d * total + 4 * d)
    assert count.norm == plain.norm + 2 * 2 * d
    assert count.total - plain.total == count.memory_values + count.memory_keys + 2 * 2 * d
    active = config.active_param_count(VOCAB_SIZE)
    # Two layers of four rows; a shared table gives both the same.
    rows = 4 if shared_table else 2 * 4
    assert active == count.non_embedding - count.memory_values + rows * 3


def test_bytes_of_the_table_are_the_rows_read_one_per_head():
    config = Config(**PRESETS["134m"])
    row_bytes = 2 * 384 // 8

    alone = config.bytes_per_token(32_000)["memory_values"]
    together = config.bytes_per_token(32_000, batch_tokens=10**9)["memory_values"]

    assert alone == pytest.approx(2 * 16 * row_bytes)
    assert together == pytest.approx(2 * config.param_count(1).memory_values / 10**9)


def test_flops_are_those_that_torch_counts_but_for_sums_of_shifted_columns(check_flops):
    check_flops(Config(**SMALL), unseen=2 * 2 * 4 * 16)


def test_presets_have_the_dense_backbone_and_tables_as_large_as_memory_plus():
    for preset, backbone in dense.PRESETS.items():
        assert backbone.items() <= PRESETS[preset].items()
        ours = Config(**PRESETS[preset]).param_count(1).memory_values
        theirs = memory_plus.Config(**memory_plus.PRESETS[preset]).param_count(1).memory_values
        assert ours == pytest.approx(theirs, rel=0.01)


def test_the_demonstration_has_its_tables():
    """Five times 129,280 rows a head, 8 heads of 64 columns for each of two orders, in two layers."""
    config = Config(**PRESETS["demo"])

    assert config.placement == (1, 15)
    assert config.engram.ngram_dim == 512
    count = config.param_count(129_280)
    assert count.memory_values == pytest.approx(2 * 16 * 5 * 129_280 * 64, rel=1e-3)
    assert config.table_primes[0][0][0] >= 5 * 129_280


def test_statistics_weigh_rows_by_the_gate():
    model = _model(n_layers=2)
    model(_tokens())
    memory = model.layers[1].engram
    with torch.no_grad():
        embedded = model.layers[0](model.embedding(_tokens()), model.context(_tokens(), None))
        rows = memory.table.module.weight[memory.ngrams.rows(_tokens())].flatten(2)
        gates = agreement(memory.query_norm(embedded), memory.key_norm(memory.key(rows)))

    values = model.statistics()

    assert values["memory/gate"] == pytest.approx(gates.mean().item(), rel=1e-4)
    # Four rows of one weight.
    assert values["memory/effective_rows"] == pytest.approx(4.0)
    n_read = len(memory.ngrams.rows(_tokens()).unique())
    assert values["memory/usage"] == pytest.approx(n_read / memory.ngrams.n_rows)
    assert model.statistics() == {}


def test_sized_is_near_the_size():
    config = Config.nearest_size(1_000_000, max_order=4)

    assert config.max_order == 4
    assert config.param_count(1).non_embedding == pytest.approx(1e6, rel=0.05)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "fields", [{}, {"conv_kernel": None, "max_order": 4}], ids=["plain", "no convolution"]
)
def test_activations_are_those_that_autograd_keeps(check_activations, fields, precision):
    check_activations(Config(**{**SMALL, **fields}), precision, rel=0.01)


def test_gradients_of_a_model_by_finite_differences(check_gradients):
    check_gradients(Config(**{**SMALL, "d_model": 4, "n_heads": 1, "n_layers": 2, "d_ff": 4}))
