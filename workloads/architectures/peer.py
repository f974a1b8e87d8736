"""PEER: a feed-forward block of many one-unit experts, found by product keys.

Source: He 2024, "Mixture of A Million Experts" (arXiv 2407.04153). With u_i and v_i the rows of two
tables and g_i the weight of expert i in a head,

    e_i(x) = act(u_i . x) v_i,    f(x) = sum over heads, sum over the head's top knn of g_i e_i(x).

The layer replaces the middle feed-forward block. Experts are shared by all heads, and so are keys
(`shared_keys`); in the baseline of Berges et al. 2024 (arXiv 2412.09764), presets 134m to 1.3b,
every head has keys of its own.

Departures: the backbone is `dense`'s; queries are not normalised over the batch unless
`query_batch_norm` says so, because then the model is not causal in training; scores may be cosines
(`memory_qk_norm`, on in our small presets). Of the baseline we know sizes, not the activation:
GELU, as in the original.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from workloads.accounting.counts import Component, Components, FlopCount, ParamCount, Precision
from workloads.architectures import dense
from workloads.field_error import PositiveInt
from workloads.layers.backbone.layer_placement import centred, check_layer
from workloads.layers.backbone.llama import BACKBONES, PAPER, TINY, LlamaBackbone
from workloads.layers.backbone.size_family import (
    D_FF,
    FreeDimension,
    backbone_fields,
    nearest_member,
)
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.context import Context
from workloads.layers.memory.product_keys import (
    KeyInit,
    LookupShape,
    ProductKeyLookup,
    Score,
    check_lookup,
)
from workloads.layers.memory.table import MemoryTable, ModuleRef, TableComponent
from workloads.layers.modules.norms import LEAK
from workloads.layers.modules.usage_stats import MemoryUsage

Activation = Literal["gelu", "relu", "one"]
"""Of an expert's hidden unit. `one` is 1 whatever the input, which makes a `memory` of it: a check,
not a model."""


@dataclass(frozen=True, kw_only=True)
class Config(LlamaBackbone):
    """Transformer with retrieved experts in one layer and feed-forward blocks in the others."""

    n_keys: PositiveInt
    """Sub-keys in each half codebook; there are n_keys**2 experts."""
    n_memory_heads: PositiveInt = 8
    """Retrieving heads; what their experts put out is added."""
    knn: PositiveInt = 16
    """Experts per token and head."""
    key_dim: PositiveInt | None = None
    """Width of a query, both halves; None is half of d_model."""
    shared_keys: bool = True
    """One pair of codebooks for all heads, as in the paper, instead of one per head."""
    activation: Activation = "gelu"
    """Of an expert's hidden unit."""
    peer_layer: int | None = None
    """Layer with the experts, from 0; None is the middle one, n_layers // 2."""
    score: Score = "softmax"
    """What makes weights of the scores of the chosen experts: softmax over a head's, or sigmoid or
    relu of each."""
    memory_qk_norm: bool = False
    """Score by cosine times a learned scale per head, instead of by the plain product."""
    query_batch_norm: bool = False
    """Normalise queries over the batch, as in the paper: evener use of experts, but not causal in
    training."""
    key_init: KeyInit = "key_dim"
    """Sub-keys begin uniform within 1 / sqrt of this: key_dim or half_key_dim."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_lookup(
            n_keys=self.n_keys,
            knn=self.knn,
            key_dim=self.experts.lookup.key_dim,
            key_dim_half_of="d_model" if self.key_dim is None else None,
        )
        check_layer(self.peer_layer, n_layers=self.n_layers, field="peer_layer")

    @property
    def experts(self) -> "ExpertsShape":
        """Sizes of the layer with absent fields filled in."""
        lookup = LookupShape(
            d_model=self.d_model,
            n_keys=self.n_keys,
            n_heads=self.n_memory_heads,
            knn=self.knn,
            key_dim=self.d_model // 2 if self.key_dim is None else self.key_dim,
            qk_norm=self.memory_qk_norm,
            query_batch_norm=self.query_batch_norm,
            shared_keys=self.shared_keys,
            score=self.score,
            key_init=self.key_init,
        )
        return ExpertsShape(lookup=lookup, activation=self.activation)

    @property
    def placement(self) -> tuple[int]:
        """The layer with the experts, from 0."""
        (layer,) = centred(self.n_layers, count=1, stride=1, first=self.peer_layer)
        return (layer,)

    @property
    def n_feed_forward(self) -> int:
        """Layers without experts."""
        return self.n_layers - 1

    @property
    def non_causal_reasons(self) -> dict[str, str]:
        """Mode -> why outputs can depend on later tokens there."""
        return {"training": LEAK} if self.query_batch_norm else {}

    def build(self, vocab_size: int) -> nn.Module:
        """Return the model on the default device, its values open until `initialise`."""
        return PeerTransformer(self, vocab_size=vocab_size)

    def components(self, vocab_size: int) -> Components:
        """Return what the model consists of: of the experts both tables."""
        return [
            *self.frame_components(vocab_size),
            (1, self.experts),
            (2, self.experts.table()),
        ]

    @classmethod
    def nearest_size(cls, non_embedding_params: int, **overrides: Any) -> "Config":
        """Return the member of the family nearest to a size, which counts all experts.

        Raises:
            ValueError: If none is within a quarter of it.
        """
        return nearest_member(cls, _family, [_N_KEYS, D_FF], non_embedding_params, overrides)


class PeerTransformer(Transformer):
    """Transformer that owns one layer's experts: tables of input and output vectors."""

    def __init__(self, config: Config, *, vocab_size: int) -> None:
        inputs, outputs = (MemoryTable(config.n_keys**2, config.d_model) for _ in range(2))
        inputs.same_reads_as = ModuleRef(outputs)
        layers = (
            config.block(Peer(config.experts, inputs, outputs))
            if index in config.placement
            else config.block()
            for index in range(config.n_layers)
        )
        super().__init__(**config.frame(vocab_size, layers))
        self.expert_inputs = inputs
        self.expert_outputs = outputs


