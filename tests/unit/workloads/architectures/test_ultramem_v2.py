"""What is special about `ultramem_v2`."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from workloads.accounting.counts import distinct_rows
from workloads.architectures import dense, memory_plus
from workloads.architectures.ultramem_v2 import (
    PRESETS,
    Config,
    UltraMemBlock,
    UltraMemLayer,
    UltraMemV2,
)
from workloads.layers.context import Context
from workloads.layers.modules.init import initialise

SMALL = {"d_model": 16, "n_layers": 4, "n_heads": 2, "d_ff": 24, "n_keys": 8, "knn": 4}
VOCAB_SIZE = 11


def _model(**fields: object) -> UltraMemV2:
    model = Config(**{**SMALL, **fields}).build(VOCAB_SIZE)
    initialise(model, 0)
    assert isinstance(model, UltraMemV2)
    return model


def _context(tokens: int = 1) -> Context:
    return Context(tokens=torch.zeros(1, tokens, dtype=torch.long))


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"knn": 9}, r"knn must lie in 1\.\.n_keys \(8\), got 9; the nearest is 8"),
        ({"knn": 0}, "knn must be at least 1, got 0; the nearest is 1"),
        ({"n_keys": 0}, "n_keys must be at least 1, got 0"),
        ({"n_memory_heads": 0}, "n_memory_heads must be at least 1, got 0"),
        ({"tucker_rank": 0}, "tucker_rank must be at least 1, got 0"),
        ({"share_layers": 0}, "share_layers must be at least 1, got 0"),
        ({"key_dim": 7}, "key_dim must be even, for two halves, got 7; the nearest is 8"),
        ({"key_dim": 0}, "key_dim must be even, for two halves, got 0; the nearest is 2"),
        ({"d_model": 20, "key_dim": 5}, "key_dim must be even, for two halves, got 5"),
        (
            {"d_model": 14, "n_heads": 1},
            "key_dim must be even, for two halves, got 7, half of d_model; the nearest is 8",
        ),
        ({"value_dim": 0}, "value_dim must be at least 1 or null, got 0; the nearest is 1"),
        (
            {"d_model": 2, "n_heads": 1},
            "value_dim must be at least 1, got 0, a quarter of d_model; the nearest is 1",
        ),
        ({"pre_value_dim": 0}, "pre_value_dim must be at least 1 or null, got 0; the nearest is 1"),
        (
            {"pre_values": False, "pre_value_dim": 3},
            "pre_value_dim must be null without pre_values, got 3",
        ),
        ({"key_balance": -0.1}, "key_balance must be at least 0, got -0.1; the nearest is 0"),
        ({"key_balance": float("nan")}, "key_balance must be at least 0, got nan"),
        ({"n_heads": 3}, "n_heads must divide d_model"),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**{**SMALL, **fields})


@pytest.mark.parametrize("pre_values", [True, False])
def test_a_memory_is_its_formula_over_the_whole_grid(pre_values):
    """Every pair of sub-keys is a candidate here, so the best slots are those of the whole grid."""
    model = _model(n_keys=6, knn=6, n_memory_heads=2, pre_values=pre_values, pre_value_dim=None)
    memory: UltraMemLayer = model.layers[0].memory.double()
    tables = model.memory_tables[0].double()
    x = _random(9, 16)
    queries = (x @ memory.query.weight.T).view(9, 2, 2, 2, 4)
    expected = torch.zeros(9, 16, dtype=torch.float64)
    for head in range(2):
        row, column = (
            torch.stack(
                [
                    nn.functional.rms_norm(queries[:, half, head, a], (4,), eps=1e-5)
                    @ nn.functional.rms_norm(memory.sub_keys[half, head, a], (4,), eps=1e-5).T
                    for a in range(2)
                ]
            )
            * memory.query_norm.gain[0]
            * memory.key_norm.gain[0]
            for half in range(2)
        )
        grid = torch.einsum("ati,ab,btj->tij", row, memory.core[head], column).flatten(1)
        chosen = grid >= grid.topk(6).values[:, -1:]
        weights = grid * chosen
        if pre_values:
            weights = weights * (x @ memory.pre_value.weight.T @ tables.pre_value.weight.T)
        expected = expected + weights @ tables.value.weight @ memory.output.weight.T

    torch.testing.assert_close(memory(x[None], _context(9))[0], expected)


@pytest.mark.parametrize("pre_values", [True, False])
def test_gradients_of_a_memory_by_finite_differences(pre_values):
    model = _model(d_model=4, n_heads=1, n_keys=4, knn=3, pre_values=pre_values)
    memory: UltraMemLayer = model.layers[0].memory.double()
    tables = model.memory_tables[0].double()
    inputs = (_random(1, 2, 4).requires_grad_(), *memory.parameters(), *tables.parameters())

    assert torch.autograd.gradcheck(lambda x, *_: memory(x, _context(2)), inputs)


def test_the_memory_stands_beside_the_feed_forward_block_and_shares_its_norm():
    block: UltraMemBlock = _model().layers[0]
    x = _random(2, 5, 16).float()
    mixed = x + block.mixer(block.mixer_norm(x), _context())
    normed = block.feed_forward_norm(mixed)

    expected = mixed + block.feed_forward(normed) + block.memory(normed, _context())

    torch.testing.assert_close(block(x, _context()), expected)


def test_without_its_output_a_model_is_the_dense_one():
    model = _model()
    plain = dense.Config(**{k: v for k, v in SMALL.items() if k not in ("n_keys", "knn")})
    base = plain.build(VOCAB_SIZE)
    initialise(base, 0)
    for layer in model.layers:
        nn.init.zeros_(layer.memory.output.weight)
    tokens = torch.arange(VOCAB_SIZE)[None]

    torch.testing.assert_close(model(tokens), base(tokens))


@pytest.mark.parametrize(
    ("n_layers", "share_layers", "tables"),
    [
        (2, 6, (0, 0)),
        (4, 1, (0, 1, 2, 3)),
        (7, 3, (0, 0, 0, 1, 1, 2, 2)),
        (8, 6, (0,) * 4 + (1,) * 4),
        (12, 6, (0,) * 6 + (1,) * 6),
        (20, 10, (0,) * 10 + (1,) * 10),
    ],
)
def test_runs_of_layers_share_tables_as_evenly_as_possible(n_layers, share_layers, tables):
    config = Config(**{**SMALL, "n_layers": n_layers, "share_layers": share_layers})
    model = _model(n_layers=n_layers, share_layers=share_layers)

    assert config.table_of_layer == tables
    assert len(model.memory_tables) == tables[-1] + 1
    for layer, table in zip(model.layers, tables, strict=True):
        assert layer.memory.tables.module is model.memory_tables[table]
    count = config.param_count(VOCAB_SIZE)
    assert count.memory_values == (tables[-1] + 1) * 64 * (4 + 4)


def test_every_reader_of_a_table_trains_it():
    tokens = torch.arange(VOCAB_SIZE)[None]
    for muted in range(2):
        model = _model(n_layers=2)
        nn.init.zeros_(model.layers[muted].memory.output.weight)

        model(tokens).logsumexp(-1).sum().backward()

        for parameter in model.memory_tables.parameters():
            assert parameter.grad.any()


def test_a_shared_query_is_a_query_per_rank_with_equal_weights():
    shared, apart = _model(shared_query=True, n_memory_heads=3), _model(n_memory_heads=3)
    state = shared.state_dict()
    for layer in range(SMALL["n_layers"]):
        name = f"layers.{layer}.memory.query.weight"
        weight = state[name].view(2, 3, 1, 4, 16)
        state[name] = weight.expand(2, 3, 2, 4, 16).reshape(-1, 16)
    apart.load_state_dict(state)
    tokens = torch.arange(VOCAB_SIZE)[None]

    for model in (shared, apart):
        model.double()(tokens).logsumexp(-1).sum().backward()

    torch.testing.assert_close(shared(tokens), apart(tokens))
    for one, two in zip(shared.layers, apart.layers, strict=True):
        # The shared query's gradient is the sum over ranks.
        of_ranks = two.memory.query.weight.grad.view(2, 3, 2, 4, 16).sum(2)
        torch.testing.assert_close(one.memory.query.weight.grad.view(2, 3, 4, 16), of_ranks)
    saved = apart.layers[0].memory.query.weight.numel() * SMALL["n_layers"] // 2
    counts = [
        Config(**{**SMALL, "n_memory_heads": 3, "shared_query": option}).param_count(VOCAB_SIZE)
        for option in (None, True)
    ]
    assert counts[0].memory_keys - counts[1].memory_keys == saved


def test_counts_by_hand():
    """Per memory: query d H r k, sub-keys H r n k, core H r², projections d (p + v), norms k; per table n² (p + v)."""
    d, h, r, k, n, p, v, m = 16, 3, 2, 6, 10, 5, 7, 4
    sizes = {"n_memory_heads": h, "tucker_rank": r, "key_dim": k, "n_keys": n, "knn": m}
    config = Config(**{**SMALL, **sizes, "pre_value_dim": p, "value_dim": v, "share_layers": 2})
    plain = dense.Config(
        **{name: x for name, x in SMALL.items() if name not in ("n_keys", "knn")}
    ).param_count(VOCAB_SIZE)

    count = config.param_count(VOCAB_SIZE)

    assert count.memory_keys == 4 * (d * h * r * k + h * r * n * k + h * r * r + d * (p + v))
    assert count.norm == plain.norm + 4 * k
    assert count.memory_values == 2 * n * n * (p + v)
    assert count.feed_forward == plain.feed_forward
    # Two layers a table, 3 heads of 4 rows each.
    read = 2 * 2 * h * m * (p + v)
    active = config.active_param_count(VOCAB_SIZE)
    assert active == count.non_embedding - count.memory_values + read
    rows = distinct_rows(n * n, draws=h * 64, without_repetition=m)
    in_batch = config.bytes_per_token(VOCAB_SIZE, batch_tokens=64)["memory_values"]
    assert in_batch == pytest.approx(2 * 4 * rows * (p + v) / 64)


@pytest.mark.parametrize("shared_query", [None, True])
def test_flops_are_those_that_torch_counts(shared_query):
    """But for what torch sees otherwise: it counts the whole square of scores, and no bag."""
    config = Config(
        **{**SMALL, "n_memory_heads": 2, "tucker_rank": 3, "shared_query": shared_query}
    )
    model = config.build(VOCAB_SIZE)
    initialise(model, 0)

    def flops(batch: int) -> int:
        counter = FlopCounterMode(display=False)
        with counter, nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            model(torch.zeros(batch, 6, dtype=torch.long))
        return int(counter.get_total_flops())

    unseen_half, bag = 2 * 6 * 4 * 16, 4 * 2 * 8 * 4
    # What one sequence more costs: the cores' singular vectors are found once for all.
    expected = config.flops_per_token(VOCAB_SIZE, 6).total + unseen_half - bag
    assert flops(3) - flops(2) == 6 * expected


def test_the_comparison_with_olmoe_has_its_total():
    """227M active and 1.2B in all (Huang et al. 2025, table 3), 20 * 360**2 slots of two rows of 192."""
    config = Config(**PRESETS["1.2b"])
    count = config.param_count(50_304)

    assert round(count.total / 1e8) == 12
    assert count.memory_values == pytest.approx(20 * 360**2 * 2 * 192, rel=1e-3)
    active = config.active_param_count(50_304) + count.embedding
    assert active == pytest.approx(227e6, rel=0.05)


def test_presets_have_the_dense_backbone_and_tables_as_large_as_memory_plus():
    for preset, backbone in dense.PRESETS.items():
        assert backbone.items() <= PRESETS[preset].items()
        ours = Config(**PRESETS[preset]).param_count(1).memory_values
        theirs = memory_plus.Config(**memory_plus.PRESETS[preset]).param_count(1).memory_values
        assert ours == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize("fields", [{}, {"pre_values": False}, {"pre_value_dim": 8}])
def test_a_memory_begins_as_loud_as_the_feed_forward_block(fields):
    config = Config(**{**PRESETS["1m"], "n_layers": 1, **fields})
    model = config.build(VOCAB_SIZE)
    initialise(model, 0)
    layer = model.layers[0]
    # Of the mean square that the rule takes for granted.
    nn.init.constant_(layer.memory.core, 3**-0.5)
    x = _random(1, 500, 128).float()

    with torch.no_grad():
        memory, feed_forward = layer.memory(x, _context(500)), layer.feed_forward(x)

    assert memory.std().item() == pytest.approx(feed_forward.std().item(), rel=0.15)


def test_balance_loss_reaches_the_trainer_in_training_only():
    tokens = torch.arange(VOCAB_SIZE)[None]
    model = _model(key_balance=0.01)
    model(tokens)
    # About 1, or somewhat more, for rows and for columns of each of four layers.
    assert model.auxiliary_loss().item() == pytest.approx(0.1, rel=0.3)
    model.eval()(tokens)
    assert model.auxiliary_loss() is None
    plain = _model()
    plain(tokens)
    assert plain.auxiliary_loss() is None


def test_statistics_are_those_of_every_layer():
    model = _model(n_layers=2)
    model(torch.arange(VOCAB_SIZE)[None])

    values = model.statistics()

    for layer in ("layer_00", "layer_01"):
        assert 1.0 <= values[f"memory/{layer}/effective_rows"] <= 4.0
        assert values[f"memory/{layer}/output_ratio"] > 0
    assert 0 < values["memory/usage"] < 1


def test_sized_is_near_the_size():
    config = Config.nearest_size(1_000_000, share_layers=1)

    assert config.share_layers == 1
    assert config.param_count(1).non_embedding == pytest.approx(1e6, rel=0.05)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n_memory_heads": 3, "tucker_rank": 1, "pre_values": False},
        {"key_balance": 0.1},
        {"shared_query": True, "tucker_rank": 3},
    ],
    ids=["plain", "heads", "balance", "shared"],
)
def test_activations_are_those_that_autograd_keeps(check_activations, fields, precision):
    check_activations(Config(**{**SMALL, **fields}), precision, rel=0.01)


def test_gradients_of_a_model_by_finite_differences(check_gradients):
    check_gradients(Config(**{**SMALL, "d_model": 4, "n_heads": 1, "n_layers": 2, "d_ff": 4}))
