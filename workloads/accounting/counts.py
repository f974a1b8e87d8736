"""Counts of parameters, FLOPs, bytes and activations of every architecture.

Conventions (docs/metrics.md, "Accounting"): a multiply-add is 2 FLOPs; causal attention scores
count half the square; training is 3 x forward; a lookup costs the rows it reads, never the whole
table.

A model is counted as it is built: `Component` is one piece (an attention block, a table),
`Accounted` a Config that names its components and how often each occurs.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar


@dataclass(frozen=True, kw_only=True)
class ParamCount:
    """Trainable numbers per group. Tied weights are counted once, under `embedding`."""

    embedding: int = 0
    attention: int = 0
    feed_forward: int = 0
    memory_keys: int = 0
    """Everything of a memory layer but its values: query projection, sub-keys, gate."""
    memory_values: int = 0
    router: int = 0
    norm: int = 0
    head: int = 0

    @property
    def total(self) -> int:
        """Every trainable number."""
        return sum(self.as_dict().values())

    @property
    def non_embedding(self) -> int:
        """Total minus embedding table and output head (the N of Kaplan et al. 2020)."""
        return self.total - self.embedding - self.head

    def as_dict(self) -> dict[str, int]:
        """Return group -> count, in the order of the fields."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class FlopCount:
    """Forward FLOPs of one token, averaged over the positions of a sequence, per group."""

    attention: float = 0.0
    feed_forward: float = 0.0
    memory: float = 0.0
    router: float = 0.0
    head: float = 0.0

    @property
    def total(self) -> float:
        """Forward FLOPs per token."""
        return sum(self.as_dict().values())

    def as_dict(self) -> dict[str, float]:
        """Return group -> FLOPs, in the order of the fields."""
        return dict(vars(self))


Precision = Literal["fp32", "bf16"]
"""Type of matrix products: fp32 throughout, or bf16 autocast over fp32 weights."""


class Component(ABC):
    """One piece of a model, as the accounting sees it."""

    @abstractmethod
    def param_count(self) -> ParamCount:
        """Count trainable numbers per group."""

    @abstractmethod
    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count forward FLOPs of one token in a sequence of `seq_len`.

        Matrix products and rows read count, nothing else.
        """

    @abstractmethod
    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return what a forward pass keeps for the backward pass, as plain torch saves it."""

    def active_params(self) -> int:
        """Count the non-embedding parameters that one token touches; by default all."""
        return self.param_count().non_embedding

    def bytes_per_token(self, *, batch_tokens: int, element_bytes: int) -> dict[str, float]:
        """Return bytes of parameters read per token and group.

        Each parameter is read once per batch, unless the component says otherwise.
        """
        return {
            group: element_bytes * number / batch_tokens
            for group, number in self.param_count().as_dict().items()
            if number
        }


N = TypeVar("N", int, float)

Components = Sequence[tuple[int, Component]]
"""How often each component occurs in a model, and the component."""


class Accounted(ABC):
    """A Config that is counted by its components."""

    DOCUMENT_MASK: ClassVar[bool] = False
    """Whether the model's positions meet in attention alone, which can stay within documents."""

    @abstractmethod
    def components(self, vocab_size: int) -> Components:
        """Return the components of the model and how often each occurs."""

    def param_count(self, vocab_size: int) -> ParamCount:
        """Count trainable numbers per group; what several layers share, once."""
        _at_least_one(vocab_size=vocab_size)
        counts = (
            (n, component.param_count().as_dict()) for n, component in self.components(vocab_size)
        )
        return ParamCount(**_summed(counts))

    def active_param_count(self, vocab_size: int) -> int:
        """Count the non-embedding parameters one token touches."""
        return sum(n * component.active_params() for n, component in self.components(vocab_size))

    def flops_per_token(self, vocab_size: int, seq_len: int) -> FlopCount:
        """Count forward FLOPs of one token in a sequence of `seq_len`.

        Norms, activation functions and sorting are left out.
        """
        _at_least_one(vocab_size=vocab_size, seq_len=seq_len)
        counts = (
            (n, component.flops_per_token(seq_len).as_dict())
            for n, component in self.components(vocab_size)
        )
        return FlopCount(**_summed(counts))

    def bytes_per_token(
        self, vocab_size: int, *, batch_tokens: int = 1, element_bytes: int = 2
    ) -> dict[str, float]:
        """Return bytes of parameters read per token and group, in batches of `batch_tokens`.

        Matrices are read once per batch. Of a table, the rows that the batch reads, each once;
        where the choice of rows is learned, their expected number under even use.
        """
        _at_least_one(batch_tokens=batch_tokens)
        counts = (
            (n, component.bytes_per_token(batch_tokens=batch_tokens, element_bytes=element_bytes))
            for n, component in self.components(vocab_size)
        )
        return {**dict.fromkeys(ParamCount().as_dict(), 0.0), **_summed(counts)}

    def activation_bytes_per_token(
        self, vocab_size: int, seq_len: int, *, precision: Precision
    ) -> float:
        """Return what a forward pass keeps for the backward pass, as plain torch saves it."""
        return float(
            sum(
                n * component.activation_bytes_per_token(seq_len, precision)
                for n, component in self.components(vocab_size)
            )
        )


def _summed(counts: Iterable[tuple[int, Mapping[str, N]]]) -> dict[str, N]:
    total: dict[str, N] = {}
    for n, count in counts:
        for group, number in count.items():
            total[group] = total[group] + n * number if group in total else n * number
    return total


def _at_least_one(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")


def distinct_rows(n_rows: int, *, draws: int, without_repetition: int = 1) -> float:
    """Return the expected number of different rows among `draws` uniform draws.

    Each draw is of `without_repetition` different rows.
    """
    if without_repetition >= n_rows:
        return float(n_rows) if draws else 0.0
    return n_rows * -math.expm1(draws * math.log1p(-without_repetition / n_rows))


def training_flops(forward_flops_per_token: float, tokens: int) -> float:
    """Return forward plus backward FLOPs of a whole run: 3 x forward per token."""
    return 3.0 * forward_flops_per_token * tokens
