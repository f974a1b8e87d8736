"""`dense` against an implementation that is not ours: the Llama of the transformers library.

Small random models, no downloads. Both layouts agree but for names and for the fused query, key and value.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from workloads.architectures.dense import Config
from workloads.layers.context import Cache
from workloads.layers.initialise import initialise

VOCAB_SIZE = 41
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped keys": {"n_kv_heads": 2},
    "one key head": {"n_kv_heads": 1},
    "tied": {"tied_embeddings": True},
    "another base and eps": {"rope_base": 500_000.0, "norm_eps": 1e-3},
}


@pytest.fixture(params=CASES.values(), ids=CASES)
def config(request: pytest.FixtureRequest) -> Config:
    return Config(**{"d_model": 24, "n_layers": 3, "n_heads": 4, "d_ff": 40, **request.param})


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _theirs(config: Config, kind: str) -> nn.Module:
    import transformers  # seconds, so only where a test of this file runs

    theirs = transformers.LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=config.d_model,
        intermediate_size=config.d_ff,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        num_key_value_heads=config.n_kv_heads or config.n_heads,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_base},
        tie_word_embeddings=config.tied_embeddings,
        max_position_embeddings=64,
        attn_implementation=kind,
    )
    model: nn.Module = transformers.LlamaForCausalLM(theirs).eval()
    return model


def _names(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """Their names of what we keep in one tensor, in the order of its rows, and our name."""
    yield ("model.embed_tokens.weight",), "embedding.weight"
    yield ("model.norm.weight",), "norm.gain"
    if not config.tied_embeddings:
        yield ("lm_head.weight",), "head.weight"
    for i in range(config.n_layers):
        their, our = f"model.layers.{i}", f"layers.{i}"
        yield (f"{their}.input_layernorm.weight",), f"{our}.mixer_norm.gain"
        yield (f"{their}.post_attention_layernorm.weight",), f"{our}.feed_forward_norm.gain"
        yield (
            tuple(f"{their}.self_attn.{part}_proj.weight" for part in "qkv"),
            f"{our}.mixer.query_key_value.weight",
        )
        yield (f"{their}.self_attn.o_proj.weight",), f"{our}.mixer.output.weight"
        for part in ("gate", "up", "down"):
            yield (f"{their}.mlp.{part}_proj.weight",), f"{our}.feed_forward.{part}.weight"


def _random(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))


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
    if ours_first:
        for names, name in _names(config):
            sizes = [len(their_state[n]) for n in names]
            for n, rows in zip(names, our_state[name].split(sizes), strict=True):
                their_state[n].copy_(rows)
    else:
        for names, name in _names(config):
            our_state[name].copy_(torch.cat([their_state[n] for n in names]))
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
    assert sorted(n for theirs_ in (t for t, _ in names) for n in theirs_) == sorted(
        n for n, _ in theirs.named_parameters()
    )
    assert sum(p.numel() for p in theirs.parameters()) == config.param_count(VOCAB_SIZE).total


@pytest.mark.usefixtures("wide")
def test_gradients(config):
    ours, theirs = _pair(config, "eager", torch.float64, ours_first=True)
    tokens = _tokens()
    for logits in (ours(tokens), theirs(tokens).logits):
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    found, expected = dict(ours.named_parameters()), dict(theirs.named_parameters())

    for names, name in _names(config):
        gradient = torch.cat([expected[n].grad for n in names])
        torch.testing.assert_close(found[name].grad, gradient, rtol=1e-9, atol=1e-10)


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
