"""Memory: one product-key memory in place of a feed-forward block, or beside it.

Sources: Lample et al. 2019, "Large Memory Layers with Product Keys" (arXiv 1907.05242), and the
"Memory" baseline of Berges et al. 2024 (arXiv 2412.09764): it replaces the middle feed-forward
block and has no gate. `memory_plus` is their own architecture: three memories, one table, a gate.

Departures: the backbone is `dense`'s for every preset (the 2019 paper's has LayerNorm, GELU and
learned positions); scores may be weighted by a sigmoid or a ReLU (Csordás et al. 2023, arXiv
2310.10837, find that scores that do not compete help) and normalised (`memory_qk_norm`, on in our
small presets).
"""

from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from workloads.accounting.counts import Components
from workloads.architectures import memory_plus
from workloads.field_error import PositiveInt
from workloads.layers.backbone.layer_placement import centred, check_layer
from workloads.layers.backbone.llama import PAPER, LlamaBackbone
from workloads.layers.backbone.size_family import D_FF, nearest_member
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.context import Context
from workloads.layers.memory.product_key_memory import (
    Gate,
    MemoryShape,
    ProductKeyMemory,
    check_output_bias,
)
from workloads.layers.memory.product_keys import (
    KeyInit,
    LookupShape,
    Score,
    check_lookup,
)
from workloads.layers.memory.table import MemoryTable
from workloads.layers.modules.feed_forward import SwiGLU, llama_d_ff
from workloads.layers.modules.norms import LEAK


