"""Llama-style transformer: RMSNorm before each block, rotary positions, SwiGLU, no biases.

The base that other architectures are compared with. Presets 134m to 8b have the shapes of Berges et al. 2024
(arXiv 2412.09764) and its authors' answers to reviewers; the smaller ones are ours.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from workloads.accounting import FlopCount, ParamCount, Precision
from workloads.layers.family import D_FF, backbone_fields, nearest_member
from workloads.layers.feed_forward import llama_d_ff
from workloads.layers.transformer import Transformer, TransformerShape


@dataclass(frozen=True, kw_only=True)
class Config:
    """Transformer with a feed-forward block in every layer."""

    FLOP_KNOB: ClassVar[str] = "d_ff"
    """Field that `match: {training_flops: ...}` solves for."""

    d_model: int
    """Residual width."""
    n_layers: int
    """Blocks."""
    n_heads: int
    """Query heads."""
    d_ff: int
    """Feed-forward width."""
    n_kv_heads: int | None = None
    """Key and value heads; None is as many as query heads."""
    qk_norm: bool = False
    """Normalise attention queries and keys per head."""
    rope_base: float = 10_000.0
    """Base of the rotary frequencies."""
    norm_eps: float = 1.0e-5
    """Added to mean squares under the root."""
    tied_embeddings: bool = False
    """Use the embedding table as output head."""

    def __post_init__(self) -> None:
        _ = self.shape

    @property
    def shape(self) -> TransformerShape:
        """Sizes with absent fields filled in."""
        return TransformerShape(
            d_model=self.d_model,
            n_layers=self.n_layers,
            n_heads=self.n_heads,
            n_kv_heads=self.n_heads if self.n_kv_heads is None else self.n_kv_heads,
            d_ff=self.d_ff,
            qk_norm=self.qk_norm,
            norm_eps=self.norm_eps,
            rope_base=self.rope_base,
            tied_embeddings=self.tied_embeddings,
        )

    def build(self, vocab_size: int) -> nn.Module:
        """Return the model on the default device, its values open until `initialise`."""
        shape = self.shape
        return Transformer(
            shape, vocab_size=vocab_size, layers=[shape.block() for _ in range(self.n_layers)]
        )

    def param_count(self, vocab_size: int) -> ParamCount:
        """Count trainable numbers per group."""
        return self.shape.param_count(vocab_size, n_feed_forward=self.n_layers)

    def active_param_count(self, vocab_size: int) -> int:
        """Count the non-embedding parameters one token touches: all."""
        return self.param_count(vocab_size).non_embedding

    def flops_per_token(self, vocab_size: int, seq_len: int) -> FlopCount:
        """Count forward FLOPs of one token in a sequence of `seq_len`."""
        return self.shape.flops_per_token(vocab_size, seq_len, n_feed_forward=self.n_layers)

    def bytes_per_token(
        self, vocab_size: int, *, batch_tokens: int = 1, element_bytes: int = 2
    ) -> dict[str, float]:
        """Return bytes of parameters read per token and group when `batch_tokens` tokens pass at once."""
        return self.shape.bytes_per_token(
            vocab_size,
            n_feed_forward=self.n_layers,
            batch_tokens=batch_tokens,
            element_bytes=element_bytes,
        )

    def activation_bytes_per_token(
        self, vocab_size: int, seq_len: int, *, precision: Precision
    ) -> float:
        """Return what a forward pass keeps for the backward pass; no length matters to fused attention."""
        return self.shape.activation_bytes_per_token(
            vocab_size, n_feed_forward=self.n_layers, precision=precision
        )

    def param_group(self, parameter_name: str) -> str:
        """Return the field of `ParamCount` that a parameter counts under."""
        return self.shape.param_group(parameter_name)

    @classmethod
    def sized(cls, non_embedding_params: int, **overrides: Any) -> "Config":
        """Return the member of the family nearest to a size.

        Raises:
            ValueError: If none is within a quarter of it.
        """
        return nearest_member(cls, backbone_fields, [D_FF], non_embedding_params, overrides)


def _llama(d_model: int, n_layers: int, n_heads: int, **fields: Any) -> dict[str, Any]:
    return {
        "d_model": d_model,
        "n_layers": n_layers,
        "n_heads": n_heads,
        "d_ff": llama_d_ff(d_model),
        "rope_base": 500_000.0,
        **fields,
    }


def _small(d_model: int, n_layers: int, n_heads: int, d_ff: int) -> dict[str, Any]:
    # Tied: with 32,000 tokens a second matrix would have four times the parameters of the blocks at 1m.
    return {
        "d_model": d_model,
        "n_layers": n_layers,
        "n_heads": n_heads,
        "d_ff": d_ff,
        "tied_embeddings": True,
    }


PRESETS: dict[str, dict[str, Any]] = {
    # For a CPU: two layers, and two heads however narrow, so that only the width differs between the smallest.
    "d8": _small(8, 2, 2, 24),
    "d12": _small(12, 2, 2, 32),
    "d16": _small(16, 2, 2, 48),
    "d20": _small(20, 2, 2, 56),
    "d24": _small(24, 2, 2, 64),
    "d32": _small(32, 2, 2, 88),
    "d48": _small(48, 2, 3, 128),
    "d64": _small(64, 2, 4, 176),
    # Named by non-embedding parameters.
    "1m": _small(128, 5, 4, 352),
    "3m": _small(192, 6, 6, 616),
    "10m": _small(320, 8, 5, 880),
    "30m": _small(512, 10, 8, 1280),
    # Named by all parameters with 32,000 tokens, as in the paper.
    "134m": _llama(768, 12, 12),
    "373m": _llama(1024, 24, 16),
    "720m": _llama(1536, 22, 12),
    "1.3b": _llama(2048, 22, 16),
    # Llama-3 shape (grouped keys, d_ff 14,336), for a vocabulary of 128,000.
    "8b": _llama(4096, 32, 32, n_kv_heads=8, d_ff=14_336),
}
