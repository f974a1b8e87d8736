"""What is special about `linformer`: the projection of every prefix, against the direct form in float64."""

import pytest
import torch

from workloads.architectures import pythia
from workloads.architectures.linformer import PRESETS, Config, PrefixAttention
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.context import Context
from workloads.layers.modules.init import initialise

SMALL = {
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 2,
    "d_ff": 24,
    "projected_len": 5,
    "max_seq_len": 32,
}


def _model(**fields: object) -> Transformer:
    model = Config(**{**SMALL, **fields}).build(11)
    initialise(model, 0)
    return model


@pytest.mark.parametrize("equal_prefixes", [False, True])
@pytest.mark.parametrize("chunk", [3, 64])
def test_equals_softmax_over_the_projected_prefix(chunk, equal_prefixes):
    config = Config(**SMALL, chunk_tokens=chunk, rotary_fraction=0.0)
    mixer = config.mixer(PrefixAttention, equal_prefixes=equal_prefixes).double()
    initialise(mixer, 0)
    x = torch.randn(2, 10, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    heads = mixer.query_key_value(x).unflatten(-1, (3, 2, 8)).movedim(2, 0).transpose(2, 3)
    query, key, value = heads
    outputs = []
    for t in range(1, 11):
        scale = (32 / t) ** 0.5 if equal_prefixes else 1.0
        keys = scale * mixer.key_projection[:t].T @ key[:, :, :t]
        values = scale * mixer.value_projection[:t].T @ value[:, :, :t]
        weights = (keys @ query[:, :, t - 1, :, None] / 8**0.5).softmax(dim=-2)
        outputs.append((weights.mT @ values)[:, :, 0])
    expected = mixer.output(torch.stack(outputs, dim=1).flatten(2))

    found = mixer(x, Context(tokens=torch.zeros(2, 10, dtype=torch.long)))

    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    parameters = list(mixer.parameters())
    gradients = (torch.autograd.grad(y.square().sum(), parameters) for y in (found, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_gradients(check_gradients):
    check_gradients(Config(**SMALL, chunk_tokens=2))


def test_positions_that_no_token_had_get_no_gradient():
    model = _model()
    model(torch.zeros(1, 9, dtype=torch.long)).square().sum().backward()

    for layer in model.layers:
        for projection in (layer.mixer.key_projection, layer.mixer.value_projection):
            assert projection.shape == (32, 5)
            assert projection.grad[:9].any(dim=1).all()
            assert not projection.grad[9:].any()


def test_equal_prefixes_begin_at_one_scale():
    """Without, the mixture at the first position is smaller than the one at the last by their root."""

    def sizes(equal_prefixes: bool) -> torch.Tensor:
        config = Config(**{**SMALL, "max_seq_len": 256, "projected_len": 16})
        mixer = config.mixer(PrefixAttention, equal_prefixes=equal_prefixes)
        initialise(mixer, 0)
        query, key, value = torch.randn(
            3, 64, 2, 256, 8, generator=torch.Generator().manual_seed(0)
        )
        context = Context(tokens=torch.zeros(64, 256, dtype=torch.long))
        mixed = mixer.mix(query, key, value, context).detach()
        return mixed.square().mean(dim=(0, 1, 3)).sqrt()

    equal, plain = sizes(True), sizes(False)
    assert equal[-1].item() == pytest.approx(plain[-1].item(), rel=1e-5)
    assert (equal[0] / equal[-1]).item() == pytest.approx(1.0, abs=0.4)
    assert plain[0] / plain[-1] < 0.15


def test_initial_projections_are_even_within_the_sources_bounds():
    projection = _model(max_seq_len=4096).layers[0].mixer.key_projection

    assert projection.abs().max() <= 5**-0.5
    assert projection.std().item() == pytest.approx((3 * 5) ** -0.5, rel=0.02)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"projected_len": 0}, "projected_len must be at least 1, got 0; the nearest is 1"),
        ({"d_ff": 0}, "d_ff must be at least 1, got 0"),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**{**SMALL, **fields})


def test_projections_count_as_attention():
    ours, base = Config(**PRESETS["410m"]), pythia.Config(**pythia.PRESETS["410m"])
    count, other = ours.param_count(50_304), base.param_count(50_304)

    assert count.attention - other.attention == 24 * 2 * 256 * 2048
    assert count.total - other.total == 24 * 2 * 256 * 2048
    # A token reads of E and F what belongs to its own position.
    assert ours.active_param_count(1) - other.non_embedding == 24 * 2 * 256
    assert ours.longest_sequence == 2048


def test_bytes_of_projections_are_those_of_the_positions_read():
    config, n_layers = Config(**SMALL), 2
    without = 4 * 16 * 16 + 4 * 16

    def read(batch_tokens: int) -> float:
        found = config.bytes_per_token(11, batch_tokens=batch_tokens)["attention"]
        return found * batch_tokens / 2 / n_layers - without

    assert read(1) == 2 * 5
    assert read(8) == pytest.approx(8 * 2 * 5)
    assert read(1000) == pytest.approx(32 * 2 * 5)


def test_cost():
    """Per layer of 16 heads: twice half a chunk's square, and two states of 64 x 256."""
    mixing = 16 * 2 * (64 * (64 + 256) + 4 * 64 * 256)
    flops = Config(**PRESETS["410m"]).flops_per_token(50_304, 2048)

    assert flops.attention == 24 * (8 * 1024**2 + mixing)
