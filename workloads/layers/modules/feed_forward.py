"""Dense feed-forward blocks."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from workloads.accounting.counts import Component, FlopCount, ParamCount, Precision
from workloads.layers.context import Context
from workloads.layers.modules.linear import Linear


class SwiGLU(nn.Module):
    """`down(silu(gate x) * up x)`, no biases. Source: Shazeer 2020 (arXiv 2002.05202)."""

    PARAM_GROUP: ClassVar[str] = "feed_forward"

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        # Two matrices: halves of one product are strided, and gating those costs a CPU more than a
        # second product.
        self.gate = Linear(d_model, d_ff)
        self.up = Linear(d_model, d_ff)
        self.down = Linear(d_ff, d_model)

    def forward(
        self, x: Float[Tensor, "*batch d_model"], context: Context | None = None
    ) -> Float[Tensor, "*batch d_model"]:
        """Return the block's output, to be added to the residual."""
        output: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return output


@dataclass(frozen=True, kw_only=True)
class SwiGLUShape(Component):
    """Sizes of a gated block."""

    d_model: int
    d_ff: int

    def param_count(self) -> ParamCount:
        """Count three matrices."""
        return ParamCount(feed_forward=3 * self.d_model * self.d_ff)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count three products."""
        return FlopCount(feed_forward=6.0 * self.d_model * self.d_ff)

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return input, gate, silu(gate), up and their product."""
        c = 4 if precision == "fp32" else 2
        return float(c * (self.d_model + 4 * self.d_ff))


class GELU(nn.Module):
    """`down(gelu(up x))` with biases, the exact gelu.

    Source: Hendrycks & Gimpel 2016 (arXiv 1606.08415).
    """

    PARAM_GROUP: ClassVar[str] = "feed_forward"

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        input_std: float | None = None,
        output_std: float | None = None,
    ) -> None:
        """Make two maps that begin with the given standard deviations, 1 / sqrt(inputs) if None."""
        super().__init__()
        self.up = Linear(d_model, d_ff, bias=True, std=input_std)
        self.down = Linear(d_ff, d_model, bias=True, std=output_std)

    def forward(
        self, x: Float[Tensor, "*batch d_model"], context: Context | None = None
    ) -> Float[Tensor, "*batch d_model"]:
        """Return the block's output, to be added to the residual."""
        output: Tensor = self.down(functional.gelu(self.up(x)))
        return output


@dataclass(frozen=True, kw_only=True)
class GELUShape(Component):
    """Sizes of an ungated block with biases."""

    d_model: int
    d_ff: int

    def param_count(self) -> ParamCount:
        """Count two matrices and their biases."""
        return ParamCount(feed_forward=2 * self.d_model * self.d_ff + self.d_ff + self.d_model)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count two products."""
        return FlopCount(feed_forward=4.0 * self.d_model * self.d_ff)

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return input, up and gelu(up)."""
        c = 4 if precision == "fp32" else 2
        return float(c * (self.d_model + 2 * self.d_ff))


def llama_d_ff(d_model: int) -> int:
    """Return the usual feed-forward width: 8/3 of `d_model`, rounded up to a multiple of 256."""
    return 256 * -(-(8 * d_model // 3) // 256)
