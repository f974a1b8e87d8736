"""Prefetched rows of one host table: copies on the device, with their state."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from workloads.layers.memory import host_rows
from workloads.layers.memory.held_rows import HeldRows, distinct
from workloads.layers.memory.host_rows import Ids, items_of
from workloads.layers.memory.row_copies import take_rows
from workloads.layers.memory.table import MemoryTable
from workloads.layers.memory.token_reads import TokenReader

VALUES = "values"
"""Key of a table's own rows among those of its optimizer state."""
N_COPIES = 3
"""Of every row: of this step, of the next, and of the last as it left them."""
Rows = dict[str, Tensor]
"""The table's values and its optimizer's state, or some rows of them, by name."""


class PrefetchedRows:
    """Rows of one table: those of the step, of the next one, and of the last as it left them.

    They have fixed places, and room for as many as a step has reads. On a GPU they pass through
    blocks of pinned memory; on a CPU these are the copies themselves.
    """

    def __init__(
        self, table: MemoryTable, readers: Sequence[TokenReader], home: Mapping[str, Tensor]
    ) -> None:
        """Copy rows of `table` and of its state, which lie in `home` by name, for its `readers`."""
        self.table, self._readers, self._home = table, readers, home
        self.current: Rows = {}
        self._ids: dict[str, Tensor] = {}
        self._next: Rows = {}
        self._last: Rows = {}
        self._held: HeldRows | None = None
        self._in: Rows = {}
        self._back: Rows = {}
        self._host_ids: dict[str, Tensor] = {}
        """Those of the rows, in host memory, and room for the ids that come after the next."""

    def find(self, tokens: Int[Tensor, "sequences seq_len"]) -> None:
        """Bring the ids of the rows that `tokens` name to the host."""
        ids = torch.cat([reader.token_rows(tokens).flatten() for reader in self._readers])
        if not self._next:
            self._allocate(len(ids))
        n_rows, room = len(self.table.weight), len(self._ids["next"])
        self._ids["next"].copy_(distinct(ids, n_rows=n_rows, room=room))
        self._host_ids["next"].copy_(self._ids["next"], non_blocking=True)

    def gather(self) -> None:
        """Copy those rows to the block that goes in."""
        host_rows.gather(
            [items_of(self._home[name]) for name in self._in],
            self._named("next"),
            [items_of(rows) for rows in self._in.values()],
        )

    def upload(self) -> None:
        """Queue the copy of that block to the next step's rows."""
        _copy(self._in, self._next, len(self._named("next")))

    def hold(self) -> None:
        """Make the next step's rows the current one's, as the last step left them."""
        last, ids = self._ids["last"], self._ids["next"]
        places = torch.searchsorted(last, ids, out_int32=True).clamp_(max=len(last) - 1)
        changed = (last[places] == ids) & (ids < len(self.table.weight))
        places = torch.where(changed, places, len(last))
        for name, rows in self.current.items():
            rows.copy_(self._next[name])
            take_rows(self._last[name], places, rows)
        self._ids["current"].copy_(ids)
        self._host_ids["next"], self._host_ids["current"] = (
            self._host_ids["current"],
            self._host_ids["next"],
        )
        self.table.held = self._held

    def release(self) -> None:
        """Keep the rows as the step left them."""
        self._ids["last"].copy_(self._ids["current"])
        for name, rows in self._last.items():
            rows.copy_(self.current[name])
        self._host_ids["last"], self._host_ids["current"] = (
            self._host_ids["current"],
            self._host_ids["last"],
        )
        self.table.held = None

    def download(self) -> None:
        """Queue the copy of those rows to the block that comes back."""
        _copy(self._last, self._back, len(self._named("last")))

    def scatter(self) -> None:
        """Write that block into the table."""
        host_rows.scatter(
            [items_of(rows) for rows in self._back.values()],
            self._named("last"),
            [items_of(self._home[name]) for name in self._back],
        )

    def _named(self, which: str) -> Ids:
        """Return the ids, as the host has them, that name a row."""
        ids: Ids = self._host_ids[which].numpy()
        # Of the ids' own type, or all of them would be converted.
        end = np.asarray(len(self.table.weight), dtype=ids.dtype)
        return ids[: np.searchsorted(ids, end)]

    def _allocate(self, n_reads: int) -> None:
        n_rows = len(self.table.weight)
        room = min(n_reads, n_rows)
        ids = torch.int32 if n_rows < 2**31 else torch.int64
        for each in ("next", "current", "last"):
            self._ids[each] = torch.full(
                (room,), n_rows, dtype=ids, device=self.table.weight.device
            )
        self._next, self.current, self._last = (
            {
                # Ordinary zeros, where the home may be in host memory.
                name: torch.zeros(room, *rows.shape[1:], dtype=rows.dtype, device=rows.device)
                for name, rows in self._home.items()
            }
            for _ in range(N_COPIES)
        )
        self._in, self._back = (
            {name: _pinned_like(rows) for name, rows in copies.items()}
            for copies in (self._next, self._last)
        )
        self._host_ids = {
            name: _pinned_like(each) if each.is_cuda else each.clone()
            for name, each in self._ids.items()
        }
        # A compiled lookup keeps its reads for a table that wants a gradient, and makes none.
        values = self.current[VALUES].requires_grad_()
        self.current[VALUES] = values.detach()
        self._held = HeldRows(ids=self._ids["current"], values=values)


def _pinned_like(rows: Tensor) -> Tensor:
    """Return pinned memory for a copy of `rows`; the rows themselves where they are the host's."""
    return torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True) if rows.is_cuda else rows


def _copy(sources: Rows, targets: Rows, n: int) -> None:
    """Queue copies of the first `n` rows, unless source and target are the same."""
    for name, rows in sources.items():
        if rows is not targets[name]:
            targets[name][:n].copy_(rows[:n], non_blocking=True)
