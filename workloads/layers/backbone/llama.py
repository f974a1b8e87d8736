"""Llama-style backbone that most architectures fill.

RMSNorm, rotary positions, SwiGLU, no biases.

A Config that has it derives from `LlamaBackbone`, and so shares its fields, checks and presets; one
without any dense feed-forward block from `LlamaFrame`, which has no d_ff.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from torch import nn

from workloads.accounting.counts import Accounted, Component
from workloads.field_error import FieldError, PositiveFloat, PositiveInt, check_fields
from workloads.layers.backbone.transformer import Rotary, Transformer
from workloads.layers.block import Block
from workloads.layers.mixers.attention import AttentionShape, CausalAttention
from workloads.layers.modules.feed_forward import SwiGLU, SwiGLUShape, llama_d_ff
from workloads.layers.modules.linear import Embedding, Head, Linear, VocabularyComponent
from workloads.layers.modules.norms import RMSNorm, RMSNormComponent


@dataclass(frozen=True, kw_only=True)
class LlamaFrame(Accounted):
    """Fields of the backbone but for dense feed-forward blocks, and what can be made of them."""

    DOCUMENT_MASK: ClassVar[bool] = True
    """Whether `train.document_mask` keeps documents apart in it."""

    d_model: PositiveInt
    """Residual width."""
    n_layers: PositiveInt
    """Blocks."""
    n_heads: PositiveInt
    """Query heads of attention."""
    n_kv_heads: PositiveInt | None = None
    """Key and value heads of attention; None is as many as query heads."""
    qk_norm: bool = False
    """Normalise attention queries and keys per head."""
    rope_base: PositiveFloat = 10_000.0
    """Base of the rotary frequencies."""
    norm_eps: PositiveFloat = 1.0e-5
    """Added to mean squares under the root."""
    tied_embeddings: bool = False
    """Use the embedding table as output head."""
    output_init: Literal["depth_scaled"] | None = None
    """`depth_scaled` begins the output matrices of attention, dense feed-forward blocks and shared
    experts with a standard deviation 1 / sqrt(2 n_layers) as large (GPT-2, Radford et al. 2019)."""

    def __post_init__(self) -> None:
        check_fields(self, name_nearest=True)
        check_heads(self.d_model, self.n_heads)
        if self.n_kv_heads is not None and self.n_heads % self.n_kv_heads:
            raise not_a_divisor("n_kv_heads", self.n_kv_heads, "n_heads", self.n_heads)

    @property
    def attention(self) -> AttentionShape:
        """Sizes of one attention block."""
        return AttentionShape(
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_kv_heads=self.n_heads if self.n_kv_heads is None else self.n_kv_heads,
            qk_norm=self.qk_norm,
        )

    def attention_parts(self, vocab_size: int) -> list[tuple[int, Component]]:
        """Return the components of the frame, and attention in every layer."""
        return [
            (1, VocabularyComponent(vocab_size, self.d_model, tied=self.tied_embeddings)),
            (2 * self.n_layers + 1, RMSNormComponent(width=self.d_model)),
            (self.n_layers, self.attention),
        ]

    def block_with(
        self,
        feed_forward: nn.Module | None,
        *,
        mixer: nn.Module | None = None,
        kind: Callable[..., Block] = Block,
        **more: nn.Module,
    ) -> Block:
        """Return a block with these in its slots, attention as its mixer where None.

        `more` are the slots that a block of another kind has besides.
        """
        return kind(
            norm=partial(RMSNorm, self.d_model, eps=self.norm_eps),
            mixer=mixer or CausalAttention(self.attention, norm_eps=self.norm_eps),
            feed_forward=feed_forward,
            **more,
        )

    def frame(self, vocab_size: int, layers: Iterable[nn.Module]) -> dict[str, Any]:
        """Return the arguments of `Transformer` for a model with these layers."""
        layers = nn.ModuleList(layers)
        if self.output_init == "depth_scaled":
            for name, module in layers.named_modules():
                if name.endswith((".mixer.output", ".feed_forward.down", ".shared.down")):
                    assert isinstance(module, Linear), "these add to the residual stream"
                    module.std /= math.sqrt(2 * self.n_layers)
        return {
            "embedding": Embedding(vocab_size, self.d_model),
            "layers": layers,
            "norm": RMSNorm(self.d_model, eps=self.norm_eps),
            "head": None if self.tied_embeddings else Head(self.d_model, vocab_size),
            "rotary": Rotary(columns=self.attention.d_head, base=self.rope_base),
        }

    def transformer(self, vocab_size: int, layers: Iterable[nn.Module]) -> Transformer:
        """Return a model with these layers."""
        return Transformer(**self.frame(vocab_size, layers))


@dataclass(frozen=True, kw_only=True)
class LlamaBackbone(LlamaFrame):
    """The frame with dense feed-forward blocks in all layers or some."""

    FREE_DIMENSION: ClassVar[str] = "d_ff"
    """Field that `match:` solves for unless told otherwise."""

    d_ff: PositiveInt
    """Width of the dense feed-forward blocks."""

    @property
    def swiglu(self) -> SwiGLUShape:
        """Sizes of one dense feed-forward block."""
        return SwiGLUShape(d_model=self.d_model, d_ff=self.d_ff)

    @property
    def n_feed_forward(self) -> int:
        """Layers with a feed-forward block."""
        return self.n_layers

    def feed_forward(self) -> nn.Module:
        """Return a feed-forward block."""
        return SwiGLU(self.d_model, self.d_ff)

    def frame_components(self, vocab_size: int) -> list[tuple[int, Component]]:
        """Return the parts of the frame, attention in every layer, feed-forward blocks."""
        return [*self.attention_parts(vocab_size), (self.n_feed_forward, self.swiglu)]

    def block(self, feed_forward: nn.Module | None = None, **slots: Any) -> Block:
        """Return `block_with` these slots and `feed_forward` where there is none."""
        return self.block_with(feed_forward or self.feed_forward(), **slots)


def check_heads(d_model: int, n_heads: int) -> None:
    """Refuse heads that do not divide the model into parts of even width.

    Raises:
        FieldError: Naming the nearest number of heads that does.
    """
    if d_model % (2 * n_heads) == 0:
        return
    fix = f"d_model is odd: the nearest even ones are {d_model - 1}, {d_model + 1}"
    if d_model % 2 == 0:
        fix = f"the nearest is {nearest_divisor(d_model // 2, n_heads)}"
    rule = f"must divide d_model ({d_model}) into heads of even width"
    raise FieldError("n_heads", rule, n_heads, fix, ("d_model",))


def not_a_divisor(field: str, value: int, of_field: str, of: int) -> FieldError:
    """Return the error that a field does not divide another one; it names the nearest divisor.

    Args:
        field: Name of the divisor.
        value: The divisor.
        of_field: Name of what it must divide.
        of: What it must divide.
    """
    nearest = nearest_divisor(of, value)
    rule = f"must divide {of_field} ({of})"
    return FieldError(field, rule, value, f"the nearest is {nearest}", (of_field,))


def nearest_divisor(number: int, wanted: int) -> int:
    """Return the divisor of `number` nearest to `wanted`, the smaller of two."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    divisors = {*small, *(number // d for d in small)}
    return min(divisors, key=lambda d: (abs(d - wanted), d))


