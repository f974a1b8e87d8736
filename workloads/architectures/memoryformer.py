"""MemoryFormer: hash look-ups in place of every linear map but the head.

Source: Ding et al. 2024, "MemoryFormer" (NeurIPS 2024, arXiv 2411.12992), and its released code
where the paper is silent. A layer cuts its input into chunks of `tau` numbers; the signs of a chunk
name a row of the chunk's table, and the output is the sum of these rows, weighted by scores of the
chunks (`layers/memory/hash_memory.py`):

    q, k, v = M_qkv(norm x)                 one hash, three tables read together
    z = x + heads(softmax(q k / sqrt d) v)  no output projection
    y = z + M_2(LayerNorm(M_1(norm z)))     chunks of tau + expand_bits numbers between

Where paper and released code differ, and what we do:

* Score: p in the paper, p sum |z| in the code. `score` chooses; the presets follow the paper,
  `tiny_released` the code. The temperature is stated nowhere; 1 is the code's.
* The paper's norms centre, so that signs are balanced; the code's, and ours, are RMSNorm but for
  the one between M_1 and M_2. The code adds 1e-8 to the root mean square, we to the mean square
  under the root: outputs differ by 5e-9 where the root mean square is 1, by 5e-5 where it is 0.01,
  and the signs never.
* A bias in every hash layer, N(0, 0.001**2), is the code's alone.
* Equation 13 of the paper leaves attention out of M_1's input; code and we do not.

Ours: `n_hidden_chunks`, which the sources tie to d_model / tau, and `table_std`.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from workloads.accounting.counts import (
    Accounted,
    Component,
    Components,
    FlopCount,
    ParamCount,
    Precision,
)
from workloads.accounting.paper_conventions import memoryformer_paper_flops
from workloads.field_error import NonNegativeInt, PositiveFloat, PositiveInt, Share, check_fields
from workloads.layers.backbone.llama import SMALL, TINY, not_a_divisor
from workloads.layers.backbone.neox import SUITE, rotary_columns
from workloads.layers.backbone.size_family import (
    FreeDimension,
    backbone_fields,
    nearest_member,
    without_d_ff,
)
from workloads.layers.backbone.transformer import Rotary, Transformer
from workloads.layers.block import Block
from workloads.layers.context import Context
from workloads.layers.memory.hash_memory import HashMemory, HashScore, HashShape
from workloads.layers.mixers.attention import AttentionShape, softmax_mix, split_and_rotate
from workloads.layers.modules.autocast import to_autocast_dtype
from workloads.layers.modules.linear import Embedding, Head, VocabularyComponent
from workloads.layers.modules.norms import LayerNorm, LayerNormComponent, RMSNorm, RMSNormComponent

HIDDEN_NORM_EPS = 1.0e-5
"""Of the LayerNorm between M_1 and M_2."""


@dataclass(frozen=True, kw_only=True)
class Config(Accounted):
    """Transformer of hash layers."""

    DOCUMENT_MASK: ClassVar[bool] = True
    FREE_DIMENSION: ClassVar[str] = "n_hidden_chunks"
    """Field that `match:` solves for unless told otherwise."""

    d_model: PositiveInt
    """Residual width."""
    n_layers: PositiveInt
    """Blocks."""
    n_heads: PositiveInt
    """Heads of attention."""
    tau: PositiveInt
    """Numbers that are hashed together: tables have 2**tau rows, and d_model / tau of them are read
    per layer."""
    expand_bits: NonNegativeInt = 2
    """By how many numbers a hidden chunk is longer: M_2's tables have 2**(tau + expand_bits)
    rows."""
    n_hidden_chunks: PositiveInt | None = None
    """Chunks between M_1 and M_2; None is d_model / tau, the paper's."""
    score: HashScore = "prob"
    """Weight of a row: prob (paper), the probability of its code; l1_prob (released code), that
    times the chunk's sum of absolute values."""
    temperature: PositiveFloat = 1.0
    """Of the score: the larger, the less the size of a number matters."""
    gelu: bool = False
    """Put a GELU between M_1 and the norm after it: the paper's ablation."""
    table_std: PositiveFloat | None = None
    """Standard deviation of all tables at the start; None is the released code's: sqrt(2 / (5
    d_model)) for queries, keys and values, 0.02 for the others. With prob a layer then starts
    quieter than with l1_prob, 8 times where tau is 8; making up for that was worse in our trials
    (docs/architectures.md)."""
    rotary_fraction: Share = 0.25
    """Share of each head's columns that turn with the position; 0 for none."""
    rope_base: PositiveFloat = 10_000.0
    """Base of the rotary frequencies."""
    norm_eps: PositiveFloat = 1.0e-8
    """Added to mean squares under the root."""
    tied_embeddings: bool = False
    """Use the embedding table as output head."""

    def __post_init__(self) -> None:
        check_fields(self, name_nearest=True)
        for name in ("tau", "n_heads"):
            value = getattr(self, name)
            if self.d_model % value:
                raise not_a_divisor(name, value, "d_model", self.d_model)

    @property
    def attention(self) -> AttentionShape:
        """Sizes of one attention block; what of them concerns projections means nothing here."""
        return AttentionShape(
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_kv_heads=self.n_heads,
            rotary_columns=rotary_columns(self.d_model // self.n_heads, self.rotary_fraction),
        )

    @property
    def query_key_value(self) -> HashShape:
        """Sizes of the hash layer whose rows are a query, a key and a value side by side."""
        return self._hash_stream(3 * self.d_model)

    @property
    def first(self) -> HashShape:
        """Sizes of M_1."""
        return self._hash_stream(self.second.d_input)

    @property
    def second(self) -> HashShape:
        """Sizes of M_2."""
        return self._hash(
            n_chunks=self.n_hidden_chunks or self.d_model // self.tau,
            bits=self.tau + self.expand_bits,
            width=self.d_model,
        )

    def _hash_stream(self, width: int) -> HashShape:
        return self._hash(n_chunks=self.d_model // self.tau, bits=self.tau, width=width)

    def _hash(self, *, n_chunks: int, bits: int, width: int) -> HashShape:
        return HashShape(
            n_chunks=n_chunks,
            bits=bits,
            width=width,
            score=self.score,
            temperature=self.temperature,
            autocast_input=True,
        )

    @property
    def input_std(self) -> float:
        """Initial standard deviation of embeddings, head and, unless set, queries, keys, values."""
        return math.sqrt(2 / (5 * self.d_model))

    def build(self, vocab_size: int) -> Transformer:
        """Return the model on the default device, its values open until `initialise`."""
        std, columns = self.input_std, self.attention.rotary_columns
        norm = partial(RMSNorm, self.d_model, eps=self.norm_eps)
        blocks = (
            Block(norm=norm, mixer=HashAttention(self), feed_forward=HashFeedForward(self))
            for _ in range(self.n_layers)
        )
        return Transformer(
            embedding=Embedding(vocab_size, self.d_model, std=std),
            layers=blocks,
            norm=norm(),
            head=None if self.tied_embeddings else Head(self.d_model, vocab_size, std=std),
            rotary=Rotary(columns=columns, base=self.rope_base) if columns else None,
        )

    def components(self, vocab_size: int) -> Components:
        """Return what the model consists of."""
        hidden = LayerNormComponent(width=self.second.d_input)
        return [
            (1, VocabularyComponent(vocab_size, self.d_model, tied=self.tied_embeddings)),
            (2 * self.n_layers + 1, RMSNormComponent(width=self.d_model)),
            (self.n_layers, MixingComponent(self.attention)),
            (self.n_layers, hidden),
            (self.n_layers if self.gelu else 0, GELUComponent(width=self.second.d_input)),
            *(
                counted
                for shape in (self.query_key_value, self.first, self.second)
                for counted in ((self.n_layers, shape), shape.tables(self.n_layers))
            ),
        ]

    def paper_block_flops(self, seq_len: int) -> int:
        """Return FLOPs of a block and sequence as the paper's table 1 counts them.

        By its rule for its own blocks: hidden chunks and bits do not enter.
        """
        return memoryformer_paper_flops(self.d_model, tau=self.tau, seq_len=seq_len)[1]

    @classmethod
    def nearest_size(cls, non_embedding_params: int, **overrides: Any) -> "Config":
        """Return the member of the family nearest to a size, which counts the tables.

        Raises:
            ValueError: If none is within a quarter of it.
        """
        fields = partial(_family, tau=max(1, overrides.get("tau", _TAU)))
        return nearest_member(cls, fields, [_HIDDEN_CHUNKS], non_embedding_params, overrides)


RELEASED_STD = 0.02
"""Standard deviation of the memory block's tables in the released code."""


class HashAttention(nn.Module):
    """Softmax attention whose queries, keys and values are hash look-ups.

    The concatenated heads are the output.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        std = config.table_std or config.input_std
        self.query_key_value = HashMemory(config.query_key_value, std=std)

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], context: Context
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return the block's output, to be added to the residual."""
        batch, seq, _ = x.shape
        # As a linear map would return them: half as much to rotate, and to cache when decoding.
        rows = to_autocast_dtype(self.query_key_value(x, context))
        heads = rows.view(batch, seq, 3 * self.n_heads, -1)
        query, key, value = (
            head.transpose(1, 2)
            for head in split_and_rotate(heads, context.rotation, n_heads=self.n_heads)
        )
        mixed = softmax_mix(query, key, value, context)
        return mixed.transpose(1, 2).reshape(batch, seq, -1)

    def record_usage(self, output: Tensor, residual: Tensor) -> None:
        """Record the size of the output against the residual stream's."""
        self.query_key_value.usage.record_output(output, residual)


class HashFeedForward(nn.Module):
    """`M_2(LayerNorm(M_1 x))`, the paper's Memory Block, in place of a feed-forward block."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        std = config.table_std or RELEASED_STD
        self.first = HashMemory(config.first, std=std)
        self.gelu = config.gelu
        self.norm = LayerNorm(config.second.d_input, eps=HIDDEN_NORM_EPS)
        self.second = HashMemory(config.second, std=std)

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], context: Context
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return the block's output, to be added to the residual."""
        hidden = self.first(x, context)
        if self.gelu:
            hidden = functional.gelu(hidden)
        # As a linear map would read them: rounding changes no sign.
        output: Tensor = self.second(to_autocast_dtype(self.norm(hidden)), context)
        return output

    def record_usage(self, output: Tensor, residual: Tensor) -> None:
        """Record the size of the output against the residual stream's."""
        self.second.usage.record_output(output, residual)


class MixingComponent(Component):
    """Attention without its projections."""

    def __init__(self, attention: AttentionShape) -> None:
        self.attention = attention

    def param_count(self) -> ParamCount:
        """Count nothing."""
        return ParamCount()

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count scores and weighted sums."""
        return FlopCount(attention=self.attention.mixing_flops(seq_len))

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return what mixing keeps."""
        return self.attention.mixing_activation_bytes(seq_len, precision)


@dataclass(frozen=True, kw_only=True)
class GELUComponent(Component):
    """A GELU of `width` columns on its own."""

    width: int

    def param_count(self) -> ParamCount:
        """Count nothing."""
        return ParamCount()

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Return nothing: activations are not counted."""
        return FlopCount()

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return its input, in the type of the sums of rows."""
        return (4.0 if precision == "fp32" else 2.0) * self.width


_TAU = 4
"""Of our own presets: with 8 the tables are more than 20 times as large as a dense block, with 4
about three times."""


def _member(backbone: dict[str, Any], *, tau: int) -> dict[str, Any]:
    """Return fields of our own presets: expand_bits is tau / 4, twice the paper's chunks."""
    return {
        **without_d_ff(backbone),
        "tau": tau,
        "expand_bits": max(1, tau // 4),
        "n_hidden_chunks": max(1, 2 * backbone["d_model"] // tau),
    }


def _family(d_model: int, *, tau: int) -> dict[str, Any]:
    """Fields of the member of this width: depth and heads of the Llama-style family."""
    return _member(backbone_fields(d_model), tau=tau)


_HIDDEN_CHUNKS = FreeDimension(name="n_hidden_chunks", lowest=0.5, highest=2.0, step=1)

_PAPER: dict[str, dict[str, Any]] = {
    # Depth, width and heads of Pythia 70M, 160M and 410M; 2**8 rows per table, d_model / 8 tables.
    name: {**without_d_ff(SUITE[pythia]), "tau": 8}
    for name, pythia in {"tiny": "70m", "small": "160m", "base": "410m"}.items()
}
PRESETS: dict[str, dict[str, Any]] = {
    **{name: _member(fields, tau=_TAU) for name, fields in {**TINY, **SMALL}.items()},
    **_PAPER,
    **{f"mf-{name}": fields for name, fields in _PAPER.items()},
    "tiny_released": {**_PAPER["tiny"], "score": "l1_prob"},
}
