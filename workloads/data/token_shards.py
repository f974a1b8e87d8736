"""Token stream in memory-mapped shards of bounded size."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BufferedWriter
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

SHARD_TOKENS = 1 << 28
"""Tokens per file: half a gigabyte at two bytes each."""


class ShardWriter:
    """Writes `<name>-00000.bin`, ... and, on a clean exit, `<name>.json` that lists them."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        dtype: type[np.integer],
        shard_tokens: int = SHARD_TOKENS,
    ) -> None:
        """Prepare to write into an existing folder."""
        self._folder, self._name = folder, name
        self._dtype, self._shard_tokens = np.dtype(dtype), shard_tokens
        self._counts: list[int] = []
        self._file: BufferedWriter | None = None
        self.n_tokens = 0

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def append(self, tokens: Sequence[int] | NDArray[np.integer]) -> None:
        """Add tokens at the end."""
        rest = np.asarray(tokens, dtype=self._dtype)
        self.n_tokens += len(rest)
        while len(rest):
            file = self._file
            if file is None or self._counts[-1] == self._shard_tokens:
                file = self._next_file()
            part = rest[: self._shard_tokens - self._counts[-1]]
            file.write(part.tobytes())
            self._counts[-1] += len(part)
            rest = rest[len(part) :]

    def _next_file(self) -> BufferedWriter:
        if self._file is not None:
            self._file.close()
        path = self._folder / _shard_name(self._name, len(self._counts))
        self._file = path.open("wb")
        self._counts.append(0)
        return self._file

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, and list the files if nothing went wrong."""
        if self._file is not None:
            self._file.close()
        if error is None:
            listing = {"dtype": self._dtype.name, "counts": self._counts}
            (self._folder / f"{self._name}.json").write_text(json.dumps(listing))


@dataclass(frozen=True)
class TokenShards:
    """A stream of tokens that lies in one or several files."""

    parts: tuple[NDArray[np.integer], ...]

    @classmethod
    def load(cls, folder: Path, name: str) -> "TokenShards":
        """Map what ShardWriter wrote."""
        listing = json.loads((folder / f"{name}.json").read_text())
        return cls(
            tuple(
                np.memmap(
                    folder / _shard_name(name, i), dtype=listing["dtype"], mode="r", shape=(n,)
                )
                for i, n in enumerate(listing["counts"])
            )
        )

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

    def _read(self, window: NDArray[np.int64], start: int) -> None:
        filled = 0
        while filled < len(window):
            position = (start + filled) % len(self)
            part = int(np.searchsorted(self._starts, position, side="right")) - 1
            inside = position - int(self._starts[part])
            tokens = self.parts[part][inside : inside + len(window) - filled]
            window[filled : filled + len(tokens)] = tokens
            filled += len(tokens)


def _shard_name(name: str, number: int) -> str:
    return f"{name}-{number:05d}.bin"
