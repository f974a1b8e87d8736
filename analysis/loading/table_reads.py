"""Reads of table rows that `memscale evaluate --table-reads` counted of one trial."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

FOLDER = "table_reads"
"""In a trial's folder."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerReads:
    """How often one layer reads the rows of its tables over held-out text."""

    label: str
    """`layer_03`, or `layer_03_query_key_value` where a layer reads in several places."""
    reads: NDArray[np.int64]
    """Of every row (rows,), those of one table after those of another."""
    table_rows: tuple[int, ...]
    """Rows of each table."""


def read_table_reads(trial: str | PathLike[str]) -> list[LayerReads]:
    """Return what was counted of a trial, by layer; empty if nothing was.

    Args:
        trial: Its folder, RUNS/SWEEP/trials/TRIAL.
    """
    folder = Path(trial) / FOLDER
    if not (folder / "reads.npz").is_file():
        return []
    tables = pd.read_csv(folder / "tables.csv")
    with np.load(folder / "reads.npz") as counts:
        return [
            LayerReads(
                label=str(label),
                reads=counts[label],
                table_rows=tuple(of_layer["rows"].astype(int)),
            )
            for label, of_layer in tables.groupby("layer", sort=False)
        ]
