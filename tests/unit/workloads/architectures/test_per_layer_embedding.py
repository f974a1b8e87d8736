"""What is special about `per_layer_embedding`."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from workloads.accounting.counts import ParamCount
from workloads.architectures import dense
from workloads.architectures.per_layer_embedding import PRESETS, Config, PerLayerTransformer
from workloads.layers.context import Context
from workloads.layers.memory.per_layer_embedding import PER_LAYER_INPUTS
from workloads.layers.modules.init import initialise
from workloads.layers.modules.param_groups import param_groups

SMALL: dict[str, Any] = {
    "d_model": 16,
    "n_layers": 3,
    "n_heads": 2,
    "d_ff": 24,
    "per_layer_dim": 5,
}


def _model(**fields: Any) -> PerLayerTransformer:
    model = Config(**{**SMALL, **fields}).build(11)
    initialise(model, 0)
    return model


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"per_layer_dim": 0}, "per_layer_dim must be at least 1, got 0; the nearest is 1, or use"),
        ({"d_ff": 0}, "d_ff must be at least 1, got 0"),
        ({"n_heads": 5}, r"n_heads must divide d_model \(16\)"),
    ],
)
def test_refuses(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**{**SMALL, **fields})


@given(
    n_layers=st.integers(1, 4),
    per_layer_dim=st.integers(1, 9),
    d_model=st.sampled_from([4, 12, 24]),
    tied=st.booleans(),
    vocab_size=st.integers(1, 60),
)
@settings(deadline=None, max_examples=25)
def test_parameters_are_the_closed_form(n_layers, per_layer_dim, d_model, tied, vocab_size):
    fields = {"d_model": d_model, "n_layers": n_layers, "n_heads": 2, "d_ff": 8}
    config = Config(**fields, per_layer_dim=per_layer_dim, tied_embeddings=tied)
    plain = dense.Config(**fields, tied_embeddings=tied).param_count(vocab_size)
    with torch.device("meta"):
        model = config.build(vocab_size)
    found = dict.fromkeys(ParamCount().as_dict(), 0)
    groups = param_groups(model)
    for name, parameter in model.named_parameters():
        found[groups[name]] += parameter.numel()

    count = config.param_count(vocab_size)

    assert count.as_dict() == found
    # V L p + d L p + L (2 d p + d), and the one gain of p numbers that all layers share.
    d, L, p = d_model, n_layers, per_layer_dim
    extra = vocab_size * L * p + d * L * p + L * (2 * d * p + d) + p
    assert count.total - plain.total == extra
    assert count.memory_values == vocab_size * L * p


def test_the_table_is_as_large_as_in_gemma_4_e2b():
    # 262,144 tokens, 35 layers of 256 numbers: the row of 8,960 that users of the released model
    # found.
    config = Config(**{**SMALL, "n_layers": 35, "per_layer_dim": 256})

    assert config.per_layer.all_widths == 8960
    assert config.param_count(262_144).memory_values == 2_348_810_240


def test_active_parameters_count_one_row():
    config = Config(**SMALL)
    count = config.param_count(1000)

    assert config.active_param_count(1000) == count.non_embedding - 999 * 3 * 5


def test_bytes_are_those_of_a_row_for_every_different_token():
    config = Config(**PRESETS["1.3b"])
    row_bytes = 2 * 22 * 256

    alone = config.bytes_per_token(32_000)["memory_values"]
    together = config.bytes_per_token(32_000, batch_tokens=10**6)["memory_values"]

    assert alone == pytest.approx(row_bytes)
    assert together == pytest.approx(32_000 * row_bytes / 10**6)


@pytest.mark.parametrize("seq_len", [1, 12])
def test_flops_are_those_that_torch_counts_but_for_the_bag(check_flops, seq_len):
    check_flops(Config(**SMALL), seq_len=seq_len, unseen=2 * 3 * 5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_are_those_that_autograd_keeps(check_activations, precision):
    config = Config(d_model=48, n_layers=3, n_heads=3, d_ff=96, per_layer_dim=20)

    check_activations(config, precision, rel=0.015)


def test_without_its_gains_it_is_the_dense_model():
    """Same names, same initial values: what the slices add is the only difference."""
    model, tokens = _model(), torch.arange(11)[None]
    plain = dense.Config(**{k: v for k, v in SMALL.items() if k != "per_layer_dim"}).build(11)
    initialise(plain, 0)
    with_slices = model(tokens)
    with torch.no_grad():
        for layer in model.layers:
            layer.per_layer.norm.gain.zero_()

    assert torch.equal(model(tokens), plain(tokens))
    assert not torch.allclose(with_slices, plain(tokens), atol=0.1)


def test_every_layer_reads_its_own_slice():
    model, tokens = _model(), torch.tensor([[4, 7, 4]])

    model(tokens).logsumexp(-1).sum().backward()

    gradient = model.per_layer_table.weight.grad
    assert gradient.abs().sum(dim=1).nonzero().flatten().tolist() == [4, 7]
    assert (gradient[[4, 7]].view(2, 3, 5).abs().sum(dim=(0, 2)) > 0).all()
    muted = _model()
    with torch.no_grad():
        muted.layers[1].per_layer.norm.gain.zero_()
    muted(tokens).logsumexp(-1).sum().backward()
    slices = muted.per_layer_table.weight.grad.view(11, 3, 5).abs().sum(dim=(0, 2))
    assert (slices > 0).tolist() == [True, False, True]


def test_statistics_are_about_the_vocabulary():
    model = _model()
    model(torch.tensor([[4, 7, 4, 4]]))

    values = model.statistics()

    assert values["memory/usage"] == 2 / 11
    assert values["memory/effective_rows"] == 1.0
    assert values["memory/distinct_rows"] == 2.0
    assert values["memory/max_over_mean"] == pytest.approx(3 / (4 / 11))
    assert values["memory/output_ratio"] > 0


def test_papers_shapes_read_256_numbers_a_layer():
    assert {PRESETS[name]["per_layer_dim"] for name in ("134m", "373m", "720m", "1.3b", "8b")} == {
        256
    }


@pytest.mark.parametrize("size", [30_000, 3_000_000, 100_000_000])
def test_members_of_a_size(size):
    assert Config.nearest_size(size).param_count(1).non_embedding == pytest.approx(size, rel=0.1)


class _NoMixer(nn.Module):
    """In place of their attention, which the test does not ask about."""

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        return torch.zeros_like(hidden_states), None


def _alike(theirs: Any, ours: PerLayerTransformer) -> list[tuple[Tensor, Tensor]]:
    """Return the parameters of a Gemma 4 that the test is about, each with ours."""
    pairs = [
        (theirs.embed_tokens_per_layer.weight, ours.per_layer_table.weight),
        (theirs.per_layer_model_projection.weight, ours.per_layer_inputs.projection.weight),
        (theirs.per_layer_projection_norm.weight, ours.per_layer_inputs.norm.gain),
    ]
    for their, our in zip(theirs.layers, ours.layers, strict=True):
        pairs += [
            (their.per_layer_input_gate.weight, our.per_layer.gate.weight),
            (their.per_layer_projection.weight, our.per_layer.output.weight),
            (their.post_per_layer_input_norm.weight, our.per_layer.norm.gain),
        ]
    return pairs


def test_inputs_and_gates_are_those_of_gemma_4(monkeypatch):
    """Values and gradients in float64, random weights; attention and feed-forward add nothing."""
    from transformers.models.gemma4 import modeling_gemma4  # seconds, so only where it runs

    ours = _model().double()
    theirs = modeling_gemma4.Gemma4TextModel(
        modeling_gemma4.Gemma4TextConfig(
            vocab_size=11,
            vocab_size_per_layer_input=11,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=3,
            num_attention_heads=2,
            num_key_value_heads=2,
            num_kv_shared_layers=0,
            head_dim=8,
            layer_types=["full_attention"] * 3,
            hidden_size_per_layer_input=5,
            rms_norm_eps=Config(**SMALL).norm_eps,
        )
    ).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in ours.parameters():
            value.copy_(torch.randn(value.shape, generator=generator, dtype=torch.float64))
        for their in theirs.layers:
            their.self_attn = _NoMixer()
            their.mlp.down_proj.weight.zero_()
        pairs = _alike(theirs, ours)
        for their, our in pairs:
            their.copy_(our)
    # Token 0 is their padding, whose row gets no gradient.
    tokens = torch.randint(1, 11, (2, 7), generator=generator)
    embedded = ours.embedding.weight[tokens].detach().requires_grad_()
    context = Context(tokens=tokens)
    monkeypatch.setattr(Tensor, "float", Tensor.double)  # their norms work in fp32

    found = ours.per_layer_inputs(embedded, tokens, context)
    # Their first residual stream is sqrt(d_model) times the embedding.
    looked_up = theirs.get_per_layer_inputs(tokens, None)
    expected = theirs.project_per_layer_inputs(embedded * 16**0.5, looked_up)

    # The factor sqrt(width) is fp32 on both sides.
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    context.shared[PER_LAYER_INPUTS] = expected
    for i, (their, our) in enumerate(zip(theirs.layers, ours.layers, strict=True)):
        added = our.per_layer(embedded, context)
        torch.testing.assert_close(embedded + added, their(embedded.clone(), expected[:, :, i]))

    context.shared[PER_LAYER_INPUTS] = found
    of_ours = [embedded + layer.per_layer(embedded, context) for layer in ours.layers]
    of_theirs = [their(embedded, expected[:, :, i]) for i, their in enumerate(theirs.layers)]
    along = torch.randn(3, *embedded.shape, generator=generator, dtype=torch.float64)
    theirs_by, ours_by = (
        torch.autograd.grad(torch.stack(outputs), [embedded, *parameters], along)
        for outputs, parameters in zip((of_theirs, of_ours), zip(*pairs, strict=True), strict=True)
    )
    assert all(gradient.any() for gradient in theirs_by)
    torch.testing.assert_close(ours_by, theirs_by, rtol=1e-6, atol=1e-6)
