"""Hash memory: rows chosen by signs, without learned keys."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workloads.accounting.counts import Component, FlopCount, ParamCount, Precision
from workloads.layers.context import Context
from workloads.layers.memory.table import MemoryTable, TableComponent
from workloads.layers.modules.usage_stats import MemoryUsage

HashScore = Literal["prob", "l1_prob"]
"""Weight of a row: the probability of its code under the chunk, or that times the chunk's sum of
absolute values."""


@dataclass(frozen=True, kw_only=True)
class HashShape(Component):
    """Sizes of one hash layer without its tables, and what follows from them."""

    n_chunks: int
    """Chunks of the input; each has a table of its own."""
    bits: int
    """Numbers of a chunk; its table has 2**bits rows."""
    width: int
    """Numbers of a row, which is the width of the output."""
    score: HashScore
    temperature: float = 1.0
    """t in `sign_hash`: the larger, the less the size of a number matters."""
    autocast_input: bool = False
    """The input has autocast's type, as the residual stream and products with matrices do;
    otherwise it is fp32."""

    @property
    def d_input(self) -> int:
        """Width of the input."""
        return self.n_chunks * self.bits

    @property
    def n_rows(self) -> int:
        """Rows of all tables."""
        return self.n_chunks << self.bits

    def tables(self, n_layers: int = 1) -> tuple[int, TableComponent]:
        """Return the table of each of `n_layers` such layers.

        Of all its chunks, of each of which a token reads one row.
        """
        table = TableComponent(
            n_rows=self.n_rows,
            width=self.width,
            bag_size=self.n_chunks,
            distinct=self.n_chunks,
            hashed=True,
        )
        return n_layers, table

    def param_count(self) -> ParamCount:
        """Count the bias; the tables count by themselves."""
        return ParamCount(memory_keys=self.width)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Return nothing: signs and scores are no products, and rows count with the tables."""
        return FlopCount()

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return the numbers hashed, and of each chunk its row's id (int32) and its weight."""
        c = 2.0 if self.autocast_input and precision != "fp32" else 4.0
        return c * self.d_input + (4.0 + 4.0) * self.n_chunks


class HashMemory(nn.Module):
    """`y = sum_k score(z_k) * T_k[signs of z_k] + bias`, where z_k is the k-th chunk of the input.

    Sources: MemoryFormer (arXiv 2411.12992), section 3.1, and LookupFFN (arXiv 2403.07221);
    `sign_hash` says what the scores are. The tables are one flattened one, T_k in rows k * 2**bits
    onwards, so that one bag reads them all.
    """

    PARAM_GROUP: ClassVar[str] = "memory_keys"

    def __init__(self, shape: HashShape, *, std: float) -> None:
        """Make a layer whose tables begin normal with standard deviation `std`."""
        super().__init__()
        self.shape = shape
        self.table = MemoryTable(shape.n_rows, shape.width, std=std)
        self.bias = nn.Parameter(torch.empty(shape.width))
        tables = (1 << shape.bits,) * shape.n_chunks
        self.usage = MemoryUsage(shape.n_rows, table_rows=tables)

    def forward(
        self, x: Float[Tensor, "*batch d_input"], context: Context
    ) -> Float[Tensor, "*batch width"]:
        """Return the sums of the rows and the bias, in the type of the sums (`MemoryTable.hashed`).

        Like those of a linear map: what follows, and its gradient, has half as much to move then.
        """
        chunks = x.reshape(-1, self.shape.n_chunks, self.shape.bits)
        output, ids, weights = self.table.hashed(
            chunks,
            temperature=self.shape.temperature,
            times_l1=self.shape.score == "l1_prob",
        )
        # In the order in which kernels store them: rows of one small table lie in a cache line.
        self.usage.mark(ids.T)
        if context.record_usage:
            self.usage.record(ids, weights)
        output = output + self.bias.to(output.dtype)
        return output.view(*x.shape[:-1], self.shape.width)

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write the bias."""
        value.normal_(0.0, BIAS_STD, generator=generator)


BIAS_STD = 0.001
"""Standard deviation of a bias at the start, as in the released code of both sources."""
