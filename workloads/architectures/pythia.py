"""Pythia: GPT-NeoX, parallel residual, LayerNorm, biases, partial rotary.

Rotary positions turn a quarter of each head.

Source: Biderman et al. 2023, "Pythia" (arXiv 2304.01373); presets 14m to 2.8b are the suite's
shapes. The base that MemoryFormer's and the efficient mixers' papers compare with.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from workloads.accounting.paper_conventions import dense_block_paper_flops
from workloads.layers.backbone.neox import NEOX_BACKBONES, NeoXBackbone
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.mixers.attention import CausalAttention


@dataclass(frozen=True, kw_only=True)
class Config(NeoXBackbone):
    """GPT-NeoX transformer with softmax attention."""

    DOCUMENT_MASK: ClassVar[bool] = True

    def build(self, vocab_size: int) -> Transformer:
        """Return the model on the default device, its values open until `initialise`."""
        blocks = (self.block(self.mixer(CausalAttention)) for _ in range(self.n_layers))
        return self.transformer(vocab_size, blocks)

    def paper_block_flops(self, seq_len: int) -> int:
        """Return FLOPs of a block and sequence as MemoryFormer's table 1 counts them."""
        return dense_block_paper_flops(self.d_model, d_ff=self.d_ff, seq_len=seq_len)[1]


PRESETS: dict[str, dict[str, Any]] = NEOX_BACKBONES
