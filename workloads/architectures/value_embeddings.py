"""Value embeddings: some layers add a vector per token to the values of attention.

Source: the public training code modded-nanogpt and nanochat (2024 to 2026); there is no paper.
Zhou et al. 2024 (arXiv 2410.17897) add the first layer's values in the same place. Every chosen
layer has a token table of its own, as wide as its values:

    v = W_V x + g * table[token],   g = 2 sigmoid(W_g x[:gate_channels]), one number per value head

The layers are every second one, the last included. The gate begins at 1, because W_g begins at
zero. A token reads one row in each of them, so a table costs bandwidth of one row and no products.

Departures: nanochat's gate reads 12 columns, and its later versions have 3 sigmoid in place of 2
sigmoid, with small positive initial weights; modded-nanogpt has learned numbers in place of a gate
and shares tables between first and last layers. The backbone is `dense`'s, without their other
changes (normalised queries and keys, scaled residual streams, windows).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workloads.accounting.counts import Component, Components, FlopCount, ParamCount, Precision
from workloads.field_error import FieldError, NonNegativeInt
from workloads.layers.backbone.layer_placement import check_placement
from workloads.layers.backbone.llama import BACKBONES
from workloads.layers.backbone.moe_base import MoeBackbone
from workloads.layers.backbone.size_family import D_FF, backbone_fields, nearest_member
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.context import Context
from workloads.layers.memory.table import MemoryTable, ModuleRef, TableComponent
from workloads.layers.mixers.attention import AttentionShape, CausalAttention
from workloads.layers.modules.linear import Linear
from workloads.layers.modules.usage_stats import MemoryUsage


@dataclass(frozen=True, kw_only=True)
class Config(MoeBackbone):
    """Transformer whose attention adds a token's own vector to its values in some layers."""

    value_layers: tuple[int, ...] | None = None
    """Layers with value embeddings, from 0; None is every second one, the last included."""
    gate_channels: NonNegativeInt = 8
    """First columns of attention's input that the gate reads; 0 for no gate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gate_channels > self.d_model:
            rule = f"must be at most d_model ({self.d_model})"
            fix = f"the nearest is {self.d_model}"
            raise FieldError("gate_channels", rule, self.gate_channels, fix, ("d_model",))
        check_placement(
            self.placement,
            n_layers=self.n_layers,
            field="value_layers",
            instead="use `dense` for none",
        )

    @property
    def placement(self) -> tuple[int, ...]:
        """Layers with value embeddings, from 0."""
        if self.value_layers is not None:
            return tuple(self.value_layers)
        return tuple(range((self.n_layers - 1) % 2, self.n_layers, 2))

    @property
    def value_embedding(self) -> "ValueEmbeddingShape":
        """Sizes of one layer's value embedding."""
        return ValueEmbeddingShape(attention=self.attention, gate_channels=self.gate_channels)

    def build(self, vocab_size: int) -> Transformer:
        """Return the model on the default device, its values open until `initialise`."""
        return ValueEmbeddingTransformer(self, vocab_size=vocab_size)

    def components(self, vocab_size: int) -> Components:
        """Return what the model consists of."""
        return [
            *self.frame_components(vocab_size),
            (len(self.placement), self.value_embedding),
            (len(self.placement), self.value_embedding.table(vocab_size)),
        ]

    @classmethod
    def nearest_size(cls, non_embedding_params: int, **overrides: Any) -> "Config":
        """Return the member of the family nearest to a size, which leaves out the tables.

        They grow with the vocabulary.

        Raises:
            ValueError: If none is within a quarter of it.
        """
        return nearest_member(cls, backbone_fields, [D_FF], non_embedding_params, overrides)


