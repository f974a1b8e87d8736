"""Linear maps and embeddings with their initial distributions."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from workloads.accounting.counts import Component, FlopCount, ParamCount, Precision
from workloads.layers.modules.init import truncated_normal


class Linear(nn.Linear):
    """Linear map without bias unless asked.

    Begins truncated normal with variance 1 / in_features, bias zero.
    """

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool = False, std: float | None = None
    ) -> None:
        """Make a map that begins with standard deviation `std`, 1 / sqrt(in_features) if None.

        Zero is zeros.
        """
        super().__init__(in_features, out_features, bias=bias)
        self.std = in_features**-0.5 if std is None else std

    def reset_parameters(self) -> None:
        """Leave the values open: `initialise` writes them."""

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write the initial weight or bias."""
        if name == "bias" or self.std == 0:
            value.zero_()
        else:
            truncated_normal(value, self.std, generator)


class Head(Linear):
    """Residual stream to logits."""

    PARAM_GROUP: ClassVar[str] = "head"


class Embedding(nn.Embedding):
    """Table of token vectors; begins truncated normal with variance 1 / width."""

    PARAM_GROUP: ClassVar[str] = "embedding"

    def __init__(self, num_embeddings: int, width: int, *, std: float | None = None) -> None:
        """Make a table that begins with standard deviation `std`, 1 / sqrt(width) if None."""
        super().__init__(num_embeddings, width)
        self.std = width**-0.5 if std is None else std

    def reset_parameters(self) -> None:
        """Leave the values open: `initialise` writes them."""

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write the initial table."""
        truncated_normal(value, self.std, generator)


class VocabularyComponent(Component):
    """Embedding table and output head.

    A tied table is one table, read a row a token and whole for the logits.
    """

    def __init__(self, vocab_size: int, d_model: int, *, tied: bool) -> None:
        """Count a table and, unless `tied`, a second matrix of its size."""
        self.numbers, self.d_model, self.vocab_size, self.tied = (
            vocab_size * d_model,
            d_model,
            vocab_size,
            tied,
        )

    def param_count(self) -> ParamCount:
        """Count both matrices."""
        return ParamCount(embedding=self.numbers, head=0 if self.tied else self.numbers)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count the logits; a look-up is no product."""
        return FlopCount(head=2.0 * self.numbers)

    def bytes_per_token(self, *, batch_tokens: int, element_bytes: int) -> dict[str, float]:
        """Return one row per token, and the whole matrix of the head once per batch."""
        return {
            "embedding": float(element_bytes * self.d_model),
            "head": element_bytes * self.numbers / batch_tokens,
        }

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return input of the head, logits and probabilities."""
        c = 4 if precision == "fp32" else 2
        return float(c * self.d_model + (c + 4) * self.vocab_size)
