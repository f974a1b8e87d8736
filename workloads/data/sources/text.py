"""Text corpora: memory-mapped token shards, windows shuffled anew each epoch.

Documents are joined with the separator in the order of the files and cut into windows; an epoch is
a pseudo-random permutation of the windows. Held-out text is `valid_path`, or a share of the
documents chosen by hash of their text, so that copies of a document never stand on both sides.

Data sets of the Hugging Face hub are prepared by the code of `memscale data prepare`: read once, in
streams, and resumed in the file where it was.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from workloads.data.cache import cache_key, cached_folder, file_sha256, remembered_sha256
from workloads.data.corpus import ProbeSet
from workloads.data.file_hashes import input_sha256, require_still
from workloads.data.hub_source import PREFIX, HubSource
from workloads.data.permutation import shuffled
from workloads.data.preparation.local_text import LocalText, TokenizerChoice, tokenise_files
from workloads.data.preparation.prepare import prepare
from workloads.data.preparation.request import PrepareRequest
from workloads.data.readers.documents import expand, is_plain, is_plain_text
from workloads.data.readers.problems import (
    DataError,
    Problems,
    refuse_trained_on,
    require_files,
)
from workloads.data.remarks import few_held_out, trained_on, unused_tokens
from workloads.data.tiktoken_file import tokenizer_files
from workloads.data.token_bytes import target_bytes, token_bytes
from workloads.data.token_shards import TokenShards
from workloads.data.token_stream import windows_per_epoch
from workloads.data.tokenizer import check_vocabulary, saved_tokenizer
from workloads.field_error import FieldError, PositiveInt, check_fields

_CACHE_VERSION = 1
_BYTES_PER_TOKEN_BIT = 0.29
"""UTF-8 bytes a token over log2 of the vocabulary, roughly: by 3.76 bytes a token of Simple English
Wikipedia with 8,192 tokens."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Which text, in which tokens."""

    FORMAT: ClassVar[str] = (
        "JSON lines with a text field (.jsonl), plain UTF-8 text (.txt), each plain, .gz or .zst, "
        "or .parquet, e.g.\n"
        '  {"text": "Warsaw is the capital of Poland. It lies on the Vistula."}\n'
        '  {"text": "The Vistula is a river in Poland."}\n'
        "or a data set of the Hugging Face hub: hf:OWNER/NAME[/CONFIG][@REVISION][:SPLIT]"
    )

    FIELD_FORMATS: ClassVar[Mapping[str, str]] = {
        "tokenizer": "a tokenizer.json of the `tokenizers` library, a .model of SentencePiece, or "
        "a tiktoken file"
    }
    """Formats of the fields that name other files than text."""

    HUB_FIELDS: ClassVar[tuple[str, ...]] = ("path", "valid_path")
    """Fields that may name data sets of the Hugging Face hub."""

    path: str | tuple[str, ...]
    """A file, a glob pattern, hf:OWNER/NAME of the Hugging Face hub, or a list of these."""
    valid_path: str | tuple[str, ...] | None = None
    """Held-out text, written like path; None holds out `valid_share` of the documents."""
    valid_share: Annotated[float, Interval(gt=0, lt=1)] = 0.01
    """Share of documents held out, by hash of their text, where there is no valid_path."""
    valid_tokens: PositiveInt = 65_536
    """Held-out tokens per evaluation, at most; windows spread evenly over the held-out text."""
    text_field: str = "text"
    """Field of JSON lines, column of Parquet."""
    vocab_size: int = 16_384
    """Tokens the model knows; a tokenizer trained here has at most as many."""
    tokenizer: str | None = None
    """A tokenizer.json, SentencePiece's or tiktoken's file to use instead of training one."""
    tokenizer_bytes: PositiveInt = 30_000_000
    """Text that a tokenizer is trained on, about: documents chosen by hash."""
    separator: str | None = None
    """Text of the loaded tokenizer's token between documents; None looks for a usual one."""
    max_bytes: PositiveInt | None = None
    """Stop after this much text of `path` (UTF-8 bytes, whole documents); None takes all."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_vocabulary(self.vocab_size, tokenizer=self.tokenizer, separator=self.separator)
        if self.vocab_size > 2**32:
            raise FieldError("vocab_size", "must be at most 2**32", self.vocab_size)
        for name in ("path", "valid_path"):
            value = getattr(self, name)
            if value is not None and not value:
                raise FieldError(name, "must name at least one file", repr(value))
            self._check_hub(name)

    def _check_hub(self, field: str) -> None:
        """Refuse a name that the hub cannot have, and fields that do not go with one."""
        names = [text for text in _listed(getattr(self, field)) if text.startswith(PREFIX)]
        for text in names:
            try:
                HubSource.parse(text)
            except DataError as error:
                raise FieldError(field, f": {error}") from error
        if names and self.max_bytes is not None:
            fix = "name some of its files instead: hf://datasets/OWNER/NAME/PATTERN"
            rule = "does not go with a data set of the hub"
            raise FieldError("max_bytes", rule, self.max_bytes, fix=fix, others=(field,))

    @property
    def _is_remote(self) -> bool:
        texts = (*_listed(self.path), *_listed(self.valid_path))
        return any(text.startswith(PREFIX) for text in texts)

    @property
    def _local_text(self) -> LocalText:
        """The text that lies on this machine."""
        return LocalText(
            paths=tuple(path for path in _inputs(self.path) if isinstance(path, Path)),
            valid_paths=tuple(path for path in _inputs(self.valid_path) if isinstance(path, Path)),
            valid_share=self.valid_share,
            text_field=self.text_field,
            max_bytes=self.max_bytes,
        )

    def files(self) -> dict[str, Path | tuple[Path | HubSource, ...]]:
        """Return the input files by field, patterns expanded; of the hub, data sets."""
        named: dict[str, Path | tuple[Path | HubSource, ...]] = {"path": _inputs(self.path)}
        if self.valid_path is not None:
            named["valid_path"] = _inputs(self.valid_path)
        if self.tokenizer is not None:
            named["tokenizer"] = tokenizer_files(Path(self.tokenizer).expanduser())
        return named

    def tokens_per_epoch(self) -> None:
        """Return None: how many tokens the text has is known after `prepare`."""

    def text_tokens(self) -> float | None:
        """Return about how many training tokens the text has; None if its bytes are not known.

        No file is read: JSON lines count with what stands around their text.
        """
        n_bytes = self._plain_bytes(self.path)
        if n_bytes is None:
            return None
        train_share = 1.0 if self.valid_path is not None else 1.0 - self.valid_share
        return train_share * n_bytes / self._bytes_per_token

    @property
    def _bytes_per_token(self) -> float:
        return _BYTES_PER_TOKEN_BIT * math.log2(self.vocab_size)

    def _plain_bytes(self, spec: str | tuple[str, ...]) -> int | None:
        """Return the bytes of files; None if those of their text are others."""
        paths = _inputs(spec)
        if not all(isinstance(path, Path) and is_plain(path) for path in paths):
            return None
        n_bytes = sum(path.stat().st_size for path in paths if isinstance(path, Path))
        limit = self.max_bytes if spec is self.path else None
        return n_bytes if limit is None else min(n_bytes, limit)

    def remarks(self, cache: Path) -> list[str]:
        """Return a sentence for each part of the text that is too small for its purpose.

        Exact where the cache holds the prepared text. Otherwise held-out tokens are estimated from
        bytes, and those of the tokenizer are not known.
        """
        meta = self._prepared_meta(cache)
        if meta is not None:
            return _remarks(self, meta)
        if self.valid_path is not None:
            n_bytes, share = self._plain_bytes(self.valid_path), 1.0
        else:
            n_bytes, share = self._plain_bytes(self.path), self.valid_share
        if n_bytes is None:
            return []
        estimate = float(f"{share * n_bytes / self._bytes_per_token:.2g}")
        return few_held_out(estimate, fix=self._more_held_out, about="about ")

    @property
    def _more_held_out(self) -> str:
        if self.valid_path is not None:
            return "give more text in data.valid_path"
        return "raise data.valid_share or give data.valid_path"

    def _prepared_meta(self, cache: Path) -> Mapping[str, int] | None:
        """Return what is noted of the prepared text; None if it is not there, or files are new."""
        content: dict[str, list[str]] = {}
        for name, found in self.files().items():
            paths = found if isinstance(found, tuple) else (found,)
            digests = [
                remembered_sha256(p, cache) if isinstance(p, Path) else p.sha256 for p in paths
            ]
            content[name] = [digest for digest in digests if digest is not None]
            if len(content[name]) < len(paths):
                return None
        try:
            return _meta(cache / self._cache_key(content))
        except OSError:
            return None

    def _cache_key(self, content: Mapping[str, list[str]]) -> str:
        settings = {k: v for k, v in asdict(self).items() if k not in (*content, "valid_tokens")}
        key: dict[str, Any] = {"version": _CACHE_VERSION, **settings, "content": content}
        # The same bytes are other text under another name.
        fields = {"path": _inputs(self.path), "valid_path": _inputs(self.valid_path)}
        plain = {
            name: [i for i, p in enumerate(paths) if isinstance(p, Path) and is_plain_text(p)]
            for name, paths in fields.items()
        }
        if any(plain.values()):
            key["plain_text"] = plain
        return cache_key("text", key)

    def check(self, log: Callable[[str], None] = lambda message: None) -> None:
        """Read the first documents of every file without tokenising; none of the hub.

        Raises:
            DataError: One line per mistake, with file and line.
        """
        del log
        require_files(_local(self.files()), self.FORMAT)
        problems, text = Problems(), self._local_text
        _refuse_trained_on(text)
        text.check(problems)
        if self.valid_path is None and not self._is_remote and not problems.total:
            text.check_split(problems)
        problems.raise_if_any()

    def prepare(self, cache: Path, log: Callable[[str], None] = lambda message: None) -> "Corpus":
        """Tokenise once, then map the shards.

        Raises:
            DataError: If a file is missing or wrong; one line per mistake.
        """
        files = self.files()
        require_files(_local(files), self.FORMAT)
        _refuse_trained_on(self._local_text)
        content = _content(files, cache)

        def build(scratch: Path) -> None:
            _build(self, scratch, log)
            require_still(content, _content(files, cache))

        key = self._cache_key(content)
        folder = cached_folder(cache, key, build, log, resumable=True)
        meta = _meta(folder)
        train_tokens = TokenShards.load(folder, "train")
        corpus = Corpus(
            train=train_tokens,
            valid=TokenShards.load(folder, "valid"),
            vocab_size=self.vocab_size,
            tokens_per_epoch=len(train_tokens),
            bytes_per_token=meta["valid_bytes"] / meta["valid_tokens"],
            valid_tokens=self.valid_tokens,
            tokenizer_file=saved_tokenizer(folder),
        )
        log(
            f"{len(corpus.train):,} training and {len(corpus.valid):,} held-out tokens, "
            f"{corpus.bytes_per_token:.3f} bytes per token"
        )
        for remark in _remarks(self, meta):
            log(remark)
        return corpus


@dataclass(kw_only=True)
class Corpus:
    """Windows of text; there are no probes."""

    train: TokenShards
    valid: TokenShards
    vocab_size: int
    tokens_per_epoch: int
    bytes_per_token: float
    """On all held-out text; separators count as tokens without bytes."""
    valid_tokens: int
    tokenizer_file: Path | None
    """What the text was tokenised by."""
    probes: tuple[ProbeSet, ...] = ()

    def windows(self, indices: NDArray[np.int64], *, seq_len: int, seed: int) -> NDArray[np.int64]:
        """Return token ids (len(indices), seq_len + 1), a pure function of (index, seq_len, seed).

        An epoch is every window once, in a new order; the last window of the text is filled up from
        its beginning.
        """
        n = windows_per_epoch(len(self.train), seq_len)
        epochs, positions = np.divmod(np.asarray(indices, dtype=np.int64), n)
        windows = np.empty_like(positions)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            windows[here] = shuffled(positions[here], n=n, key=(seed, int(epoch)))
        return self.train.windows(windows * seq_len, seq_len + 1)

    def validation(self, *, seq_len: int) -> NDArray[np.int64]:
        """Return whole windows of held-out text, spread evenly; none if it is too short."""
        return self.valid.evenly_spread(seq_len, at_most_tokens=self.valid_tokens)

    def validation_bytes_per_token(self, *, seq_len: int) -> float:
        """Return bytes per target of these windows; of all held-out text if tokens do not tell."""
        if self._token_bytes is None:
            return self.bytes_per_token
        windows = self.validation(seq_len=seq_len)
        return target_bytes(windows, self.valid, self._token_bytes) / windows[:, 1:].size

    @cached_property
    def _token_bytes(self) -> NDArray[np.int64] | None:
        return token_bytes(self.tokenizer_file)


def _listed(spec: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return what is written: one text, several or none."""
    return (spec,) if isinstance(spec, str) else tuple(spec or ())


