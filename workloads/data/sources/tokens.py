"""Prepared tokens: folders of `memscale data prepare`, one or a weighted mixture.

A folder's tokens are cut into windows as if they were repeated without end; the windows that begin
in one repetition are one epoch, shuffled anew. So no token is repeated or skipped within an epoch,
whatever the sequence length. In a mixture each folder keeps the order it has alone: adding one only
puts its windows between those of the others.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from workloads.data.cache import content_sha256, file_sha256
from workloads.data.corpus import ProbeSet
from workloads.data.permutation import shuffled
from workloads.data.preparation.manifest import MANIFEST, TokenManifest, load_split
from workloads.data.readers.problems import DataError, require_files
from workloads.data.remarks import few_held_out, limited_mixture
from workloads.data.token_bytes import target_bytes, token_bytes
from workloads.data.token_shards import TokenShards
from workloads.data.tokenizer import saved_tokenizer
from workloads.field_error import FieldError, PositiveInt, check_fields

_BLOCK = 1_024
"""Windows of a mixture whose streams are worked out together."""
_ROUNDING = 1e-6
"""Tokens: a quotient of a share times the share may be less than it was."""
_TOLD_LIMIT = 0.9
"""Share of the held-out tokens that a mixture could evaluate on, below which a remark is made."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Which prepared folders, in which proportions."""

    FORMAT: ClassVar[str] = (
        "a folder that `memscale data prepare` has finished (it holds manifest.json), e.g. of\n"
        "  memscale data prepare corpus/ --tokenizer bpe:16384 --out tokens\n"
        "If that was interrupted, the same command finishes it"
    )

    path: str | tuple[str, ...]
    """A folder, or a list of them."""
    weights: tuple[float, ...] | None = None
    """Share of each folder in the training tokens, up to a factor; None: by number of tokens."""
    valid_tokens: PositiveInt = 65_536
    """Held-out tokens per evaluation, at most, in the same proportions. So the folder with the
    fewest for its share limits them; but each gives a whole window at least."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.path:
            raise FieldError("path", "must name at least one folder", repr(self.path))
        if self.weights is not None and len(self.weights) != len(self._folders):
            rule = f"must hold one weight per folder ({len(self._folders)})"
            raise FieldError("weights", rule, list(self.weights), others=("path",))
        if self.weights is not None and min(self.weights) <= 0:
            raise FieldError("weights", "must be above 0", list(self.weights))

    @property
    def _folders(self) -> tuple[Path, ...]:
        paths = (self.path,) if isinstance(self.path, str) else self.path
        return tuple(Path(path).expanduser() for path in paths)

    @property
    def vocab_size(self) -> int:
        """Token ids the model must know."""
        return max(manifest.vocab_size for manifest in self._manifests)

    @property
    def separator(self) -> str | None:
        """Text of the token that begins each document."""
        return _separator_of(self._manifests[0])

    @property
    def without_tokenizer(self) -> Path | None:
        """The first folder whose tokens came without a tokenizer, so that no text can be asked."""
        folders = zip(self._folders, self._manifests, strict=True)
        return next((folder for folder, one in folders if one.tokenizer is None), None)

    @cached_property
    def _manifests(self) -> tuple[TokenManifest, ...]:
        return tuple(TokenManifest.load(folder / MANIFEST) for folder in self._folders)

    def files(self) -> dict[str, Path | tuple[Path, ...]]:
        """Return the manifests; they hold the hashes of the tokens."""
        return {"path": tuple(folder / MANIFEST for folder in self._folders)}

    def tokens_per_epoch(self) -> int:
        """Return the training tokens of all folders."""
        return sum(int(manifest.splits["train"]["tokens"]) for manifest in self._manifests)

    def text_tokens(self) -> int | None:
        """Return the same, if all folders are read equally often."""
        return self.tokens_per_epoch() if self.weights is None else None

    def check(self, log: Callable[[str], None] = lambda message: None) -> None:
        """Look at manifests and sizes of shards.

        Raises:
            DataError: One line per mistake.
        """
        del log
        require_files(self.files(), self.FORMAT)
        first, *others = self._manifests
        for folder, manifest in zip(self._folders[1:], others, strict=True):
            if _tokenizer_of(manifest) != _tokenizer_of(first):
                raise DataError(
                    [
                        f"{folder}: was made with another tokenizer than {self._folders[0]}; "
                        "prepare both with the same"
                    ]
                )
            if _separator_of(manifest) != _separator_of(first):
                raise DataError(
                    [
                        f"{folder}: documents begin with {_separator_of(manifest)!r}, those of "
                        f"{self._folders[0]} with {_separator_of(first)!r}; prepare both with the "
                        "same --separator"
                    ]
                )
        for folder, manifest in zip(self._folders, self._manifests, strict=True):
            _require_own_tokenizer(folder, manifest)
            for name in ("train", "valid"):
                load_split(folder, manifest, name)

    def remarks(self, cache: Path) -> list[str]:
        """Return a sentence if few tokens are held out, and where one folder limits them."""
        del cache
        held_out = [int(manifest.splits["valid"]["tokens"]) for manifest in self._manifests]
        fix = "prepare the text with a larger --valid-share, or with --valid"
        shares = zip(held_out, self._shares, strict=True)
        limits = [n / share if n else math.inf for n, share in shares]
        limit = min(limits)
        told = few_held_out(min(limit, sum(held_out)), fix=fix)
        if limit < _TOLD_LIMIT * min(self.valid_tokens, sum(held_out)):
            folder = self._folders[limits.index(limit)]
            told.append(limited_mixture(limit, limited_by=folder, fix=fix))
        return told

    @property
    def _shares(self) -> tuple[float, ...]:
        """Of the folders in the training tokens; they add up to one."""
        counted = (float(manifest.splits["train"]["tokens"]) for manifest in self._manifests)
        weights = self.weights or tuple(counted)
        return tuple(weight / sum(weights) for weight in weights)

    def prepare(self, cache: Path, log: Callable[[str], None] = lambda message: None) -> "Corpus":
        """Map the shards, once their hashes are those of the manifests.

        Raises:
            DataError: If a folder is incomplete or damaged.
        """
        self.check()
        parts = tuple(zip(self._folders, self._manifests, strict=True))
        for folder, manifest in parts:
            _require_hashes(folder, manifest, cache, log)
        train = tuple(load_split(folder, manifest, "train") for folder, manifest in parts)
        valid = tuple(load_split(folder, manifest, "valid") for folder, manifest in parts)
        corpus = Corpus(
            train=train,
            valid=valid,
            shares=self._shares,
            vocab_size=self.vocab_size,
            tokens_per_epoch=self.tokens_per_epoch(),
            bytes_per_token=tuple(manifest.bytes_per_token for manifest in self._manifests),
            valid_tokens=self.valid_tokens,
            tokenizer_file=saved_tokenizer(self._folders[0]),
        )
        log(f"{corpus.tokens_per_epoch:,} training tokens in {len(train)} prepared folders")
        return corpus


@dataclass(kw_only=True)
class Corpus:
    """Windows of one or several token streams; there are no probes."""

    train: tuple[TokenShards, ...]
    valid: tuple[TokenShards, ...]
    shares: tuple[float, ...]
    """Of each stream in the windows; they add up to one."""
    vocab_size: int
    tokens_per_epoch: int
    bytes_per_token: tuple[float | None, ...]
    """Of each stream, on all of its held-out text; None where tokens came without text."""
    valid_tokens: int
    tokenizer_file: Path | None = None
    probes: tuple[ProbeSet, ...] = ()

    def windows(self, indices: NDArray[np.int64], *, seq_len: int, seed: int) -> NDArray[np.int64]:
        """Return token ids (len(indices), seq_len + 1).

        A pure function of (index, seq_len, seed).
        """
        indices = np.asarray(indices, dtype=np.int64)
        streams, numbers = mixture_places(indices, shares=self.shares)
        windows = np.empty((len(indices), seq_len + 1), dtype=np.int64)
        for stream in np.unique(streams):
            here, shards = streams == stream, self.train[stream]
            places = epoch_places(numbers[here], n_tokens=len(shards), seq_len=seq_len, seed=seed)
            windows[here] = shards.windows(places * seq_len % len(shards), seq_len + 1)
        return windows

    def validation(self, *, seq_len: int) -> NDArray[np.int64]:
        """Return whole windows of held-out tokens, spread evenly over each stream.

        They hold the streams' shares to within a window: the stream that has the fewest windows for
        its share limits the others. A stream gives at least one window, whatever its share, and
        none if it is shorter than a window; then it limits nothing.
        """
        return np.concatenate(self._held_out(seq_len))

    def validation_bytes_per_token(self, *, seq_len: int) -> float | None:
        """Return bytes per target of these windows; None where some tokens came without text.

        If the tokens do not tell, the mean over all held-out text of a stream stands for them.
        """
        n_bytes = n_targets = 0.0
        windows = self._held_out(seq_len)
        for own, shards, mean in zip(windows, self.valid, self.bytes_per_token, strict=True):
            if not len(own):
                continue
            if mean is None:
                return None
            n = own[:, 1:].size
            sizes = self._token_bytes
            n_bytes += mean * n if sizes is None else target_bytes(own, shards, sizes)
            n_targets += n
        return n_bytes / n_targets

    def _held_out(self, seq_len: int) -> list[NDArray[np.int64]]:
        """Return the windows of each stream."""
        streams = tuple(zip(self.valid, self.shares, strict=True))
        whole = [((len(shards) - 1) // seq_len * seq_len, share) for shards, share in streams]
        total = min([self.valid_tokens, *(n / share for n, share in whole if n > 0)])
        return [
            shards.evenly_spread(seq_len, at_most_tokens=int(total * share + _ROUNDING))
            for shards, share in streams
        ]

    @cached_property
    def _token_bytes(self) -> NDArray[np.int64] | None:
        return token_bytes(self.tokenizer_file)


def epoch_places(
    numbers: NDArray[np.int64], *, n_tokens: int, seq_len: int, seed: int
) -> NDArray[np.int64]:
    """Return the windows of an endlessly repeated stream in training order.

    Window k holds the targets k * seq_len + 1 to (k + 1) * seq_len of the endless stream, so all
    windows together hold each token of each repetition once. Those that begin in repetition e are
    epoch e, shuffled among themselves.

    Args:
        numbers: Windows of this stream, counted from the start of training.
        n_tokens: Tokens in one repetition.
        seq_len: Targets per window.
        seed: Of the shuffle.
    """
    epochs = numbers * seq_len // n_tokens
    places = np.empty_like(numbers)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        first, after = (-(-(int(epoch) + more) * n_tokens // seq_len) for more in (0, 1))
        order = shuffled(numbers[here] - first, n=after - first, key=(seed, int(epoch)))
        places[here] = first + order
    return places


def mixture_places(
    indices: NDArray[np.int64], *, shares: tuple[float, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each window of training its stream, and its number within that stream.

    Window j of a stream is due at time (j + 1/2) / share; windows follow each other as they are due
    (stride scheduling). So any stretch holds each stream's share to within a window or two, and a
    stretch is found without counting up to it.

    Args:
        indices: Windows counted from the start of training.
        shares: Of the streams; they add up to one.
    """
    if len(shares) == 1:
        return np.zeros_like(indices), indices
    streams, numbers = np.empty_like(indices), np.empty_like(indices)
    blocks, places = np.divmod(indices, _BLOCK)
    for block in np.unique(blocks):
        here, start = blocks == block, int(block) * _BLOCK
        # By any time, windows that were due differ from it by less than one per stream.
        earliest, latest = max(0, start - len(shares)), start + _BLOCK + len(shares)
        due = [[math.floor(share * time + 0.5) for time in (earliest, latest)] for share in shares]
        stream = np.repeat(np.arange(len(shares)), [after - before for before, after in due])
        number = np.concatenate([np.arange(before, after) for before, after in due])
        order = np.lexsort((stream, (number + 0.5) / np.array(shares)[stream]))
        chosen = order[places[here] + start - sum(before for before, _ in due)]
        streams[here], numbers[here] = stream[chosen], number[chosen]
    return streams, numbers


