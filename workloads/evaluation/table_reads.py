"""Row reads of tables by a trained model, counted over held-out text."""

import csv
import hashlib
import io
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from workloads.evaluation.read_statistics import ReadStatistics, read_statistics
from workloads.evaluation.record import record
from workloads.evaluation.task_result import Progress, TaskResult, silent
from workloads.layers.modules.usage_stats import MemoryUsage, usage_by_label
from workloads.sharding.fsdp import only_forward
from workloads.training import device
from workloads.training.trained_model import TrainedModel

TASK = "table_reads"
COUNTS, STATISTICS = f"{TASK}/reads.npz", f"{TASK}/tables.csv"
"""Files in the trial's folder."""
MEANS = ("rows_read", "normalised_entropy", "kl_to_uniform", "gini")
"""Statistics that become metrics: their means over all tables."""
_BATCH_TOKENS = {"cpu": 2**12, "cuda": 2**16}


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadCounts:
    """How often one layer reads the rows of its tables."""

    reads: NDArray[np.int64]
    """Of every row (rows,), those of one table after those of another."""
    table_rows: tuple[int, ...]
    """Rows of each table."""

    def tables(self) -> list[tuple[int, NDArray[np.int64]]]:
        """Return the first row of every table, and the reads of its rows."""
        starts = [0, *accumulate(self.table_rows)]
        return [
            (start, self.reads[start : start + n])
            for start, n in zip(starts, self.table_rows, strict=False)
        ]


@dataclass(frozen=True, kw_only=True)
class TableReads:
    """Counts what a model reads of the windows that `valid/loss` is measured on."""

    name: ClassVar[str] = "table reads"
    needs_text: ClassVar[bool] = False

    @property
    def task_names(self) -> tuple[str, ...]:
        """The one task."""
        return (TASK,)

    @property
    def digest(self) -> str:
        """SHA-256 over what is counted; a trial's held-out text never changes."""
        return hashlib.sha256(f"{TASK} 2".encode()).hexdigest()

    def measure(
        self,
        trained: TrainedModel,
        progress: Progress = silent,
        *,
        precision: str = "auto",
        clock: Callable[[], float] = time.time,
    ) -> dict[str, Any]:
        """Return the record of a trained model; no metrics if it reads no table.

        `files` holds the content of the files by name: COUNTS has an array of every layer,
        STATISTICS a line of every table.

        Args:
            trained: The model, with its corpus.
            progress: Told the task, and how many windows of how many are done.
            precision: auto, fp32 or bf16, as in training.
            clock: Seconds since 1970.

        Raises:
            ValueError: If no held-out text is known.
        """
        start = clock()
        windows = _held_out(trained)
        with device.for_inference("auto", precision) as (here, bf16):
            model = trained.build(here)
            layers = count_reads(
                model,
                windows,
                here=here,
                bf16=bf16,
                progress=lambda done: progress(TASK, done, len(windows)),
            )
        rows = [
            (label, number, first, reads, read_statistics(reads))
            for label, layer in layers.items()
            for number, (first, reads) in enumerate(layer.tables())
        ]
        results: list[TaskResult] = []
        files: dict[str, bytes] = {}
        if rows:
            means = {
                name: float(np.mean([getattr(row[-1], name) for row in rows])) for name in MEANS
            }
            results = [
                TaskResult(task=TASK, n=windows.size, metrics=means, chance=None, n_truncated=0)
            ]
            files = {COUNTS: _npz(layers), STATISTICS: _csv(rows)}
        found = record(results, start=start, end=clock(), digest=self.digest, step=trained.step)
        return {**found, "files": files}


def count_reads(
    model: nn.Module,
    windows: NDArray[np.integer],
    *,
    here: torch.device,
    bf16: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, ReadCounts]:
    """Return what every layer with a table reads, by the label of its usage metrics.

    Args:
        model: In evaluation mode, on the device.
        windows: Token ids (windows, seq), each read from its start.
        here: Where the model is.
        bf16: Whether to compute in bf16.
        progress: Told how many windows are done.
    """
    if not any(isinstance(module, MemoryUsage) for module in model.modules()):
        return {}
    size = max(1, _BATCH_TOKENS[here.type] // max(1, windows.shape[1]))
    with only_forward(model), _counting(model) as usages:
        for start in range(0, len(windows), size):
            tokens = np.ascontiguousarray(windows[start : start + size], dtype=np.int64)
            with device.autocast(bf16=bf16, device=here):
                # Without the head, which reads no table.
                model.hidden(torch.from_numpy(tokens).to(here))  # type: ignore[operator]
            progress(min(len(windows), start + size))
        return {
            label: ReadCounts(reads=_host(usage), table_rows=usage.table_rows)
            for label, usage in usages.items()
        }


@contextmanager
def _counting(model: nn.Module) -> Iterator[dict[str, MemoryUsage]]:
    """Within, reads are counted; yields who counts, by label."""
    usages = {
        label: usage
        for label, usage in usage_by_label(model).items()
        if isinstance(usage, MemoryUsage)
    }
    try:
        for usage in usages.values():
            usage.read_counts = torch.zeros_like(usage.reads)
        yield usages
    finally:
        for usage in usages.values():
            usage.read_counts = None


def _host(usage: MemoryUsage) -> NDArray[np.int64]:
    assert usage.read_counts is not None
    counts: NDArray[np.int64] = usage.read_counts.cpu().numpy()
    return counts


def _held_out(trained: TrainedModel) -> NDArray[np.int64]:
    """Return the inputs of the held-out windows (windows, seq_len).

    Raises:
        ValueError: If there are none.
    """
    windows = None if trained.corpus is None else trained.corpus.validation(seq_len=trained.seq_len)
    if windows is None or not len(windows):
        raise ValueError(
            "no held-out text is known to count the reads of table rows over; evaluate a trial "
            "whose data hold some out"
        )
    return windows[:, :-1]


def _npz(layers: Mapping[str, ReadCounts]) -> bytes:
    file = io.BytesIO()
    arrays: dict[str, Any] = {label: layer.reads for label, layer in layers.items()}
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _csv(rows: list[tuple[str, int, int, NDArray[np.int64], ReadStatistics]]) -> bytes:
    file = io.StringIO()
    lines = [
        {
            "layer": label,
            "table": number,
            "first_row": first,
            "rows": len(reads),
            "reads": int(reads.sum()),
            **asdict(statistics),
        }
        for label, number, first, reads, statistics in rows
    ]
    writer = csv.DictWriter(file, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue().encode()
