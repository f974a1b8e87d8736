"""Text in local files to token shards: tokenizer, split, held-out text."""

import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from workloads.data.preparation.encoder import EncoderSettings, unit_hash
from workloads.data.preparation.lost_text import check_lost_text
from workloads.data.preparation.tokenise import DocumentInput, SplitCounts, tokenise
from workloads.data.readers.documents import documents, what_separates
from workloads.data.readers.problems import Problems
from workloads.data.tokenizer import TextTokenizer, load, saved_tokenizer, train

_CHECKED_DOCUMENTS = 1_000
_TELL_EVERY_BYTES = 1 << 28
"""Of a first reading: a sign of life every few seconds."""


@dataclass(frozen=True, kw_only=True)
class LocalText:
    """Files of text, and which of their documents are held out."""

    paths: tuple[Path, ...]
    valid_paths: tuple[Path, ...]
    """Held-out text; without any, documents of `paths` are held out, by hash of their text."""
    valid_share: float
    """Share of these."""
    text_field: str
    """Field of JSON lines, column of Parquet."""
    max_bytes: int | None
    """Of `paths`, stop after this much text (UTF-8 bytes, whole documents); None takes all."""

    def read(self, paths: Sequence[Path], problems: Problems) -> Iterator[str]:
        """Yield the documents of some of the files."""
        return documents(paths, text_field=self.text_field, problems=problems)

    def documents(self, problems: Problems) -> Iterator[tuple[str, float]]:
        """Yield (text, hash in [0, 1)) of the documents of `paths` until max_bytes."""
        n_bytes = 0
        for text in self.read(self.paths, problems):
            if self.max_bytes is not None and n_bytes >= self.max_bytes:
                return
            n_bytes += len(text.encode())
            yield text, unit_hash(text.encode(), "valid")

    def valid_hashes(self, problems: Problems) -> set[float]:
        """Return the hashes of the documents of `valid_paths`."""
        return {unit_hash(t.encode(), "valid") for t in self.read(self.valid_paths, problems)}

    def check(self, problems: Problems) -> None:
        """Note what is wrong with the first documents of every file, without tokenising."""
        n_read = {
            path: sum(1 for _ in islice(self.read((path,), problems), _CHECKED_DOCUMENTS))
            for path in (*self.paths, *self.valid_paths)
        }
        if self.paths:
            self.require_some(sum(map(n_read.__getitem__, self.paths)), problems)

    def check_split(self, problems: Problems) -> None:
        """Note if a single document is all there is to train on and to hold out."""
        n_first = sum(1 for _ in islice(self.documents(problems), 2))
        if n_first == 1:
            self.note_none_left(n_first, problems)

    def require_some(self, n_documents: int, problems: Problems) -> None:
        """Note if `paths` hold no document, unless mistakes in them are the reason."""
        if not n_documents and not problems.total:
            fix = "give a file with at least one document"
            problems.add(self.paths[0], None, "holds no text", fix)

    def note_none_left(self, n_documents: int, problems: Problems) -> None:
        """Note that all documents are held out."""
        number = f"{n_documents:,} document{'s' if n_documents > 1 else ''}"
        more = "give more text" if self.max_bytes is None else "raise data.max_bytes"
        if n_documents > 1:
            fix = f"set data.valid_path, lower data.valid_share or {more}"
        else:
            fix = f"set data.valid_path or {more}; {what_separates(self.paths[0])}"
        wrong = f"holds {number}, which leaves none to train on"
        problems.add(self.paths[0], None, wrong, fix)


@dataclass(frozen=True, kw_only=True)
class TokenizerChoice:
    """A tokenizer to load, or to train."""

    path: Path | None
    """The file; None trains one."""
    separator: str | None
    """Text of the loaded one's token between documents; None looks for a usual one."""
    vocab_size: int
    """Tokens at most."""
    sample_bytes: int
    """Text that it is trained on, about: documents chosen by hash."""

    def load(self, path: Path) -> TextTokenizer:
        """Load a tokenizer from `path`."""
        return load(path, vocab_size=self.vocab_size, separator=self.separator)


@dataclass(kw_only=True)
class _Scan:
    """What a first reading finds out."""

    n_bytes: int = 0
    n_documents: int = 0
    threshold: float = 0.0
    """Documents whose hash is below are held out; 0 where there are `valid_paths`."""
    n_copies: int = 0
    """Documents of `paths` that `valid_paths` hold too."""


def tokenise_files(
    text: LocalText, choice: TokenizerChoice, folder: Path, log: Callable[[str], None]
) -> tuple[SplitCounts, TextTokenizer, int]:
    """Fill a folder, or go on where an earlier call was killed.

    Returns:
        How much is held out, the tokenizer, which the folder holds too, and how many documents of
        `paths` the `valid_paths` hold too.

    Raises:
        DataError: One line per mistake.
    """
    scan = _scan(text, folder, log)
    tokenizer = _tokenizer(text, choice, scan, folder, log)
    inputs = [
        DocumentInput(
            name="path",
            read=lambda problems: (document for document, _ in text.documents(problems)),
            held_out=scan.threshold,
        )
    ]
    if text.valid_paths:
        inputs.append(
            DocumentInput(
                name="valid_path",
                read=lambda problems: text.read(text.valid_paths, problems),
                held_out=1.0,
            )
        )
    settings = EncoderSettings(
        tokenizer=folder / tokenizer.file_name,
        separator=tokenizer.separator_text,
        vocab_size=choice.vocab_size,
    )
    done = tokenise(folder, inputs, settings, log=log, expected_bytes=scan.n_bytes)
    return done.splits["valid"], tokenizer, scan.n_copies


