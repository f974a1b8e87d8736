"""Layer normalisation with gain and bias, as the Pythia suite has it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from workloads.accounting import FlopCount, ParamCount, Part, Precision


class LayerNorm(nn.LayerNorm):
    """`(x - mean) / sqrt(variance + eps) * gain + bias`. Source: Ba et al. 2016 (arXiv 1607.06450)."""

    PARAM_GROUP: ClassVar[str] = "norm"

    def reset_parameters(self) -> None:
        """Leave the values open: `initialise` writes them."""

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write ones (gain) or zeros (bias)."""
        value.fill_(0.0 if name == "bias" else 1.0)


@dataclass(frozen=True, kw_only=True)
class LayerNormPart(Part):
    """A norm of `width` columns."""

    width: int
    shares_input: bool = False
    """Another norm keeps the same input: the second of a parallel block."""

    def param_count(self) -> ParamCount:
        """Count gain and bias."""
        return ParamCount(norm=2 * self.width)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Return nothing: norms are not counted."""
        return FlopCount()

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return input, mean and inverse deviation, all fp32 as the residual stream is."""
        return (0.0 if self.shares_input else 4.0 * self.width) + 8.0
