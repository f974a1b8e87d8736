"""Root-mean-square normalisation."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """`x / rms(x) * gain` over the last dimension. Source: Zhang & Sennrich 2019 (arXiv 1910.07467)."""

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
