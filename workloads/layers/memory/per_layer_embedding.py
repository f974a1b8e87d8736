"""Per-layer embeddings: every layer reads its slice of a second table."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from workloads.accounting.counts import Component, FlopCount, ParamCount, Precision
from workloads.layers.block import Block, apply_slot
from workloads.layers.context import Context
from workloads.layers.memory.table import MemoryTable, ModuleRef, TableComponent
from workloads.layers.modules.linear import Linear
from workloads.layers.modules.norms import RMSNorm
from workloads.layers.modules.usage_stats import MemoryUsage

PER_LAYER_INPUTS = "per_layer_inputs"
"""Name in `Context.shared` of what the layers read."""


@dataclass(frozen=True, kw_only=True)
class PerLayerShape(Component):
    """Sizes of a per-layer embedding without its table, and what follows from them."""

    d_model: int
    n_layers: int
    width: int
    """Numbers that one layer reads."""

    @property
    def all_widths(self) -> int:
        """Numbers of all layers together: the width of a table row."""
        return self.n_layers * self.width

    def table(self, vocab_size: int) -> TableComponent:
        """Return the table: a token reads one row, all layers' slices at once."""
        return TableComponent(
            n_rows=vocab_size, width=self.all_widths, bag_size=1, distinct=1, by_token=True
        )

    def param_count(self) -> ParamCount:
        """Count the context's projection and norm, and gate, output and norm of every layer."""
        projection = self.d_model * self.all_widths
        return ParamCount(
            memory_keys=3 * projection, norm=self.width + self.n_layers * self.d_model
        )

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count the context's projection, gates and outputs; the row read counts with the table."""
        return FlopCount(memory=6.0 * self.d_model * self.all_widths)

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return what the context's norm keeps.

        And of every layer input, gate, gelu(gate), slice, product and norm.

        Norms keep their input and its normalised form in fp32; with bf16, the context keeps the
        embedding once more.
        """
        c, casts = (4, 0) if precision == "fp32" else (2, 1)
        columns, d = self.all_widths, self.d_model
        context = 8.0 * columns + 4.0 * self.n_layers + casts * c * d
        gates = self.n_layers * (c * d + 8.0 * d + 4.0)
        return context + c * 4 * columns + gates


class PerLayerInputs(nn.Module):
    """What every layer reads of its token.

    `(sqrt(p) table[token] + context) / sqrt(2)`, p numbers a layer.

    `context = RMSNorm(projection(e) / sqrt(d_model))` with `e` the first residual stream as Gemma
    has it, which is sqrt(d_model) times the token's embedding. Ours is the embedding itself, so the
    two factors meet and cancel: the projection of the embedding is taken as it is. The norm is over
    each layer's p numbers, its gains shared by all layers.
    """

    PARAM_GROUP: ClassVar[str] = "memory_keys"

    def __init__(self, shape: PerLayerShape, table: MemoryTable, *, norm_eps: float) -> None:
        """Make what reads `table`, which the model owns."""
        super().__init__()
        self.shape = shape
        self.table = ModuleRef(table)
        self.projection = Linear(shape.d_model, shape.all_widths)
        self.norm = RMSNorm(shape.width, eps=norm_eps)
        self.usage = MemoryUsage(table.weight.shape[0])

    def token_rows(self, tokens: Int[Tensor, "batch seq"]) -> Int[Tensor, "batch seq"]:
        """Return the rows that sequences read."""
        return tokens

    def forward(
        self,
        embedded: Float[Tensor, "batch seq d_model"],
        tokens: Int[Tensor, "batch seq"],
        context: Context,
    ) -> Float[Tensor, "batch seq layers width"]:
        """Return the inputs of all layers."""
        layers = (self.shape.n_layers, self.shape.width)
        ids = tokens.reshape(-1, 1)
        weights = torch.full(ids.shape, self.shape.width**0.5, device=ids.device)
        self.usage.mark(ids)
        if context.record_usage:
            self.usage.record(ids, torch.ones_like(weights))
        looked_up = self.table.module(ids, weights).view(*tokens.shape, *layers)
        from_context = self.norm(self.projection(embedded).unflatten(-1, layers))
        result: Tensor = (looked_up + from_context) * 2**-0.5
        return result


class PerLayerGate(nn.Module):
    """`RMSNorm(output(gelu(gate x) * slice))`, to be added to x.

    Gelu is the tanh approximation, as in Gemma.
    """

    PARAM_GROUP: ClassVar[str] = "memory_keys"

    def __init__(
        self, shape: PerLayerShape, inputs: PerLayerInputs, *, layer: int, norm_eps: float
    ) -> None:
        """Make the part of layer number `layer`."""
        super().__init__()
        self.layer = layer
        self.inputs = ModuleRef(inputs)
        self.gate = Linear(shape.d_model, shape.width)
        self.output = Linear(shape.width, shape.d_model)
        self.norm = RMSNorm(shape.d_model, eps=norm_eps)

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], context: Context
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return what is added to the residual stream."""
        gate = functional.gelu(self.gate(x), approximate="tanh")
        mine = context.shared[PER_LAYER_INPUTS][:, :, self.layer].to(gate.dtype)
        added: Tensor = self.norm(self.output(gate * mine))
        return added

    def record_usage(self, output: Tensor, residual: Tensor) -> None:
        """Record the size of the output against the residual stream's."""
        self.inputs.module.usage.record_output(output, residual)


class PerLayerBlock(Block):
    """A block, and after it the layer's slice of the per-layer embedding."""

    def __init__(self, *, per_layer: PerLayerGate, **slots: Any) -> None:
        super().__init__(**slots)
        self.per_layer = per_layer

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], context: Context
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return the residual stream after block and slice."""
        x = super().forward(x, context)
        return x + apply_slot(self.per_layer, x, context, residual=x)
