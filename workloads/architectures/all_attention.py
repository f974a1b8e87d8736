"""All-attention: persistent key-value vectors in place of feed-forward blocks.

Source: Sukhbaatar et al. 2019, "Augmenting Self-attention with Persistent Memory" (arXiv
1907.01470). Every head has N keys and values of its own that do not depend on the input; one
softmax goes over them and the positions so far:

    y_t = sum over j <= t of a_tj v_j + sum over i of a_ti V_i,
    a_t = softmax over both of [q_t . k_j, q_t . K_i] / sqrt(d_head)

A feed-forward block is nearly that already: its two matrices are keys and values, and its
activation stands for the softmax. A layer has 4 d^2 + 2 N d parameters, as one with two matrices of
width N = 4 d has.

Positions are rotary and belong to the positions alone: persistent vectors are read with the query
as it is, before it is turned, so how well they match does not depend on where a token stands (the
source adds relative positions to the scores of the context only). Keys and values begin at size 1,
but are stored divided by sqrt(d_head) and sqrt(N) and multiplied back when read, as in the source:
so a step of the optimizer changes them by as large a share as it changes other matrices. Differs
from the source: the backbone is `dense`'s (RMSNorm before each block, rotary positions), there is
no dropout, and no learned attention span.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workloads.accounting.counts import Component, Components, FlopCount, ParamCount, Precision
from workloads.field_error import PositiveInt
from workloads.kernels.all_attention.op import all_attention
from workloads.layers.backbone.llama import BACKBONES, LlamaFrame
from workloads.layers.backbone.size_family import FreeDimension, backbone_fields, nearest_member
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.context import Context
from workloads.layers.mixers.attention import AttentionShape, MultiHead, rotate
from workloads.layers.modules.init import truncated_normal
from workloads.layers.modules.linear import VocabularyComponent
from workloads.layers.modules.norms import RMSNormComponent


@dataclass(frozen=True, kw_only=True)
class AllAttentionShape(AttentionShape):
    """Sizes of the part of attention that projects and mixes positions."""

    def mixing_activation_bytes(self, seq_len: int, precision: Precision) -> float:
        """Return bytes of causal attention; keys and values that heads share, once per head."""
        c = 4 if precision == "fp32" else 2
        repeated = 0.0 if self.n_kv_heads == self.n_heads else 2.0 * c * self.d_model
        return super().mixing_activation_bytes(seq_len, precision) + repeated


@dataclass(frozen=True, kw_only=True)
class PersistentComponent(Component):
    """The persistent vectors of one layer.

    They count as feed-forward: they stand where the feed-forward block stood, do what it did, and
    every token is multiplied with all of them. What they add to the activations is their scores,
    which are never kept.
    """

    d_model: int
    n_persistent: int

    def param_count(self) -> ParamCount:
        """Count keys and values of all heads."""
        return ParamCount(feed_forward=2 * self.n_persistent * self.d_model)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count scores and mixture."""
        return FlopCount(feed_forward=4.0 * self.n_persistent * self.d_model)

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return nothing: query, mixture and log-sum-exp are attention's."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Config(LlamaFrame):
    """Transformer of attention alone, with persistent vectors in place of feed-forward blocks."""

    DOCUMENT_MASK: ClassVar[bool] = False
    FREE_DIMENSION: ClassVar[str] = "n_persistent"
    """Field that `match:` solves for unless told otherwise."""

    n_persistent: PositiveInt
    """Persistent keys and values of every head (N)."""

    @property
    def attention(self) -> AllAttentionShape:
        """Sizes of one attention block, without its persistent vectors."""
        return AllAttentionShape(**vars(super().attention))

    def build(self, vocab_size: int) -> Transformer:
        """Return the model on the default device, its values open until `initialise`."""
        mixers = (
            AllAttention(self.attention, n_persistent=self.n_persistent, norm_eps=self.norm_eps)
            for _ in range(self.n_layers)
        )
        return self.transformer(vocab_size, (self.block_with(None, mixer=m) for m in mixers))

    def components(self, vocab_size: int) -> Components:
        """Return what the model consists of."""
        return [
            (1, VocabularyComponent(vocab_size, self.d_model, tied=self.tied_embeddings)),
            (self.n_layers + 1, RMSNormComponent(width=self.d_model)),
            (self.n_layers, self.attention),
            (
                self.n_layers,
                PersistentComponent(d_model=self.d_model, n_persistent=self.n_persistent),
            ),
        ]

    @classmethod
    def nearest_size(cls, non_embedding_params: int, **overrides: Any) -> "Config":
        """Return the member of the family nearest to a size.

        Raises:
            ValueError: If none is within a quarter of it.
        """
        return nearest_member(cls, _family, [_N_PERSISTENT], non_embedding_params, overrides)