def _paper(d_model: int, n_layers: int, n_heads: int, **fields: Any) -> dict[str, Any]:
    return {
        "d_model": d_model,
        "n_layers": n_layers,
        "n_heads": n_heads,
        "d_ff": llama_d_ff(d_model),
        "rope_base": 500_000.0,
        **fields,
    }


def _small(d_model: int, n_layers: int, n_heads: int, d_ff: int) -> dict[str, Any]:
    # Tied: with 32,000 tokens a second matrix would have four times the parameters of the blocks at
    # 1m.
    return {
        "d_model": d_model,
        "n_layers": n_layers,
        "n_heads": n_heads,
        "d_ff": d_ff,
        "tied_embeddings": True,
    }


TINY: dict[str, dict[str, Any]] = {
    # For a CPU: two layers, and two heads however narrow, so that only the width differs between
    # the smallest.
    "d8": _small(8, 2, 2, 24),
    "d12": _small(12, 2, 2, 32),
    "d16": _small(16, 2, 2, 48),
    "d20": _small(20, 2, 2, 56),
    "d24": _small(24, 2, 2, 64),
    "d32": _small(32, 2, 2, 88),
    "d48": _small(48, 2, 3, 128),
    "d64": _small(64, 2, 4, 176),
}
SMALL: dict[str, dict[str, Any]] = {
    # Named by the non-embedding parameters of `dense`.
    "1m": _small(128, 5, 4, 352),
    "3m": _small(192, 6, 6, 616),
    "10m": _small(320, 8, 5, 880),
    "30m": _small(512, 10, 8, 1280),
}
PAPER: dict[str, dict[str, Any]] = {
    # Berges et al. 2024 (arXiv 2412.09764) and its authors' answers to reviewers; named by all
    # parameters of `dense` with 32,000 tokens.
    "134m": _paper(768, 12, 12),
    "373m": _paper(1024, 24, 16),
    "720m": _paper(1536, 22, 12),
    "1.3b": _paper(2048, 22, 16),
    # Llama-3 shape (grouped keys, d_ff 14,336), for a vocabulary of 128,000.
    "8b": _paper(4096, 32, 32, n_kv_heads=8, d_ff=14_336),
}
BACKBONES = {**TINY, **SMALL, **PAPER}
"""Preset name -> fields of the backbone, for every architecture that has this one."""
