"""Prefetch of host-table rows: the next step's rows come while this step computes.

Where tokens alone name the rows (`layers/memory/token_reads.py`), a step computes with copies of
them on the device, updates the copies, and writes them back. A thread of the host gathers rows and
writes them, and the GPU's copy engines move them, beside the computation:

    computes     | step 1 | step 2                    | step 3                    |
    host thread  | rows 2 | writes 1, gathers 3       | writes 2, gathers 4       |

Rows of step 3 are gathered after the ones of step 1 are written, and before step 2 is done. So
those that step 2 also reads are taken from its copies once it is done. This order never changes,
and neither do the numbers: they are those of fetching and writing one after another.

The copies have a fixed place and number (as many as a step has reads), so that a step can be
captured as a CUDA graph. Whoever queues step 3 waits until its rows are gathered, and the GPU has
step 2 to compute meanwhile.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from jaxtyping import Int, Int64
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
        # One thread, so that it takes fetches and writes in the order in which they are asked for.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="row-prefetch")
        self._fetching: Future[_Event] | None = None
        self._writing: Future[None] | None = None
        # The way back waits for a step to be done, which the way in must not.
        self._way_in = _BusStream()
        self._way_back = _BusStream()

    def begin(
        self,
        windows: Int64[Tensor, "sequences seq_len+1"],
        upcoming: Int64[Tensor, "sequences seq_len+1"] | None = None,
    ) -> None:
        """Let the tables read copies of the rows of `windows`, and fetch those of `upcoming`.

        Rows that an earlier call did not fetch are fetched now, and the step waits.

        Raises:
            RuntimeError: Or whatever else failed in the thread since the last call.
        """
        if not self._copies:
            return
        if self._coming is not windows:
            self._fetch(windows)
        assert self._fetching is not None
        fetched = self._fetching.result()
        if fetched is not None:
            torch.cuda.current_stream().wait_event(fetched)
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
        self.settle()  # the last step's rows lie where this one's go
        for copies in self._copies.values():
            copies.release()
        with self._way_back.after_this(self._device):
            left = []
            for copies in self._copies.values():
                copies.download()
                left.append(self._way_back.event())
        self._writing = self._thread.submit(self._write, left)

    def settle(self) -> None:
        """Wait until the tables are as the last step left them."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def _fetch(self, windows: Tensor) -> None:
        if self._fetching is not None:
            self._fetching.result()  # if nobody wanted those rows, their places are still in use
        with self._way_in.after_this(self._device):
            for copies in self._copies.values():
                copies.find(windows[:, :-1])
            found = self._way_in.event()
        self._fetching = self._thread.submit(self._bring, found)
        self._coming = windows

    def _bring(self, found: "_Event") -> "_Event":
        """Gather the rows that are found, and queue their way in; return when they are there."""
        if found is not None:
            found.synchronize()
        with self._way_in.alone():
            for copies in self._copies.values():
                # The bus has the rows of one table while threads gather those of the next.
                copies.gather()
                copies.upload()
            return self._way_in.event()

    def _write(self, left: "Sequence[_Event]") -> None:
        """Scatter the rows of every table, while those of the next one come."""
        for copies, there in zip(self._copies.values(), left, strict=True):
            if there is not None:
                there.synchronize()
            copies.scatter()

    @property
    def _device(self) -> torch.device:
        return next(iter(self._copies.values())).table.weight.device


_Event = torch.cuda.Event | None
"""None where nothing is queued: on a CPU."""


class _BusStream:
    """A stream of copies in one direction; on a CPU none, and everything happens at once."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None

    def after_this(self, device: torch.device) -> AbstractContextManager[object]:
        """Queue on it, after all that is queued on the current stream by now."""
        if device.type != "cuda":
            return nullcontext()
        if self._stream is None:
            # What little it computes must not wait for multiprocessors until the step is over.
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        return torch.cuda.stream(self._stream)

    def alone(self) -> AbstractContextManager[object]:
        """Queue on it, from any thread."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def event(self) -> _Event:
        """Return an event behind all that is queued."""
        return None if self._stream is None else self._stream.record_event()


class _TableCopies:
    """Rows of one table: those of the step, of the next one, and of the last as it left them.

    On a GPU they pass through blocks of pinned memory; on a CPU these are the copies themselves.
    """

    def __init__(
        self, table: MemoryTable, readers: Sequence[TokenReader], home: Mapping[str, Tensor]
    ) -> None:
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
