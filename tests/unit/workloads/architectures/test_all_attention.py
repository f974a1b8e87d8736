"""What is special about `all_attention`: one softmax over positions and persistent vectors, and nothing else."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from workloads.architectures import dense, pythia
from workloads.architectures.all_attention import PRESETS, AllAttention, Config
from workloads.kernels.all_attention import fused, op, reference
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.context import Context
from workloads.layers.mixers.attention import rotate, rotation_table
from workloads.layers.modules.init import initialise
from workloads.layers.modules.param_groups import param_groups

SMALL = {"d_model": 16, "n_layers": 2, "n_heads": 4, "n_persistent": 6}


def _model(**fields: object) -> Transformer:
    model = Config(**{**SMALL, **fields}).build(11)
    initialise(model, 0)
    return model


def _mixer(**fields: object) -> AllAttention:
    config = Config(**{**SMALL, **fields})
    mixer = AllAttention(config.attention, n_persistent=config.n_persistent, norm_eps=1e-5)
    initialise(mixer, 0)
    return mixer.double()


@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_equals_softmax_over_everything_at_once(n_kv_heads, qk_norm):
    """Brute force: persistent keys meet the query that is not turned, and every vector has its stored size back."""
    mixer = _mixer(n_kv_heads=n_kv_heads, qk_norm=qk_norm)
    x = torch.randn(2, 7, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rotation = rotation_table(7, 4, base=100.0, device=x.device).double()
    rows = mixer.query_key_value.weight.split((16, 4 * n_kv_heads, 4 * n_kv_heads))
    query, key, value = ((x @ w.T).unflatten(-1, (-1, 4)) for w in rows)
    if qk_norm:
        query, key = (y * (y.square().mean(-1, keepdim=True) + 1e-5).rsqrt() for y in (query, key))
    key, value = (y.repeat_interleave(4 // n_kv_heads, dim=2) for y in (key, value))
    keys = mixer.persistent.keys * 4**0.5
    values = mixer.persistent.values * 6**0.5
    context = torch.einsum("bqhd,bkhd->bhqk", rotate(query, rotation), rotate(key, rotation))
    context = context.masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), -torch.inf)
    persistent = torch.einsum("bqhd,hnd->bhqn", query, keys)
    weights = (torch.cat((context, persistent), dim=-1) / 2.0).softmax(-1)
    mixed = torch.einsum("bhqk,bkhd->bqhd", weights[..., :7], value)
    mixed = mixed + torch.einsum("bhqn,hnd->bqhd", weights[..., 7:], values)
    expected = mixed.flatten(2) @ mixer.output.weight.T

    found = mixer(x, Context(tokens=torch.zeros(2, 7, dtype=torch.long), rotation=rotation))

    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_gradients(check_gradients):
    check_gradients(Config(**SMALL, n_kv_heads=2))


def test_persistent_vectors_have_no_position():
    """What a lone token reads of them is the same wherever it stands; with the query turned it would not be."""
    mixer = _mixer()
    x = torch.randn(1, 1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tokens = torch.zeros(1, 1, dtype=torch.long)
    outputs = []
    for start in (0, 1, 100):
        at = torch.tensor([[start]])
        rotation = rotation_table(1, 4, base=100.0, device=x.device, positions=at).double()
        outputs.append(mixer(x, Context(tokens=tokens, rotation=rotation)))

    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], rtol=1e-5, atol=1e-6)


def test_begins_at_size_one_and_is_stored_smaller():
    mixer = AllAttention(
        Config(**{**SMALL, "d_model": 64, "n_persistent": 400}).attention,
        n_persistent=400,
        norm_eps=1e-5,
    )
    initialise(mixer, 0)
    stored = (mixer.persistent.keys, mixer.persistent.values)

    for vectors, read, share in zip(stored, mixer.persistent(), (16, 400), strict=True):
        assert vectors.shape == (4, 400, 16)
        assert vectors.std().item() == pytest.approx(share**-0.5, rel=0.05)
        assert read.std().item() == pytest.approx(1.0, rel=0.05)


def test_as_large_as_a_block_of_two_matrices_with_four_times_its_width():
    """4 d^2 + 2 N d; a dense block has 4 d^2 + 2 d d_ff."""
    d, n_layers = 512, 6
    count = Config(d_model=d, n_layers=n_layers, n_heads=8, n_persistent=4 * d).param_count(1)
    block = pythia.Config(d_model=d, n_layers=n_layers, n_heads=8, d_ff=4 * d)
    biases = n_layers * (4 * d + 4 * d + d)
    other = block.param_count(1)

    assert count.attention == n_layers * 4 * d**2
    assert count.feed_forward == n_layers * 2 * 4 * d * d
    assert count.attention + count.feed_forward == other.attention + other.feed_forward - biases


@pytest.mark.parametrize("preset", ["d8", "1m", "134m", "1.3b", "8b"])
def test_presets_have_the_parameters_of_dense_blocks(preset):
    ours, other = Config(**PRESETS[preset]), dense.Config(**dense.PRESETS[preset])
    count, theirs = ours.param_count(100), other.param_count(100)

    assert count.attention == theirs.attention
    assert count.feed_forward == theirs.feed_forward
    assert theirs.norm - count.norm == ours.n_layers * ours.d_model
    assert ours.flops_per_token(100, 64) == other.flops_per_token(100, 64)


def test_the_sources_small_model_of_characters():
    """39 million there, with 18 tables of relative positions and learned spans."""
    count = Config(**PRESETS["enwik8"]).param_count(205)

    assert count.attention == count.feed_forward == 18 * 4 * 512**2
    assert count.total == 18 * 8 * 512**2 + 2 * 205 * 512 + 19 * 512
    assert count.total == pytest.approx(39e6, rel=0.03)


def test_persistent_vectors_count_as_feed_forward():
    groups = param_groups(_model())

    assert {group for name, group in groups.items() if ".persistent." in name} == {"feed_forward"}
    assert sum(group == "feed_forward" for group in groups.values()) == 2 * 2


def test_a_whole_sequence_takes_the_fused_way(monkeypatch):
    calls = []
    original = fused.all_attention
    monkeypatch.setattr(
        fused, "all_attention", lambda *tensors: calls.append(1) or original(*tensors)
    )

    _model()(torch.zeros(2, 5, dtype=torch.long))

    assert len(calls) == 2


def test_flops_are_those_that_torch_counts(monkeypatch):
    """By the plain form, since torch's counter does not know the fused one on a CPU; it counts the whole square."""
    monkeypatch.setattr(op, "fused", reference)
    monkeypatch.setattr(reference, "applies", lambda *_: True, raising=False)
    counter = FlopCounterMode(display=False)
    with counter:
        _model()(torch.zeros(1, 9, dtype=torch.long))

    flops = Config(**SMALL).flops_per_token(11, 9)
    assert flops.feed_forward == 2 * 4 * 6 * 16
    unseen_half = 2 * 9 * 2 * 16
    assert counter.get_total_flops() == 9 * (flops.total + unseen_half)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_persistent": 0}, "n_persistent must be at least 1, got 0; the nearest is 1"),
        ({"n_heads": 3}, r"n_heads must divide d_model \(16\) into heads of even width, got 3"),
        ({"n_kv_heads": 3}, r"n_kv_heads must divide n_heads \(4\), got 3; the nearest is 2"),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**{**SMALL, **fields})


def test_has_no_d_ff():
    with pytest.raises(TypeError, match="d_ff"):
        Config(**SMALL, d_ff=24)


def test_sized():
    config = Config.nearest_size(1_000_000, n_heads=4)

    assert config.param_count(1).non_embedding == pytest.approx(1e6, rel=0.05)
    assert config.n_heads == 4