class AllAttention(MultiHead):
    """Softmax attention to this and earlier positions and to the persistent vectors."""

    def __init__(self, shape: AttentionShape, *, n_persistent: int, norm_eps: float) -> None:
        super().__init__(shape, norm_eps=norm_eps)
        self.persistent = PersistentVectors(shape.n_heads, n_persistent, shape.d_head)

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], context: Context
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return the block's output, to be added to the residual."""
        persistent_query, key, value = self.heads(x)
        query = rotate(persistent_query, context.rotation).transpose(1, 2)
        key = rotate(key, context.rotation).transpose(1, 2)
        value = value.transpose(1, 2)
        if context.cache is not None:
            at = context.positions
            key = context.cache.append("key", key, dim=2, positions=at)
            value = context.cache.append("value", value, dim=2, positions=at)
        groups = self.shape.n_heads // self.shape.n_kv_heads
        if groups > 1:
            key, value = (y.repeat_interleave(groups, dim=1) for y in (key, value))
        persistent = (y.to(query.dtype) for y in self.persistent())
        persistent_query = persistent_query.transpose(1, 2)
        mixed = all_attention(
            query, key, value, persistent_query, *persistent, positions=context.positions
        )
        return self.joined(mixed)


class PersistentVectors(nn.Module):
    """Keys and values that do not depend on the input."""

    PARAM_GROUP: ClassVar[str] = "feed_forward"

    def __init__(self, n_heads: int, n_persistent: int, d_head: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.empty(n_heads, n_persistent, d_head))
        self.values = nn.Parameter(torch.empty(n_heads, n_persistent, d_head))

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write normal values of the size at which they are stored."""
        truncated_normal(value, 1.0 / self._size(name), generator)

    def forward(
        self,
    ) -> tuple[Float[Tensor, "heads vectors d_head"], Float[Tensor, "heads vectors d_head"]]:
        """Return keys and values, which begin at size 1."""
        return self.keys * self._size("keys"), self.values * self._size("values")

    def _size(self, name: str) -> float:
        _, n_persistent, d_head = self.keys.shape
        return float((d_head if name == "keys" else n_persistent) ** 0.5)


def _without_feed_forward(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields of a dense backbone, its SwiGLU parameters spent on persistent vectors."""
    rest = {name: value for name, value in fields.items() if name != "d_ff"}
    return {**rest, "n_persistent": 3 * fields["d_ff"] // 2}


def _family(d_model: int) -> dict[str, Any]:
    return _without_feed_forward(backbone_fields(d_model))


_N_PERSISTENT = FreeDimension(name="n_persistent", lowest=0.375, highest=1.5, step=8)
"""From 1.5 to 6 times d_model."""

PRESETS: dict[str, dict[str, Any]] = {
    **{name: _without_feed_forward(fields) for name, fields in BACKBONES.items()},
    # The source's small model of characters: 39 million parameters there, with its relative
    # positions and spans.
    "enwik8": {"d_model": 512, "n_layers": 18, "n_heads": 8, "n_persistent": 1024},
}
