"""Memory+: product-key memories with one shared table, in place of some FFNs.

Source: Berges et al. 2024, "Memory Layers at Scale" (arXiv 2412.09764): several memory layers
around the middle with one table, gate `output(bag * silu(gate x))`, key_dim half of value_dim. The
backbone and its presets are `dense`'s.
"""

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from workloads.accounting.counts import Components
from workloads.architectures import dense
from workloads.field_error import PositiveInt
from workloads.layers.backbone.layer_placement import centred, check_absent, check_placement
from workloads.layers.backbone.llama import BACKBONES, PAPER, TINY
from workloads.layers.backbone.moe_base import MoeBackbone
from workloads.layers.backbone.size_family import (
    D_FF,
    FreeDimension,
    backbone_fields,
    nearest_member,
)
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.memory.product_key_memory import (
    Gate,
    MemoryShape,
    ProductKeyMemory,
    check_output_bias,
)
from workloads.layers.memory.product_keys import LookupShape, Score, check_lookup
from workloads.layers.memory.table import MemoryTable


@dataclass(frozen=True, kw_only=True)
class Config(MoeBackbone):
    """Transformer with a feed-forward block in some layers and a memory in the others."""

    n_keys: PositiveInt
    """Sub-keys in each half codebook; the table has n_keys**2 slots."""
    n_memory_heads: PositiveInt = 4
    """Reading heads of a memory layer; what they read is added."""
    knn: PositiveInt = 32
    """Slots read per token and memory head."""
    key_dim: PositiveInt | None = None
    """Width of a memory query, both halves; None is half of value_dim."""
    value_dim: PositiveInt | None = None
    """Width of a value row; None is d_model."""
    memory_qk_norm: bool = False
    """Score by cosine times a learned scale per head, instead of by the plain product."""
    gate: Gate | None = None
    """How the input gates what is read: swilu (None), silu without the projection after it, scalar,
    or none."""
    score: Score | None = None
    """What makes weights of the scores of the slots read; None is softmax."""
    share_values: Literal[False] | None = None
    """false gives every memory layer a table of its own."""
    output_bias: Literal[True] | None = None
    """Give a bias to the projection of another value_dim where `gate` is not swilu, whose
    projection has one."""
    memory_layers: tuple[int, ...] | None = None
    """Layers with a memory, from 0; None places them by the three fields below."""
    memory_count: PositiveInt | None = None
    """Number of memory layers; None is 3, or 1 in models of fewer than 6 layers."""
    memory_stride: PositiveInt | None = None
    """Layers from one memory to the next; None is n_layers / memory_count rounded up, at most 8
    (the paper's strides)."""
    memory_first: int | None = None
    """First layer with a memory; None centres them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_lookup(
            n_keys=self.n_keys,
            knn=self.knn,
            key_dim=self.memory.lookup.key_dim,
            key_dim_half_of="value_dim" if self.key_dim is None else None,
        )
        check_output_bias(self.memory, asked=self.output_bias)
        rule = ("memory_first", "memory_stride", "memory_count")
        if self.memory_layers is None:
            check_placement(self.placement, n_layers=self.n_layers, field=rule[0], others=rule[1:])
            return
        for name in rule:
            check_absent(self, name, given="memory_layers")
        check_placement(
            self.placement,
            n_layers=self.n_layers,
            field="memory_layers",
            instead="use `dense` for no memory",
        )

    @property
    def memory(self) -> MemoryShape:
        """Sizes of a memory layer with absent fields filled in."""
        value_dim = self.d_model if self.value_dim is None else self.value_dim
        lookup = LookupShape(
            d_model=self.d_model,
            n_keys=self.n_keys,
            n_heads=self.n_memory_heads,
            knn=self.knn,
            key_dim=value_dim // 2 if self.key_dim is None else self.key_dim,
            qk_norm=self.memory_qk_norm,
            score=self.score or "softmax",
        )
        return MemoryShape(
            lookup=lookup,
            value_dim=value_dim,
            gate=self.gate or "swilu",
            output_bias=bool(self.output_bias),
        )

    @property
    def placement(self) -> tuple[int, ...]:
        """Layers with a memory, from 0."""
        if self.memory_layers is not None:
            return tuple(self.memory_layers)
        count = self.memory_count or (3 if self.n_layers >= 6 else 1)
        stride = self.memory_stride or min(8, -(-self.n_layers // count))
        return centred(self.n_layers, count=count, stride=stride, first=self.memory_first)

    @property
    def n_feed_forward(self) -> int:
        """Layers without a memory."""
        return self.n_layers - len(self.placement)

    def build(self, vocab_size: int) -> nn.Module:
        """Return the model on the default device, its values open until `initialise`."""
        return MemoryPlus(self, vocab_size=vocab_size)

    def components(self, vocab_size: int) -> Components:
        """Return what the model consists of; a shared table once."""
        layers = len(self.placement)
        tables = 1 if self.share_values is None else layers
        return [
            *self.frame_components(vocab_size),
            (layers, self.memory),
            (tables, self.memory.table(n_readers=layers // tables)),
        ]

    @classmethod
    def nearest_size(cls, non_embedding_params: int, **overrides: Any) -> "Config":
        """Return the member of the family nearest to a size, which counts the table.

        Raises:
            ValueError: If none is within a quarter of it.
        """
        return nearest_member(cls, family, [N_KEYS, D_FF], non_embedding_params, overrides)


class MemoryPlus(Transformer):
    """A transformer that owns the tables of values that its memory layers read, usually one."""

    def __init__(self, config: Config, *, vocab_size: int) -> None:
        shared = config.share_values is None
        tables = [
            MemoryTable(config.n_keys**2, config.memory.value_dim)
            for _ in ([0] if shared else config.placement)
        ]
        table_of = {
            index: tables[0 if shared else number] for number, index in enumerate(config.placement)
        }
        layers = (
            config.block(ProductKeyMemory(config.memory, table_of[index]))
            if index in table_of
            else config.block()
            for index in range(config.n_layers)
        )
        super().__init__(**config.frame(vocab_size, layers))
        if shared:
            self.memory_table = tables[0]
        else:
            self.memory_tables = nn.ModuleList(tables)


def family(d_model: int) -> dict[str, Any]:
    """Return fields of this width, of `memory` too: table about four times the backbone."""
    backbone = backbone_fields(d_model)
    block_params = dense.Config(**backbone).param_count(1).non_embedding
    reading = {"n_memory_heads": 2, "knn": 8} if d_model <= 64 else {"n_memory_heads": 4, "knn": 16}
    n_keys = max(16, 8 * round((4 * block_params / d_model) ** 0.5 / 8))
    return {**backbone, **reading, "n_keys": n_keys, "memory_qk_norm": True}


N_KEYS = FreeDimension(name="n_keys", lowest=0.7, highest=1.4, step=2)
"""From half to twice the usual number of slots."""

# Two heads of eight rows, normalised: enough for the d-presets' short documents.
_TINY = {"n_keys": 64, "n_memory_heads": 2, "knn": 8, "memory_qk_norm": True}
_SMALL = {"n_memory_heads": 4, "knn": 16, "memory_qk_norm": True}
_PAPER = {"n_memory_heads": 4, "knn": 32}

PRESETS: dict[str, dict[str, Any]] = {
    **{name: {**fields, **_TINY} for name, fields in TINY.items()},
    # The table is about four times as large as the backbone.
    "1m": {**BACKBONES["1m"], "n_keys": 192, **_SMALL},
    "3m": {**BACKBONES["3m"], "n_keys": 256, **_SMALL},
    "10m": {**BACKBONES["10m"], "n_keys": 352, **_SMALL},
    "30m": {**BACKBONES["30m"], "n_keys": 480, **_SMALL},
    **{name: {**fields, "n_keys": 1024, **_PAPER} for name, fields in PAPER.items()},
    "8b": {**PAPER["8b"], "n_keys": 4096, **_PAPER},
}