def _inputs(spec: str | tuple[str, ...] | None) -> tuple[Path | HubSource, ...]:
    """Return the files and the data sets of the hub that are written, in their order."""
    found: list[Path | HubSource] = []
    for text in _listed(spec):
        found += [HubSource.parse(text)] if text.startswith(PREFIX) else expand(text)
    return tuple(dict.fromkeys(found))


def _local(
    files: Mapping[str, Path | tuple[Path | HubSource, ...]],
) -> dict[str, Path | tuple[Path, ...]]:
    """Return the files that lie on this machine."""
    return {
        name: paths if isinstance(paths, Path) else tuple(p for p in paths if isinstance(p, Path))
        for name, paths in files.items()
    }


def _refuse_trained_on(text: LocalText) -> None:
    """Refuse files that are trained on and held out; only files of equal size are read."""
    train, valid = (
        {path: path.stat().st_size for path in p} for p in (text.paths, text.valid_paths)
    )
    equal = set(train.values()) & set(valid.values()) - {0}

    def content(path: Path, size: int) -> str:
        return file_sha256(path) if size in equal else str(path.resolve())

    named = ({str(path): content(path, n) for path, n in p.items()} for p in (train, valid))
    refuse_trained_on(*named)


def _content(
    files: Mapping[str, Path | tuple[Path | HubSource, ...]], cache: Path
) -> dict[str, list[str]]:
    return {
        name: [input_sha256(p, cache) for p in (paths if isinstance(paths, tuple) else (paths,))]
        for name, paths in files.items()
    }


