"""Root-mean-square normalisation."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from workloads.accounting import FlopCount, ParamCount, Part, Precision


class RMSNorm(nn.Module):
    """`x / rms(x) * gain` over the last dimension. Source: Zhang & Sennrich 2019 (arXiv 1910.07467)."""

    PARAM_GROUP: ClassVar[str] = "norm"

    def __init__(self, width: int, *, eps: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Return the normalised `x` in its own type."""
        return functional.rms_norm(x, self.gain.shape, self.gain.to(x.dtype), self.eps)

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write ones."""
        value.fill_(1.0)


@dataclass(frozen=True, kw_only=True)
class RMSNormPart(Part):
    """A norm of the residual stream."""

    width: int

    def param_count(self) -> ParamCount:
        """Count the gains."""
        return ParamCount(norm=self.width)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Return nothing: norms are not counted."""
        return FlopCount()

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return input, normalised input and inverse root mean square, all fp32 as the residual stream is."""
        return 8.0 * self.width + 4.0
