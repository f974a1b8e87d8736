"""Whole models against the transformers library: Llama, Qwen3, GPT-NeoX and DeepSeek-V2.

Small random models, no downloads. Llama has query, key and value apart where ours are one tensor;
GPT-NeoX holds query, key and value of one head after the other, ours all queries, then all keys,
then all values; DeepSeek-V2 turns neighbouring columns, ours column i with the one half a head on.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import pytest
import torch
from torch import Tensor, nn

from workloads.architectures import dense, latent_attention, pythia
from workloads.layers.cache import Cache
from workloads.layers.modules.init import initialise

VOCAB_SIZE = 41
State = Mapping[str, Tensor]


class Oracle(Protocol):
    """A config of ours, the same model of theirs, and what the numbers of either are called in the other."""

    config: Any

    def theirs(self, kind: str) -> nn.Module:
        """Return their model with an implementation of attention."""

    def to_ours(self, theirs: State) -> dict[str, Tensor]:
        """Return their numbers under our names."""

    def to_theirs(self, ours: State) -> dict[str, Tensor]:
        """Return our numbers under their names."""


class Llama:
    def __init__(self, **fields: Any) -> None:
        self.config = dense.Config(
            **{"d_model": 24, "n_layers": 3, "n_heads": 4, "d_ff": 40, **fields}
        )

    def theirs(self, kind: str) -> nn.Module:
        import transformers  # seconds, so only where a test of this file runs

        config, n_kv_heads = self.config, self.config.n_kv_heads or self.config.n_heads
        fields = {**_llama_fields(config, kind), "num_key_value_heads": n_kv_heads}
        model: nn.Module
        if config.qk_norm:  # which is all that Qwen3 has and Llama has not
            d_head = config.d_model // config.n_heads
            theirs = transformers.Qwen3Config(**fields, head_dim=d_head)
            model = transformers.Qwen3ForCausalLM(theirs)
        else:
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
        return model

    def to_ours(self, theirs: State) -> dict[str, Tensor]:
        return {our: torch.cat([theirs[name] for name in names]) for names, our in self._names()}

    def to_theirs(self, ours: State) -> dict[str, Tensor]:
        shape = self.config.attention
        parts = [n * shape.d_head for n in (shape.n_heads, shape.n_kv_heads, shape.n_kv_heads)]
        theirs = {}
        for names, our in self._names():
            pieces = ours[our].split(parts) if len(names) == 3 else [ours[our]]
            theirs.update(zip(names, pieces, strict=True))
        return theirs

    def _names(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Their names of what we keep in one tensor, in the order of its rows, and our name."""
        for name, our in _llama_names(self.config):
            yield (name,), our
        for i in range(self.config.n_layers):
            their, our = f"model.layers.{i}.self_attn", f"layers.{i}.mixer"
            yield (
                tuple(f"{their}.{part}_proj.weight" for part in "qkv"),
                f"{our}.query_key_value.weight",
            )
            if self.config.qk_norm:
                yield (f"{their}.q_norm.weight",), f"{our}.query_norm.gain"
                yield (f"{their}.k_norm.weight",), f"{our}.key_norm.gain"


def _llama_fields(config: Any, kind: str) -> dict[str, Any]:
    """Fields that the configs of all models on Llama's backbone have."""
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
        "tie_word_embeddings": config.tied_embeddings,
        "max_position_embeddings": 64,
        "attn_implementation": kind,
    }


def _llama_names(config: Any) -> Iterator[tuple[str, str]]:
    """Their name and ours of what all models on Llama's backbone hold alike."""
    yield "model.embed_tokens.weight", "embedding.weight"
    yield "model.norm.weight", "norm.gain"
    if not config.tied_embeddings:
        yield "lm_head.weight", "head.weight"
    for i in range(config.n_layers):
        their, our = f"model.layers.{i}", f"layers.{i}"
        yield f"{their}.input_layernorm.weight", f"{our}.mixer_norm.gain"
        yield f"{their}.post_attention_layernorm.weight", f"{our}.feed_forward_norm.gain"
        yield f"{their}.self_attn.o_proj.weight", f"{our}.mixer.output.weight"
        for part in ("gate", "up", "down"):
            yield f"{their}.mlp.{part}_proj.weight", f"{our}.feed_forward.{part}.weight"