def _build(config: Config, folder: Path, log: Callable[[str], None]) -> None:
    """Fill the folder, or go on where an earlier call was killed."""
    choice = TokenizerChoice(
        path=None if config.tokenizer is None else Path(config.tokenizer).expanduser(),
        separator=config.separator,
        vocab_size=config.vocab_size,
        sample_bytes=config.tokenizer_bytes,
    )
    if not config._is_remote:
        valid, tokenizer, n_copies = tokenise_files(config._local_text, choice, folder, log)
        _note(
            folder,
            tokens=valid.tokens,
            n_bytes=valid.bytes,
            tokenizer_size=tokenizer.size,
            n_copies=n_copies,
        )
        return
    if choice.path is not None:  # too large a one is found out before hours of reading
        choice.load(choice.path)
    request = PrepareRequest(
        sources=_listed(config.path),
        out=folder,
        tokenizer=config.tokenizer or f"bpe:{config.vocab_size}",
        separator=config.separator,
        text_field=config.text_field,
        valid=_listed(config.valid_path),
        valid_share=config.valid_share,
        tokenizer_bytes=config.tokenizer_bytes,
    )
    manifest = prepare(request, log)
    held_out, size = manifest.splits["valid"], manifest.vocab_size
    _note(folder, tokens=held_out["tokens"], n_bytes=held_out["bytes"], tokenizer_size=size)


def _note(
    folder: Path, *, tokens: int, n_bytes: int, tokenizer_size: int, n_copies: int = 0
) -> None:
    meta = {
        "valid_tokens": tokens,
        "valid_bytes": n_bytes,
        "tokenizer_tokens": tokenizer_size,
        "copies_of_valid": n_copies,
    }
    (folder / "meta.json").write_text(json.dumps(meta))


def _meta(folder: Path) -> Mapping[str, int]:
    """Return what `_note` wrote; caches of earlier versions lack the last two."""
    meta: dict[str, int] = json.loads((folder / "meta.json").read_text())
    return meta


def _remarks(config: Config, meta: Mapping[str, int]) -> list[str]:
    more = " or give more text" if config.tokenizer is None else ""
    size = meta.get("tokenizer_tokens", config.vocab_size)
    return [
        *unused_tokens(size, vocab_size=config.vocab_size, fix=f"lower data.vocab_size{more}"),
        *few_held_out(meta["valid_tokens"], fix=config._more_held_out),
        *trained_on(meta.get("copies_of_valid", 0), fix="take them out of data.path"),
    ]
