"""Parameters, FLOPs and bytes, counted once and the same way for every architecture.

Conventions (docs/architecture.md, "Accounting"): a multiply-add is 2 FLOPs; causal attention scores count
half the square; training is 3 x forward; a lookup costs the rows it reads, never the whole table.
"""

from dataclasses import asdict, dataclass, fields
from typing import Literal, Protocol, runtime_checkable


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
        return sum(asdict(self).values())

    @property
    def non_embedding(self) -> int:
        """Total minus embedding table and output head (the N of Kaplan et al. 2020)."""
        return self.total - self.embedding - self.head

    def as_dict(self) -> dict[str, int]:
        """Return group -> count, in the order of the fields."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


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
        return self.attention + self.feed_forward + self.memory + self.router + self.head


def training_flops(forward_flops_per_token: float, tokens: int) -> float:
    """Return forward plus backward FLOPs of a whole run: 3 x forward per token."""
    return 3.0 * forward_flops_per_token * tokens


def paper_total(count: ParamCount) -> int:
    """Return the total as Berges et al. 2024 (arXiv 2412.09764) print it: without the gains of the norms.

    Reproduces their totals at 134M and 1.3B to the printed digit but for one, Memory+ with 1024**2 slots at 1.3B:
    3.368 billion by this rule, 3.377 in print, which is the total of their one-layer Memory.
    """
    return count.total - count.norm


Precision = Literal["fp32", "bf16"]
"""Type of matrix products: fp32 throughout, or bf16 autocast over fp32 weights."""


@runtime_checkable
class Trainable(Protocol):
    """What `peak_memory_bytes` asks of an architecture's Config."""

    def param_count(self, vocab_size: int) -> ParamCount:
        """Count per group."""

    def activation_bytes_per_token(
        self, vocab_size: int, seq_len: int, *, precision: Precision
    ) -> float:
        """Return what a forward pass keeps for the backward pass."""


def peak_memory_bytes(
    config: Trainable,
    vocab_size: int,
    seq_len: int,
    micro_batch_tokens: int,
    precision: Precision = "fp32",
) -> float:
    """Estimate the most bytes that training holds at once on one rank, beside what the process and libraries take.

    Weights, gradients and two AdamW moments in fp32 (16 bytes a parameter); with bf16 a copy of the weights outside
    the embedding and the values; the activations of one micro batch, and `TEMPORARIES` of them for what single
    operations need for a moment. All at once: gradients of the last layers exist while activations of the first
    still do.
    """
    count = config.param_count(vocab_size)
    state = 16 * count.total
    copies = 2 * (count.total - count.embedding - count.memory_values) if precision == "bf16" else 0
    activations = config.activation_bytes_per_token(vocab_size, seq_len, precision=precision)
    return state + copies + (1.0 + TEMPORARIES) * activations * micro_batch_tokens


TEMPORARIES = 0.2
"""Share of the activations added for temporaries.

Measured over a few training steps. Growth of the resident set on one CPU core, fp32, dense and memory_plus at d64, 1m
and 10m with 2,048 to 8,192 tokens: the estimate is 0.96 to 1.04 of the peak (0.82 to 0.90 without this share). Peak
of the allocator on an H200, both at 10m and 134m with 16,384 tokens: 1.23 to 1.28 of the peak in fp32 and 1.25 to 1.54
in bf16, because fused norms there keep less; too much rather than too little."""
