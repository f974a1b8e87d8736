"""Llama-style transformer: pre-RMSNorm, rotary positions, SwiGLU, no biases.

The base that other architectures are compared with. Presets 134m to 8b have the shapes of Berges et
al. 2024 (arXiv 2412.09764) and its authors' answers to reviewers; the smaller ones are ours.
"""

from dataclasses import dataclass
from typing import Any

from workloads.accounting.counts import Components
from workloads.layers.backbone.llama import BACKBONES, LlamaBackbone
from workloads.layers.backbone.size_family import D_FF, backbone_fields, nearest_member
from workloads.layers.backbone.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class Config(LlamaBackbone):
    """Transformer with a feed-forward block in every layer."""

    def build(self, vocab_size: int) -> Transformer:
        """Return the model on the default device, its values open until `initialise`."""
        return self.transformer(vocab_size, [self.block() for _ in range(self.n_layers)])

    def components(self, vocab_size: int) -> Components:
        """Return what the model consists of."""
        return self.frame_components(vocab_size)

    @classmethod
    def nearest_size(cls, non_embedding_params: int, **overrides: Any) -> "Config":
        """Return the member of the family nearest to a size.

        Raises:
            ValueError: If none is within a quarter of it.
        """
        return nearest_member(cls, backbone_fields, [D_FF], non_embedding_params, overrides)


PRESETS: dict[str, dict[str, Any]] = BACKBONES
