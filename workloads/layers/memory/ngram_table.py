"""Cost of a table of n-grams, whose rows are put side by side."""

from dataclasses import dataclass

from workloads.accounting.counts import FlopCount
from workloads.layers.memory.table import TableComponent


@dataclass(frozen=True, kw_only=True)
class NgramTableComponent(TableComponent):
    """Table whose rows are concatenated. Layers that share it read the same rows."""

    by_token: bool = True

    def active_params(self) -> int:
        """Count the rows that one token reads, the same in every layer."""
        return min(self.n_rows, self.bag_size) * self.width

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Return nothing: reading is no product."""
        return FlopCount()

    def sparse_gradient_bytes_per_token(self, *, element_bytes: int) -> int:
        """Return bytes of a deferred gradient; each row read is a bag of its own."""
        return self.reads * (4 + element_bytes + self.width * element_bytes)
