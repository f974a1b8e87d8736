"""`pythia` against an implementation that is not ours: the GPT-NeoX of the transformers library.

Small random models, no downloads. Their fused projection holds query, key and value of one head after the other; ours
all queries, then all keys, then all values.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from workloads.architectures.pythia import Config
from workloads.layers.context import Cache
from workloads.layers.initialise import initialise

VOCAB_SIZE = 41
CASES: dict[str, dict[str, Any]] = {
    "quarter rotary": {},
    "full rotary": {"rotary_fraction": 1.0},
    "half rotary, another base and eps": {
        "rotary_fraction": 0.5,
        "rope_base": 100.0,
        "norm_eps": 1e-3,
    },
    "tied": {"tied_embeddings": True},
}


@pytest.fixture(params=CASES.values(), ids=CASES)
def config(request: pytest.FixtureRequest) -> Config:
    return Config(**{"d_model": 32, "n_layers": 3, "n_heads": 4, "d_ff": 40, **request.param})


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _theirs(config: Config, kind: str) -> nn.Module:
    import transformers  # seconds, so only where a test of this file runs

    theirs = transformers.GPTNeoXConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=config.d_model,
        intermediate_size=config.d_ff,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        layer_norm_eps=config.norm_eps,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": config.rope_base,
            "partial_rotary_factor": config.rotary_fraction,
        },
        hidden_act="gelu",
        use_parallel_residual=True,
        attention_bias=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        tie_word_embeddings=config.tied_embeddings,
        max_position_embeddings=64,
        attn_implementation=kind,
    )
    model: nn.Module = transformers.GPTNeoXForCausalLM(theirs).eval()
    return model


_BLOCK = {
    "input_layernorm": "mixer_norm",
    "post_attention_layernorm": "feed_forward_norm",
    "attention.query_key_value": "mixer.query_key_value",
    "attention.dense": "mixer.output",
    "mlp.dense_h_to_4h": "feed_forward.up",
    "mlp.dense_4h_to_h": "feed_forward.down",
}
"""Their modules of a block -> ours; each has a weight and a bias."""


def _names(config: Config) -> Iterator[tuple[str, str]]:
    """Their name and ours of every parameter."""
    yield "gpt_neox.embed_in.weight", "embedding.weight"
    if not config.tied_embeddings:
        yield "lm_head.weight", "head.weight"
    for kind in ("weight", "bias"):
        yield f"gpt_neox.final_layer_norm.{kind}", f"norm.{kind}"
        for i in range(config.n_layers):
            for their, our in _BLOCK.items():
                yield f"gpt_neox.layers.{i}.{their}.{kind}", f"layers.{i}.{our}.{kind}"


def _ours_from(theirs: Tensor, name: str, config: Config) -> Tensor:
    """Their values in our order of rows."""
    if "query_key_value" not in name:
        return theirs
    rows = theirs.unflatten(0, (config.n_heads, 3, -1))
    return rows.transpose(0, 1).flatten(0, 2)


def _theirs_from(ours: Tensor, name: str, config: Config) -> Tensor:
    """Our values in their order of rows."""
    if "query_key_value" not in name:
        return ours
    rows = ours.unflatten(0, (3, config.n_heads, -1))
    return rows.transpose(0, 1).flatten(0, 2)


def _random(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make float64 of everything: both sides work out norms or angles in fp32, whatever the type of the model."""
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)
    monkeypatch.setattr(Tensor, "float", Tensor.double)


def _pair(config: Config, kind: str, dtype: torch.dtype, *, ours_first: bool) -> list[nn.Module]:
    """Our model and theirs, with the random values of one copied into the other."""
    ours, theirs = config.build(VOCAB_SIZE), _theirs(config, kind)
    initialise(ours, 0)
    _random(ours if ours_first else theirs)
    our_state, their_state = ours.state_dict(), theirs.state_dict()
    for their, our in _names(config):
        if ours_first:
            their_state[their].copy_(_theirs_from(our_state[our], our, config))
        else:
            our_state[our].copy_(_ours_from(their_state[their], our, config))
    return [ours.eval().to(dtype), theirs.to(dtype)]


def _tokens() -> Tensor:
    return torch.randint(VOCAB_SIZE, (2, 19), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("ours_first", [True, False], ids=["our values", "their values"])
@pytest.mark.parametrize("kind", ["eager", "sdpa"])
def test_logits(config, kind, ours_first):
    ours, theirs = _pair(config, kind, torch.float32, ours_first=ours_first)

    with torch.no_grad():
        found, expected = ours(_tokens()), theirs(_tokens()).logits

    assert expected.std() > 0.5
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("wide")
def test_logits_in_float64(config):
    ours, theirs = _pair(config, "eager", torch.float64, ours_first=False)

    with torch.no_grad():
        found, expected = ours(_tokens()), theirs(_tokens()).logits

    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_every_parameter_is_compared(config):
    ours, theirs = _pair(config, "eager", torch.float32, ours_first=True)
    names = list(_names(config))

    assert sorted(name for _, name in names) == sorted(n for n, _ in ours.named_parameters())
    assert sorted(name for name, _ in names) == sorted(n for n, _ in theirs.named_parameters())
    assert sum(p.numel() for p in theirs.parameters()) == config.param_count(VOCAB_SIZE).total


@pytest.mark.usefixtures("wide")
def test_gradients(config):
    ours, theirs = _pair(config, "eager", torch.float64, ours_first=True)
    tokens = _tokens()
    for logits in (ours(tokens), theirs(tokens).logits):
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    found, expected = dict(ours.named_parameters()), dict(theirs.named_parameters())

    for their, our in _names(config):
        gradient = _ours_from(expected[their].grad, our, config)
        torch.testing.assert_close(found[our].grad, gradient, rtol=1e-9, atol=1e-10)


@pytest.mark.usefixtures("wide")
def test_decoding_with_a_cache(config):
    from transformers import DynamicCache

    ours, theirs = _pair(config, "eager", torch.float64, ours_first=True)
    cache, their_cache = Cache(), DynamicCache()

    with torch.no_grad():
        for piece in _tokens().split([7, 1, 1, 10], dim=1):
            found = ours(piece, cache)
            expected = theirs(piece, past_key_values=their_cache, use_cache=True).logits
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)

    assert their_cache.get_seq_length() == cache.length == 19
