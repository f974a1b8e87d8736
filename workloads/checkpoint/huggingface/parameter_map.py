"""Parameters of a model under our names and under Hugging Face's.

One tensor of ours is often several of theirs: query, key and value are one matrix here, and an
expert layer's matrices are stacked.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

Weights = Mapping[str, Tensor]
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""Types whose numbers are weights as they stand; others want a scale."""


@dataclass(frozen=True)
class ParameterMap:
    """One parameter of ours, and the tensors that hold it there."""

    ours: str
    theirs: tuple[str, ...]
    split: Callable[[Tensor], Sequence[Tensor]]
    """Our tensor to theirs, in the order of their names."""
    join: Callable[[Sequence[Tensor]], Tensor]
    """The inverse."""


def to_theirs(weights: Weights, maps: Sequence[ParameterMap]) -> dict[str, Tensor]:
    """Return our tensors under their names, each contiguous and with storage of its own."""
    return {
        name: part.clone(memory_format=torch.contiguous_format)
        for each in maps
        for name, part in zip(each.theirs, each.split(weights[each.ours]), strict=True)
    }


def to_ours(weights: Weights, maps: Sequence[ParameterMap]) -> dict[str, Tensor]:
    """Return their tensors under our names.

    Raises:
        ValueError: If one is missing or quantised.
    """
    names = [name for each in maps for name in each.theirs]
    missing = [name for name in names if name not in weights]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"the weights have no {missing[0]}{more}; take a complete download")
    for name in names:
        if weights[name].dtype not in _FLOATS:
            kind = str(weights[name].dtype).removeprefix("torch.")
            raise ValueError(
                f"{name} is quantised ({kind}), which memscale does not read; "
                "take the model in bfloat16, float16 or float32"
            )
    return {each.ours: each.join([weights[name] for name in each.theirs]) for each in maps}


def llama_maps(config: Any) -> Iterator[ParameterMap]:
    """Yield the parameters of `dense` (Llama, Qwen3 where queries and keys are normalised)."""
    yield from _frame(config)
    for layer in range(config.n_layers):
        yield from _dense_block(f"model.layers.{layer}.mlp", f"layers.{layer}.feed_forward")


def moe_maps(
    config: Any, *, experts: str, router: str, parts: Mapping[str, str]
) -> Iterator[ParameterMap]:
    """Yield the parameters of `moe`.

    Args:
        config: Of the architecture.
        experts: What follows `model.layers.0.` in the names of a layer's experts.
        router: The same for the router.
        parts: Our name of an expert's matrix -> theirs.
    """
    yield from _frame(config)
    for layer in range(config.n_layers):
        their, our = f"model.layers.{layer}", f"layers.{layer}.feed_forward"
        if layer not in config.placement:
            yield from _dense_block(f"{their}.mlp", our)
            continue
        yield _same(f"{their}.{router}.weight", f"{our}.router.weight")
        for part, name in parts.items():
            names = [f"{their}.{experts}.{i}.{name}.weight" for i in range(config.n_experts)]
            yield ParameterMap(f"{our}.experts.{part}", tuple(names), _unstacked, _stacked)


def neox_maps(config: Any) -> Iterator[ParameterMap]:
    """Yield the parameters of `pythia`.

    GPT-NeoX holds query, key and value of one head after the other, ours all queries, then all
    keys, then all values.
    """
    n_heads = config.n_heads
    yield _same("gpt_neox.embed_in.weight", "embedding.weight")
    if not config.tied_embeddings:
        yield _same("embed_out.weight", "head.weight")
    for kind in ("weight", "bias"):
        yield _same(f"gpt_neox.final_layer_norm.{kind}", f"norm.{kind}")
        for layer in range(config.n_layers):
            for their, our in _NEOX_BLOCK.items():
                names = f"gpt_neox.layers.{layer}.{their}.{kind}", f"layers.{layer}.{our}.{kind}"
                yield _by_head(*names, n_heads) if "query_key_value" in our else _same(*names)


_NEOX_BLOCK = {
    "input_layernorm": "mixer_norm",
    "post_attention_layernorm": "feed_forward_norm",
    "attention.query_key_value": "mixer.query_key_value",
    "attention.dense": "mixer.output",
    "mlp.dense_h_to_4h": "feed_forward.up",
    "mlp.dense_4h_to_h": "feed_forward.down",
}
"""Their modules of a block -> ours; each has a weight and a bias."""


def _frame(config: Any) -> Iterator[ParameterMap]:
    """Yield what Llama-style models have around their feed-forward blocks."""
    yield _same("model.embed_tokens.weight", "embedding.weight")
    yield _same("model.norm.weight", "norm.gain")
    if not config.tied_embeddings:
        yield _same("lm_head.weight", "head.weight")
    shape = config.attention
    rows = [n * shape.d_head for n in (shape.n_heads, shape.n_kv_heads, shape.n_kv_heads)]
    for layer in range(config.n_layers):
        their, our = f"model.layers.{layer}", f"layers.{layer}"
        yield _same(f"{their}.input_layernorm.weight", f"{our}.mixer_norm.gain")
        yield _same(f"{their}.post_attention_layernorm.weight", f"{our}.feed_forward_norm.gain")
        yield ParameterMap(
            f"{our}.mixer.query_key_value.weight",
            tuple(f"{their}.self_attn.{part}_proj.weight" for part in "qkv"),
            lambda whole: torch.split(whole, rows),
            lambda parts: torch.cat(list(parts)),
        )
        yield _same(f"{their}.self_attn.o_proj.weight", f"{our}.mixer.output.weight")
        if config.qk_norm:
            yield _same(f"{their}.self_attn.q_norm.weight", f"{our}.mixer.query_norm.gain")
            yield _same(f"{their}.self_attn.k_norm.weight", f"{our}.mixer.key_norm.gain")


def _dense_block(their: str, our: str) -> Iterator[ParameterMap]:
    for part in ("gate", "up", "down"):
        yield _same(f"{their}.{part}_proj.weight", f"{our}.{part}.weight")


def _same(their: str, our: str) -> ParameterMap:
    return ParameterMap(our, (their,), lambda whole: [whole], lambda parts: parts[0])


def _by_head(their: str, our: str, n_heads: int) -> ParameterMap:
    def exchange(value: Tensor, outer: int) -> Tensor:
        return rearrange(value, "(outer inner d) ... -> (inner outer d) ...", **sizes(outer))

    def sizes(outer: int) -> dict[str, int]:
        return {"outer": outer, "inner": 3 * n_heads // outer}

    return ParameterMap(
        our,
        (their,),
        lambda whole: [exchange(whole, 3)],
        lambda parts: exchange(parts[0], n_heads),
    )


def _unstacked(whole: Tensor) -> list[Tensor]:
    return [matrix.T for matrix in whole]


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack([matrix.T for matrix in parts])
