"""Table files: CSV, TSV, parquet, JSON, JSON lines, also compressed.

JSON comes in four shapes, all with one object per run:

* a list of objects, or one object a line;
* an object that holds such a list (`{"runs": [...]}`);
* an object of runs by name (`{"190M-1xC": {...}}`): the name becomes the column `name`.

An object of columns is a table too. What is nested inside a run becomes columns of joined names:
`metrics/val_loss`.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, Any

import pandas as pd

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".json", ".jsonl")
"""Of files that hold one table; all but parquet may be compressed (COMPRESSED)."""

COMPRESSED: dict[str, Callable[..., IO[Any]]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}


class _RepeatedColumnsError(ValueError):
    """A header names two columns alike."""


def table_suffix(path: Path) -> str | None:
    """Return `.csv` of both `runs.csv` and `runs.csv.gz`, None of a path that names no table."""
    suffix = path.suffix.lower()
    if suffix in COMPRESSED:
        suffix = Path(path.stem).suffix.lower()
        return suffix if suffix in SUFFIXES and suffix != ".parquet" else None
    return suffix if suffix in SUFFIXES else None


def read_table_file(path: Path, *, column_names: Collection[str] = ()) -> pd.DataFrame:
    """Return the table of a file, its cells as they are.

    Args:
        path: The file.
        column_names: Names that columns have, lower case: they tell an object of columns from one
            of runs by name.

    Raises:
        ValueError: If it cannot be read as a table.
    """
    suffix = table_suffix(path) or path.suffix
    try:
        if suffix == ".parquet":
            return pd.read_parquet(path)
        with COMPRESSED.get(path.suffix.lower(), open)(path, "rt", encoding="utf-8-sig") as file:
            text = file.read()
        if suffix == ".jsonl":
            return _flat([json.loads(line) for line in text.splitlines() if line.strip()])
        if suffix == ".json":
            return _object(json.loads(text), column_names)
        return _delimited(text)
    except ImportError as error:
        raise ValueError(
            f"{path}: parquet needs pyarrow ({error}); install it, or save the table as .csv"
        ) from error
    except _RepeatedColumnsError as error:
        raise ValueError(f"{path}: {error}") from error
    except (ValueError, EOFError, UnicodeDecodeError, OSError, lzma.LZMAError) as error:
        how = "the first line must name the columns"
        if suffix in {".json", ".jsonl"}:
            how = "give one object per run"
        raise ValueError(f"{path}: not readable as a table ({error}); {how}") from error


def _delimited(text: str) -> pd.DataFrame:
    lines = text.splitlines()
    # Remarks above the header are skipped; one below it is read as a row.
    kept = (i for i, line in enumerate(lines) if line.strip() and not line.startswith("#"))
    remarks = next(kept, 0)
    header = lines[remarks] if lines else ""
    separator = max(",;\t|", key=header.count)
    names = [name.strip() for name in next(csv.reader([header], delimiter=separator), [])]
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise _RepeatedColumnsError(
            f"two columns are named {', '.join(twice)}; "
            "rename one, so that it is clear which counts"
        )
    return pd.read_csv(io.StringIO(text), sep=separator, skiprows=remarks)


def _object(value: Any, column_names: Collection[str]) -> pd.DataFrame:
    if isinstance(value, list):
        return _flat(value)
    if not isinstance(value, dict):
        raise ValueError(f"one {type(value).__name__} is no table")
    tables = [key for key, part in value.items() if _are_runs(part)]
    if len(tables) > 1:
        raise ValueError(
            f"there are several lists of runs: {', '.join(tables)}; "
            "save one, or give a DataFrame of them"
        )
    if tables:
        return _flat(value[tables[0]])
    parts = list(value.values())
    known = sum(str(key).strip().lower() in column_names for key in value)
    if parts and all(isinstance(part, dict) for part in parts):
        inside = max(sum(str(k).strip().lower() in column_names for k in part) for part in parts)
        if inside > known:
            return _flat([{"name": name, **part} for name, part in value.items()])
    return pd.DataFrame(value)


def _are_runs(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _flat(records: list[Any]) -> pd.DataFrame:
    if not all(isinstance(row, dict) for row in records):
        raise ValueError("a list of something else than objects")
    return pd.json_normalize(records, sep="/")
