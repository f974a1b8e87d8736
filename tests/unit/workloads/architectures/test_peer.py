"""What is special about `peer`."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from workloads.accounting.counts import distinct_rows
from workloads.architectures import dense, memory
from workloads.architectures.peer import PRESETS, Config, ExpertsShape, Peer
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.context import Context
from workloads.layers.memory.product_keys import LookupShape
from workloads.layers.memory.table import MemoryTable
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
CONTEXT = Context(tokens=torch.zeros(1, 1, dtype=torch.long))


def _model(**fields: object) -> Transformer:
    model = Config(**{**SMALL, **fields}).build(11)
    initialise(model, 0)
    assert isinstance(model, Transformer)
    return model


def _layer(**fields: Any) -> Peer:
    """A layer in float64 with experts of its own."""
    activation = fields.pop("activation", "gelu")
    sizes = {"d_model": 6, "n_keys": 5, "n_heads": 2, "knn": 3, "key_dim": 4, "shared_keys": True}
    lookup = LookupShape(**{**sizes, **fields})
    tables = [MemoryTable(lookup.n_slots, lookup.d_model).double() for _ in range(2)]
    layer = Peer(ExpertsShape(lookup=lookup, activation=activation), *tables).double()
    initialise(layer, 0)
    for seed, table in enumerate(tables):
        initialise(table, seed)
    return layer


def _tokens(n_tokens: int = 9) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(n_tokens, 6, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"knn": 9}, r"knn must lie in 1\.\.n_keys \(8\), got 9; the nearest is 8"),
        ({"knn": 0}, "knn must be at least 1, got 0; the nearest is 1"),
        ({"n_keys": 0}, "n_keys must be at least 1, got 0; the nearest is 1"),
        ({"n_memory_heads": 0}, "n_memory_heads must be at least 1, got 0; the nearest is 1"),
        ({"key_dim": 7}, "key_dim must be even, for two halves, got 7; the nearest is 8"),
        (
            {"d_model": 14, "n_heads": 1},
            "key_dim must be even, for two halves, got 7, half of d_model; the nearest is 8",
        ),
        ({"activation": "silu"}, "activation must be one of gelu, relu, one, got 'silu'"),
        (
            {"score": "tanh"},
            "score must be one of softmax, softmax_sink, sigmoid, relu, got 'tanh'",
        ),
        (
            {"peer_layer": 3},
            r"peer_layer must stay within 0\.\.n_layers - 1 \(2\), got 3; the nearest is 2",
        ),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**{**SMALL, **fields})


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "relu"])
@pytest.mark.parametrize("shared_keys", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_equals_the_formula_expert_by_expert(score, shared_keys, activation):
    """The sum over heads and chosen experts, one expert at a time, scores of all experts at hand."""
    layer = _layer(score=score, shared_keys=shared_keys, activation=activation)
    inputs, outputs = layer.inputs.module.weight, layer.outputs.module.weight
    act = {"gelu": functional.gelu, "relu": torch.relu}[activation]
    weigh = {"softmax": lambda s: s.softmax(-1), "sigmoid": torch.sigmoid, "relu": torch.relu}
    x = _tokens(4)
    expected = torch.zeros_like(x)
    queries = (x @ layer.query.weight.T).view(4, 2, 2, 2)
    for token in range(4):
        for head in range(2):
            keys = layer.sub_keys[:, 0 if shared_keys else head]
            left, right = (keys[half] @ queries[token, head, half] for half in range(2))
            best = (left[:, None] + right[None, :]).flatten().topk(3)
            for weight, expert in zip(weigh[score](best.values), best.indices, strict=True):
                hidden = act(inputs[expert] @ x[token])
                expected[token] += weight * hidden * outputs[expert]

    torch.testing.assert_close(layer(x, CONTEXT), expected)


def test_heads_share_keys_and_experts_or_have_keys_of_their_own():
    shared, own = _model(), _model(shared_keys=False)

    assert shared.layers[1].feed_forward.sub_keys.shape == (2, 1, 8, 4)
    assert own.layers[1].feed_forward.sub_keys.shape == (2, 2, 8, 4)
    assert shared.expert_inputs.weight.shape == shared.expert_outputs.weight.shape == (64, 16)
    assert own.expert_inputs.weight.shape == (64, 16)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_with_hidden_units_of_one_it_is_memory_without_gate(score):
    """Bit for bit, with every weight copied: what is left is the weighted sum of output vectors."""
    fields = {**SMALL, "score": score, "memory_qk_norm": True}
    ones = Config(**fields, shared_keys=False, activation="one").build(11)
    initialise(ones, 0)
    memories = memory.Config(**fields).build(11)
    initialise(memories, 1)
    state = ones.state_dict()
    state["memory_table.weight"] = state.pop("expert_outputs.weight")
    del state["expert_inputs.weight"]
    memories.load_state_dict(state)

    assert torch.equal(ones(TOKENS), memories(TOKENS))
    gradient = torch.autograd.grad(ones(TOKENS).logsumexp(-1).sum(), ones.expert_outputs.weight)
    expected = torch.autograd.grad(
        memories(TOKENS).logsumexp(-1).sum(), memories.memory_table.weight
    )
    assert torch.equal(gradient[0], expected[0])


@pytest.mark.parametrize(("n_keys", "n_heads"), [(1, 1), (3, 1), (4, 3)])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_with_every_expert_and_weights_of_one_it_is_a_dense_block(n_keys, n_heads, activation):
    """Scores so high that their sigmoid is 1 in float64; every head adds the same block, whose width is n_keys**2."""
    layer = _layer(
        n_keys=n_keys, n_heads=n_heads, knn=n_keys**2, score="sigmoid", activation=activation
    )
    with torch.no_grad():
        layer.query.bias.fill_(100.0)
        layer.query.weight.zero_()
        layer.sub_keys.add_(1.0)
    up, down = layer.inputs.module.weight, layer.outputs.module.weight
    x = _tokens().requires_grad_()
    act = {"gelu": functional.gelu, "relu": torch.relu}[activation]
    expected = n_heads * functional.linear(act(functional.linear(x, up)), down.T)

    found = layer(x, CONTEXT)

    _, weights = layer.select(x)
    assert (weights == 1.0).all()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), (x, up, down)),
        torch.autograd.grad(expected.square().sum(), (x, up, down)),
    )


def test_gradients_of_the_layer_by_finite_differences():
    layer = _layer(d_model=3, n_keys=3, knn=4, key_dim=2)
    x = _tokens(2)[:, :3].clone().requires_grad_()
    tables = (layer.inputs.module.weight, layer.outputs.module.weight)

    assert torch.autograd.gradcheck(
        lambda x, *_: layer(x, CONTEXT), (x, *tables, *layer.parameters())
    )


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"shared_keys": False, "activation": "relu"},
        {"score": "sigmoid", "query_batch_norm": True, "memory_qk_norm": True},
        {"score": "relu", "peer_layer": 0},
    ],
    ids=str,
)
def test_gradients_of_the_whole_model_by_finite_differences(check_gradients, fields):
    tiny = {"d_model": 4, "n_layers": 2, "n_heads": 1, "d_ff": 3, "n_keys": 4, "knn": 3}

    check_gradients(Config(**{**tiny, "n_memory_heads": 2, "key_dim": 2, **fields}))


def test_only_chosen_experts_get_a_gradient():
    layer = _layer(n_keys=20)
    ids, _ = layer.select(_tokens())

    layer(_tokens(), CONTEXT).square().sum().backward()

    chosen = torch.zeros(400, dtype=torch.bool)
    chosen[ids] = True
    for table in (layer.inputs.module.weight, layer.outputs.module.weight):
        assert table.grad is not None
        assert torch.equal(table.grad.any(dim=1), chosen)


def test_statistics_are_of_experts_by_their_weights():
    model = _model()
    model(TOKENS)
    slot = model.layers[1].feed_forward
    reads, mass = slot.usage.reads.clone(), slot.usage.mass.double() / 2**24

    values = model.statistics()

    assert reads.sum() == 11 * 2 * 4
    # Softmax: every head of every token gives a weight of one in all.
    assert mass.sum().item() == pytest.approx(11 * 2, abs=1e-3)
    assert values["memory/layer_01/usage"] == (reads > 0).double().mean().item()
    assert values["memory/output_ratio"] > 0.0


def test_query_batch_norm_is_declared_not_to_be_causal_in_training():
    assert set(Config(**SMALL, query_batch_norm=True).non_causal_reasons) == {"training"}
    assert Config(**SMALL).non_causal_reasons == {}


def test_presets():
    for preset, layer in {"134m": 6, "373m": 12, "720m": 11, "1.3b": 11}.items():
        config = Config(**PRESETS[preset])
        assert config.placement == (layer,)
        shared = {name: PRESETS[preset][name] for name in dense.PRESETS[preset]}
        assert shared == dense.PRESETS[preset]
        assert config.non_causal_reasons == {}
    lookup = Config(**PRESETS["peer_paper"]).experts.lookup
    assert (lookup.n_slots, lookup.n_heads, lookup.knn) == (1024**2, 8, 16)
    assert lookup.shared_keys
    assert lookup.query_batch_norm


VARIANTS: list[dict[str, Any]] = [
    {},
    {"shared_keys": False, "memory_qk_norm": True},
    {"knn": 8, "n_memory_heads": 5, "n_layers": 1, "activation": "relu"},
    {"knn": 8, "n_memory_heads": 5, "n_layers": 1, "score": "relu"},
    {"query_batch_norm": True},
    {"activation": "one"},
]


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_parameters_and_flops_are_those_of_the_modules(check_flops, fields):
    config = Config(**{**SMALL, **fields})

    assert config.param_count(11).total == sum(p.numel() for p in _model(**fields).parameters())
    # Products of rows are seen, their weighted sums are not.
    check_flops(config, unseen=2 * config.experts.lookup.rows_read * config.d_model)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_activations_are_those_that_autograd_keeps(check_activations, fields, precision):
    check_activations(Config(**{**SMALL, **fields}), precision, rel=0.025)


def test_a_token_reads_its_experts_from_both_tables():
    config = Config(**PRESETS["1.3b"])
    count = config.param_count(32_000)

    alone = config.bytes_per_token(32_000)["memory_values"]
    together = config.bytes_per_token(32_000, batch_tokens=1000)["memory_values"]

    assert count.memory_values == 2 * 768**2 * 2048
    assert alone == pytest.approx(2 * 128 * 2048 * 2, rel=1e-3)
    rows = distinct_rows(768**2, draws=4000, without_repetition=32)
    assert together == pytest.approx(2 * rows * 2048 * 2 / 1000)
    unread = count.memory_values - 2 * 128 * 2048
    assert config.active_param_count(32_000) == count.non_embedding - unread


@pytest.mark.parametrize("size", [100_000, 3_000_000, 50_000_000])
def test_members_of_the_family_have_about_the_size_asked_for(size):
    config = Config.nearest_size(size)

    assert config.param_count(1).non_embedding == pytest.approx(size, rel=0.05)
