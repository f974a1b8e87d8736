"""Ragged rows in two flat arrays, memory-mapped from .npy files."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Ragged:
    """Row i is values[offsets[i]:offsets[i + 1]]."""

    values: NDArray[np.integer]
    offsets: NDArray[np.int64]
    """(rows + 1,), from 0 to len(values)."""

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]], dtype: type[np.integer]) -> "Ragged":
        """Pack rows."""
        rows = list(rows)
        lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
        flat = (value for row in rows for value in row)
        values = np.fromiter(flat, dtype=dtype, count=int(offsets[-1]))
        return cls(values=values, offsets=offsets)

    @classmethod
    def load(cls, folder: Path, name: str) -> "Ragged":
        """Map what `save` wrote."""
        return cls(
            values=_mapped(folder / f"{name}.values.npy"),
            offsets=_mapped(folder / f"{name}.offsets.npy"),
        )

    def save(self, folder: Path, name: str) -> None:
        """Write two files into a folder."""
        np.save(folder / f"{name}.values.npy", self.values)
        np.save(folder / f"{name}.offsets.npy", self.offsets)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray[np.integer]:
        """Return one row."""
        return np.asarray(self.values[self.offsets[row] : self.offsets[row + 1]])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Length of every row."""
        return np.diff(self.offsets)

    def concatenated(self, rows: NDArray[np.integer]) -> NDArray[np.integer]:
        """Return the values of the given rows concatenated, in the given order."""
        flat = np.asarray(rows).reshape(-1)
        starts = self.offsets[flat]
        lengths = self.offsets[flat + 1] - starts
        ends = np.cumsum(lengths)
        shift = np.repeat(starts - (ends - lengths), lengths)
        return np.asarray(self.values[shift + np.arange(len(shift))])


def _mapped(path: Path) -> NDArray[Any]:
    # An empty array cannot be mapped.
    mode: Literal["r"] | None = "r" if path.stat().st_size > 128 else None
    return np.asanyarray(np.load(path, mmap_mode=mode))
