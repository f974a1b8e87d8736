"""Tables whose rows depend on tokens alone, so reads are known in advance."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Int
from torch import Tensor, nn

from workloads.layers.memory.table import MemoryTable, ModuleRef


@runtime_checkable
class TokenReader(Protocol):
    """A module that reads a table by tokens."""

    table: ModuleRef[MemoryTable]

    def token_rows(self, tokens: Int[Tensor, "batch seq"]) -> Int[Tensor, "..."]:
        """Return the rows that sequences read when they pass at once."""


def token_readers(model: nn.Module) -> Mapping[MemoryTable, Sequence[TokenReader]]:
    """Return who reads each table that tokens name the rows of.

    Readers of one table read it all by tokens, or none does.
    """
    readers: dict[MemoryTable, list[TokenReader]] = {}
    for module in model.modules():
        if isinstance(module, TokenReader):
            readers.setdefault(module.table.module, []).append(module)
    return readers
