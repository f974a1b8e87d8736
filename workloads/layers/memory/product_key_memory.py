"""Product-key memory in the place of a feed-forward block."""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from workloads.accounting.counts import Component, FlopCount, ParamCount, Precision
from workloads.field_error import FieldError
from workloads.layers.context import Context
from workloads.layers.memory.product_keys import LookupShape, ProductKeyLookup
from workloads.layers.memory.table import MemoryTable, ModuleRef, TableComponent
from workloads.layers.modules.linear import Linear
from workloads.layers.modules.usage_stats import MemoryUsage

Gate = Literal["swilu", "silu", "scalar", "none"]
"""What the input does to the bag. swilu: `output(bag * silu(gate x))`. silu: `bag * silu(gate x)`.
scalar: a sigmoid of one number per token times the layer's output."""


@dataclass(frozen=True, kw_only=True)
class MemoryShape(Component):
    """Sizes of one memory layer without its table, and what follows from them."""

    lookup: LookupShape
    value_dim: int
    gate: Gate = "swilu"
    """Any other than swilu projects only where value_dim is not d_model."""
    output_bias: bool = False
    """Whether a projection without swilu has a bias; swilu's always has."""

    @property
    def projects(self) -> bool:
        """Whether an output projection follows the bag."""
        return self.gate == "swilu" or self.value_dim != self.lookup.d_model

    @property
    def gate_width(self) -> int:
        """Numbers per token that gate."""
        return {"none": 0, "scalar": 1}.get(self.gate, self.value_dim)

    @property
    def projection_has_bias(self) -> bool:
        """Whether a projection, where there is one, has a bias."""
        return self.gate == "swilu" or self.output_bias

    def table(self, *, n_readers: int = 1) -> TableComponent:
        """Return the table as `n_readers` such layers read it."""
        return TableComponent(
            n_rows=self.lookup.n_slots,
            width=self.value_dim,
            bag_size=self.lookup.rows_read,
            distinct=self.lookup.knn,
            n_readers=n_readers,
        )

    def param_count(self) -> ParamCount:
        """Count lookup, gate and output projection."""
        lookup, d, v = self.lookup.param_count(), self.lookup.d_model, self.value_dim
        gate = (d + 1) * self.gate_width
        output = (v + int(self.projection_has_bias)) * d if self.projects else 0
        return ParamCount(memory_keys=lookup.memory_keys + gate + output, norm=lookup.norm)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count lookup, gate and output projection; the bag counts with the table."""
        columns = self.gate_width + (self.value_dim if self.projects else 0)
        products = 2.0 * self.lookup.d_model * columns
        return FlopCount(memory=self.lookup.flops_per_token(seq_len).memory + products)

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return what the lookup keeps, and gate, silu(gate) and their product with the bag.

        The bag takes the stream's type.
        """
        c = 4 if precision == "fp32" else 2
        kept = self.lookup.activation_bytes_per_token(seq_len, precision)
        if self.gate in ("swilu", "silu"):
            kept += c * 3 * self.value_dim
        elif self.gate == "scalar":
            kept += c * (1 + self.lookup.d_model)
        if self.projects:
            kept += c * self.value_dim
        return kept


class ProductKeyMemory(ProductKeyLookup):
    """Weighted sum of the best rows of every head, optionally gated by the input (`Gate`).

    Sources: Lample et al. 2019 (arXiv 1907.05242) for the lookup; Berges et al. 2024 (arXiv
    2412.09764) for the gates.
    """

    def __init__(self, shape: MemoryShape, table: MemoryTable) -> None:
        """Make a layer that reads `table`, which the model owns."""
        super().__init__(shape.lookup)
        self.shape = shape
        self.table = ModuleRef(table)
        d_model, value_dim = shape.lookup.d_model, shape.value_dim
        has_gate, bias = shape.gate != "none", shape.projection_has_bias
        self.gate = Linear(d_model, shape.gate_width, bias=True) if has_gate else None
        self.output = Linear(value_dim, d_model, bias=bias) if shape.projects else None
        self.usage = MemoryUsage(shape.lookup.n_slots)

    def forward(
        self, x: Float[Tensor, "*batch d_model"], context: Context
    ) -> Float[Tensor, "*batch d_model"]:
        """Return the layer's output, to be added to the residual."""
        tokens = x.reshape(-1, self.lookup.d_model)
        ids, weights = self.select(tokens)
        self.usage.mark(ids)
        if context.record_usage:
            self.usage.record(ids, weights)
        output: Tensor = self.table.module(ids, weights).to(x.dtype)
        scalar = self.shape.gate == "scalar"
        if self.gate is not None and not scalar:
            output = output * functional.silu(self.gate(tokens))
        if self.output is not None:
            output = self.output(output)
        if self.gate is not None and scalar:
            output = output * self.gate(tokens).sigmoid()
        return output.view(x.shape)

    def record_usage(self, output: Tensor, residual: Tensor) -> None:
        """Record the size of the output against the residual stream's."""
        self.usage.record_output(output, residual)


def check_output_bias(shape: MemoryShape, *, asked: bool | None) -> None:
    """Refuse an `output_bias` that changes nothing.

    Raises:
        FieldError: If there is no projection, or it has a bias anyway.
    """
    if asked and (shape.gate == "swilu" or not shape.projects):
        rule = "does nothing with gate swilu, or where value_dim is d_model"
        raise FieldError("output_bias", rule, "true", "remove it", ("gate", "value_dim"))
