"""Reads of table rows that `memscale evaluate --table-reads` counted of one trial."""

import re
from collections.abc import Sequence
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


def by_layer_and_place(layers: Sequence[LayerReads]) -> dict[str, dict[str, LayerReads]]:
    """Return what was counted by layer and by the place in it, in their order.

    Raises:
        ValueError: If nothing was.
    """
    if not layers:
        raise ValueError("figure: no reads of table rows were counted")
    found: dict[str, dict[str, LayerReads]] = {}
    for one in layers:
        layer, place = _layer_and_place(one.label)
        found.setdefault(layer, {})[place] = one
    return found


def _layer_and_place(label: str) -> tuple[str, str]:
    """Return `layer_03` and the place in it, "" where there is one."""
    found = re.fullmatch(r"(layer_\d+|model)_?(.*)", label)
    return (found[1], found[2].replace("_", " ")) if found else (label, "")
