"""What is special about `latent_attention`: keys and values are read out of a narrow cache."""

import math

import pytest
import torch

from workloads.architectures.latent_attention import PRESETS, Config, LatentAttention
from workloads.field_error import FieldError
from workloads.layers.cache import Cache
from workloads.layers.context import Context
from workloads.layers.mixers.attention import rotate, rotation_table
from workloads.layers.modules.init import initialise

SMALL = {
    "d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24, "latent_dim": 6, "rope_dim": 4,
}  # fmt: skip


def test_equals_the_equations_head_by_head():
    """Equations 9 to 19 of arXiv 2405.04434 without the query's compression, in float64."""
    mixer = LatentAttention(Config(**SMALL).latent_attention, norm_eps=1e-5)
    initialise(mixer, 0)
    mixer.double()
    x = torch.randn(2, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rotation = rotation_table(5, 4, base=100.0, device=x.device).double()

    found = mixer(x, Context(tokens=torch.zeros(2, 5, dtype=torch.long), rotation=rotation))

    down = x @ mixer.down.weight.T
    latent = down[..., :6] / (down[..., :6].pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    shared_key = rotate(down[:, :, None, 6:], rotation)[:, :, 0]
    heads = []
    for head in range(2):
        query = x @ mixer.query.weight[8 * head : 8 * head + 8].T
        turned = rotate(query[:, :, None, 4:], rotation)[:, :, 0]
        up = mixer.up.weight[12 * head : 12 * head + 12]
        key, value = latent @ up[:4].T, latent @ up[4:].T
        scores = query[..., :4] @ key.transpose(1, 2) + turned @ shared_key.transpose(1, 2)
        allowed = torch.ones(5, 5, dtype=torch.bool).tril()
        weights = (scores / math.sqrt(8)).masked_fill(~allowed, -torch.inf).softmax(-1)
        heads.append(weights @ value)
    expected = torch.cat(heads, dim=-1) @ mixer.output.weight.T
    torch.testing.assert_close(found, expected)


def test_the_cache_holds_the_latent_vector_and_one_key_for_all_heads():
    model = Config(**SMALL).build(11)
    initialise(model, 0)
    cache = Cache(3, 7)
    model(torch.zeros(3, 7, dtype=torch.long), cache)

    shapes = {name: tuple(value.shape) for name, value in cache.layer(0).tensors.items()}
    assert shapes == {"latent": (3, 7, 6), "rotary_key": (3, 7, 1, 4)}


@pytest.mark.parametrize("rope_dim", [3, 8])
def test_rotary_columns_are_even_and_leave_others(rope_dim):
    with pytest.raises(FieldError, match="rope_dim must be even and smaller than a head"):
        Config(**{**SMALL, "rope_dim": rope_dim})


def test_heads_share_the_latent_vector():
    with pytest.raises(FieldError, match="n_kv_heads must be left out"):
        Config(**{**SMALL, "n_kv_heads": 1})


def test_presets_cache_less_than_dense_ones():
    for fields in PRESETS.values():
        assert fields["latent_dim"] + fields["rope_dim"] < 2 * fields["d_model"]
