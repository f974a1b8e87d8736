"""Prefetch of host-table rows: the next step's rows come while this step computes.

Where tokens alone name the rows (`layers/memory/token_reads.py`), a step computes with copies of
them on the device, updates the copies, and writes them back. On a GPU both ways over the bus are
taken by a stream of their own, beside the computation:

    computes     | step 1 | step 2                    | step 3                    |
    bus          | rows 2 | back 1, rows 3            | back 2, rows 4            |

Rows of step 3 are fetched after the ones of step 1 are written, and before step 2 is done. So those
that step 2 also reads are taken from its copies once it is done. This order never changes, and
neither do the numbers: they are those of fetching and writing one after another.

The copies have a fixed place and number (as many as a step has reads), so that a step can be
captured as a CUDA graph and the host never waits for how many rows differ.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Int, Int64
from torch import Tensor

from workloads.layers.memory.held_rows import HeldRows, distinct
from workloads.layers.memory.row_copies import put_rows, take_rows
from workloads.layers.memory.table import MemoryTable
from workloads.layers.memory.token_reads import TokenReader

VALUES = "values"
"""Key of a table's own rows among those of its optimizer state."""
N_COPIES = 3
"""Of every row: of this step, of the next, and of the last as it left them."""
Rows = dict[str, Tensor]
"""The table's values and its optimizer's state, or some rows of them, by name."""


class RowPrefetch:
    """Copies of the rows, and of their optimizer state, that the steps of a trial read."""

    def __init__(
        self,
        tables: Mapping[str, MemoryTable],
        readers: Mapping[MemoryTable, Sequence[TokenReader]],
        states: Mapping[str, Mapping[str, Tensor]],
    ) -> None:
        """Take over the reads of `tables`, by name, and of their `states`."""
        self._copies = {
            name: _TableCopies(
                table, readers[table], {VALUES: table.weight.detach(), **states[name]}
            )
            for name, table in tables.items()
        }
        self._coming: Tensor | None = None
        """The batch whose rows are fetched."""
        self._stream: torch.cuda.Stream | None = None
        self._fetched: torch.cuda.Event | None = None
        self._written: torch.cuda.Event | None = None

    def begin(
        self,
        windows: Int64[Tensor, "sequences seq_len+1"],
        upcoming: Int64[Tensor, "sequences seq_len+1"] | None = None,
    ) -> None:
        """Let the tables read copies of the rows of `windows`, and fetch those of `upcoming`.

        Rows that an earlier call did not fetch are fetched now, and the step waits.
        """
        if not self._copies:
            return
        if self._coming is not windows:
            self._fetch(windows)
        self._wait_for(self._fetched)
        for copies in self._copies.values():
            copies.hold()
        self._coming = None
        if upcoming is not None:
            self._fetch(upcoming)

    def held(self, name: str) -> Rows | None:
        """Return the copies of a table that this step reads; None where it reads the table."""
        copies = self._copies.get(name)
        return None if copies is None or copies.table.held is None else copies.current

    def held_ids(self, name: str) -> Tensor | None:
        """Return the ids of those rows in the table, ascending; None where it reads the table."""
        copies = self._copies.get(name)
        held = None if copies is None else copies.table.held
        return None if held is None else held.ids

    def write_back(self) -> None:
        """Write the updated copies into the tables, which are read themselves from now on."""
        if not any(copies.table.held for copies in self._copies.values()):
            return
        self._wait_for(self._written)
        for copies in self._copies.values():
            copies.release()
        with self._beside() as stream:
            for copies in self._copies.values():
                copies.write()
            self._written = None if stream is None else stream.record_event()

    def settle(self) -> None:
        """Let what is queued from now on see the tables as the last step left them."""
        self._wait_for(self._written)

    def _fetch(self, windows: Tensor) -> None:
        with self._beside() as stream:
            for copies in self._copies.values():
                copies.fetch(windows[:, :-1])
            self._fetched = None if stream is None else stream.record_event()
        self._coming = windows

    @contextmanager
    def _beside(self) -> Iterator[torch.cuda.Stream | None]:
        """Queue on the stream of the bus, after all that is queued on the current one by now."""
        device = next(iter(self._copies.values())).table.weight.device
        if device.type != "cuda":
            yield None
            return
        if self._stream is None:
            # Its few programs must not wait for a free multiprocessor until the step is over.
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            yield self._stream

    @staticmethod
    def _wait_for(event: torch.cuda.Event | None) -> None:
        if event is not None:
            torch.cuda.current_stream().wait_event(event)


class _TableCopies:
    """Rows of one table: those of the step, of the next one, and of the last as it left them."""

    def __init__(
        self, table: MemoryTable, readers: Sequence[TokenReader], home: Mapping[str, Tensor]
    ) -> None:
        self.table, self._readers, self._home = table, readers, home
        self.current: Rows = {}
        self._ids: dict[str, Tensor] = {}
        self._next: Rows = {}
        self._last: Rows = {}
        self._held: HeldRows | None = None

    def fetch(self, tokens: Int[Tensor, "sequences seq_len"]) -> None:
        """Copy the rows that `tokens` name to the next step's."""
        ids = torch.cat([reader.token_rows(tokens).flatten() for reader in self._readers])
        if not self._next:
            self._allocate(len(ids))
        n_rows, room = len(self.table.weight), len(self._ids["next"])
        self._ids["next"].copy_(distinct(ids, n_rows=n_rows, room=room))
        for name, rows in self._next.items():
            take_rows(self._home[name], self._ids["next"], rows, by_bus=True)

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
        self.table.held = self._held

    def release(self) -> None:
        """Keep the rows as the step left them."""
        self._ids["last"].copy_(self._ids["current"])
        for name, rows in self._last.items():
            rows.copy_(self.current[name])
        self.table.held = None

    def write(self) -> None:
        """Write what the step left into the table."""
        for name, rows in self._last.items():
            put_rows(rows, self._ids["last"], self._home[name], by_bus=True)

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
        # A compiled lookup keeps its reads for a table that wants a gradient, and makes none.
        values = self.current[VALUES].requires_grad_()
        self.current[VALUES] = values.detach()
        self._held = HeldRows(ids=self._ids["current"], values=values)