@dataclass(frozen=True, kw_only=True)
class Config(LlamaBackbone):
    """Transformer with a memory in one layer and feed-forward blocks in the others."""

    n_keys: PositiveInt
    """Sub-keys in each half codebook; the table has n_keys**2 slots."""
    n_memory_heads: PositiveInt = 4
    """Reading heads of the memory; what they read is added."""
    knn: PositiveInt = 32
    """Slots read per token and memory head."""
    key_dim: PositiveInt | None = None
    """Width of a memory query, both halves; None is half of value_dim."""
    value_dim: PositiveInt | None = None
    """Width of a value row; None is d_model. Any other width is projected back to d_model."""
    memory_layer: int | None = None
    """Layer with the memory, from 0; None is the middle one, n_layers // 2."""
    beside_ffn: bool = False
    """Add the memory to the feed-forward block of its layer instead of replacing it."""
    score: Score = "softmax"
    """What makes weights of the scores of the slots read: softmax over a head's slots,
    softmax_sink over these and a score of 0 whose row is zero, sigmoid or relu of each."""
    gate: Gate | None = None
    """How the input gates what is read: none (None), scalar, silu, or swilu with a projection."""
    output_bias: Literal[True] | None = None
    """Give a bias to the projection of another value_dim where `gate` is not swilu, whose
    projection has one."""
    memory_qk_norm: bool = False
    """Score by cosine times a learned scale per head, instead of by the plain product."""
    query_batch_norm: bool = False
    """Normalise queries over the batch (Lample et al. 2019): evener use of slots, but not causal in
    training."""
    key_init: KeyInit = "key_dim"
    """Sub-keys begin uniform within 1 / sqrt of this: key_dim (Berges et al.) or half_key_dim
    (Lample et al.)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_lookup(
            n_keys=self.n_keys,
            knn=self.knn,
            key_dim=self.memory.lookup.key_dim,
            key_dim_half_of="value_dim" if self.key_dim is None else None,
        )
        check_output_bias(self.memory, asked=self.output_bias)
        check_layer(self.memory_layer, n_layers=self.n_layers, field="memory_layer")

    @property
    def memory(self) -> MemoryShape:
        """Sizes of the memory with absent fields filled in."""
        value_dim = self.d_model if self.value_dim is None else self.value_dim
        lookup = LookupShape(
            d_model=self.d_model,
            n_keys=self.n_keys,
            n_heads=self.n_memory_heads,
            knn=self.knn,
            key_dim=value_dim // 2 if self.key_dim is None else self.key_dim,
            qk_norm=self.memory_qk_norm,
            query_batch_norm=self.query_batch_norm,
            score=self.score,
            key_init=self.key_init,
        )
        return MemoryShape(
            lookup=lookup,
            value_dim=value_dim,
            gate=self.gate or "none",
            output_bias=bool(self.output_bias),
        )

    @property
    def placement(self) -> tuple[int]:
        """The layer with the memory, from 0."""
        (layer,) = centred(self.n_layers, count=1, stride=1, first=self.memory_layer)
        return (layer,)

    @property
    def n_feed_forward(self) -> int:
        """Layers with a feed-forward block."""
        return self.n_layers if self.beside_ffn else self.n_layers - 1

    @property
    def non_causal_reasons(self) -> dict[str, str]:
        """Mode -> why outputs can depend on later tokens there."""
        return {"training": LEAK} if self.query_batch_norm else {}

    def build(self, vocab_size: int) -> nn.Module:
        """Return the model on the default device, its values open until `initialise`."""
        return MemoryTransformer(self, vocab_size=vocab_size)

    def components(self, vocab_size: int) -> Components:
        """Return what the model consists of."""
        return [
            *self.frame_components(vocab_size),
            (1, self.memory),
            (1, self.memory.table()),
        ]

    @classmethod
    def nearest_size(cls, non_embedding_params: int, **overrides: Any) -> "Config":
        """Return the member of the family nearest to a size, which counts the table.

        Raises:
            ValueError: If none is within a quarter of it.
        """
        return nearest_member(
            cls, memory_plus.family, [memory_plus.N_KEYS, D_FF], non_embedding_params, overrides
        )


class MemoryTransformer(Transformer):
    """A transformer that owns a table of values, which one of its layers reads."""

    def __init__(self, config: Config, *, vocab_size: int) -> None:
        table = MemoryTable(config.n_keys**2, config.memory.value_dim)
        memory = ProductKeyMemory(config.memory, table)
        beside = config.beside_ffn
        reading = SwiGLUAndMemory(config.d_model, config.d_ff, memory) if beside else memory
        layers = (
            config.block(reading if index in config.placement else None)
            for index in range(config.n_layers)
        )
        super().__init__(**config.frame(vocab_size, layers))
        self.memory_table = table


class SwiGLUAndMemory(SwiGLU):
    """A feed-forward block, and a memory of the same input added to it.

    The block's parameters have the names they have in `dense`, so both begin alike, and a dense
    model's weights fit.
    """

    def __init__(self, d_model: int, d_ff: int, memory: ProductKeyMemory) -> None:
        super().__init__(d_model, d_ff)
        self.memory = memory
        self._read: Tensor | None = None

    def forward(  # type: ignore[override]  # a memory needs the context
        self, x: Float[Tensor, "*batch d_model"], context: Context
    ) -> Float[Tensor, "*batch d_model"]:
        """Return the sum of both outputs, to be added to the residual."""
        read = self.memory(x, context)
        self._read = read.detach() if context.record_usage else None
        output: Tensor = super().forward(x, context) + read
        return output

    def record_usage(self, output: Tensor, residual: Tensor) -> None:
        """Record the size of what the memory adds against the residual stream's."""
        assert self._read is not None, "recorded before it ran"
        self.memory.record_usage(self._read, residual)
        self._read = None


_PAPER = {"n_memory_heads": 4, "knn": 32, "key_dim": 256}

PRESETS: dict[str, dict[str, Any]] = {
    # As in `memory_plus`, so that the two differ in placement and gate alone: tables of the same
    # size, though the paper has no one-layer memory of 8b. Its queries are 256 wide in every model.
    **memory_plus.PRESETS,
    **{name: {**memory_plus.PRESETS[name], **_PAPER} for name in PAPER},
    # The memory of Lample et al. 2019 in a backbone of ours: their 12 layers, 1,024 wide, with
    # Llama's blocks.
    "pkm2019": {
        "d_model": 1024,
        "n_layers": 12,
        "n_heads": 16,
        "d_ff": llama_d_ff(1024),
        "n_keys": 512,
        **_PAPER,
        "query_batch_norm": True,
        "key_init": "half_key_dim",
    },
}
