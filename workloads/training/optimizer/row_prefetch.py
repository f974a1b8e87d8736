"""Prefetch of host-table rows: the next step's rows come while this step computes.

Where tokens alone name the rows (`layers/memory/token_reads.py`), a step computes with copies of
them on the device, updates the copies, and writes them back. A thread of the host gathers rows and
writes them, and the GPU's copy engines move them, beside the computation:

    computes     | step 1 | step 2                    | step 3                    |
    host thread  | rows 2 | writes 1, gathers 3       | writes 2, gathers 4       |

Rows of step 3 are gathered after the ones of step 1 are written, and before step 2 is done. So
those that step 2 also reads are taken from its copies once it is done. This order never changes,
and neither do the numbers: they are those of fetching and writing one after another.

The copies have fixed places (`prefetched_rows.py`), so that a step can be captured as a CUDA graph.
Whoever queues step 3 waits until its rows are gathered; the GPU has step 2 to compute meanwhile.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Int64
from torch import Tensor

from workloads.layers.memory.table import MemoryTable
from workloads.layers.memory.token_reads import TokenReader
from workloads.training.optimizer.prefetched_rows import VALUES, PrefetchedRows, Rows


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
            name: PrefetchedRows(
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