@dataclass(frozen=True, kw_only=True)
class ValueEmbeddingShape(Component):
    """Sizes of one layer's value embedding without its table, and what follows from them."""

    attention: AttentionShape
    gate_channels: int

    def table(self, vocab_size: int) -> TableComponent:
        """Return the table: a token reads one row."""
        return TableComponent(
            n_rows=vocab_size, width=self.attention.d_kv, bag_size=1, distinct=1, by_token=True
        )

    def param_count(self) -> ParamCount:
        """Count the gate."""
        return ParamCount(memory_keys=self.gate_channels * self.attention.n_kv_heads)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count the gate; the row read counts with the table."""
        return FlopCount(memory=2.0 * self.gate_channels * self.attention.n_kv_heads)

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return what a gate keeps, less what attention no longer does.

        A gate keeps its logits, its values and the row. The sum of values is a tensor of its own,
        so the joint projection of query, key and value is not kept for its values' sake; in fp32
        norms of queries and keys keep it all the same.
        """
        c = 4 if precision == "fp32" else 2
        attention = self.attention
        kept = 0.0
        if precision == "bf16" or not attention.qk_norm:
            kept -= c * (attention.d_model + attention.d_kv)
        if self.gate_channels:
            kept += c * (2 * attention.n_kv_heads + attention.d_kv)
        return kept


class ValueEmbedding(nn.Module):
    """What one layer adds to its values: the token's row, gated per head."""

    PARAM_GROUP: ClassVar[str] = "memory_keys"

    def __init__(self, shape: ValueEmbeddingShape, table: MemoryTable) -> None:
        """Make what reads `table`, which the model owns."""
        super().__init__()
        self.shape = shape
        self.table = ModuleRef(table)
        # Zero: every gate begins at 1.
        n_heads = shape.attention.n_kv_heads
        self.gate = Linear(shape.gate_channels, n_heads, std=0.0) if shape.gate_channels else None
        self.usage = MemoryUsage(table.weight.shape[0])

    def token_rows(self, tokens: Int[Tensor, "batch seq"]) -> Int[Tensor, "batch seq"]:
        """Return the rows that sequences read."""
        return tokens

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], context: Context
    ) -> Float[Tensor, "batch seq kv_heads d_head"]:
        """Return what the values of attention, whose input is `x`, get added."""
        ids = context.tokens.reshape(-1, 1)
        once = torch.ones(1, device=x.device).expand(ids.shape)
        self.usage.mark(ids)
        if context.record_usage:
            self.usage.record(ids, once)
        rows: Tensor = self.table.module(ids, once).to(x.dtype)
        rows = rows.view(*context.tokens.shape, -1, self.shape.attention.d_head)
        if self.gate is None:
            return rows
        gate = 2 * self.gate(x[..., : self.shape.gate_channels]).sigmoid()
        added: Tensor = gate[..., None] * rows
        return added


class ValueEmbeddingAttention(CausalAttention):
    """Attention whose values are those of the residual stream and of the token itself."""

    def __init__(
        self, shape: AttentionShape, value_embedding: ValueEmbedding, *, norm_eps: float
    ) -> None:
        super().__init__(shape, norm_eps=norm_eps)
        self.value_embedding = value_embedding

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], context: Context
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return the block's output, to be added to the residual."""
        query, key, value = self.rotated_heads(x, context)
        added = self.value_embedding(x, context).to(value.dtype)
        if context.record_usage:
            self.value_embedding.usage.record_output(added, value)
        return self.attend_rotated(query, key, value + added, context)


class ValueEmbeddingTransformer(Transformer):
    """A transformer that owns the value embeddings of its layers."""

    def __init__(self, config: Config, *, vocab_size: int) -> None:
        shape = config.value_embedding
        tables = {
            layer: MemoryTable(vocab_size, config.attention.d_kv, std=config.d_model**-0.5)
            for layer in config.placement
        }

        def layer(index: int) -> nn.Module:
            if index not in tables:
                return config.block()
            embedding = ValueEmbedding(shape, tables[index])
            mixer = ValueEmbeddingAttention(config.attention, embedding, norm_eps=config.norm_eps)
            return config.block(mixer=mixer)

        super().__init__(**config.frame(vocab_size, map(layer, range(config.n_layers))))
        self.memory_tables = nn.ModuleList(tables.values())


PRESETS: dict[str, dict[str, Any]] = BACKBONES