class DeepSeekV2:
    """Latent attention, with dense feed-forward blocks in every layer."""

    def __init__(self, **fields: Any) -> None:
        # The norm of the latent vector has an eps of its own there, which no field reaches.
        self.config = latent_attention.Config(
            **{"d_model": 24, "n_layers": 2, "n_heads": 3, "d_ff": 40, "norm_eps": 1e-6, **fields}
        )

    def theirs(self, kind: str) -> nn.Module:
        import transformers  # seconds, so only where a test of this file runs

        shape = self.config.latent_attention
        theirs = transformers.DeepseekV2Config(
            **_llama_fields(self.config, kind),
            first_k_dense_replace=self.config.n_layers,
            q_lora_rank=None,
            kv_lora_rank=shape.latent_dim,
            qk_rope_head_dim=shape.rope_dim,
            qk_nope_head_dim=shape.d_head - shape.rope_dim,
            v_head_dim=shape.d_head,
        )
        model: nn.Module = transformers.DeepseekV2ForCausalLM(theirs)
        return model

    def to_ours(self, theirs: State) -> dict[str, Tensor]:
        return {our: self._turned(theirs[their], our) for their, our in self._names()}

    def to_theirs(self, ours: State) -> dict[str, Tensor]:
        return {their: self._turned(ours[our], our, back=True) for their, our in self._names()}

    def _turned(self, value: Tensor, our_name: str, *, back: bool = False) -> Tensor:
        """Exchange the orders of a head's rotary rows: pairs one after the other, and halves."""
        shape = self.config.latent_attention
        rows = {
            "query.weight": (shape.n_heads, shape.d_head),
            "down.weight": (1, shape.latent_dim + shape.rope_dim),
        }
        of = rows.get(our_name.partition("mixer.")[2])
        if of is None:
            return value
        plain, rotary = value.unflatten(0, of).tensor_split([of[1] - shape.rope_dim], dim=1)
        pairs = (2, -1) if back else (-1, 2)
        rotary = rotary.unflatten(1, pairs).transpose(1, 2).flatten(1, 2)
        return torch.cat((plain, rotary), dim=1).flatten(0, 1)

    def _names(self) -> Iterator[tuple[str, str]]:
        """Their name and ours of every parameter."""
        yield from _llama_names(self.config)
        for i in range(self.config.n_layers):
            their, our = f"model.layers.{i}.self_attn", f"layers.{i}.mixer"
            yield f"{their}.q_proj.weight", f"{our}.query.weight"
            yield f"{their}.kv_a_proj_with_mqa.weight", f"{our}.down.weight"
            yield f"{their}.kv_a_layernorm.weight", f"{our}.latent_norm.gain"
            yield f"{their}.kv_b_proj.weight", f"{our}.up.weight"


NEOX_BLOCK = {
    "input_layernorm": "mixer_norm",
    "post_attention_layernorm": "feed_forward_norm",
    "attention.query_key_value": "mixer.query_key_value",
    "attention.dense": "mixer.output",
    "mlp.dense_h_to_4h": "feed_forward.up",
    "mlp.dense_4h_to_h": "feed_forward.down",
}
"""Their modules of a block -> ours; each has a weight and a bias."""


class GPTNeoX:
    def __init__(self, **fields: Any) -> None:
        self.config = pythia.Config(
            **{"d_model": 32, "n_layers": 3, "n_heads": 4, "d_ff": 40, **fields}
        )

    def theirs(self, kind: str) -> nn.Module:
        import transformers  # seconds, so only where a test of this file runs

        config = self.config
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
        model: nn.Module = transformers.GPTNeoXForCausalLM(theirs)
        return model

    def to_ours(self, theirs: State) -> dict[str, Tensor]:
        by_head = (self.config.n_heads, 3)
        return {our: _reordered(theirs[their], our, by_head) for their, our in self._names()}

    def to_theirs(self, ours: State) -> dict[str, Tensor]:
        by_kind = (3, self.config.n_heads)
        return {their: _reordered(ours[our], our, by_kind) for their, our in self._names()}

    def _names(self) -> Iterator[tuple[str, str]]:
        """Their name and ours of every parameter."""
        yield "gpt_neox.embed_in.weight", "embedding.weight"
        if not self.config.tied_embeddings:
            yield "lm_head.weight", "head.weight"
        for kind in ("weight", "bias"):
            yield f"gpt_neox.final_layer_norm.{kind}", f"norm.{kind}"
            for i in range(self.config.n_layers):
                for their, our in NEOX_BLOCK.items():
                    yield f"gpt_neox.layers.{i}.{their}.{kind}", f"layers.{i}.{our}.{kind}"


