"""Memory+: product-key memories that share one table of values, in place of some feed-forward blocks.

Source: Berges et al. 2024, "Memory Layers at Scale" (arXiv 2412.09764): several memory layers around the middle with
one table, gate `output(bag * silu(gate x))`, key_dim half of value_dim. The backbone and its presets are `dense`'s.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from workloads.accounting import FlopCount, ParamCount, Precision
from workloads.architectures import dense
from workloads.layers.family import D_FF, Knob, backbone_fields, nearest_member
from workloads.layers.product_key_memory import MemoryShape, MemoryTable, ProductKeyMemory
from workloads.layers.transformer import Transformer, TransformerShape


@dataclass(frozen=True, kw_only=True)
class Config:
    """Transformer with a feed-forward block in some layers and a memory in the others."""

    FLOP_KNOB: ClassVar[str] = "d_ff"
    """Field that `match: {training_flops: ...}` solves for."""

    d_model: int
    """Residual width."""
    n_layers: int
    """Blocks."""
    n_heads: int
    """Query heads of attention."""
    d_ff: int
    """Feed-forward width of the layers without memory."""
    n_keys: int
    """Sub-keys in each half codebook; the table has n_keys**2 slots."""
    n_kv_heads: int | None = None
    """Key and value heads of attention; None is as many as query heads."""
    qk_norm: bool = False
    """Normalise attention queries and keys per head."""
    rope_base: float = 10_000.0
    """Base of the rotary frequencies."""
    norm_eps: float = 1.0e-5
    """Added to mean squares under the root."""
    tied_embeddings: bool = False
    """Use the embedding table as output head."""
    n_memory_heads: int = 4
    """Reading heads of a memory layer; what they read is added."""
    knn: int = 32
    """Slots read per token and memory head."""
    key_dim: int | None = None
    """Width of a memory query, both halves; None is half of value_dim."""
    value_dim: int | None = None
    """Width of a value row; None is d_model."""
    memory_qk_norm: bool = False
    """Score by cosine times a learned scale per head, instead of by the plain product."""
    memory_layers: tuple[int, ...] | None = None
    """Layers with a memory, from 0; None places them by the three fields below."""
    memory_count: int | None = None
    """Number of memory layers; None is 3, or 1 in models of fewer than 6 layers."""
    memory_stride: int | None = None
    """Layers from one memory to the next; None is n_layers / memory_count rounded up, at most 8 (the paper's strides)."""
    memory_first: int | None = None
    """First layer with a memory; None centres them."""

    def __post_init__(self) -> None:
        _ = self.shape
        for name in (
            "n_keys",
            "n_memory_heads",
            "knn",
            "key_dim",
            "value_dim",
            "memory_count",
            "memory_stride",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.knn > self.n_keys:
            raise ValueError(f"knn must lie in 1..n_keys ({self.n_keys}), got {self.knn}")
        if self.memory.key_dim % 2 or self.memory.key_dim < 2:
            given = (
                self.key_dim
                if self.key_dim is not None
                else f"{self.memory.key_dim}, half of value_dim"
            )
            raise ValueError(f"key_dim must be even, for two halves, got {given}")
        self._check_placement()

    def _check_placement(self) -> None:
        layers = self.placement
        where = (
            "memory_first, memory_stride and memory_count"
            if self.memory_layers is None
            else "memory_layers"
        )
        if not layers:
            raise ValueError(
                "memory_layers must name at least one layer, got none; use `dense` for no memory"
            )
        if list(layers) != sorted(set(layers)):
            raise ValueError(f"{where} must be rising without repetition, got {list(layers)}")
        if layers[0] < 0 or layers[-1] >= self.n_layers:
            raise ValueError(
                f"{where} must stay within 0..n_layers - 1 ({self.n_layers - 1}), got {list(layers)}"
            )
        if self.memory_layers is not None:
            for name in ("memory_first", "memory_stride", "memory_count"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} must be null when memory_layers is given, got {getattr(self, name)}"
                    )

    @property
    def shape(self) -> TransformerShape:
        """Sizes of the backbone with absent fields filled in."""
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

    @property
    def memory(self) -> MemoryShape:
        """Sizes of a memory layer with absent fields filled in."""
        value_dim = self.d_model if self.value_dim is None else self.value_dim
        return MemoryShape(
            d_model=self.d_model,
            n_keys=self.n_keys,
            n_heads=self.n_memory_heads,
            knn=self.knn,
            key_dim=value_dim // 2 if self.key_dim is None else self.key_dim,
            value_dim=value_dim,
            qk_norm=self.memory_qk_norm,
        )

    @property
    def placement(self) -> tuple[int, ...]:
        """Layers with a memory, from 0."""
        if self.memory_layers is not None:
            return tuple(self.memory_layers)
        count = self.memory_count or (3 if self.n_layers >= 6 else 1)
        stride = self.memory_stride or min(8, -(-self.n_layers // count))
        first = self.memory_first
        if first is None:
            first = self.n_layers // 2 - stride * (count - 1) // 2
        return tuple(range(first, first + stride * count, stride))

    @property
    def _n_feed_forward(self) -> int:
        return self.n_layers - len(self.placement)

    def build(self, vocab_size: int) -> nn.Module:
        """Return the model on the default device, its values open until `initialise`."""
        return MemoryPlus(self, vocab_size=vocab_size)

    def param_count(self, vocab_size: int) -> ParamCount:
        """Count trainable numbers per group; the shared table once."""
        backbone = self.shape.param_count(vocab_size, n_feed_forward=self._n_feed_forward).as_dict()
        memory = {
            "memory_keys": len(self.placement) * self.memory.params,
            "memory_values": self.memory.table_params,
        }
        return ParamCount(**{**backbone, **memory})

    def active_param_count(self, vocab_size: int) -> int:
        """Count the non-embedding parameters one token touches: all but the value rows that it does not read.

        Different heads and layers may read the same row; rows are counted as if they did not, up to the whole table.
        """
        count = self.param_count(vocab_size)
        rows = min(self.memory.n_slots, len(self.placement) * self.memory.rows_read)
        return count.non_embedding - count.memory_values + rows * self.memory.value_dim

    def flops_per_token(self, vocab_size: int, seq_len: int) -> FlopCount:
        """Count forward FLOPs of one token in a sequence of `seq_len`."""
        backbone = self.shape.flops_per_token(
            vocab_size, seq_len, n_feed_forward=self._n_feed_forward
        )
        return replace(backbone, memory=len(self.placement) * self.memory.flops_per_token)

    def bytes_per_token(
        self, vocab_size: int, *, batch_tokens: int = 1, element_bytes: int = 2
    ) -> dict[str, float]:
        """Return bytes of parameters read per token and group when `batch_tokens` tokens pass at once.

        Of the values, the rows that the batch reads in each memory layer, each once; expected number under even use.
        """
        backbone = self.shape.bytes_per_token(
            vocab_size,
            n_feed_forward=self._n_feed_forward,
            batch_tokens=batch_tokens,
            element_bytes=element_bytes,
        )
        rows_per_token = self.memory.distinct_rows(batch_tokens) / batch_tokens
        layers = len(self.placement)
        return {
            **backbone,
            "memory_keys": element_bytes * layers * self.memory.params / batch_tokens,
            "memory_values": element_bytes * layers * rows_per_token * self.memory.value_dim,
        }

    def activation_bytes_per_token(
        self, vocab_size: int, seq_len: int, *, precision: Precision
    ) -> float:
        """Return what a forward pass keeps for the backward pass; no length matters to fused attention."""
        backbone = self.shape.activation_bytes_per_token(
            vocab_size, n_feed_forward=self._n_feed_forward, precision=precision
        )
        return backbone + len(self.placement) * self.memory.activation_bytes_per_token(precision)

    def param_group(self, parameter_name: str) -> str:
        """Return the field of `ParamCount` that a parameter counts under."""
        parts = parameter_name.split(".")
        if "memory_table" in parts:
            return "memory_values"
        if "feed_forward" in parts and int(parts[parts.index("layers") + 1]) in self.placement:
            return "memory_keys"
        return self.shape.param_group(parameter_name)

    @classmethod
    def sized(cls, non_embedding_params: int, **overrides: Any) -> "Config":
        """Return the member of the family nearest to a size, which counts the table.

        Raises:
            ValueError: If none is within a quarter of it.
        """
        return nearest_member(cls, _family, [_N_KEYS, D_FF], non_embedding_params, overrides)


class MemoryPlus(Transformer):
    """A transformer that owns a table of values and hands it to its memory layers."""

    def __init__(self, config: Config, *, vocab_size: int) -> None:
        shape, memory, placement = config.shape, config.memory, config.placement
        layers = (
            shape.block(ProductKeyMemory(memory)) if index in placement else shape.block()
            for index in range(shape.n_layers)
        )
        super().__init__(shape, vocab_size=vocab_size, layers=layers)
        self.memory_layers = placement
        self.memory_table = MemoryTable(memory.n_slots, memory.value_dim)

    def forward(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq vocab_size"]:
        """Return next-token logits."""
        x, rotation = self.embed(tokens)
        for index, layer in enumerate(self.layers):
            shared = (self.memory_table.weight,) if index in self.memory_layers else ()
            x = layer(x, rotation, *shared)
        return self.logits(x)

    def statistics(self) -> dict[str, float]:
        """Return how the slots were read in training since the last call: means over the memory layers."""
        reports = [
            memory.usage.report()
            for memory in self.modules()
            if isinstance(memory, ProductKeyMemory)
        ]
        return {
            f"memory/{name}": sum(r[name] for r in reports) / len(reports) for name in reports[0]
        }


def _family(d_model: int) -> dict[str, Any]:
    """Fields of the member of this width: the dense backbone and a table about four times as large."""
    backbone = backbone_fields(d_model)
    block_params = dense.Config(**backbone).param_count(1).non_embedding
    reading = {"n_memory_heads": 2, "knn": 8} if d_model <= 64 else {"n_memory_heads": 4, "knn": 16}
    n_keys = max(16, 8 * round((4 * block_params / d_model) ** 0.5 / 8))
    return {**backbone, **reading, "n_keys": n_keys, "memory_qk_norm": True}


_N_KEYS = Knob(name="n_keys", lowest=0.7, highest=1.4, step=2)
"""From half to twice the usual number of slots."""


def _with_memory(preset: str, **fields: Any) -> dict[str, Any]:
    return {**dense.PRESETS[preset], **fields}


# Two heads of eight rows, normalised: enough for the d-presets' short documents.
_TINY = {"n_keys": 64, "n_memory_heads": 2, "knn": 8, "memory_qk_norm": True}
_SMALL = {"n_memory_heads": 4, "knn": 16, "memory_qk_norm": True}
_PAPER = {"n_memory_heads": 4, "knn": 32}

PRESETS: dict[str, dict[str, Any]] = {
    **{name: _with_memory(name, **_TINY) for name in dense.PRESETS if name[0] == "d"},
    # Backbone of the dense preset of that name; the table is about four times as large.
    "1m": _with_memory("1m", n_keys=192, **_SMALL),
    "3m": _with_memory("3m", n_keys=256, **_SMALL),
    "10m": _with_memory("10m", n_keys=352, **_SMALL),
    "30m": _with_memory("30m", n_keys=480, **_SMALL),
    **{
        name: _with_memory(name, n_keys=1024, **_PAPER) for name in ("134m", "373m", "720m", "1.3b")
    },
    "8b": _with_memory("8b", n_keys=4096, **_PAPER),
}
