"""LookupFFN: feed-forward blocks that are table look-ups by signs of a projection.

Source: Zeng et al. 2023, "LookupFFN" (ICML 2023, arXiv 2403.07221), and its released code:

    z = project(x), K chunks of tau numbers
    y = sum_k (sum_j |z_kj|) p(z_k) T_k[signs of z_k] + bias      (`layers/memory/hash_memory.py`)

`project` is dense, or BH4 (`BlockHadamard`), block-diagonal matrices between Hadamard transforms.

Differs from the source, which trains encoders:

* Causal attention and the Llama-style backbone. Its RMSNorm stands where the source has a LayerNorm
  before the projection; there is no second one, and the projection's bias can centre what the norm
  does not.
* A zero counts as positive; there it counts as negative.
* The Hadamard transforms are orthonormal and the blocks begin N(0, 1 / block_width); there the
  transforms are not normalised and the blocks begin sqrt(padded width) times smaller. The same map
  at the start, but an optimizer whose steps have a fixed size, as Adam's, moves ours less.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from workloads.accounting.counts import Component, Components, FlopCount, ParamCount, Precision
from workloads.field_error import FieldError, PositiveFloat, PositiveInt
from workloads.kernels.hadamard import hadamard
from workloads.layers.backbone.llama import PAPER, SMALL, TINY, LlamaFrame, nearest_divisor
from workloads.layers.backbone.size_family import (
    FreeDimension,
    backbone_fields,
    nearest_member,
    without_d_ff,
)
from workloads.layers.backbone.transformer import Transformer
from workloads.layers.context import Context
from workloads.layers.memory.hash_memory import HashMemory, HashScore, HashShape
from workloads.layers.modules.linear import Linear

Projection = Literal["bh4", "dense"]


@dataclass(frozen=True, kw_only=True)
class Config(LlamaFrame):
    """Transformer with a look-up in the place of every feed-forward block."""

    FREE_DIMENSION: ClassVar[str] = "total_tables"
    """Field that `match:` solves for unless told otherwise."""

    total_tables: int
    """Tables of all layers together, at least one for each. They are shared out evenly, to the
    first layers one more where that does not come out even: one table more in every layer may need
    another bh4 projection in every layer, too coarse a step for `match:`. A token reads one row of
    each."""
    tau: PositiveInt = 8
    """Numbers that are hashed together: a table has 2**tau rows."""
    projection: Projection = "bh4"
    """What makes a layer's K * tau numbers: bh4, four block-diagonal maps and Hadamard transforms;
    or dense."""
    block_width: PositiveInt | None = None
    """Width of a block of bh4; None is an eighth of d_model's next power of two, at least 2: the
    source's 64 at 512."""
    score: HashScore = "l1_prob"
    """Weight of a row: l1_prob (the source's), the probability of its code times the chunk's sum of
    absolute values; prob, the probability alone."""
    temperature: PositiveFloat = 1.0
    """Of the score: the larger, the less the size of a number matters."""
    table_std: PositiveFloat = 0.02
    """Standard deviation of the tables at the start."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.total_tables < self.n_layers:
            rule = f"must be at least one per layer ({self.n_layers})"
            fix = f"the nearest is {self.n_layers}"
            raise FieldError("total_tables", rule, self.total_tables, fix)
        padded = _padded(self.d_model)
        if self.block_width is not None and padded % self.block_width:
            rule = f"must divide d_model's next power of two ({padded})"
            fix = f"the nearest is {nearest_divisor(padded, self.block_width)}"
            raise FieldError("block_width", rule, self.block_width, fix, ("d_model",))

    @property
    def tables_per_layer(self) -> tuple[int, ...]:
        """Tables of each layer."""
        share, left = divmod(self.total_tables, self.n_layers)
        return (share + 1,) * left + (share,) * (self.n_layers - left)

    def block_hadamard(self, n_tables: int) -> "BlockHadamardShape":
        """Return the sizes of a bh4 projection in front of so many tables."""
        padded = _padded(self.d_model)
        return BlockHadamardShape(
            d_input=self.d_model,
            d_output=n_tables * self.tau,
            block_width=min(padded, max(2, padded // 8))
            if self.block_width is None
            else self.block_width,
        )

    def memory(self, n_tables: int) -> HashShape:
        """Return the sizes of a hash layer of so many tables."""
        return HashShape(
            n_chunks=n_tables,
            bits=self.tau,
            width=self.d_model,
            score=self.score,
            temperature=self.temperature,
            autocast_input=self.projection == "dense",
        )

    def build(self, vocab_size: int) -> Transformer:
        """Return the model on the default device, its values open until `initialise`."""
        blocks = (self.block_with(LookupFFN(self, n_tables)) for n_tables in self.tables_per_layer)
        return self.transformer(vocab_size, blocks)

    def components(self, vocab_size: int) -> Components:
        """Return what the model consists of."""
        return [
            *self.attention_parts(vocab_size),
            *(
                counted
                for n_tables, n_layers in Counter(self.tables_per_layer).items()
                for counted in (
                    (n_layers, self._projection(n_tables)),
                    (n_layers, self.memory(n_tables)),
                    self.memory(n_tables).tables(n_layers),
                )
            ),
        ]

    def _projection(self, n_tables: int) -> Component:
        if self.projection == "bh4":
            return self.block_hadamard(n_tables)
        return DenseShape(d_input=self.d_model, d_output=n_tables * self.tau)

    @classmethod
    def nearest_size(cls, non_embedding_params: int, **overrides: Any) -> "Config":
        """Return the member of the family nearest to a size, which counts the tables.

        Raises:
            ValueError: If none is within a quarter of it.
        """
        return nearest_member(cls, _family, [_TOTAL_TABLES], non_embedding_params, overrides)


class LookupFFN(nn.Module):
    """A hash layer behind a projection, in the place of a feed-forward block."""

    PARAM_GROUP: ClassVar[str] = "memory_keys"

    def __init__(self, config: Config, n_tables: int) -> None:
        """Make the layer with `n_tables` of the model's tables."""
        super().__init__()
        shape = config.memory(n_tables)
        self.projection = (
            BlockHadamard(config.block_hadamard(n_tables))
            if config.projection == "bh4"
            else Linear(config.d_model, shape.d_input, bias=True)
        )
        self.memory = HashMemory(shape, std=config.table_std)

    def forward(
        self, x: Float[Tensor, "*batch d_model"], context: Context
    ) -> Float[Tensor, "*batch d_model"]:
        """Return the block's output, to be added to the residual."""
        output: Tensor = self.memory(self.projection(x), context)
        return output

    def record_usage(self, output: Tensor, residual: Tensor) -> None:
        """Record the size of the output against the residual stream's."""
        self.memory.usage.record_output(output, residual)


