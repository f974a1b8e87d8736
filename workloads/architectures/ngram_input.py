"""N-gram input: embeddings of the last tokens' n-grams, added to the token's own.

Sources: Huang et al. 2025, "Over-Tokenized Transformer" (arXiv 2501.16975), whose over-encoding it
is; "Scaling Embeddings Outperforms Scaling Experts in Language Models" (arXiv 2601.21204), which
scales it to 31 of 68 billion parameters, and its released configuration. With one table per order n
and hash head j, whose rows are a part of d_model wide,

    x = (E[t] + sum_{n=2..max_order} sum_j W_nj T_nj[hash_nj(t, ..., t_{n-1})]) / sqrt(1 + tables)

The blocks are `dense`'s: what is looked up enters once, before the first, without a gate. Rows
depend on the tokens alone.

Departures: hashes are Engram's (`layers/memory/ngram_hash.py`), products joined by exclusive or, in
place of the remainder of a number in base vocab_size, and parts of the table have prime sizes in
place of rising odd ones. The sum is divided by the root of the number of its terms, which keeps its
variance; the second source's model divides by the number. Rows begin with the standard deviation of
token embeddings, and each projection keeps it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Interval
from jaxtyping import Float, Int
from torch import Tensor, nn

from workloads.accounting.counts import Component, Components, FlopCount, ParamCount, Precision
from workloads.architectures import dense
from workloads.field_error import FieldError, PositiveInt
from workloads.layers.backbone.llama import BACKBONES, PAPER, TINY, nearest_divisor
from workloads.layers.backbone.moe_base import MoeBackbone
from workloads.layers.backbone.size_family import (
    D_FF,
    FreeDimension,
    backbone_fields,
    nearest_member,
)
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.context import Context
from workloads.layers.memory.ngram_hash import NgramHash, multipliers, table_rows
from workloads.layers.memory.ngram_table import NgramTableComponent
from workloads.layers.memory.table import MemoryTable, ModuleRef, TableComponent
from workloads.layers.modules.linear import Linear
from workloads.layers.modules.usage_stats import MemoryUsage


@dataclass(frozen=True, kw_only=True)
class Config(MoeBackbone):
    """Transformer whose first residual stream knows the n-grams that end at each token."""

    DOCUMENT_MASK: ClassVar[bool] = False

    rows_per_head: PositiveInt
    """Fewest rows of each hash head's part of the table; parts have the next primes, all different.
    1 is a control without memory: one row each, which all n-grams read."""
    max_order: Annotated[int, Interval(ge=2)] = 3
    """Tokens in the longest n-gram; the shortest has two."""
    n_hash_heads: PositiveInt = 4
    """Hash heads, and so rows read, per order."""
    ngram_dim: PositiveInt | None = None
    """Width of the rows of one order side by side; None is an even share of d_model."""
    hash_seed: int = 0
    """What the hash's multipliers are drawn with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        width = self.ngram_input.ngram_dim
        if width < 1 or width % self.n_hash_heads:
            share = ", an even share of d_model" if self.ngram_dim is None else ""
            nearest = nearest_divisor(max(1, width), self.n_hash_heads)
            raise FieldError(
                "n_hash_heads",
                f"must divide ngram_dim ({width}{share})",
                self.n_hash_heads,
                f"the nearest is {nearest}",
                ("max_order", "d_model") if self.ngram_dim is None else ("ngram_dim",),
            )

    @property
    def ngram_input(self) -> "NgramInputShape":
        """Sizes of the n-gram embedding with absent fields filled in."""
        even_share = self.d_model // (self.max_order - 1)
        return NgramInputShape(
            d_model=self.d_model,
            max_order=self.max_order,
            n_hash_heads=self.n_hash_heads,
            ngram_dim=even_share if self.ngram_dim is None else self.ngram_dim,
        )

    def hash(self, vocab_size: int) -> NgramHash:
        """Return which rows the n-grams name."""
        heads = self.n_hash_heads
        rows = table_rows(self.rows_per_head, number=self.ngram_input.rows_read)
        return NgramHash(
            multipliers=multipliers(
                seed=self.hash_seed, layer=0, order=self.max_order, vocab_size=vocab_size
            ),
            primes=tuple(rows[i : i + heads] for i in range(0, len(rows), heads)),
            padding=vocab_size,
        )

    def build(self, vocab_size: int) -> Transformer:
        """Return the model on the default device, its values open until `initialise`."""
        return NgramInputTransformer(self, vocab_size=vocab_size)

    def components(self, vocab_size: int) -> Components:
        """Return what the model consists of."""
        return [
            *self.frame_components(vocab_size),
            (1, self.ngram_input),
            (1, self.ngram_input.table(self.hash(vocab_size).n_rows)),
        ]

    @classmethod
    def nearest_size(cls, non_embedding_params: int, **overrides: Any) -> "Config":
        """Return the member of the family nearest to a size, which counts the table.

        Raises:
            ValueError: If none is within a quarter of it.
        """
        return nearest_member(cls, _family, [_ROWS_PER_HEAD, D_FF], non_embedding_params, overrides)