@dataclass(frozen=True, kw_only=True)
class ExpertsShape(Component):
    """Sizes of the layer without its tables, and what follows from them."""

    lookup: LookupShape
    activation: Activation = "gelu"

    def table(self) -> TableComponent:
        """Return either of the two tables, of which the layer reads the same rows."""
        return TableComponent(
            n_rows=self.lookup.n_slots,
            width=self.lookup.d_model,
            bag_size=self.lookup.rows_read,
            distinct=self.lookup.knn,
            paired=True,
        )

    def param_count(self) -> ParamCount:
        """Count the lookup."""
        return self.lookup.param_count()

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count the lookup; products and sums of rows count with the tables."""
        return self.lookup.flops_per_token(seq_len)

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return bytes kept for the backward pass, all in fp32.

        The lookup's, hidden units, activations and their products with the weights.

        ReLU keeps its result only. With bf16 the tables keep the input once more, in their type.
        """
        kept = self.lookup.activation_bytes_per_token(seq_len, precision)
        if precision == "bf16":
            kept += 4.0 * self.lookup.d_model
        return kept + 4.0 * (3 if self.activation == "gelu" else 2) * self.lookup.rows_read


class Peer(ProductKeyLookup):
    """The weighted sum of the best experts of every head."""

    def __init__(self, shape: ExpertsShape, inputs: MemoryTable, outputs: MemoryTable) -> None:
        """Make a layer whose experts are the rows of two tables, which the model owns."""
        super().__init__(shape.lookup)
        self.shape = shape
        self.inputs, self.outputs = ModuleRef(inputs), ModuleRef(outputs)
        self.usage = MemoryUsage(shape.lookup.n_slots)

    def forward(
        self, x: Float[Tensor, "*batch d_model"], context: Context
    ) -> Float[Tensor, "*batch d_model"]:
        """Return the layer's output, to be added to the residual."""
        tokens = x.reshape(-1, self.lookup.d_model)
        ids, weights = self.select(tokens)
        self.usage.mark(ids)
        if context.record_usage:
            self.usage.record(ids, weights)
        hidden = _activated(self.inputs.module.gathered_dot(ids, tokens), self.shape.activation)
        output: Tensor = self.outputs.module(ids, weights * hidden)
        return output.to(x.dtype).view(x.shape)

    def record_usage(self, output: Tensor, residual: Tensor) -> None:
        """Record the size of the output against the residual stream's."""
        self.usage.record_output(output, residual)


def _activated(hidden: Tensor, activation: Activation) -> Tensor:
    if activation == "gelu":
        return functional.gelu(hidden)
    return hidden.relu() if activation == "relu" else torch.ones_like(hidden)


def _family(d_model: int) -> dict[str, Any]:
    """Return fields of this width: dense backbone, experts about four times as large."""
    backbone = backbone_fields(d_model)
    block_params = dense.Config(**backbone).param_count(1).non_embedding
    reading = {"n_memory_heads": 2, "knn": 8} if d_model <= 64 else {"n_memory_heads": 4, "knn": 16}
    n_keys = max(16, 8 * round((2 * block_params / d_model) ** 0.5 / 8))
    return {**backbone, **reading, "n_keys": n_keys, "memory_qk_norm": True}


_N_KEYS = FreeDimension(name="n_keys", lowest=0.7, highest=1.4, step=2)
"""From half to twice the usual number of experts."""

# Both tables together are about as large as the one of `memory` and `memory_plus`, of which the
# same number of rows is read.
_TINY = {"n_keys": 48, "n_memory_heads": 2, "knn": 8, "memory_qk_norm": True}
_SMALL = {"n_memory_heads": 4, "knn": 16, "memory_qk_norm": True}
_META = {"n_memory_heads": 4, "knn": 32, "key_dim": 256, "shared_keys": False}

PRESETS: dict[str, dict[str, Any]] = {
    **{name: {**fields, **_TINY} for name, fields in TINY.items()},
    "1m": {**BACKBONES["1m"], "n_keys": 136, **_SMALL},
    "3m": {**BACKBONES["3m"], "n_keys": 184, **_SMALL},
    "10m": {**BACKBONES["10m"], "n_keys": 248, **_SMALL},
    "30m": {**BACKBONES["30m"], "n_keys": 336, **_SMALL},
    **{name: {**fields, "n_keys": 768, **_META} for name, fields in PAPER.items()},
    # Ours: three quarters of the sub-keys of `memory`'s, as at the other sizes.
    "8b": {**PAPER["8b"], "n_keys": 3072, **_META},
    # The layer of He 2024, its key_dim that of product-key memories, in the backbone of 134m.
    "peer_paper": {
        **PAPER["134m"],
        "n_keys": 1024,
        "n_memory_heads": 8,
        "knn": 16,
        "key_dim": 256,
        "query_batch_norm": True,
    },
}
