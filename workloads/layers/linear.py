"""Linear maps and embeddings that know how they begin."""

import torch
from torch import Tensor, nn

from workloads.layers.initialise import truncated_normal


class Linear(nn.Linear):
    """Linear map without bias unless asked; begins truncated normal with variance 1 / in_features, bias zero."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__(in_features, out_features, bias=bias)

    def reset_parameters(self) -> None:
        """Leave the values open: `initialise` writes them."""

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write the initial weight or bias."""
        if name == "bias":
            value.zero_()
        else:
            truncated_normal(value, self.in_features**-0.5, generator)


class Embedding(nn.Embedding):
    """Table of token vectors; begins truncated normal with variance 1 / width."""

    def reset_parameters(self) -> None:
        """Leave the values open: `initialise` writes them."""

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write the initial table."""
        truncated_normal(value, self.embedding_dim**-0.5, generator)
