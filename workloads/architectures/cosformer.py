"""cosFormer: linear attention with cosine weights, on a GPT-NeoX backbone.

Source: Qin et al. 2022, "cosFormer" (arXiv 2202.08791) and its released code. Position t mixes the
values of j <= t by `relu(q_t) . relu(k_j) cos(pi (t - j) / 2M)`, divided by the sum of these
weights; no 1 / sqrt(d_head). The cosine of a difference is a sum of products, so it becomes
features of width 2 d_head: `relu(x_t) cos(pi t / 2M)` and `relu(x_t) sin(pi t / 2M)`.

Departures: M is fixed (`max_seq_len`), where the code takes the length of the call, so that a later
token cannot change an earlier output and decoding continues where a pass ended. The backbone is
Pythia's; its rotary positions are off unless asked for, and then turn queries and keys before relu,
which keeps the weights from falling below zero.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.accounting.counts import Precision
from workloads.field_error import PositiveInt, Share
from workloads.layers.backbone.neox import NEOX_BACKBONES, SUITE, NeoXBackbone
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.context import Context
from workloads.layers.mixers.attention import MultiHead
from workloads.layers.mixers.linear_attention import (
    LinearAttentionShape,
    normalised_mix,
    refuse_longer,
)


@dataclass(frozen=True, kw_only=True)
class CosShape(LinearAttentionShape):
    """Sizes of one mixer."""

    def map_bytes(self, precision: Precision) -> float:
        """Return relu of query and key."""
        return (8.0 if precision == "fp32" else 4.0) * self.d_model


@dataclass(frozen=True, kw_only=True)
class Config(NeoXBackbone):
    """GPT-NeoX transformer with cosFormer's linear attention."""

    rotary_fraction: Share = 0.0
    """Share of each head's columns that turn with the position; 0 for none, as in the source."""
    max_seq_len: PositiveInt = 2048
    """M of the weights, and the longest sequence: beyond it they would turn negative."""
    chunk_tokens: PositiveInt = 64
    """Tokens mixed at once by their products; changes speed and counted FLOPs, not the result."""

    @property
    def longest_sequence(self) -> int:
        """Tokens that the model can read."""
        return self.max_seq_len

    @property
    def attention(self) -> CosShape:
        """Sizes of one mixer."""
        return CosShape(
            **vars(super().attention),
            n_features=2 * (self.d_model // self.n_heads),
            chunk=self.chunk_tokens,
        )

    def build(self, vocab_size: int) -> Transformer:
        """Return the model on the default device, its values open until `initialise`."""
        mixers = (
            self.mixer(CosAttention, max_seq_len=self.max_seq_len) for _ in range(self.n_layers)
        )
        return self.transformer(vocab_size, (self.block(mixer) for mixer in mixers))


class CosAttention(MultiHead):
    """Linear attention by relu features that turn with the position."""

    shape: LinearAttentionShape

    def __init__(self, shape: LinearAttentionShape, *, max_seq_len: int, **initial: Any) -> None:
        super().__init__(shape, **initial)
        self.max_seq_len = max_seq_len

    def mix(
        self,
        query: Float[Tensor, "batch heads seq d_head"],
        key: Float[Tensor, "batch heads seq d_head"],
        value: Float[Tensor, "batch heads seq d_head"],
        context: Context,
    ) -> Float[Tensor, "batch heads seq d_head"]:
        """Return the mixture, by weights that are positive up to a distance of `max_seq_len`."""
        seq = query.shape[2]
        refuse_longer(context, seq, max_seq_len=self.max_seq_len)
        turn = _turn(seq, context.positions, max_seq_len=self.max_seq_len, like=query)
        return normalised_mix(
            _features(query, turn),
            _features(key, turn),
            value,
            chunk=self.shape.chunk,
            context=context,
        )


def _turn(
    seq: int, positions: Int[Tensor, "batch seq"] | None, *, max_seq_len: int, like: Tensor
) -> Float[Tensor, "*batch_and_head seq two 1"]:
    """Return cosine and sine of every position's angle, worked out in fp32 or wider."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    if positions is None:
        at = torch.arange(seq, device=like.device, dtype=dtype)
    else:
        at = positions[:, None].to(dtype)
    angles = at * (math.pi / (2 * max_seq_len))
    return torch.stack((angles.cos(), angles.sin()), dim=-1)[..., None].to(like.dtype)


def _features(
    x: Float[Tensor, "batch heads seq d_head"], turn: Float[Tensor, "*batch_and_head seq two 1"]
) -> Float[Tensor, "batch heads seq width"]:
    """Return `relu(x)` times the cosine, then times the sine."""
    return (x.contiguous().relu()[:, :, :, None] * turn).flatten(-2)


_LONGEST = {"max_seq_len": 512}

PRESETS: dict[str, dict[str, Any]] = {
    name: fields if name in SUITE else {**fields, **_LONGEST}
    for name, fields in NEOX_BACKBONES.items()
}
