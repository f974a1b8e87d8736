"""Tokenisation of documents into the splits `train` and `valid`, resumable.

`progress.json` says how much of the input is in the shards. It is replaced after every
COMMIT_BYTES of text, once the shards are on disk. Whoever comes after a kill cuts the shards to
that point, passes over the documents that are in them, and writes the same bytes as an undisturbed
run, with any number of processes.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from workloads.data.preparation.encoder import EncodedBatch, EncoderSettings
from workloads.data.preparation.encoder_pool import EncoderPool
from workloads.data.readers.problems import Problems
from workloads.data.token_shards import ShardWriter
from workloads.data.tokenizer import token_dtype

SPLITS = ("train", "valid")
COMMIT_BYTES = 1 << 26
"""Text between two records of progress, at most what a kill loses."""
_BATCH_CHARS = 1 << 20
_LOG_EVERY_S = 10.0


@dataclass(frozen=True, kw_only=True)
class DocumentInput:
    """A file, or a stream, of documents."""

    name: str
    read: Callable[[Problems], Iterator[str]]
    """Yields the documents, always the same ones in the same order."""
    held_out: float
    """Documents whose hash is below are of the split `valid`: 0 keeps all for training."""


@dataclass(kw_only=True)
class SplitCounts:
    """How much a split holds."""

    tokens: int = 0
    documents: int = 0
    bytes: int = 0
    """Of text; separators have none."""


@dataclass(kw_only=True)
class Progress:
    """How much of the input is in the shards."""

    documents: list[int] = field(default_factory=list)
    """Per input that was begun."""
    splits: dict[str, SplitCounts] = field(
        default_factory=lambda: {name: SplitCounts() for name in SPLITS}
    )
    found_ngrams: set[int] = field(default_factory=set)
    """Hashes of evaluation n-grams that training text holds."""

    @classmethod
    def load(cls, folder: Path) -> "Progress":
        """Return the last record, or none of anything."""
        try:
            stored = json.loads((folder / "progress.json").read_text())
        except FileNotFoundError:
            return cls()
        return cls(
            documents=stored["documents"],
            splits={name: SplitCounts(**counts) for name, counts in stored["splits"].items()},
            found_ngrams=set(stored["found_ngrams"]),
        )

    def save(self, folder: Path) -> None:
        """Replace the record in one step."""
        scratch = folder / "progress.json.tmp"
        content = {**asdict(self), "found_ngrams": sorted(self.found_ngrams)}
        with scratch.open("w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(folder / "progress.json")

    @property
    def total_bytes(self) -> int:
        """Text in both splits."""
        return sum(counts.bytes for counts in self.splits.values())


def tokenise(
    folder: Path,
    inputs: Sequence[DocumentInput],
    settings: EncoderSettings,
    *,
    log: Callable[[str], None],
    workers: int | None = None,
    expected_bytes: int | None = None,
) -> Progress:
    """Write the shards of both splits into a folder, from where an earlier call was killed.

    Args:
        folder: Existing; holds the result of the same call, as far as it came.
        inputs: Read one after another.
        settings: Tokenizer and what else the encoders need.
        log: Takes a sentence every ten seconds.
        workers: Processes; default one per core.
        expected_bytes: Text in all, where that is known, for the log.

    Raises:
        DataError: If documents cannot be read; one line per mistake.
    """
    progress, problems = Progress.load(folder), Problems()
    if progress.total_bytes:
        log(f"going on after {progress.total_bytes / 1e6:,.0f} MB of text that are tokenised")
    report = _Report(log, expected_bytes, len(inputs), begun_at=progress.total_bytes)
    pool = EncoderPool[tuple[int, int]](settings, workers=workers)
    with ExitStack() as files:
        writers = {
            name: files.enter_context(
                ShardWriter(
                    folder,
                    name,
                    dtype=token_dtype(settings.vocab_size),
                    n_tokens=counts.tokens,
                    n_documents=counts.documents,
                )
            )
            for name, counts in progress.splits.items()
        }
        committed = progress.total_bytes
        for (number, n_documents), batch in pool.encode(_batches(inputs, progress, problems)):
            problems.raise_if_any()
            progress.documents += [0] * (number + 1 - len(progress.documents))
            progress.documents[number] += n_documents
            _append(batch, inputs[number].held_out, writers, progress)
            report.tell(progress)
            if progress.total_bytes - committed >= COMMIT_BYTES:
                committed = progress.total_bytes
                for writer in writers.values():
                    writer.flush()
                progress.save(folder)
        problems.raise_if_any()
        for writer in writers.values():
            writer.flush()
    progress.documents += [0] * (len(inputs) - len(progress.documents))
    progress.save(folder)
    return progress


def _append(
    batch: EncodedBatch, held_out: float, writers: dict[str, ShardWriter], progress: Progress
) -> None:
    """Add a batch's documents to the splits they belong to."""
    valid = batch.places < held_out
    for name, chosen in (("train", ~valid), ("valid", valid)):
        tokens, lengths = batch.where(chosen)
        writers[name].append_documents(tokens, lengths)
        counts = progress.splits[name]
        counts.tokens += len(tokens)
        counts.documents += len(lengths)
        counts.bytes += int(batch.n_bytes[chosen].sum())
    # A batch may hold documents of both splits: one that is held out counts too, on the safe side.
    if not np.all(valid):
        progress.found_ngrams.update(batch.found_ngrams.tolist())


def _batches(
    inputs: Sequence[DocumentInput], progress: Progress, problems: Problems
) -> Iterator[tuple[tuple[int, int], list[str]]]:
    """Yield ((input, documents), texts) from the recorded point on; no batch spans two inputs."""
    begun = list(progress.documents)
    for number in range(max(0, len(begun) - 1), len(inputs)):
        done = begun[number] if number < len(begun) else 0
        texts = islice(inputs[number].read(problems), done, None)
        for batch in in_batches(texts, lambda text: len(text), _BATCH_CHARS):
            yield (number, len(batch)), batch


def in_batches(
    items: Iterator[str], size: Callable[[str], int], at_least: int
) -> Iterator[list[str]]:
    """Yield consecutive items in lists of at least this size together; the last may be smaller."""
    batch: list[str] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= at_least:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


class _Report:
    """Says now and then how far it is."""

    def __init__(
        self,
        log: Callable[[str], None],
        expected_bytes: int | None,
        n_inputs: int,
        *,
        begun_at: int,
    ) -> None:
        self._log, self._expected_bytes, self._n_inputs = log, expected_bytes, n_inputs
        self._begun_at, self._began = begun_at, time.monotonic()
        self._told = self._began

    def tell(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._told < _LOG_EVERY_S:
            return
        self._told = now
        done = progress.total_bytes
        rate = (done - self._begun_at) / (now - self._began)
        of_all = "" if self._expected_bytes is None else f" of {self._expected_bytes / 1e6:,.0f}"
        place = f", file {len(progress.documents)} of {self._n_inputs}" * (self._n_inputs > 1)
        self._log(f"tokenised {done / 1e6:,.0f}{of_all} MB of text at {rate / 1e6:.1f} MB/s{place}")
