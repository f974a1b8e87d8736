"""UltraMemV2: a small memory in every layer, tables shared among neighbours.

Sources: Huang et al. 2025, "UltraMemV2" (arXiv 2508.18756), on top of Huang et al. 2024,
"Ultra-Sparse Memory Network" (arXiv 2411.12364). Every block is `x + ffn(norm x) + memory(norm x)`:
the memory reads what the feed-forward block reads, one norm for both, as in the released code. A
memory chooses slots by Tucker-decomposed scores (`layers/memory/tucker_keys.py`), reads a pre-value
u_i and a value v_i for each, and puts out

    o = W sum_i s_i (u_i . P x) v_i

with raw scores s_i: no softmax, no activation. So a slot is an expert of one linear hidden unit.

Departures: the backbone is `dense`'s (the authors' is OLMoE's). Tables are shared among runs of
consecutive layers, the paper's "block" sharing; the released code lets every layer see a window of
one large table ("ring"), which the paper finds about as good. Left out: implicit value expansion
and the shuffle of slots that belongs to it, scores split into several value groups, and the penalty
on small singular values, which V2 does not need. The balance loss counts rows read instead of
candidates. Initial values: see `MemoryShape.value_std`.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from workloads.accounting.counts import Component, Components, FlopCount, ParamCount, Precision
from workloads.architectures import dense
from workloads.field_error import FieldError, NonNegativeFloat, PositiveInt
from workloads.layers.backbone.llama import BACKBONES, PAPER, TINY, LlamaBackbone
from workloads.layers.backbone.size_family import (
    D_FF,
    FreeDimension,
    backbone_fields,
    nearest_member,
)
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.block import Block, apply_slot
from workloads.layers.context import Context
from workloads.layers.memory.product_keys import check_lookup
from workloads.layers.memory.table import MemoryTable, ModuleRef, TableComponent
from workloads.layers.memory.tucker_keys import TuckerLookup, TuckerShape
from workloads.layers.modules.linear import Linear
from workloads.layers.modules.usage_stats import MemoryUsage


@dataclass(frozen=True, kw_only=True)
class Config(LlamaBackbone):
    """Transformer with a feed-forward block and, beside it, a memory in every layer."""

    n_keys: PositiveInt
    """Sub-keys in each half codebook; each table has n_keys**2 slots."""
    n_memory_heads: PositiveInt = 1
    """Reading heads of a memory; what they read is added."""
    knn: PositiveInt = 32
    """Slots read per token and memory head."""
    tucker_rank: PositiveInt = 2
    """Queries per memory head and half, and size of the core that combines their scores."""
    shared_query: Literal[True] | None = None
    """One query per memory head and half for all ranks, as in the released code; null: a query per
    rank, as in the paper."""
    key_dim: int | None = None
    """Width of a memory query, both halves; None is half of d_model."""
    value_dim: PositiveInt | None = None
    """Width of a value row; None is a quarter of d_model."""
    pre_values: bool = True
    """Multiply each slot's score by the product of its pre-value and a projection of the input;
    without, only the score counts."""
    pre_value_dim: PositiveInt | None = None
    """Width of a pre-value row; None is as wide as a value row."""
    share_layers: PositiveInt = 6
    """Most consecutive layers that read one table; runs are as even as possible."""
    key_balance: NonNegativeFloat = 0.0
    """Weight of a loss that spreads reads over the sub-keys; 0 for none. Summed over layers and
    both halves, so even reads cost twice the number of layers times it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory.value_dim < 1:
            got = f"{self.memory.value_dim}, a quarter of d_model"
            raise FieldError(
                "value_dim", "must be at least 1", got, "the nearest is 1", ("d_model",)
            )
        if self.pre_value_dim is not None and not self.pre_values:
            rule = "must be null without pre_values"
            raise FieldError("pre_value_dim", rule, self.pre_value_dim, others=("pre_values",))
        check_lookup(
            n_keys=self.n_keys,
            knn=self.knn,
            key_dim=self.memory.lookup.key_dim,
            key_dim_half_of="d_model" if self.key_dim is None else None,
        )

    @property
    def memory(self) -> "UltraMemShape":
        """Sizes of a memory with absent fields filled in."""
        value_dim = self.d_model // 4 if self.value_dim is None else self.value_dim
        pre_value_dim = value_dim if self.pre_value_dim is None else self.pre_value_dim
        return UltraMemShape(
            lookup=TuckerShape(
                d_model=self.d_model,
                n_keys=self.n_keys,
                n_heads=self.n_memory_heads,
                knn=self.knn,
                key_dim=self.d_model // 2 if self.key_dim is None else self.key_dim,
                rank=self.tucker_rank,
                norm_eps=self.norm_eps,
                key_balance=self.key_balance,
                shared_query=self.shared_query is True,
            ),
            value_dim=value_dim,
            pre_value_dim=pre_value_dim if self.pre_values else None,
        )

    @property
    def table_of_layer(self) -> tuple[int, ...]:
        """Which table each layer reads, from 0."""
        n_tables = -(-self.n_layers // self.share_layers)
        return tuple(layer * n_tables // self.n_layers for layer in range(self.n_layers))

    def build(self, vocab_size: int) -> nn.Module:
        """Return the model on the default device, its values open until `initialise`."""
        return UltraMemV2(self, vocab_size=vocab_size)

    def components(self, vocab_size: int) -> Components:
        """Return what the model consists of; each table once, with the layers that read it."""
        readers = Counter(self.table_of_layer).values()
        return [
            *self.frame_components(vocab_size),
            (self.n_layers, self.memory),
            *((1, table) for n_readers in readers for table in self.memory.tables(n_readers)),
        ]

    @classmethod
    def nearest_size(cls, non_embedding_params: int, **overrides: Any) -> "Config":
        """Return the member of the family nearest to a size, which counts the tables.

        Raises:
            ValueError: If none is within a quarter of it.
        """
        return nearest_member(cls, _family, [_N_KEYS, D_FF], non_embedding_params, overrides)


SWIGLU_MEAN_SQUARE = 0.356
"""Of silu(a) b for independent standard normals a and b: what a SwiGLU block puts out when its
input is normalised."""


@dataclass(frozen=True, kw_only=True)
class UltraMemShape(Component):
    """Sizes of one memory without its tables, and what follows from them."""

    lookup: TuckerShape
    value_dim: int
    pre_value_dim: int | None

    @property
    def value_std(self) -> float:
        """Initial standard deviation of values and pre-values.

        With it the memory's output is as large as that of the SwiGLU beside it.

        With P and W keeping variances, mean square scores of 1 (`TuckerShape.initial_gain`) and G
        rows read of variance s^2, the output has mean square `G (d_pre s^2) s^2`, which is set to
        that of the SwiGLU. The paper's eq. 26 (as an open change to the released code quotes it,
        `s^4 = 0.2 k h / (G (1 + var) d_pre d_v L)`) follows from the same condition with its
        feed-forward block of k h columns, whose output map is scaled by 1 / sqrt(2 L); ours is not.
        """
        if self.pre_value_dim is None:
            return float((SWIGLU_MEAN_SQUARE / self.lookup.rows_read) ** 0.5)
        return float((SWIGLU_MEAN_SQUARE / (self.lookup.rows_read * self.pre_value_dim)) ** 0.25)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the rows of each table."""
        return (self.value_dim, *(() if self.pre_value_dim is None else (self.pre_value_dim,)))

    def tables(self, n_readers: int) -> list[TableComponent]:
        """Return the tables as `n_readers` such memories read them."""
        return [
            TableComponent(
                n_rows=self.lookup.n_slots,
                width=width,
                bag_size=self.lookup.rows_read,
                distinct=self.lookup.knn,
                n_readers=n_readers,
                paired=True,
            )
            for width in self.widths
        ]

    def param_count(self) -> ParamCount:
        """Count lookup and projections."""
        lookup, d = self.lookup.param_count(), self.lookup.d_model
        projections = d * sum(self.widths)
        return ParamCount(memory_keys=lookup.memory_keys + projections, norm=lookup.norm)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count lookup and projections; products with rows and their sum count with the tables."""
        projections = 2.0 * self.lookup.d_model * sum(self.widths)
        return FlopCount(memory=self.lookup.flops_per_token(seq_len).memory + projections)

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return bytes kept for the backward pass.

        The lookup's, scores, the projected input and its products with rows, and the bag.
        """
        c = 4 if precision == "fp32" else 2
        kept = self.lookup.activation_bytes_per_token(seq_len, precision)
        kept += 4 * self.lookup.rows_read + c * self.value_dim
        if self.pre_value_dim is not None:
            kept += 4 * self.pre_value_dim + 4 * 2 * self.lookup.rows_read
        return kept


class ValueTables(nn.Module):
    """A value and, where there are any, a pre-value for every slot."""

    def __init__(self, shape: UltraMemShape) -> None:
        super().__init__()
        n_rows, std = shape.lookup.n_slots, shape.value_std
        self.value = MemoryTable(n_rows, shape.value_dim, std=std)
        self.pre_value = (
            None
            if shape.pre_value_dim is None
            else MemoryTable(n_rows, shape.pre_value_dim, std=std)
        )
        if self.pre_value is not None:
            self.pre_value.same_reads_as = ModuleRef(self.value)


class UltraMemLayer(TuckerLookup):
    """Memory layer `W sum_i s_i (u_i . P x) v_i` over the chosen slots.

    Without pre-values `W sum_i s_i v_i`.
    """

    def __init__(self, shape: UltraMemShape, tables: ValueTables) -> None:
        """Make a memory that reads `tables`, which the model owns."""
        super().__init__(shape.lookup)
        self.shape = shape
        self.tables = ModuleRef(tables)
        d_model = shape.lookup.d_model
        self.pre_value = (
            None if shape.pre_value_dim is None else Linear(d_model, shape.pre_value_dim)
        )
        self.output = Linear(shape.value_dim, d_model)
        self.usage = MemoryUsage(shape.lookup.n_slots)

    def forward(
        self, x: Float[Tensor, "*batch d_model"], context: Context
    ) -> Float[Tensor, "*batch d_model"]:
        """Return the memory's output, to be added to the residual."""
        tokens = x.reshape(-1, self.lookup.d_model)
        ids, scores = self.select(tokens, context)
        tables = self.tables.module
        if self.pre_value is None or tables.pre_value is None:
            read, weights = tables.value(ids, scores), scores
        else:
            projected = self.pre_value(tokens)
            read, weights = tables.value.gated(tables.pre_value, ids, scores, projected)
        self.usage.mark(ids)
        if context.record_usage:
            self.usage.record(ids, weights)
        output: Tensor = self.output(read.to(x.dtype))
        return output.view(x.shape)

    def record_usage(self, output: Tensor, residual: Tensor) -> None:
        """Record the size of the output against the residual stream's."""
        self.usage.record_output(output, residual)


class UltraMemBlock(Block):
    """`x + mixer(norm x)`, then `x + ffn(norm x) + memory(norm x)` with one norm for both."""

    def __init__(self, *, memory: nn.Module, **slots: Any) -> None:
        """Fill the slots."""
        super().__init__(**slots)
        self.memory = memory

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], context: Context
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return the residual stream after this block."""
        assert self.feed_forward is not None
        assert self.feed_forward_norm is not None
        mixed = x + apply_slot(self.mixer, self.mixer_norm(x), context, residual=x)
        normed = self.feed_forward_norm(mixed)
        output = mixed + apply_slot(self.feed_forward, normed, context, residual=mixed)
        return output + apply_slot(self.memory, normed, context, residual=mixed)


class UltraMemV2(Transformer):
    """Transformer that owns tables of values, each read by several neighbouring layers."""

    def __init__(self, config: Config, *, vocab_size: int) -> None:
        shape = config.memory
        tables = [ValueTables(shape) for _ in range(config.table_of_layer[-1] + 1)]
        layers = (
            config.block(kind=UltraMemBlock, memory=UltraMemLayer(shape, tables[table]))
            for table in config.table_of_layer
        )
        super().__init__(**config.frame(vocab_size, layers))
        self.memory_tables = nn.ModuleList(tables)


def _family(d_model: int) -> dict[str, Any]:
    """Return fields of this width: dense backbone, tables about four times as large."""
    backbone = backbone_fields(d_model)
    block_params = dense.Config(**backbone).param_count(1).non_embedding
    n_tables = -(-backbone["n_layers"] // Config.share_layers)
    slots = 4 * block_params / (n_tables * d_model / 2)
    return {
        **backbone,
        "n_keys": max(16, 8 * round(slots**0.5 / 8)),
        "knn": 8 if d_model <= 64 else 16,
    }


_N_KEYS = FreeDimension(name="n_keys", lowest=0.7, highest=1.4, step=2)
"""From half to twice the usual number of slots."""


def _tiny(d_model: int) -> dict[str, Any]:
    # Wider rows than the paper's quarter, which would be two columns at d8.
    return {"n_keys": 64, "knn": 8, "value_dim": d_model // 2}


PRESETS: dict[str, dict[str, Any]] = {
    **{name: {**fields, **_tiny(fields["d_model"])} for name, fields in TINY.items()},
    # The tables hold about as many numbers as the one of `memory_plus`.
    "1m": {**BACKBONES["1m"], "n_keys": 272, "knn": 16},
    "3m": {**BACKBONES["3m"], "n_keys": 362, "knn": 16},
    "10m": {**BACKBONES["10m"], "n_keys": 352, "knn": 16},
    "30m": {**BACKBONES["30m"], "n_keys": 480, "knn": 16},
    "134m": {**PAPER["134m"], "n_keys": 1024},
    **{name: {**PAPER[name], "n_keys": 724} for name in ("373m", "720m", "1.3b")},
    "8b": {**PAPER["8b"], "n_keys": 2365},
    # The paper's comparison with OLMoE, 227M active of 1.2B: 20 * 360**2 slots, of which every
    # layer sees half; with a vocabulary of 50,304. key_dim is half of d_model, as its text says:
    # 236 million active; the 192 of its table of shapes would give 222.
    "1.2b": {
        "d_model": 768,
        "n_layers": 20,
        "n_heads": 12,
        "d_ff": 2496,
        "tied_embeddings": True,
        "n_keys": 1138,
        "share_layers": 10,
    },
}