@dataclass(frozen=True, kw_only=True)
class NgramInputShape(Component):
    """Sizes of the n-gram embedding without its table, and what follows from them."""

    d_model: int
    max_order: int
    n_hash_heads: int
    ngram_dim: int

    @property
    def rows_read(self) -> int:
        """Rows that one token reads."""
        return (self.max_order - 1) * self.n_hash_heads

    @property
    def row_width(self) -> int:
        """Columns of a row."""
        return self.ngram_dim // self.n_hash_heads

    @property
    def width(self) -> int:
        """Columns of all rows read, side by side."""
        return self.rows_read * self.row_width

    def table(self, n_rows: int) -> TableComponent:
        """Return the table; a token reads one row of each part, so never the same twice."""
        return NgramTableComponent(
            n_rows=n_rows, width=self.row_width, bag_size=self.rows_read, distinct=self.rows_read
        )

    def param_count(self) -> ParamCount:
        """Count the projections."""
        return ParamCount(memory_keys=self.d_model * self.width)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count the projections; concatenating rows is no product."""
        return FlopCount(memory=2.0 * self.d_model * self.width)

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return ids and rows."""
        return 8.0 * self.rows_read + (4 if precision == "fp32" else 2) * self.width


class NgramInput(nn.Module):
    """Sum of the projected rows of the n-grams that end at each token."""

    PARAM_GROUP: ClassVar[str] = "memory_keys"

    def __init__(self, shape: NgramInputShape, ngrams: NgramHash, table: MemoryTable) -> None:
        """Make what reads the rows `ngrams` names of `table`, which the model owns."""
        super().__init__()
        self.ngrams = ngrams
        self.table = ModuleRef(table)
        # The projections of all rows side by side: one product in place of many small ones.
        self.projection = Linear(shape.width, shape.d_model, std=shape.row_width**-0.5)
        self.usage = MemoryUsage(ngrams.n_rows, table_rows=ngrams.table_rows)

    def token_rows(self, tokens: Int[Tensor, "batch seq"]) -> Int[Tensor, "batch seq rows"]:
        """Return the rows that sequences read."""
        return self.ngrams.rows(tokens)

    def forward(
        self, tokens: Int[Tensor, "batch seq"], context: Context
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return what is added to the tokens' own embeddings."""
        ids = self.ngrams.rows(tokens, context.cache)
        once = torch.ones(1, device=tokens.device).expand(ids.numel(), 1)
        rows = self.table.module(ids.view(-1, 1), once).view(*tokens.shape, -1)
        self.usage.mark(ids)
        if context.record_usage:
            flat = ids.flatten(0, 1)
            self.usage.record(flat, once.view(flat.shape))
        added: Tensor = self.projection(rows.to(self.projection.weight.dtype))
        return added


class NgramInputTransformer(Transformer):
    """A transformer that owns a table of n-grams, read before the first block."""

    def __init__(self, config: Config, *, vocab_size: int) -> None:
        shape, ngrams = config.ngram_input, config.hash(vocab_size)
        super().__init__(**config.frame(vocab_size, _layers(config)))
        self.memory_table = MemoryTable(ngrams.n_rows, shape.row_width, std=config.d_model**-0.5)
        self.ngram_input = NgramInput(shape, ngrams, self.memory_table)
        self.scale = (1 + shape.rows_read) ** -0.5

    def embed(
        self, tokens: Int[Tensor, "batch seq"], context: Context
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return the first residual stream."""
        own = super().embed(tokens, context)
        added = self.ngram_input(tokens, context)
        if context.record_usage:
            self.ngram_input.usage.record_output(added, own)
        result: Tensor = (own + added) * self.scale
        return result


def _layers(config: Config) -> Iterable[nn.Module]:
    return (config.block() for _ in range(config.n_layers))


def _family(d_model: int) -> dict[str, Any]:
    """Return fields of this width: the dense backbone, a table about four times as large."""
    backbone = backbone_fields(d_model)
    block_params = dense.Config(**backbone).param_count(1).non_embedding
    return {
        **backbone,
        "n_hash_heads": 2 if d_model < 64 else 4,
        "rows_per_head": max(256, 256 * round(4 * block_params / d_model / 256)),
    }


_ROWS_PER_HEAD = FreeDimension(name="rows_per_head", lowest=0.5, highest=2.0, step=256)
"""From half to twice the usual number; steps longer than any gap between primes of this size."""

_ROWS = {
    **dict.fromkeys(TINY, 4096),
    "1m": 36_864,
    "3m": 65_536,
    "10m": 123_904,
    "30m": 230_400,
    **dict.fromkeys(PAPER, 1_048_576),
    "8b": 16_777_216,
}
"""As many numbers as all tables of `engram` together."""

PRESETS: dict[str, dict[str, Any]] = {
    name: {
        **fields,
        "rows_per_head": _ROWS[name],
        **({"n_hash_heads": 2} if name in TINY else {}),
    }
    for name, fields in BACKBONES.items()
}
