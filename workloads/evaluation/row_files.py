"""Files of benchmark rows: JSON lines, CSV and Parquet."""

import logging
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from workloads.data.readers.csv_cells import csv_cells
from workloads.data.readers.lines import file_format, json_rows, numbered_lines
from workloads.data.readers.problems import Problems
from workloads.evaluation.published_rows import in_our_fields

LOG = logging.getLogger(__name__)
_MMLU_COLUMNS = ("question", "A", "B", "C", "D", "answer")


def rows(path: Path, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (1-based line, row) of a file; the extension says of which kind it is.

    Of Parquet it is the row's number. CSV has MMLU's six columns (question, A, B, C, D, answer), or
    a header that names its own.
    """
    readers = {"csv": _csv_rows, "parquet": _parquet_rows}
    for line, row in readers.get(file_format(path), json_rows)(path, problems):
        yield line, in_our_fields(row)


def _parquet_rows(path: Path, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    from pyarrow import ArrowInvalid, parquet  # the harness brings it, and it takes long to import

    try:
        file = parquet.ParquetFile(path)
    except ArrowInvalid as error:
        problems.add(path, None, f"is not Parquet ({error})", "take a complete download")
        return
    batches = (batch.to_pylist() for batch in file.iter_batches(batch_size=1_024))
    yield from enumerate(chain.from_iterable(batches), start=1)


def _csv_rows(path: Path, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    header: tuple[str, ...] | None = None
    lines = numbered_lines(path, problems)
    for line, cells in csv_cells(lines, path, problems, LOG.warning):
        if not any(cells):
            continue
        if header is None:
            named = {"question", "answer"} <= set(cells)
            header = tuple(cells) if named else _MMLU_COLUMNS
            if named:
                continue
        if len(cells) != len(header):
            what = f"has {len(cells)} columns, not the {len(header)}: {', '.join(header)}"
            problems.add(path, line, what, "quote texts that hold a comma")
            continue
        yield line, dict(zip(header, cells, strict=True))
