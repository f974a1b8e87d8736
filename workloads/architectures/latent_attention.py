"""Transformer with multi-head latent attention (MLA).

Keys and values are computed from one narrow latent vector. Source: DeepSeek-AI 2024, "DeepSeek-V2"
(arXiv 2405.04434), section 2.1. While decoding, a layer caches the latent vector and one rotary key
per token instead of the keys and values of all heads. Two departures: queries are not compressed,
and the rotary columns are part of a head's width, so that queries, keys and values have one width
and every fused attention kernel applies.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workloads.accounting.counts import Component, Components, FlopCount, ParamCount, Precision
from workloads.field_error import FieldError, PositiveInt
from workloads.layers.backbone.llama import BACKBONES, LlamaBackbone
from workloads.layers.backbone.size_family import D_FF, backbone_fields, nearest_member
from workloads.layers.backbone.transformer import Rotary, Transformer
from workloads.layers.context import Context
from workloads.layers.mixers.attention import causal_softmax, rotate
from workloads.layers.modules.linear import Linear
from workloads.layers.modules.norms import RMSNorm


@dataclass(frozen=True, kw_only=True)
class LatentAttentionShape(Component):
    """Sizes of one block of latent attention."""

    d_model: int
    n_heads: int
    latent_dim: int
    rope_dim: int

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads

    @property
    def key_value_dim(self) -> int:
        """Columns of a token's keys without their rotary part, and of its values, of all heads."""
        return 2 * self.d_model - self.n_heads * self.rope_dim

    def param_count(self) -> ParamCount:
        """Count query, down, up and output projections, and the gains of the latent's norm."""
        down = self.d_model * (self.latent_dim + self.rope_dim)
        up = self.latent_dim * self.key_value_dim
        return ParamCount(attention=2 * self.d_model**2 + down + up, norm=self.latent_dim)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count projections, and scores and sums over the causal half of a sequence."""
        projections = 2.0 * self.param_count().attention
        return FlopCount(attention=projections + 2.0 * seq_len * self.d_model)

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return inputs of the projections, the latent's norm, and what attention keeps."""
        c, casts = (4, 0) if precision == "fp32" else (2, 1)
        inputs = self.d_model + self.latent_dim
        norm = 4.0 * (1 + casts) * self.latent_dim + 4.0
        # Values keep the projection that keys were cut from; queries and keys are joined copies.
        attention = 3.0 * self.d_model + self.key_value_dim
        return c * (inputs + attention) + norm + 4.0 * self.n_heads


class LatentAttention(nn.Module):
    """Causal softmax attention whose keys and values are read out of a latent vector."""

    PARAM_GROUP: ClassVar[str] = "attention"

    def __init__(self, shape: LatentAttentionShape, *, norm_eps: float) -> None:
        super().__init__()
        self.shape = shape
        self.query = Linear(shape.d_model, shape.d_model)
        self.down = Linear(shape.d_model, shape.latent_dim + shape.rope_dim)
        self.latent_norm = RMSNorm(shape.latent_dim, eps=norm_eps)
        self.up = Linear(shape.latent_dim, shape.key_value_dim)
        self.output = Linear(shape.d_model, shape.d_model)

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], context: Context
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return the block's output, to be added to the residual."""
        n_heads, plain = self.shape.n_heads, self.shape.d_head - self.shape.rope_dim
        query = self.query(x).unflatten(-1, (n_heads, -1))
        unturned, turning = query.tensor_split([plain], dim=-1)
        query = torch.cat((unturned, rotate(turning, context.rotation)), dim=-1)

        latent, rotary_key = self.down(x).tensor_split([self.shape.latent_dim], dim=-1)
        latent = self.latent_norm(latent)
        rotary_key = rotate(rotary_key[:, :, None], context.rotation)
        if context.cache is not None:
            at = context.positions
            latent = context.cache.append("latent", latent, dim=1, positions=at)
            rotary_key = context.cache.append("rotary_key", rotary_key, dim=1, positions=at)

        key_value = self.up(latent).unflatten(-1, (n_heads, -1))
        key, value = key_value.tensor_split([plain], dim=-1)
        key = torch.cat((key, rotary_key.expand(-1, -1, n_heads, -1)), dim=-1)
        if value.is_cuda and plain % 8:
            # cuDNN's kernels load eight numbers at a time, and do not look where a view begins.
            value = value.contiguous()
        heads = (each.transpose(1, 2) for each in (query, key, value))
        mixed = causal_softmax(*heads, positions=context.positions, documents=context.documents)
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output


@dataclass(frozen=True, kw_only=True)
class Config(LlamaBackbone):
    """The dense transformer with latent attention in every layer."""

    latent_dim: PositiveInt
    """Width of the vector that keys and values are read from; cached instead of them."""
    rope_dim: PositiveInt
    """Columns of each head that turn with the position; their key is shared by all heads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        d_head = self.d_model // self.n_heads
        if self.rope_dim % 2 or self.rope_dim >= d_head:
            rule = f"must be even and smaller than a head ({d_head} columns)"
            raise FieldError("rope_dim", rule, self.rope_dim, f"the nearest is {_rope(d_head)}")
        for name in ("n_kv_heads", "qk_norm"):
            if getattr(self, name):
                rule = "must be left out: heads share one latent vector"
                raise FieldError(name, rule, getattr(self, name), "remove it")

    @property
    def latent_attention(self) -> LatentAttentionShape:
        """Sizes of one attention block."""
        return LatentAttentionShape(
            d_model=self.d_model,
            n_heads=self.n_heads,
            latent_dim=self.latent_dim,
            rope_dim=self.rope_dim,
        )

    def build(self, vocab_size: int) -> Transformer:
        """Return the model on the default device, its values open until `initialise`."""
        mixers = (
            LatentAttention(self.latent_attention, norm_eps=self.norm_eps)
            for _ in range(self.n_layers)
        )
        frame = self.frame(vocab_size, [self.block(mixer=mixer) for mixer in mixers])
        rotary = Rotary(columns=self.rope_dim, base=self.rope_base)
        return Transformer(**{**frame, "rotary": rotary})

    def components(self, vocab_size: int) -> Components:
        """Return what the model consists of."""
        frame = self.frame_components(vocab_size)
        kept = [(n, component) for n, component in frame if component != self.attention]
        return [*kept, (self.n_layers, self.latent_attention)]

    @classmethod
    def nearest_size(cls, non_embedding_params: int, **overrides: Any) -> "Config":
        """Return the member of the family nearest to a size.

        Raises:
            FieldError: If none is within a quarter of it.
        """
        return nearest_member(cls, _family, [D_FF], non_embedding_params, overrides)


def _rope(d_head: int) -> int:
    """Return the even number of columns nearest to half of a head."""
    return max(2, 2 * (d_head // 4))


def _with_latent(fields: dict[str, Any]) -> dict[str, Any]:
    d_model, n_heads = fields["d_model"], fields["n_heads"]
    return {**fields, "latent_dim": max(4, d_model // 4), "rope_dim": _rope(d_model // n_heads)}


def _family(d_model: int) -> dict[str, Any]:
    """Fields of the member of this width."""
    return _with_latent(backbone_fields(d_model))


PRESETS: dict[str, dict[str, Any]] = {
    name: _with_latent({k: v for k, v in fields.items() if k != "n_kv_heads"})
    for name, fields in BACKBONES.items()
}
