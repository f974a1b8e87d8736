"""Token stream in memory-mapped shards of bounded size.

<name>-00000.bin, ...   tokens, uint16 or uint32, little-endian, without a header
<name>.documents.bin    index: where each document begins in the stream, int64
<name>.json             written last: type, tokens per shard, and where they begin in foreign files
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BufferedWriter
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from workloads.data.readers.problems import DataError

SHARD_TOKENS = 1 << 28
"""Tokens per file: half a gigabyte at two bytes each."""


class ShardWriter:
    """Writes shards and, on a clean exit, `<name>.json` that lists them."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        dtype: type[np.integer],
        shard_tokens: int = SHARD_TOKENS,
        n_tokens: int = 0,
        n_documents: int = 0,
    ) -> None:
        """Write into an existing folder, after the first `n_tokens` tokens that are there.

        What an interrupted writer left behind them is cut off.
        """
        self._folder, self._name = folder, name
        self._dtype, self._shard_tokens = np.dtype(dtype), shard_tokens
        self.n_tokens, self.n_documents = n_tokens, n_documents
        self._shard, inside = divmod(n_tokens, shard_tokens)
        kept = {shard_name(name, number) for number in range(self._shard + (inside > 0))}
        for late in folder.glob(f"{name}-?????.bin"):
            if late.name not in kept:
                late.unlink()
        self._file: BufferedWriter | None = None
        if inside:
            self._file = _open_cut(self._path(self._shard), inside * self._dtype.itemsize)
        self._index = _open_cut(folder / index_name(name), n_documents * 8)

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def append(self, tokens: Sequence[int] | NDArray[np.integer]) -> None:
        """Add tokens at the end."""
        rest = np.asarray(tokens, dtype=self._dtype)
        while len(rest):
            shard, inside = divmod(self.n_tokens, self._shard_tokens)
            file = self._file
            if file is None or shard != self._shard:
                file = self._next_file(shard)
            part = rest[: self._shard_tokens - inside]
            file.write(part.tobytes())
            self.n_tokens += len(part)
            rest = rest[len(part) :]

    def append_documents(self, tokens: NDArray[np.integer], lengths: NDArray[np.integer]) -> None:
        """Add the tokens of whole documents, and note where each begins."""
        starts = self.n_tokens + np.cumsum(lengths, dtype="<i8") - lengths
        self._index.write(starts.astype("<i8").tobytes())
        self.n_documents += len(lengths)
        self.append(tokens)

    def flush(self) -> None:
        """Bring what was appended to disk."""
        for file in (self._file, self._index):
            if file is not None:
                file.flush()
                os.fsync(file.fileno())

    def _path(self, shard: int) -> Path:
        return self._folder / shard_name(self._name, shard)

    def _next_file(self, shard: int) -> BufferedWriter:
        if self._file is not None:
            self.flush()
            self._file.close()
        self._shard, self._file = shard, _open_cut(self._path(shard), 0)
        return self._file

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Close, and list the files if nothing went wrong."""
        for file in (self._file, self._index):
            if file is not None:
                file.close()
        if error is None:
            full, rest = divmod(self.n_tokens, self._shard_tokens)
            counts = [self._shard_tokens] * full + [rest] * (rest > 0)
            listing = {"dtype": self._dtype.name, "counts": counts}
            (self._folder / f"{self._name}.json").write_text(json.dumps(listing))


@dataclass(frozen=True)
class TokenShards:
    """A stream of tokens that lies in one or several files."""

    parts: tuple[NDArray[np.integer], ...]

    @classmethod
    def load(cls, folder: Path, name: str) -> "TokenShards":
        """Map what ShardWriter wrote.

        Raises:
            DataError: If a shard is missing or has another length than it was written with.
        """
        listing = json.loads((folder / f"{name}.json").read_text())
        dtype, counts = np.dtype(listing["dtype"]), listing["counts"]
        offsets = listing.get("offsets", [0] * len(counts))
        parts = []
        for number, (n, offset) in enumerate(zip(counts, offsets, strict=True)):
            path = folder / shard_name(name, number)
            _check_size(path, offset + n * dtype.itemsize, exactly="offsets" not in listing)
            parts.append(np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(n,)))
        return cls(tuple(parts))

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.cumsum([0, *(len(part) for part in self.parts)], dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return int(self._starts[-1])

    def windows(self, starts: NDArray[np.integer], length: int) -> NDArray[np.int64]:
        """Return (len(starts), length) tokens from each start on, wrapping at the end."""
        windows = np.empty((len(starts), length), dtype=np.int64)
        starts = np.asarray(starts, dtype=np.int64) % len(self)
        shards = np.searchsorted(self._starts, starts, side="right") - 1
        for shard in np.unique(shards):
            tokens, first = self.parts[shard], int(self._starts[shard])
            inside = (shards == shard) & (starts - first + length <= len(tokens))
            if inside.any():
                # One gather for all windows: a loop costs more than a step of a small model.
                views = np.lib.stride_tricks.sliding_window_view(tokens, length)
                windows[inside] = views[starts[inside] - first]
            for row in np.flatnonzero((shards == shard) & ~inside):
                self._read(windows[row], int(starts[row]))
        return windows

    def evenly_spread(self, seq_len: int, *, at_most_tokens: int) -> NDArray[np.int64]:
        """Return whole windows (n, seq_len + 1), spread evenly; none if the stream is too short."""
        n = (len(self) - 1) // seq_len
        if n < 1:
            return np.empty((0, seq_len + 1), dtype=np.int64)
        count = min(n, max(1, at_most_tokens // seq_len))
        return self.windows(np.arange(count) * n // count * seq_len, seq_len + 1)

    def _read(self, window: NDArray[np.int64], start: int) -> None:
        filled = 0
        while filled < len(window):
            position = (start + filled) % len(self)
            part = int(np.searchsorted(self._starts, position, side="right")) - 1
            inside = position - int(self._starts[part])
            tokens = self.parts[part][inside : inside + len(window) - filled]
            window[filled : filled + len(tokens)] = tokens
            filled += len(tokens)


def shard_name(name: str, number: int) -> str:
    """Return the file name of a shard."""
    return f"{name}-{number:05d}.bin"


def index_name(name: str) -> str:
    """Return the file name of a stream's index of documents."""
    return f"{name}.documents.bin"


def _open_cut(path: Path, n_bytes: int) -> BufferedWriter:
    """Open a file for writing behind its first `n_bytes` bytes; cut off what follows them."""
    file = path.open("r+b" if path.exists() else "wb")
    if file.seek(0, os.SEEK_END) < n_bytes:
        raise DataError([f"{path}: is shorter than its progress record says; delete the folder"])
    file.truncate(n_bytes)
    file.seek(n_bytes)
    return file  # type: ignore[return-value]  # r+b opens a BufferedRandom, which also writes


def _check_size(path: Path, expected: int, *, exactly: bool) -> None:
    fix = "it is half-written or damaged: prepare the data again"
    if not path.is_file():
        raise DataError([f"{path}: the shard is missing; prepare the data again"])
    size = path.stat().st_size
    if size < expected or (exactly and size != expected):
        raise DataError([f"{path}: has {size:,} bytes, its listing says {expected:,}; {fix}"])
