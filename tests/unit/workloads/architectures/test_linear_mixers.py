"""What the mixers that keep a state have in common: `linformer`, `cosformer` and `performer`."""

from typing import Any

import pytest
import torch

from workloads.architectures import cosformer, linformer, performer
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.cache import Cache
from workloads.layers.modules.init import initialise

SMALL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24}
FIXED_LENGTH = {
    "linformer": (linformer.Config, {"max_seq_len": 32, "projected_len": 5}),
    "cosformer": (cosformer.Config, {"max_seq_len": 32}),
}
MIXERS = {**FIXED_LENGTH, "performer": (performer.Config, {})}


def _config(mixer: str, **fields: object) -> Any:
    make, own = MIXERS[mixer]
    return make(**{**SMALL, **own, **fields})


def _model(mixer: str, **fields: object) -> Transformer:
    model = _config(mixer, **fields).build(11)
    initialise(model, 0)
    assert isinstance(model, Transformer)
    return model


@pytest.mark.parametrize("mixer", MIXERS)
def test_the_chunk_changes_nothing(mixer):
    tokens = torch.randint(11, (2, 23), generator=torch.Generator().manual_seed(0))

    one, many = (_model(mixer, chunk_tokens=chunk)(tokens) for chunk in (64, 5))

    torch.testing.assert_close(many, one)


@pytest.mark.parametrize("mixer", FIXED_LENGTH)
@pytest.mark.parametrize("cached", [False, True])
def test_refuses_longer_sequences(mixer, cached):
    model, tokens = _model(mixer), torch.zeros(1, 33, dtype=torch.long)
    message = (
        "max_seq_len must be at least the length of a sequence, got 32 and a sequence of 33; "
        "raise max_seq_len to 33 or shorten the sequence"
    )

    assert model(tokens[:, :32], Cache(1, 32) if cached else None).shape == (1, 32, 11)
    with pytest.raises(ValueError, match=message):
        model(*((tokens[:, :1], Cache(1, 33)) if cached else (tokens,)))


@pytest.mark.parametrize(
    ("mixer", "field"),
    [*((mixer, "chunk_tokens") for mixer in MIXERS), *((m, "max_seq_len") for m in FIXED_LENGTH)],
)
@pytest.mark.parametrize("value", [0, -2])
def test_errors_name_the_field(mixer, field, value):
    message = f"{field} must be at least 1, got {value}; the nearest is 1"
    with pytest.raises(ValueError, match=message):
        _config(mixer, **{field: value})


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("size", [1_000_000, 3_000_000])
def test_sized(mixer, size):
    config = MIXERS[mixer][0].nearest_size(size, chunk_tokens=32)

    assert config.param_count(1).non_embedding == pytest.approx(size, rel=0.05)
    assert config.chunk_tokens == 32
