"""GPT-NeoX backbone of the Pythia suite.

Parallel residual, LayerNorm, biases, GELU, rotary on some columns.

Architectures that only change how positions are mixed derive their Config from `NeoXBackbone` and
say how. Source: Biderman et al. 2023 (arXiv 2304.01373), and the initial values and shapes of its
released configurations.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

from torch import nn

from workloads.accounting.counts import Accounted, Components
from workloads.field_error import PositiveFloat, PositiveInt, Share, check_fields
from workloads.layers.backbone.llama import SMALL, TINY, not_a_divisor
from workloads.layers.backbone.size_family import FreeDimension, backbone_fields, nearest_member
from workloads.layers.backbone.transformer import Rotary, Transformer
from workloads.layers.block import Block
from workloads.layers.mixers.attention import AttentionShape, MultiHead
from workloads.layers.modules.feed_forward import GELU, GELUShape
from workloads.layers.modules.linear import Embedding, Head, VocabularyComponent
from workloads.layers.modules.norms import LayerNorm, LayerNormComponent

M = TypeVar("M", bound=MultiHead)


@dataclass(frozen=True, kw_only=True)
class NeoXBackbone(Accounted):
    """Fields of the backbone, and what can be made of them."""

    FREE_DIMENSION: ClassVar[str] = "d_ff"
    """Field that `match:` solves for unless told otherwise."""

    d_model: PositiveInt
    """Residual width."""
    n_layers: PositiveInt
    """Blocks."""
    n_heads: PositiveInt
    """Heads of the mixer."""
    d_ff: PositiveInt
    """Feed-forward width."""
    rotary_fraction: Share = 0.25
    """Share of each head's columns that turn with the position; 0 for none."""
    rope_base: PositiveFloat = 10_000.0
    """Base of the rotary frequencies."""
    norm_eps: PositiveFloat = 1.0e-5
    """Added to variances under the root."""
    tied_embeddings: bool = False
    """Use the embedding table as output head."""

    def __post_init__(self) -> None:
        check_fields(self, name_nearest=True)
        if self.d_model % self.n_heads:
            raise not_a_divisor("n_heads", self.n_heads, "d_model", self.d_model)

    @property
    def rotary_columns(self) -> int:
        """Columns of a head that turn."""
        return rotary_columns(self.d_model // self.n_heads, self.rotary_fraction)

    @property
    def attention(self) -> AttentionShape:
        """Sizes of one mixer."""
        return AttentionShape(
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_kv_heads=self.n_heads,
            bias=True,
            rotary_columns=self.rotary_columns,
        )

    @property
    def gelu(self) -> GELUShape:
        """Sizes of one feed-forward block."""
        return GELUShape(d_model=self.d_model, d_ff=self.d_ff)

    def components(self, vocab_size: int) -> Components:
        """Return what the model consists of, with `attention` as its mixer."""
        return [
            (1, VocabularyComponent(vocab_size, self.d_model, tied=self.tied_embeddings)),
            (self.n_layers + 1, LayerNormComponent(width=self.d_model)),
            (self.n_layers, LayerNormComponent(width=self.d_model, shares_input=True)),
            (self.n_layers, self.attention),
            (self.n_layers, self.gelu),
        ]

    @classmethod
    def nearest_size(cls, non_embedding_params: int, **overrides: Any) -> Self:
        """Return the member of the family nearest to a size.

        Raises:
            ValueError: If none is within a quarter of it.
        """
        return nearest_member(cls, neox_family, [NEOX_D_FF], non_embedding_params, overrides)

    @property
    def stds(self) -> dict[str, float]:
        """Standard deviations at the start of the maps into a block and out of it.

        Into: sqrt(2 / (5 d_model)) (Nguyen & Salazar 2019, arXiv 1910.05895); out: 2 / (n_layers
        sqrt(d_model)), as in the suite's configurations (`small_init` and `wang_init` of GPT-NeoX).
        """
        return {
            "input_std": (2 / (5 * self.d_model)) ** 0.5,
            "output_std": 2 / (self.n_layers * self.d_model**0.5),
        }

    def mixer(self, kind: type[M], **more: Any) -> M:
        """Return a mixer of this kind with the backbone's sizes and initial values."""
        return kind(self.attention, norm_eps=self.norm_eps, **self.stds, **more)

    def block(self, mixer: nn.Module) -> Block:
        """Return a block that mixes positions with `mixer`."""
        return Block(
            norm=partial(LayerNorm, self.d_model, eps=self.norm_eps),
            mixer=mixer,
            feed_forward=GELU(self.d_model, self.d_ff, **self.stds),
            parallel=True,
        )

    def transformer(self, vocab_size: int, layers: Iterable[nn.Module]) -> Transformer:
        """Return a model with these layers."""
        std = self.stds["input_std"]
        return Transformer(
            embedding=Embedding(vocab_size, self.d_model, std=std),
            layers=layers,
            norm=LayerNorm(self.d_model, eps=self.norm_eps),
            head=None if self.tied_embeddings else Head(self.d_model, vocab_size, std=std),
            rotary=Rotary(columns=self.rotary_columns, base=self.rope_base)
            if self.rotary_columns
            else None,
        )


def rotary_columns(d_head: int, fraction: float) -> int:
    """Return how many columns of a head turn.

    An even number, at least two unless the fraction is 0.
    """
    if fraction == 0:
        return 0
    return min(2 * (d_head // 2), max(2, 2 * round(fraction * d_head / 2)))


def neox_family(d_model: int) -> dict[str, Any]:
    """Return the fields of the member of this width.

    Depth and heads of the Llama-style family, d_ff 4 d_model.
    """
    return {**backbone_fields(d_model), "d_ff": 4 * d_model}


NEOX_D_FF = FreeDimension(name="d_ff", lowest=0.375, highest=1.5, step=8)
"""From 1.5 to 6 times d_model."""


def _suite(n_layers: int, d_model: int, n_heads: int) -> dict[str, Any]:
    return {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": 4 * d_model}


SUITE: dict[str, dict[str, Any]] = {
    "14m": _suite(6, 128, 4),
    "31m": _suite(6, 256, 8),
    "70m": _suite(6, 512, 8),
    "160m": _suite(12, 768, 12),
    "410m": _suite(24, 1024, 16),
    "1b": _suite(16, 2048, 8),
    "1.4b": _suite(24, 2048, 16),
    "2.8b": _suite(32, 2560, 32),
}
"""Shapes of the Pythia suite, for a vocabulary of 50,304."""

NEOX_BACKBONES: dict[str, dict[str, Any]] = {
    # Width and depth of the Llama-style presets of the same name; two maps of 4 d are as large as
    # three of 8/3 d.
    **{
        name: {**fields, "d_ff": 4 * fields["d_model"]}
        for name, fields in {**TINY, **SMALL}.items()
    },
    **SUITE,
}
"""Preset name -> fields of the backbone, for every architecture that has this one."""
