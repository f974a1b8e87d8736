"""What is special about `moe`."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from workloads.accounting.counts import ParamCount
from workloads.architectures import dense
from workloads.architectures.moe import PRESETS, Config
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.cache import Cache
from workloads.layers.modules.init import initialise
from workloads.layers.modules.moe import MixtureOfExperts
from workloads.layers.modules.param_groups import param_groups

SMALL: dict[str, Any] = {
    "d_model": 16,
    "n_layers": 4,
    "n_heads": 2,
    "n_experts": 6,
    "d_expert": 8,
    "top_k": 2,
}
EXPERT_CHOICE: dict[str, Any] = {**SMALL, "top_k": 1, "routing": "expert_choice"}


def _model(**fields: Any) -> Transformer:
    model = Config(**{**SMALL, **fields}).build(11)
    initialise(model, 0)
    return model


def _tokens(batch: int = 2, seq: int = 12) -> Tensor:
    return torch.randint(11, (batch, seq), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_experts": 0}, "n_experts must be at least 1, got 0; the nearest is 1"),
        ({"d_expert": 0}, "d_expert must be at least 1, got 0; the nearest is 1"),
        ({"top_k": 0}, "top_k must be at least 1, got 0; the nearest is 1"),
        ({"top_k": 7}, r"top_k must lie in 1\.\.n_experts \(6\), got 7; the nearest is 6"),
        ({"n_shared_experts": -1}, "n_shared_experts must be at least 0, got -1; the nearest is 0"),
        (
            {"balance_loss": -0.1},
            "balance_loss must be at least 0 or null, got -0.1; the nearest is 0",
        ),
        ({"z_loss": float("nan")}, "z_loss must be at least 0, got nan"),
        ({"capacity": 1.5}, "capacity must be null where tokens choose .*, got 1.5"),
        ({"evaluation": "expert_choice"}, "evaluation must be top_1, .* where tokens choose"),
        (
            {"top_k": 1, "renormalise": True},
            "renormalise must be false with a top_k of 1 .*; the nearest top_k is 2",
        ),
        ({"moe_layers": ()}, "moe_layers must name at least one layer, got none; use `dense`"),
        (
            {"moe_layers": (1, 4), "d_ff": 8},
            r"moe_layers must stay within 0\.\.n_layers - 1 \(3\), got \[1, 4\]; the nearest are \[1, 3\]",
        ),
        (
            {"moe_layers": (2, 1), "d_ff": 8},
            r"moe_layers must be rising without repetition, got \[2, 1\]; write \[1, 2\]",
        ),
        (
            {"moe_layers": (1,), "moe_stride": 2, "d_ff": 8},
            "moe_stride must be null when moe_layers is given, got 2",
        ),
        (
            {"moe_first": 4, "d_ff": 8},
            r"moe_first must lie in 0\.\.n_layers - 1 \(3\), got 4; the nearest is 3",
        ),
        (
            {"moe_stride": 0, "d_ff": 8},
            "moe_stride must be at least 1 or null, got 0; the nearest is 1",
        ),
        (
            {"moe_stride": 2, "n_shared_experts": 1},
            r"d_ff must be given where layers have no experts \(2 of 4\), got null; .* is 24",
        ),
        ({"d_ff": 24}, "d_ff must be null where every layer has experts, got 24"),
        ({"d_ff": 0, "moe_first": 1}, "d_ff must be at least 1 or null, got 0; the nearest is 1"),
        ({"n_heads": 5}, r"n_heads must divide d_model \(16\)"),
    ],
)
def test_refuses(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**{**SMALL, **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"top_k": 2}, "top_k must be 1 with routing expert_choice, got 2; write top_k: 1"),
        (
            {"capacity": 6.5},
            r"capacity must lie above 0 and up to n_experts \(6\), got 6.5; the nearest is 6",
        ),
        ({"capacity": 0.0}, r"capacity must lie above 0 .*, got 0.0; the nearest is 1"),
        ({"renormalise": True}, "renormalise must be false with routing expert_choice"),
        (
            {"balance_loss": 0.01},
            "balance_loss must be null or 0 with routing expert_choice .*, got 0.01",
        ),
        ({"selection_bias": True}, "selection_bias must be false with routing expert_choice"),
    ],
)
def test_refuses_where_experts_choose(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**{**EXPERT_CHOICE, **fields})


def test_what_experts_choose_may_be_shared_out_besides():
    Config(**EXPERT_CHOICE, n_shared_experts=1, balance_loss=0.0, capacity=6.0)


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({}, (0, 1, 2, 3)),
        ({"moe_first": 1, "d_ff": 8}, (1, 2, 3)),
        ({"moe_stride": 2, "d_ff": 8}, (0, 2)),
        ({"moe_first": 1, "moe_stride": 2, "d_ff": 8}, (1, 3)),
        ({"moe_layers": (0, 3), "d_ff": 8}, (0, 3)),
    ],
)
def test_experts_are_where_the_placement_says(fields, layers):
    model = _model(**fields)

    found = tuple(
        index
        for index, layer in enumerate(model.layers)
        if isinstance(layer.feed_forward, MixtureOfExperts)
    )

    assert Config(**{**SMALL, **fields}).placement == found == layers


def test_tokens_that_choose_do_not_leak_and_experts_that_do_say_so():
    assert Config(**SMALL).non_causal_reasons == {}
    assert Config(**EXPERT_CHOICE).non_causal_reasons.keys() == {"training"}
    both = Config(**EXPERT_CHOICE, evaluation="expert_choice", group="sequence").non_causal_reasons
    assert both.keys() == {"training", "evaluation"}
    assert "all tokens of its sequence" in both["training"]


@pytest.mark.parametrize(
    ("fields", "training", "leaks"),
    [
        ({"top_k": 2}, True, False),
        (EXPERT_CHOICE, True, True),
        (EXPERT_CHOICE, False, False),
        ({**EXPERT_CHOICE, "evaluation": "expert_choice"}, False, True),
    ],
)
def test_a_leak_is_one(fields, training, leaks):
    model, tokens = _model(**fields).train(training), _tokens()
    changed = tokens.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 11

    same = torch.allclose(model(changed)[:, :6], model(tokens)[:, :6], rtol=1e-5, atol=1e-5)

    assert same is not leaks
    mode = "training" if training else "evaluation"
    assert (mode in Config(**{**SMALL, **fields}).non_causal_reasons) is leaks


def test_a_model_whose_experts_choose_decodes_in_evaluation_only():
    model, tokens = _model(**EXPERT_CHOICE), _tokens()

    with pytest.raises(ValueError, match="put the model into evaluation mode"):
        model(tokens[:, :3], Cache(len(tokens), 3))
    cache = Cache(*tokens.shape)
    with torch.no_grad():
        parts = [model.eval()(piece, cache) for piece in tokens.split([5, 1, 6], dim=1)]

    torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "balance"),
    [
        ({}, 0.01),
        ({"selection_bias": True}, 0.0),
        ({"selection_bias": True, "balance_loss": 0.0001}, 0.0001),
        (EXPERT_CHOICE, 0.0),
    ],
)
def test_the_balance_loss_is_on_where_nothing_else_balances(fields, balance):
    config = Config(**{**SMALL, **fields})

    assert config.mixture.balance_loss * config.n_layers == pytest.approx(balance)
    assert config.mixture.z_loss * config.n_layers == pytest.approx(0.001)


@pytest.mark.parametrize("moe_layers", [(2,), (0, 1, 2)])
def test_even_loads_cost_the_coefficient_whatever_the_depth(moe_layers):
    # Every expert works on every token.
    model = _model(top_k=6, z_loss=0.0, moe_layers=moe_layers, d_ff=8)

    model(_tokens())

    assert model.auxiliary_loss().item() == pytest.approx(0.01)


def test_evaluation_adds_no_loss():
    model = _model().eval()
    model(_tokens())

    assert model.auxiliary_loss() is None


@st.composite
def _fields(draw: st.DrawFn) -> dict[str, Any]:
    n_heads, n_layers, n_experts = (draw(st.integers(1, 3)) for _ in range(3))
    layers = draw(st.sets(st.integers(0, n_layers - 1), min_size=1))
    by_experts = draw(st.booleans())
    choice = (
        {"routing": "expert_choice", "capacity": draw(st.sampled_from([1.0, n_experts / 2, None]))}
        if by_experts
        else {"top_k": draw(st.integers(1, n_experts)), "selection_bias": draw(st.booleans())}
    )
    return {
        "d_model": 2 * n_heads * draw(st.integers(1, 4)),
        "n_layers": n_layers,
        "n_heads": n_heads,
        "qk_norm": draw(st.booleans()),
        "n_experts": n_experts,
        "d_expert": draw(st.integers(1, 9)),
        "n_shared_experts": draw(st.integers(0, 2)),
        "moe_layers": tuple(sorted(layers)),
        "d_ff": draw(st.integers(1, 20)) if len(layers) < n_layers else None,
        **choice,
    }


@given(fields=_fields(), vocab_size=st.integers(1, 50))
def test_parameters_group_by_group(fields, vocab_size):
    config = Config(**fields)
    with torch.device("meta"):
        model = config.build(vocab_size)
    found = dict.fromkeys(ParamCount().as_dict(), 0)
    groups = param_groups(model)
    for name, parameter in model.named_parameters():
        found[groups[name]] += parameter.numel()

    assert config.param_count(vocab_size).as_dict() == found


@given(fields=_fields(), vocab_size=st.integers(1, 50))
@settings(deadline=None, max_examples=25)
def test_flops_are_those_that_torch_counts(fields, vocab_size):
    """Exact: twelve tokens are shared out evenly among up to three experts."""
    config = Config(**fields)
    model = config.build(vocab_size)
    initialise(model, 0)
    counter = FlopCounterMode(display=False)
    with counter, nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        model(torch.zeros(1, 12, dtype=torch.long))
    unseen_half = 2 * 12 * config.n_layers * config.d_model

    flops = config.flops_per_token(vocab_size, 12).total
    assert counter.get_total_flops() == pytest.approx(12 * (flops + unseen_half), rel=1e-12)


def test_flops_grow_with_the_experts_of_a_token_and_not_with_their_number():
    def flops(**fields: Any) -> float:
        return Config(**{**SMALL, **fields}).flops_per_token(11, 64).feed_forward

    assert flops(n_experts=60) == flops()
    assert flops(top_k=4) == 2 * flops()
    assert flops(n_shared_experts=2) == 2 * flops()
    assert flops(top_k=1, routing="expert_choice", capacity=2.0) == flops()


def test_active_parameters_are_those_of_a_tokens_experts():
    config = Config(**SMALL, n_shared_experts=1)
    expert = 3 * 16 * 8

    idle = config.param_count(11).non_embedding - config.active_param_count(11)

    assert idle == 4 * (6 - 2) * expert
    one = Config(**EXPERT_CHOICE)
    assert one.param_count(11).non_embedding - one.active_param_count(11) == 4 * 5 * expert


def test_bytes_of_experts_are_those_that_the_batch_needs():
    config = Config(**PRESETS["olmoe_1b"])
    expert_bytes = 2 * 3 * 2048 * 1024

    def experts_read(batch_tokens: int) -> float:
        found = config.bytes_per_token(50_304, batch_tokens=batch_tokens)["feed_forward"]
        return found * batch_tokens / (16 * expert_bytes)

    assert experts_read(1) == pytest.approx(8)
    # Each of sixteen tokens leaves an expert out with probability 7/8.
    assert experts_read(16) == pytest.approx(64 * (1 - (7 / 8) ** 16))
    assert experts_read(10_000) == pytest.approx(64)
    shared = Config(**SMALL, n_shared_experts=3).bytes_per_token(11)["feed_forward"]
    assert shared == pytest.approx(4 * 2 * (2 + 3) * 3 * 16 * 8)


def test_experts_that_choose_in_evaluation_are_all_read():
    alone = Config(**EXPERT_CHOICE).bytes_per_token(11)["feed_forward"]
    all_of_them = Config(**EXPERT_CHOICE, evaluation="expert_choice").bytes_per_token(11)

    assert all_of_them["feed_forward"] == pytest.approx(6 * alone)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 3, "n_shared_experts": 2, "renormalise": True},
        {"top_k": 1, "selection_bias": True, "z_loss": 0.0, "moe_first": 1, "d_ff": 64},
        {"top_k": 1, "routing": "expert_choice", "capacity": 2.0, "group": "sequence"},
    ],
    ids=["fine-grained", "bias", "expert choice"],
)
def test_activations_are_those_that_autograd_keeps(fields, precision, bytes_kept):
    config = Config(d_model=48, n_layers=2, n_heads=3, n_experts=4, d_expert=24, **fields)
    model = config.build(100)
    initialise(model, 0)
    model.recording_usage = False

    kept = bytes_kept(model, torch.arange(8192).view(-1, 64) % 100, precision) / 8192

    # Logits and probabilities belong to the loss, which is not taken here.
    loss = (8 if precision == "fp32" else 6) * 100
    expected = config.activation_bytes_per_token(100, 64, precision=precision) - loss
    assert kept == pytest.approx(expected, rel=0.015)


def test_initial_experts_are_as_large_as_a_dense_block():
    model = _model()
    experts = model.layers[0].feed_forward.experts

    assert experts.gate.std().item() == pytest.approx(16**-0.5, rel=0.1)
    assert experts.down.std().item() == pytest.approx(8**-0.5, rel=0.1)
    assert not torch.equal(experts.gate[0], experts.gate[1])


def test_statistics_name_the_layers_with_experts():
    model = _model(moe_layers=(1, 3), d_ff=8)
    model(_tokens())

    values = model.statistics()

    assert {name.split("/")[1] for name in values if name.count("/") == 2} == {
        "layer_01",
        "layer_03",
    }
    assert values["moe/dropped_share"] == 0.0
    assert values["moe/output_ratio"] > 0
    assert 1 <= values["moe/max_over_mean"] <= 3


@pytest.mark.parametrize("preset", ["d8", "d64", "1m", "3m", "10m", "30m", "8b"])
def test_presets_of_ours_cost_about_as_much_as_the_dense_model_of_their_name(preset):
    ours = Config(**PRESETS[preset]).flops_per_token(32_000, 256).total
    theirs = dense.Config(**dense.PRESETS[preset]).flops_per_token(32_000, 256).total

    assert ours == pytest.approx(theirs, rel=0.03)


@pytest.mark.parametrize("size", [30_000, 3_000_000, 100_000_000])
def test_members_of_a_size(size):
    config = Config.nearest_size(size)

    assert config.param_count(1).non_embedding == pytest.approx(size, rel=0.1)
    assert Config.nearest_size(size, top_k=1).top_k == 1


@pytest.mark.parametrize("name", ["routing", "evaluation", "group"])
def test_refuses_words_that_it_does_not_know(name):
    with pytest.raises(ValueError, match=f"{name} must be one of .*, got 'Sequence'"):
        Config(**{**SMALL, name: "Sequence"})