def _scan(text: LocalText, folder: Path, log: Callable[[str], None]) -> _Scan:
    """Read everything once: find every mistake, the size, and where to cut the held-out part."""
    record = folder / "scan.json"
    if record.exists():
        return _Scan(**json.loads(record.read_text()))
    problems, scan = Problems(), _Scan()
    # Mistakes in held-out files are noted below, behind those of `paths`.
    held_out_hashes = text.valid_hashes(Problems())
    lowest, n_lowest, below, told = 1.0, 0, 0, 0
    for document, place in text.documents(problems):
        scan.n_documents += 1
        scan.n_bytes += len(document.encode())
        if scan.n_bytes - told >= _TELL_EVERY_BYTES:
            told = scan.n_bytes
            log(f"read {scan.n_bytes / 1e6:,.0f} MB of text")
        scan.n_copies += place in held_out_hashes
        if place < lowest:
            lowest, n_lowest = place, 0
        n_lowest += place == lowest
        below += place < text.valid_share
    text.require_some(scan.n_documents, problems)
    if text.valid_paths:
        n_valid = sum(1 for _ in text.read(text.valid_paths, problems))
        if not n_valid and not problems.total:
            fix = "give data.valid_path some text"
            problems.add(text.valid_paths[0], None, "holds no text", fix)
    else:
        # A corpus of few documents may have none below the share: then its lowest one is held out,
        # with all its copies.
        scan.threshold = text.valid_share if below else float(np.nextafter(lowest, 2.0))
        below = below or n_lowest
        if below >= scan.n_documents and not problems.total:
            text.note_none_left(scan.n_documents, problems)
    problems.raise_if_any()
    held_out = "" if text.valid_paths else f", {below:,} of them held out"
    log(f"{scan.n_documents:,} documents{held_out}, {scan.n_bytes / 1e6:,.1f} MB of text")
    scratch = folder / "scan.json.tmp"
    scratch.write_text(json.dumps(asdict(scan)))
    scratch.replace(record)
    return scan


def _tokenizer(
    text: LocalText,
    choice: TokenizerChoice,
    scan: _Scan,
    folder: Path,
    log: Callable[[str], None],
) -> TextTokenizer:
    """Return the tokenizer of the folder, after saving it there if this is the first to ask."""
    saved = saved_tokenizer(folder)
    if saved is not None:
        return choice.load(saved)
    if choice.path is not None:
        tokenizer = choice.load(choice.path)
        paths = (*text.paths, *text.valid_paths)
        files = [partial(text.read, (path,), Problems()) for path in paths]
        check_lost_text(choice.path, tokenizer, files, log)
    else:
        tokenizer = _train(text, choice, scan, log)
    tokenizer.save_in(folder)
    return tokenizer


def _train(
    text: LocalText, choice: TokenizerChoice, scan: _Scan, log: Callable[[str], None]
) -> TextTokenizer:
    """Train a tokenizer on a sample of the documents that are not held out, by hash."""
    share = min(1.0, choice.sample_bytes / scan.n_bytes)
    log(f"training a tokenizer on about {share * scan.n_bytes / 1e6:,.1f} MB of text")
    n_bytes = 0

    def ranked() -> Iterator[tuple[float, bytes]]:
        for document, place in text.documents(Problems()):
            if place >= scan.threshold:
                encoded = document.encode()
                yield unit_hash(encoded, "tokenizer"), encoded

    def counted(sample: Iterable[bytes]) -> Iterator[str]:
        nonlocal n_bytes
        n_bytes = 0
        for encoded in sample:
            n_bytes += len(encoded)
            yield encoded.decode(errors="ignore")  # half a character where it was cut

    sample = counted(encoded for rank, encoded in ranked() if rank < share)
    tokenizer = train(sample, vocab_size=choice.vocab_size)
    if not n_bytes:  # of a few large documents
        sample = counted(_lowest(ranked(), choice.sample_bytes))
        tokenizer = train(sample, vocab_size=choice.vocab_size)
    log(f"trained a tokenizer on {n_bytes / 1e6:,.2f} MB of text")
    return tokenizer


def _lowest(ranked: Iterable[tuple[float, bytes]], n_bytes: int) -> list[bytes]:
    """Return the texts of the lowest ranks, the last one cut so that all have n_bytes at most."""
    kept: list[tuple[float, bytes]] = []
    """A heap, highest rank first, without those that n_bytes do not reach."""
    total = 0
    for rank, encoded in ranked:
        heapq.heappush(kept, (-rank, encoded))
        total += len(encoded)
        while total - len(kept[0][1]) >= n_bytes:
            total -= len(heapq.heappop(kept)[1])
    texts = [encoded for _, encoded in sorted(kept, reverse=True)]
    if total > n_bytes:
        texts[-1] = texts[-1][: n_bytes - total]
    return texts