def _reordered(value: Tensor, our_name: str, order: tuple[int, int]) -> Tensor:
    """Exchange the two outer orders of the rows of query, key and value; leave the rest."""
    if "query_key_value" not in our_name:
        return value
    return value.unflatten(0, (*order, -1)).transpose(0, 1).flatten(0, 2)


CASES: dict[str, Oracle] = {
    "dense": Llama(),
    "dense, grouped keys": Llama(n_kv_heads=2),
    "dense, one key head": Llama(n_kv_heads=1),
    "dense, tied": Llama(tied_embeddings=True),
    "dense, another base and eps": Llama(rope_base=500_000.0, norm_eps=1e-3),
    "dense, norms of queries and keys": Llama(qk_norm=True, n_kv_heads=2),
    "latent_attention": DeepSeekV2(latent_dim=6, rope_dim=4),
    "pythia, quarter rotary": GPTNeoX(),
    "pythia, full rotary": GPTNeoX(rotary_fraction=1.0),
    "pythia, half rotary, another base and eps": GPTNeoX(
        rotary_fraction=0.5, rope_base=100.0, norm_eps=1e-3
    ),
    "pythia, tied": GPTNeoX(tied_embeddings=True),
}


@pytest.fixture(params=CASES.values(), ids=CASES)
def oracle(request: pytest.FixtureRequest) -> Oracle:
    found: Oracle = request.param
    return found


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make float64 of everything: both sides work out norms or angles in fp32, whatever the type of the model."""
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)
    monkeypatch.setattr(Tensor, "float", Tensor.double)


def _random(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))


def _pair(oracle: Oracle, kind: str, dtype: torch.dtype, *, ours_first: bool) -> list[nn.Module]:
    """Our model and theirs, with the random values of one copied into the other."""
    ours, theirs = oracle.config.build(VOCAB_SIZE), oracle.theirs(kind)
    initialise(ours, 0)
    if ours_first:
        _random(ours)
        copies, into = oracle.to_theirs(ours.state_dict()), theirs.state_dict()
    else:
        _random(theirs)
        copies, into = oracle.to_ours(theirs.state_dict()), ours.state_dict()
    for name, value in copies.items():
        into[name].copy_(value)
    return [ours.eval().to(dtype), theirs.eval().to(dtype)]


def _tokens() -> Tensor:
    return torch.randint(VOCAB_SIZE, (2, 19), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("ours_first", [True, False], ids=["our values", "their values"])
@pytest.mark.parametrize("kind", ["eager", "sdpa"])
def test_logits(oracle, kind, ours_first):
    ours, theirs = _pair(oracle, kind, torch.float32, ours_first=ours_first)

    with torch.no_grad():
        found, expected = ours(_tokens()), theirs(_tokens()).logits

    assert expected.std() > 0.5
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("wide")
def test_logits_in_float64(oracle):
    ours, theirs = _pair(oracle, "eager", torch.float64, ours_first=False)

    with torch.no_grad():
        found, expected = ours(_tokens()), theirs(_tokens()).logits

    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_every_parameter_is_compared(oracle):
    ours, theirs = _pair(oracle, "eager", torch.float32, ours_first=True)
    our_parameters, their_parameters = (dict(model.named_parameters()) for model in (ours, theirs))

    assert oracle.to_ours(their_parameters).keys() == our_parameters.keys()
    assert oracle.to_theirs(our_parameters).keys() == their_parameters.keys()
    numbers = sum(parameter.numel() for parameter in their_parameters.values())
    assert numbers == oracle.config.param_count(VOCAB_SIZE).total


@pytest.mark.usefixtures("wide")
def test_gradients(oracle):
    ours, theirs = _pair(oracle, "eager", torch.float64, ours_first=True)
    tokens = _tokens()
    for logits in (ours(tokens), theirs(tokens).logits):
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    found, gradients = (
        {name: parameter.grad for name, parameter in model.named_parameters()}
        for model in (ours, theirs)
    )

    torch.testing.assert_close(found, oracle.to_ours(gradients), rtol=1e-9, atol=1e-10)


@pytest.mark.usefixtures("wide")
def test_decoding_with_a_cache(oracle):
    from transformers import DynamicCache

    ours, theirs = _pair(oracle, "eager", torch.float64, ours_first=True)
    cache, their_cache = Cache(len(_tokens()), 19), DynamicCache()

    with torch.no_grad():
        for piece in _tokens().split([7, 1, 1, 10], dim=1):
            found = ours(piece, cache)
            expected = theirs(piece, past_key_values=their_cache, use_cache=True).logits
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)

    assert their_cache.get_seq_length() == cache.longest == 19