def _tokenizer_of(manifest: TokenManifest) -> str | None:
    return None if manifest.tokenizer is None else str(manifest.tokenizer["sha256"])


def _separator_of(manifest: TokenManifest) -> str | None:
    return None if manifest.tokenizer is None else str(manifest.tokenizer["separator_text"])


def _require_own_tokenizer(folder: Path, manifest: TokenManifest) -> None:
    saved = saved_tokenizer(folder)
    if saved is not None and file_sha256(saved) != _tokenizer_of(manifest):
        raise DataError([f"{saved}: is not what the tokens were made with; prepare them again"])


def _require_hashes(
    folder: Path, manifest: TokenManifest, cache: Path, log: Callable[[str], None]
) -> None:
    """Compare shards with the manifest; each is read once until its size or time changes."""
    expected = {folder / name: sha256 for name, sha256 in manifest.shard_hashes().items()}
    gigabytes = sum(path.stat().st_size for path in expected) / 1e9
    log(f"checking the hashes of {len(expected)} shards of {folder} ({gigabytes:,.1f} GB)")
    with ThreadPoolExecutor() as threads:
        digests = threads.map(lambda path: content_sha256(path, cache), expected)
        changed = [
            f"{path}: is not what {MANIFEST} says; prepare the data again"
            for path, digest in zip(expected, digests, strict=True)
            if digest != expected[path]
        ]
    if changed:
        raise DataError(changed)
