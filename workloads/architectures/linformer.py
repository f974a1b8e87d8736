"""Linformer, made causal: attention to a compressed prefix, GPT-NeoX backbone.

Source: Wang et al. 2020, "Linformer" (arXiv 2006.04768): softmax over k = `projected_len` keys `E
K` and values `F V` instead of over all positions. Each of the k mixes all positions, so no mask
makes that causal. Here every position has the projection of its own prefix, exactly:

    K'_t = sum over j <= t of E_j k_j^T,  V'_t = sum over j <= t of F_j v_j^T
    y_t = softmax(K'_t q_t / sqrt(d_head))^T V'_t

K' and V' have k rows; E_j and F_j are a vector per position. This is two causal linear attentions
without normalisation: scores are the one of q and k with E_j as values, the output that of the
weights with F_j as keys. Neither K'_t nor V'_t exists for every t.

E and F belong to a layer, its heads share them, and their entries begin even in +-1 / sqrt(k), as
in the released codes. They have `max_seq_len` positions, so longer sequences are refused. Sums over
a short prefix are smaller than those over a long one; `equal_prefixes` multiplies both sums at
position t by sqrt(max_seq_len / t), so that all begin at the scale that a full sequence has in the
source.

Not the source's: causality, that factor, and the backbone, which is Pythia's with its rotary
positions (positions are learned in E and F besides).
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workloads.accounting.counts import ParamCount, Precision
from workloads.field_error import PositiveInt
from workloads.layers.backbone.neox import (
    NEOX_BACKBONES,
    NEOX_D_FF,
    SUITE,
    NeoXBackbone,
    neox_family,
)
from workloads.layers.backbone.size_family import nearest_member
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.context import Context
from workloads.layers.mixers.attention import AttentionShape, MultiHead
from workloads.layers.mixers.linear_attention import (
    chunked_floats,
    chunked_flops,
    refuse_longer,
    remembering_mix,
)


@dataclass(frozen=True, kw_only=True)
class LinformerShape(AttentionShape):
    """Sizes of one mixer."""

    projected_len: int
    max_seq_len: int
    chunk: int

    def param_count(self) -> ParamCount:
        """Count E and F with the projections: they are part of what mixes positions."""
        both = 2 * self.projected_len * self.max_seq_len
        return ParamCount(attention=self.projection_params + both)

    def active_params(self) -> int:
        """Count of E and F what belongs to a token's own position."""
        return self.projection_params + 2 * self.projected_len

    def bytes_per_token(self, *, batch_tokens: int, element_bytes: int) -> dict[str, float]:
        """Return bytes of projections, once per batch, and of the rows of E and F in use.

        Of E and F as many positions as the batch can have.
        """
        positions = min(batch_tokens, self.max_seq_len)
        numbers = self.projection_params + 2 * self.projected_len * positions
        return {"attention": element_bytes * numbers / batch_tokens}

    def mixing_flops(self, seq_len: int) -> float:
        """Return FLOPs of both linear attentions: one of width k, one of features of width k."""
        return self.n_heads * sum(
            chunked_flops(seq_len, key_width=m, value_width=d, chunk=self.chunk)
            for m, d in self._widths
        )

    @property
    def _widths(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return (self.d_head, self.projected_len), (self.projected_len, self.d_head)

    def mixing_activation_bytes(self, seq_len: int, precision: Precision) -> float:
        """Return query, key, value and weights, what the sums keep, and the mixture."""
        c = 4 if precision == "fp32" else 2
        floats = 3.0 * self.d_model + self.n_heads * self.projected_len
        floats += self.n_heads * sum(
            chunked_floats(seq_len, key_width=m, value_width=d, chunk=self.chunk)
            for m, d in self._widths
        )
        return c * (floats + self.d_model)


@dataclass(frozen=True, kw_only=True)
class Config(NeoXBackbone):
    """GPT-NeoX transformer with attention to a compressed prefix."""

    projected_len: PositiveInt
    """Keys and values that a prefix is compressed to (k)."""
    max_seq_len: PositiveInt = 2048
    """Positions of the compression, so the longest sequence."""
    equal_prefixes: bool = True
    """Bring the sums over prefixes of all lengths to one scale."""
    chunk_tokens: PositiveInt = 64
    """Tokens mixed at once by their products; changes speed and counted FLOPs, not the result."""

    @property
    def longest_sequence(self) -> int:
        """Tokens that the model can read."""
        return self.max_seq_len

    @property
    def attention(self) -> LinformerShape:
        """Sizes of one mixer."""
        return LinformerShape(
            **vars(super().attention),
            projected_len=self.projected_len,
            max_seq_len=self.max_seq_len,
            chunk=self.chunk_tokens,
        )

    def build(self, vocab_size: int) -> Transformer:
        """Return the model on the default device, its values open until `initialise`."""
        mixers = (
            self.mixer(PrefixAttention, equal_prefixes=self.equal_prefixes)
            for _ in range(self.n_layers)
        )
        return self.transformer(vocab_size, (self.block(mixer) for mixer in mixers))

    @classmethod
    def nearest_size(cls, non_embedding_params: int, **overrides: Any) -> "Config":
        """Return the member of the family nearest to a size.

        Raises:
            ValueError: If none is within a quarter of it.
        """
        return nearest_member(cls, _family, [NEOX_D_FF], non_embedding_params, overrides)


class PrefixAttention(MultiHead):
    """Softmax attention to `projected_len` combinations of the keys and values so far."""

    shape: LinformerShape

    def __init__(self, shape: LinformerShape, *, equal_prefixes: bool, **initial: Any) -> None:
        super().__init__(shape, **initial)
        self.equal_prefixes = equal_prefixes
        # E and F, a row per position.
        self.key_projection = nn.Parameter(torch.empty(shape.max_seq_len, shape.projected_len))
        self.value_projection = nn.Parameter(torch.empty(shape.max_seq_len, shape.projected_len))

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write E and F, even in +-1 / sqrt(projected_len)."""
        bound = self.shape.projected_len**-0.5
        value.uniform_(-bound, bound, generator=generator)

    def mix(
        self,
        query: Float[Tensor, "batch heads seq d_head"],
        key: Float[Tensor, "batch heads seq d_head"],
        value: Float[Tensor, "batch heads seq d_head"],
        context: Context,
    ) -> Float[Tensor, "batch heads seq d_head"]:
        """Return the softmax mixture of the values' combinations."""
        seq, at, shape, dtype = query.shape[2], context.positions, self.shape, value.dtype
        refuse_longer(context, seq, max_seq_len=shape.max_seq_len)
        projections = (self.key_projection, self.value_projection)
        if at is None:
            e, f = (x[:seq].to(dtype) for x in projections)
        else:  # each sequence has rows of its own, all heads have the same
            heads = (-1, shape.n_heads, -1, -1)
            e, f = (x[at].to(dtype)[:, None].expand(heads) for x in projections)
        scale: float | Tensor = 1.0
        if self.equal_prefixes:
            wide = torch.promote_types(dtype, torch.float32)
            prefixes = torch.arange(1, seq + 1, device=query.device, dtype=wide)
            if at is not None:
                prefixes = at[:, None].to(wide) + 1
            scale = (shape.max_seq_len / prefixes).sqrt()[..., None].to(dtype)
        query, key, value = (x.contiguous() for x in (query, key, value))
        chunk, cache = shape.chunk, context.cache
        query = query * (scale * shape.d_head**-0.5)
        scores = remembering_mix(query, key, e, chunk=chunk, cache=cache, name="keys")
        with torch.autocast(query.device.type, enabled=False):
            weights = scores.softmax(dim=-1)
        mixed = remembering_mix(weights, f, value, chunk=chunk, cache=cache, name="values")
        return mixed * scale


def _projected_len(d_model: int) -> int:
    """Ours: a quarter of d_model, but from 8 to the source's 256."""
    return min(256, max(8, d_model // 4))


def _family(d_model: int) -> dict[str, Any]:
    return {
        **neox_family(d_model),
        "projected_len": _projected_len(d_model),
        "max_seq_len": 512 if d_model < 512 else 2048,
    }


PRESETS: dict[str, dict[str, Any]] = {
    # The suite's sequences, at the source's k.
    **{name: {**fields, "projected_len": 256} for name, fields in SUITE.items()},
    **{
        name: {
            **fields,
            "projected_len": _projected_len(fields["d_model"]),
            "max_seq_len": 512,
        }
        for name, fields in NEOX_BACKBONES.items()
        if name not in SUITE
    },
}
