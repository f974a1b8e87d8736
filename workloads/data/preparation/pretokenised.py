"""Pretokenised data, read as is: .bin, .npy, Megatron's .bin with .idx.

Nothing is copied: shards are links to the files. The last share of the tokens is held out.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workloads.data.readers.problems import DataError
from workloads.data.token_shards import index_name, shard_name

FORMATS = ("bin", "npy")
_INDEX_MAGIC = b"MMIDIDX\x00\x00"
"""First bytes of Megatron-LM's index of a token file."""
_INDEX_TYPES = {4: "<i4", 8: "<u2"}
"""Codes of the types of that index that hold token ids."""
_NUMPY_TYPES = ("<u2", "<u4", "<i4")
_CHECKED_TOKENS = 1 << 24


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """Where the tokens of a foreign file lie."""

    path: Path
    dtype: np.dtype[np.integer]
    offset: int
    """Bytes before the first token."""
    n_tokens: int
    document_starts: NDArray[np.int64]
    """Empty where the file does not say."""

    @property
    def tokens(self) -> NDArray[np.integer]:
        """The tokens, mapped."""
        return np.memmap(
            self.path, dtype=self.dtype, mode="r", offset=self.offset, shape=(self.n_tokens,)
        )


def open_tokens(path: Path, *, vocab_size: int) -> TokenFile:
    """Return what a file holds, after reading all of it.

    A `.bin` without an index holds uint16 where the vocabulary fits, else uint32.

    Raises:
        DataError: If the file is no file of tokens, or an id is not below vocab_size.
    """
    index = path.with_suffix(".idx")
    if path.suffix == ".npy":
        file = _numpy_file(path)
    elif index.is_file():
        file = _megatron_file(path, index)
    else:
        file = _plain_file(path, np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4"))
    for start in range(0, file.n_tokens, _CHECKED_TOKENS):
        part = file.tokens[start : start + _CHECKED_TOKENS]
        wrong = (part >= vocab_size) | (part < 0)
        if wrong.any():
            place = int(wrong.argmax())
            raise DataError(
                [
                    f"{path}: token {start + place:,} is {int(part[place])}, vocab_size is "
                    f"{vocab_size}; raise --vocab-size, or check the type ({file.dtype})"
                ]
            )
    return file


def link_splits(
    folder: Path, files: list[TokenFile], *, valid_share: float
) -> dict[str, dict[str, int | None]]:
    """List the files as splits of a folder; return tokens, documents and bytes of each.

    The held-out part is the end of the last file, so that it may begin inside a document.

    Raises:
        DataError: If the files differ in type or nothing would be left to train on.
    """
    first = files[0]
    others = [
        f"{file.path}: holds {file.dtype}, {first.path} holds {first.dtype}; prepare them apart"
        for file in files
        if file.dtype != first.dtype
    ]
    if others:
        raise DataError(others)
    last = files[-1]
    n_valid = round(valid_share * sum(file.n_tokens for file in files))
    if not 0 < n_valid < last.n_tokens:
        raise DataError(
            [
                f"{last.path}: has {last.n_tokens:,} tokens, {n_valid:,} are to be held out; "
                "change --valid-share, or give a larger file last"
            ]
        )
    kept = last.n_tokens - n_valid
    train = [(file, 0, file.n_tokens) for file in files[:-1]] + [(last, 0, kept)]
    return {
        "train": _list_split(folder, "train", train),
        "valid": _list_split(folder, "valid", [(last, kept, n_valid)]),
    }


def _list_split(
    folder: Path, name: str, parts: list[tuple[TokenFile, int, int]]
) -> dict[str, int | None]:
    """Link files as the shards of a split; parts are (file, first token, tokens)."""
    starts, total = [], 0
    for number, (file, first, n) in enumerate(parts):
        link = folder / shard_name(name, number)
        link.unlink(missing_ok=True)
        link.symlink_to(file.path.resolve())
        inside = (file.document_starts >= first) & (file.document_starts < first + n)
        starts.append(file.document_starts[inside] - first + total)
        total += n
    documents = np.concatenate(starts).astype("<i8")
    documents.tofile(folder / index_name(name))
    listing = {
        "dtype": parts[0][0].dtype.name,
        "counts": [n for _, _, n in parts],
        "offsets": [file.offset + first * file.dtype.itemsize for file, first, _ in parts],
    }
    (folder / f"{name}.json").write_text(json.dumps(listing))
    return {"tokens": total, "documents": len(documents), "bytes": None}


def _plain_file(path: Path, dtype: np.dtype[np.integer]) -> TokenFile:
    size = path.stat().st_size
    if not size or size % dtype.itemsize:
        raise DataError(
            [f"{path}: {size:,} bytes are no whole number of {dtype} tokens; copy the file again"]
        )
    return TokenFile(
        path=path,
        dtype=dtype,
        offset=0,
        n_tokens=size // dtype.itemsize,
        document_starts=np.empty(0, np.int64),
    )


def _numpy_file(path: Path) -> TokenFile:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError([f"{path}: is no .npy file ({error}); copy it again"]) from error
    if array.ndim != 1 or array.dtype.str not in _NUMPY_TYPES or not len(array):
        raise DataError(
            [
                f"{path}: holds {array.dtype} of shape {array.shape}; tokens are one dimension of "
                "uint16 or uint32"
            ]
        )
    return TokenFile(
        path=path,
        dtype=array.dtype,
        offset=array.offset,
        n_tokens=len(array),
        document_starts=np.empty(0, np.int64),
    )


def _megatron_file(path: Path, index: Path) -> TokenFile:
    """Read Megatron-LM's index: magic, version, type, counts, lengths, byte offsets, documents."""
    header = np.dtype([("version", "<u8"), ("type", "u1"), ("sequences", "<u8"), ("docs", "<u8")])
    raw = index.read_bytes()
    body = raw[len(_INDEX_MAGIC) :]
    if not raw.startswith(_INDEX_MAGIC) or len(body) < header.itemsize:
        raise DataError([f"{index}: is no index of Megatron-LM; delete it or give the right one"])
    front = np.frombuffer(body, dtype=header, count=1)[0]
    kind = _INDEX_TYPES.get(int(front["type"]))
    n, n_documents = int(front["sequences"]), int(front["docs"])
    if int(front["version"]) != 1 or kind is None:
        raise DataError(
            [
                f"{index}: version {front['version']}, type code {front['type']}; expected version "
                "1 with int32 (4) or uint16 (8) tokens"
            ]
        )
    if len(body) != header.itemsize + 12 * n + 8 * n_documents:
        raise DataError([f"{index}: is half-written or damaged; copy it again"])
    lengths = np.frombuffer(body, "<i4", count=n, offset=header.itemsize).astype(np.int64)
    at = header.itemsize + 12 * n
    documents = np.frombuffer(body, "<i8", count=n_documents, offset=at)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    dtype = np.dtype(kind)
    size = path.stat().st_size
    expected = int(ends[-1]) * dtype.itemsize
    if expected != size:
        raise DataError(
            [f"{path}: has {size:,} bytes, {index.name} says {expected:,}; copy both again"]
        )
    return TokenFile(
        path=path,
        dtype=dtype,
        offset=0,
        n_tokens=int(ends[-1]),
        # The last entry is the end of the last document.
        document_starts=ends[documents[:-1]],
    )
