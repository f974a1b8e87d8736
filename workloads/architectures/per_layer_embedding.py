"""Per-layer embeddings (PLE): a second token table, sliced by layer.

Source: Google's Gemma 3n and Gemma 4 E models; there is no paper. Equations, shapes and scales are
as users worked them out from the released models and code (huggingface/transformers issue 45206 and
pull request 45207, llama.cpp issue 22243, onnxruntime-genai issue 2149). A token's row is read once
and split among the layers, so the table costs bandwidth of one row a token and no products, and can
lie in slow memory.

Departures:
    * The backbone is `dense`'s: embeddings are not multiplied by sqrt(d_model) (`PerLayerInputs`
      says what follows), and there are no norms after blocks, no windows, no shared keys and
      values, no factor on a layer's output.
    * Initial values are ours: both halves of what a layer reads begin with variance 1.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from workloads.accounting.counts import Components
from workloads.field_error import FieldError
from workloads.layers.backbone.llama import PAPER, SMALL, TINY, LlamaBackbone
from workloads.layers.backbone.size_family import D_FF, backbone_fields, nearest_member
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.context import Context
from workloads.layers.memory.per_layer_embedding import (
    PER_LAYER_INPUTS,
    PerLayerBlock,
    PerLayerGate,
    PerLayerInputs,
    PerLayerShape,
)
from workloads.layers.memory.table import MemoryTable


@dataclass(frozen=True, kw_only=True)
class Config(LlamaBackbone):
    """Transformer whose every layer reads a vector of its own for each token."""

    per_layer_dim: int
    """Numbers that a layer reads for a token; a table row is n_layers times as wide."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per_layer_dim < 1:
            fix = "the nearest is 1, or use `dense` for none"
            raise FieldError("per_layer_dim", "must be at least 1", self.per_layer_dim, fix)

    @property
    def per_layer(self) -> PerLayerShape:
        """Sizes of the per-layer embedding."""
        return PerLayerShape(d_model=self.d_model, n_layers=self.n_layers, width=self.per_layer_dim)

    def build(self, vocab_size: int) -> "PerLayerTransformer":
        """Return the model on the default device, its values open until `initialise`."""
        return PerLayerTransformer(self, vocab_size=vocab_size)

    def components(self, vocab_size: int) -> Components:
        """Return what the model consists of."""
        return [
            *self.frame_components(vocab_size),
            (1, self.per_layer),
            (1, self.per_layer.table(vocab_size)),
        ]

    @classmethod
    def nearest_size(cls, non_embedding_params: int, **overrides: Any) -> "Config":
        """Return the preset nearest to a size, which leaves out the table.

        The table grows with the vocabulary.

        Raises:
            ValueError: If none is within a quarter of it.
        """
        return nearest_member(cls, _family, [D_FF], non_embedding_params, overrides)


class PerLayerTransformer(Transformer):
    """A transformer that owns a table of all layers' token vectors."""

    def __init__(self, config: Config, *, vocab_size: int) -> None:
        # Times sqrt(width) at look-up: every number then begins with variance 1, as does the
        # context's.
        table = MemoryTable(
            vocab_size, config.per_layer.all_widths, std=config.per_layer.width**-0.5
        )
        inputs = PerLayerInputs(config.per_layer, table, norm_eps=config.norm_eps)
        super().__init__(**config.frame(vocab_size, _layers(config, inputs)))
        self.per_layer_table = table
        self.per_layer_inputs = inputs

    def embed(
        self, tokens: Int[Tensor, "batch seq"], context: Context
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return the first residual stream; leave every layer's inputs in the context."""
        x = super().embed(tokens, context)
        context.shared[PER_LAYER_INPUTS] = self.per_layer_inputs(x, tokens, context)
        return x


def _layers(config: Config, inputs: PerLayerInputs) -> Iterable[nn.Module]:
    for layer in range(config.n_layers):
        gate = PerLayerGate(config.per_layer, inputs, layer=layer, norm_eps=config.norm_eps)
        yield config.block(kind=PerLayerBlock, per_layer=gate)


def _width(d_model: int) -> int:
    """Ours for small models: a quarter of d_model, at most Gemma's 256."""
    return min(256, max(4, d_model // 4))


def _with_width(fields: dict[str, Any], width: int) -> dict[str, Any]:
    return {**fields, "per_layer_dim": width}


def _family(d_model: int) -> dict[str, Any]:
    """Fields of the member of this width."""
    return _with_width(backbone_fields(d_model), _width(d_model))


PRESETS: dict[str, dict[str, Any]] = {
    **{
        name: _with_width(fields, _width(fields["d_model"]))
        for name, fields in {**TINY, **SMALL}.items()
    },
    **{name: _with_width(fields, 256) for name, fields in PAPER.items()},
}
