"""Engram: n-gram hash memory, gated into the residual stream of a few layers.

Source: Cheng et al. 2026, "Conditional Memory via Scalable Lookup" (arXiv 2601.07372), and its
demonstration code. At each chosen layer, before attention, the rows of the n-grams that end here
(`layers/memory/ngram_hash.py`) are put side by side to e, and

    z = norm(h) . norm(W_K e) / sqrt(d_model),  g = sigmoid(sign(z) sqrt|z|),  v = g W_V e
    h + v + silu(conv(norm(v)))

with a depthwise causal convolution over positions that are the highest order apart, zero at the
start. Which rows are read depends on the tokens alone, so nothing is chosen and rows could be
fetched ahead.

Every layer has a table and primes of its own, as in the demonstration and the models that followed
(one rising sequence of primes through layers, orders and heads: 24 heads of 16,000,000 give the
384,006,168 and 384,016,682 rows of DeepSeek-V4.1-Flash); `shared_table` gives all layers one table
and the same rows.

Departures: token ids are hashed as they are. The paper first maps ids whose text differs by case or
accents only to one id, which needs a tokenizer; ours are small or synthetic. One residual stream,
where the paper has several (hyper-connections) with a gate each. The projections have no bias, and
the norm before the convolution no gain, which the convolution's weights include. Padding is an id
that no token has, instead of a token. Rows begin with the standard deviation of token embeddings, 1
/ sqrt(d_model).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Interval
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from workloads.accounting.counts import Component, Components, FlopCount, ParamCount, Precision
from workloads.architectures import dense
from workloads.field_error import FieldError, PositiveInt
from workloads.layers.backbone.layer_placement import check_placement
from workloads.layers.backbone.llama import BACKBONES, PAPER, TINY, nearest_divisor
from workloads.layers.backbone.moe_base import MoeBackbone
from workloads.layers.backbone.size_family import (
    D_FF,
    FreeDimension,
    backbone_fields,
    nearest_member,
)
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.block import Block, apply_slot
from workloads.layers.context import Context
from workloads.layers.memory.ngram_hash import NgramHash, multipliers, table_rows
from workloads.layers.memory.ngram_table import NgramTableComponent
from workloads.layers.memory.table import MemoryTable, ModuleRef, TableComponent
from workloads.layers.modules.linear import Linear
from workloads.layers.modules.norms import RMSNorm
from workloads.layers.modules.usage_stats import MemoryUsage


@dataclass(frozen=True, kw_only=True)
class Config(MoeBackbone):
    """Transformer with a memory of n-grams before the attention of some layers."""

    DOCUMENT_MASK: ClassVar[bool] = False

    rows_per_head: PositiveInt
    """Fewest rows of each hash head's part of a table; parts have the next primes, all different.
    1 is a control without memory: one row each, which all n-grams read."""
    max_order: Annotated[int, Interval(ge=2)] = 3
    """Tokens in the longest n-gram; the shortest has two."""
    n_hash_heads: PositiveInt = 8
    """Hash heads, and so rows read, per order."""
    ngram_dim: PositiveInt | None = None
    """Width of the rows of one order side by side; None is half of d_model."""
    engram_layers: tuple[int, ...] | None = None
    """Layers with a memory, from 0; None is the second and the middle one."""
    shared_table: bool = False
    """Let all layers read the same rows of one table instead of one each of their own."""
    conv_kernel: PositiveInt | None = 4
    """Positions that the convolution sees, this one included; None for no convolution."""
    hash_seed: int = 0
    """What the hash's multipliers are drawn with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ngram_dim = self.engram.ngram_dim
        if ngram_dim < 1 or ngram_dim % self.n_hash_heads:
            shown = f"{ngram_dim}{', half of d_model' if self.ngram_dim is None else ''}"
            nearest = nearest_divisor(max(1, ngram_dim), self.n_hash_heads)
            raise FieldError(
                "n_hash_heads",
                f"must divide ngram_dim ({shown})",
                self.n_hash_heads,
                f"the nearest is {nearest}",
                ("ngram_dim", "d_model") if self.ngram_dim is None else ("ngram_dim",),
            )
        check_placement(
            self.placement,
            n_layers=self.n_layers,
            field="engram_layers",
            instead="use `dense` for no memory",
        )

    @property
    def engram(self) -> "EngramShape":
        """Sizes of one memory with absent fields filled in."""
        return EngramShape(
            d_model=self.d_model,
            max_order=self.max_order,
            n_hash_heads=self.n_hash_heads,
            ngram_dim=self.d_model // 2 if self.ngram_dim is None else self.ngram_dim,
            conv_kernel=self.conv_kernel,
        )

    @property
    def placement(self) -> tuple[int, ...]:
        """Layers with a memory, from 0."""
        if self.engram_layers is not None:
            return tuple(self.engram_layers)
        return tuple(sorted({min(1, self.n_layers - 1), self.n_layers // 2}))

    @property
    def table_primes(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Rows of every part, by table, order and head."""
        n_tables = 1 if self.shared_table else len(self.placement)
        heads, per_table = self.n_hash_heads, self.engram.rows_read
        rows = table_rows(self.rows_per_head, number=n_tables * per_table)
        return tuple(
            tuple(rows[start : start + heads] for start in range(first, first + per_table, heads))
            for first in range(0, n_tables * per_table, per_table)
        )

    def hashes(self, vocab_size: int) -> list[NgramHash]:
        """Return the hash of every table."""
        return [
            NgramHash(
                multipliers=multipliers(
                    seed=self.hash_seed, layer=layer, order=self.max_order, vocab_size=vocab_size
                ),
                primes=primes,
                padding=vocab_size,
            )
            for layer, primes in zip(self.placement, self.table_primes, strict=False)
        ]

    def build(self, vocab_size: int) -> nn.Module:
        """Return the model on the default device, its values open until `initialise`."""
        return EngramTransformer(self, vocab_size=vocab_size)

    def components(self, vocab_size: int) -> Components:
        """Return what the model consists of; a shared table once."""
        layers, tables = len(self.placement), self.table_primes
        return [
            *self.frame_components(vocab_size),
            (layers, self.engram),
            *(
                (1, self.engram.table(sum(map(sum, primes)), n_readers=layers // len(tables)))
                for primes in tables
            ),
        ]

    @classmethod
    def nearest_size(cls, non_embedding_params: int, **overrides: Any) -> "Config":
        """Return the member of the family nearest to a size, which counts the tables.

        Raises:
            ValueError: If none is within a quarter of it.
        """
        return nearest_member(cls, _family, [_ROWS_PER_HEAD, D_FF], non_embedding_params, overrides)


@dataclass(frozen=True, kw_only=True)
class EngramShape(Component):
    """Sizes of one memory without its table, and what follows from them."""

    d_model: int
    max_order: int
    n_hash_heads: int
    ngram_dim: int
    conv_kernel: int | None

    @property
    def rows_read(self) -> int:
        """Rows that one token reads."""
        return (self.max_order - 1) * self.n_hash_heads

    @property
    def width(self) -> int:
        """Columns of all rows read, side by side."""
        return (self.max_order - 1) * self.ngram_dim

    @property
    def conv_span(self) -> int:
        """Positions before this one that the convolution reaches."""
        return 0 if self.conv_kernel is None else (self.conv_kernel - 1) * self.max_order

    def table(self, n_rows: int, *, n_readers: int) -> TableComponent:
        """Return a table as `n_readers` such memories read it."""
        return NgramTableComponent(
            n_rows=n_rows,
            width=self.ngram_dim // self.n_hash_heads,
            bag_size=self.rows_read,
            # One from each part, so never the same twice.
            distinct=self.rows_read,
            n_readers=n_readers,
        )

    def param_count(self) -> ParamCount:
        """Count both projections, the convolution, and the gains of both norms."""
        conv = 0 if self.conv_kernel is None else self.conv_kernel * self.d_model
        return ParamCount(memory_keys=2 * self.d_model * self.width + conv, norm=2 * self.d_model)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count both projections and the convolution; concatenating rows is no product."""
        conv = 0 if self.conv_kernel is None else self.conv_kernel * self.d_model
        return FlopCount(memory=4.0 * self.d_model * self.width + 2.0 * conv)

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return bytes kept for the backward pass.

        Ids and rows; query and key before, within and after their norms; gate, value, convolution.

        Norms and the convolution stay fp32; what the latter sees of the time before the sequence is
        spread over it.
        """
        c = 4 if precision == "fp32" else 2
        kept = 8.0 * self.rows_read + c * self.width + (16.0 + 3 * c) * self.d_model + 28.0
        if self.conv_kernel is not None:
            kept += 4.0 * self.d_model * (3 + self.conv_span / seq_len) + 4.0
        return kept


class Engram(nn.Module):
    """Memory read by the n-grams that end at a position, gated by the residual stream."""

    PARAM_GROUP: ClassVar[str] = "memory_keys"

    def __init__(
        self, shape: EngramShape, ngrams: NgramHash, table: MemoryTable, *, norm_eps: float
    ) -> None:
        """Make a memory that reads the rows `ngrams` names of `table`, which the model owns."""
        super().__init__()
        self.shape = shape
        self.ngrams = ngrams
        self.table = ModuleRef(table)
        self.key = Linear(shape.width, shape.d_model)
        self.value = Linear(shape.width, shape.d_model)
        self.query_norm = RMSNorm(shape.d_model, eps=norm_eps)
        self.key_norm = RMSNorm(shape.d_model, eps=norm_eps)
        self.conv = None if shape.conv_kernel is None else _Convolution(shape, eps=norm_eps)
        self.usage = EngramUsage(ngrams.n_rows, table_rows=ngrams.table_rows)

    def token_rows(self, tokens: Int[Tensor, "batch seq"]) -> Int[Tensor, "batch seq rows"]:
        """Return the rows that sequences read."""
        return self.ngrams.rows(tokens)

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], context: Context
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return the memory's output, to be added to the residual stream `x`."""
        ids = self.ngrams.rows(context.tokens, context.cache)
        once = torch.ones(1, device=x.device).expand(ids.numel(), 1)
        rows = self.table.module(ids.view(-1, 1), once).view(*ids.shape[:2], -1).to(x.dtype)
        gate = agreement(self.query_norm(x), self.key_norm(self.key(rows)))
        self.usage.mark(ids)
        if context.record_usage:
            self.usage.record(ids.flatten(0, 1), gate.expand(ids.shape).flatten(0, 1))
        output: Tensor = gate * self.value(rows)
        return output if self.conv is None else output + self.conv(output, context)

    def record_usage(self, output: Tensor, residual: Tensor) -> None:
        """Record the size of the output against the residual stream's."""
        self.usage.record_output(output, residual)


def agreement(
    query: Float[Tensor, "batch seq d_model"], key: Float[Tensor, "batch seq d_model"]
) -> Float[Tensor, "batch seq 1"]:
    """Return the gate `sigmoid(sign(z) sqrt|z|)` of `z = query . key / sqrt(d_model)`.

    In fp32 or wider.

    The root has no slope at 0, so below _LEAST it is taken there, as in the source.
    """
    z = (query * key).sum(-1, keepdim=True, dtype=torch.promote_types(query.dtype, torch.float32))
    z = z / math.sqrt(query.shape[-1])
    return (z.sign() * z.abs().clamp_min(_LEAST).sqrt()).sigmoid()


_LEAST = 1.0e-6


class _Convolution(nn.Module):
    """Depthwise causal convolution over positions `max_order` apart; begins at zero.

    `silu(sum_j w_j * norm(x)[t - (kernel - 1 - j) max_order])`, column by column.
    """

    def __init__(self, shape: EngramShape, *, eps: float) -> None:
        super().__init__()
        assert shape.conv_kernel is not None
        self.shape = shape
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(shape.conv_kernel, shape.d_model))

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], context: Context
    ) -> Float[Tensor, "batch seq d_model"]:
        seq, span, cache = x.shape[1], self.shape.conv_span, context.cache
        normed = functional.rms_norm(x, x.shape[-1:], eps=self.eps)
        earlier = None if cache is None else cache.state("ngram_values")
        if earlier is None:
            earlier = normed.new_zeros(len(x), span, x.shape[-1])
        whole = torch.cat((earlier, normed), dim=1)
        if cache is not None:
            cache.set_state("ngram_values", whole[:, seq:])
        taps = (
            whole[:, start : start + seq] * weight
            for start, weight in zip(
                range(0, span + 1, self.shape.max_order), self.weight, strict=True
            )
        )
        total = next(taps)
        for tap in taps:
            total = total + tap
        return functional.silu(total)

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write zeros."""
        value.zero_()


class EngramUsage(MemoryUsage):
    """Usage of an n-gram table, weighted by the gate, and of the gate itself.

    Statistics beside those of `MemoryUsage`:

        gate            mean over tokens of the gate, in 0..1
    """

    gates: Tensor

    def __init__(self, n_rows: int, *, table_rows: Sequence[int]) -> None:
        super().__init__(n_rows, table_rows=table_rows)
        self.register_buffer("gates", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def record(self, ids: Tensor, weights: Tensor) -> None:
        """Add one pass; the weights of a token are all its gate."""
        super().record(ids, weights)
        self.gates += weights[:, 0].sum(dtype=torch.float64)

    def report(self) -> dict[str, float]:
        """Return and reset the statistics since the last report; empty if none were recorded."""
        gates, tokens = float(self.gates), int(self.counts[0])
        values = super().report()
        return {**values, "gate": gates / tokens} if values else values


class EngramBlock(Block):
    """Block with a memory before attention: `x + engram(x)`, then mixer and feed-forward."""

    def __init__(self, *, engram: nn.Module, **slots: Any) -> None:
        """Fill the slots; `engram` reads the residual stream as it is and has norms of its own."""
        super().__init__(**slots)
        self.engram = engram

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], context: Context
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return the residual stream after this block."""
        return super().forward(x + apply_slot(self.engram, x, context, residual=x), context)


class EngramTransformer(Transformer):
    """A transformer that owns tables of n-grams, which the memories of some layers read."""

    def __init__(self, config: Config, *, vocab_size: int) -> None:
        shape, hashes = config.engram, config.hashes(vocab_size)
        tables = [
            MemoryTable(
                ngrams.n_rows, shape.ngram_dim // shape.n_hash_heads, std=config.d_model**-0.5
            )
            for ngrams in hashes
        ]

        def layer(index: int) -> nn.Module:
            if index not in config.placement:
                return config.block()
            place = 0 if config.shared_table else config.placement.index(index)
            engram = Engram(shape, hashes[place], tables[place], norm_eps=config.norm_eps)
            return config.block(kind=EngramBlock, engram=engram)

        super().__init__(**config.frame(vocab_size, map(layer, range(config.n_layers))))
        self.memory_tables = nn.ModuleList(tables)


def _family(d_model: int) -> dict[str, Any]:
    """Return fields of this width: the dense backbone, tables about four times as large."""
    backbone = backbone_fields(d_model)
    block_params = dense.Config(**backbone).param_count(1).non_embedding
    # One layer with a memory where the middle is the second, else two; two orders of half the
    # width.
    n_tables = 1 if backbone["n_layers"] <= 3 else 2
    rows_per_head = 4 * block_params / (n_tables * d_model)
    return {
        **backbone,
        "n_hash_heads": 4 if d_model < 256 else 8,
        "rows_per_head": max(256, 256 * round(rows_per_head / 256)),
    }


_ROWS_PER_HEAD = FreeDimension(name="rows_per_head", lowest=0.5, highest=2.0, step=256)
"""From half to twice the usual number; steps longer than any gap between primes of this size."""

PRESETS: dict[str, dict[str, Any]] = {
    # The tables hold about as many numbers as the one of `memory_plus`.
    **{name: {**fields, "rows_per_head": 4096, "n_hash_heads": 2} for name, fields in TINY.items()},
    "1m": {**BACKBONES["1m"], "rows_per_head": 18_432, "n_hash_heads": 4},
    "3m": {**BACKBONES["3m"], "rows_per_head": 32_768, "n_hash_heads": 4},
    "10m": {**BACKBONES["10m"], "rows_per_head": 61_952},
    "30m": {**BACKBONES["30m"], "rows_per_head": 115_200},
    **{name: {**fields, "rows_per_head": 524_288} for name, fields in PAPER.items()},
    "8b": {**PAPER["8b"], "rows_per_head": 8_388_608},
    # The memory of the released demonstration; its backbone is a mock-up of this width and depth,
    # with a vocabulary of 129,280 and five times as many rows a head.
    "demo": {
        "d_model": 1024,
        "n_layers": 30,
        "n_heads": 16,
        "d_ff": 2816,
        "rows_per_head": 646_400,
        "engram_layers": (1, 15),
    },
}
