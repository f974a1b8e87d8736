"""Parameters, FLOPs and bytes, counted once and the same way for every architecture.

Conventions (docs/architecture.md, "Accounting"): a multiply-add is 2 FLOPs; causal attention scores count
half the square; training is 3 x forward; a lookup costs the rows it reads, never the whole table.
"""

from dataclasses import asdict, dataclass, fields


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