def _padded(d_model: int) -> int:
    """Return the next power of two."""
    return 1 << (d_model - 1).bit_length()


@dataclass(frozen=True, kw_only=True)
class BlockHadamardShape(Component):
    """Sizes of a BH4 projection, and what follows from them."""

    d_input: int
    d_output: int
    block_width: int

    @property
    def padded(self) -> int:
        """Width of the transforms."""
        return _padded(self.d_input)

    @property
    def copies(self) -> int:
        """Projections side by side, so that there are enough outputs."""
        return -(-self.d_output // self.padded)

    @property
    def n_blocks(self) -> int:
        """Blocks of one block-diagonal matrix."""
        return self.padded // self.block_width

    @property
    def weights(self) -> int:
        """Numbers in all blocks."""
        return STEPS * self.copies * self.padded * self.block_width

    def param_count(self) -> ParamCount:
        """Count blocks and bias."""
        return ParamCount(memory_keys=self.weights + self.d_output)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count the products with blocks.

        A transform is n log2 n additions, which are not counted, like other sums.
        """
        return FlopCount(memory=2.0 * self.weights)

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return the input of every step."""
        c = 4 if precision == "fp32" else 2
        return float(c * STEPS * self.copies * self.padded)


@dataclass(frozen=True, kw_only=True)
class DenseShape(Component):
    """Sizes of a dense projection, and what follows from them."""

    d_input: int
    d_output: int

    def param_count(self) -> ParamCount:
        """Count weights and bias."""
        return ParamCount(memory_keys=(self.d_input + 1) * self.d_output)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count the product."""
        return FlopCount(memory=2.0 * self.d_input * self.d_output)

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return the input."""
        return float((4 if precision == "fp32" else 2) * self.d_input)


STEPS = 4
"""Block-diagonal maps, each followed by a Hadamard transform: the 4 of BH4."""
_MIXED, _KEPT = 0.7, 0.3
"""Shares of the steps' output and of the input itself."""


class BlockHadamard(nn.Module):
    """Block-Hadamard projection `z = 0.7 BH4(x) + 0.3 x + bias`.

    It takes O(d (block_width + log d)) instead of O(d**2).

    BH4 applies four times {block-diagonal matrix, Hadamard transform}, to x padded with zeros to a
    power of two. Where more outputs are wanted than that, several such projections stand side by
    side, each with blocks of its own; what they have too many is cut off. Source: LookupFFN (arXiv
    2403.07221), released code.
    """

    def __init__(self, shape: BlockHadamardShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.block_width
        self.blocks = nn.Parameter(torch.empty(STEPS, shape.copies, shape.n_blocks, width, width))
        self.bias = nn.Parameter(torch.empty(shape.d_output))

    def forward(self, x: Float[Tensor, "*batch d_input"]) -> Float[Tensor, "*batch d_output"]:
        """Return the numbers to hash."""
        shape = self.shape
        tokens = functional.pad(x.reshape(-1, shape.d_input), (0, shape.padded - shape.d_input))
        kept = tokens.view(-1, shape.n_blocks, shape.block_width).transpose(0, 1)
        mixed = kept.expand(shape.copies, -1, -1, -1)
        # A transform over columns (block, within) is one over each; the second follows a product
        # with a block, so it is taken of the blocks, once for all tokens.
        for step in hadamard(self.blocks) * shape.padded**-0.5:
            mixed = hadamard(mixed @ step, dim=1)
        z = (_MIXED * mixed + _KEPT * kept).permute(2, 0, 1, 3).flatten(1)
        return (z[:, : shape.d_output] + self.bias).view(*x.shape[:-1], shape.d_output)

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write the blocks (each step then keeps the variance) or zeros."""
        if name == "bias":
            value.zero_()
        else:
            value.normal_(0.0, self.shape.block_width**-0.5, generator=generator)


def _shape(fields: dict[str, Any], *, tau: int) -> dict[str, Any]:
    """Return fields of a Llama-style preset that hashes 2 d_model numbers, as the source."""
    n_tables = max(1, 2 * fields["d_model"] // tau)
    return {**without_d_ff(fields), "total_tables": fields["n_layers"] * n_tables, "tau": tau}


def _family(d_model: int) -> dict[str, Any]:
    """Return fields of this width; tables of 2**4 rows equal a dense block's parameters."""
    return _shape(backbone_fields(d_model), tau=4)


_TOTAL_TABLES = FreeDimension(name="total_tables", lowest=0.5, highest=2.0, step=1)

PRESETS: dict[str, dict[str, Any]] = {
    **{name: _shape(fields, tau=4) for name, fields in TINY.items()},
    # From here on as in the source; the tables are eight times as large as a dense block.
    **{name: _shape(fields, tau=8) for name, fields in {**SMALL, **PAPER}.items()},
    # The source's small encoder.
    "reference": {
        "d_model": 512,
        "n_layers": 4,
        "n_heads": 8,
        "total_tables": 4 * 128,
        "tau": 8,
        "tied_embeddings": True,
    },
}
