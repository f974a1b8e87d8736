"""Files of a data set of the Hugging Face hub, read over HTTP as they lie there.

A revision is resolved to its commit, once; files are named by it. The hub's token is the library's
affair (`hf auth login`, HF_TOKEN) and is never part of a name.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedReader, RawIOBase
from pathlib import PurePosixPath
from typing import IO, Any

from workloads.data.hub_source import HubSource
from workloads.data.readers.documents import TEXT_FORMATS
from workloads.data.readers.lines import file_format
from workloads.data.readers.problems import DataError, NetworkError

BLOCK_BYTES = 1 << 23
"""Fetched by one request, at least; a file is read by one request after another."""
_NO_ANSWER = "the hub did not answer"


@dataclass(frozen=True)
class HubFile:
    """A file of one commit; it is opened and named like a `Path`."""

    url: str
    """hf://datasets/OWNER/NAME@COMMIT/PATH."""
    size: int
    sha256: str | None
    """None for a small file, which the hub keeps without one; the commit identifies it too."""
    files: Any = field(repr=False, compare=False)
    """The hub's file system, of fsspec."""

    def __str__(self) -> str:
        """Return the URL."""
        return self.url

    @property
    def name(self) -> str:
        """Last part of the path."""
        return PurePosixPath(self.url).name

    @property
    def suffix(self) -> str:
        """Last extension, with its dot."""
        return PurePosixPath(self.url).suffix

    @property
    def stem(self) -> str:
        """Name without the last extension."""
        return PurePosixPath(self.url).stem

    def open(self, mode: str = "rb") -> IO[bytes]:
        """Open for reading; a failing network is a DataError of whoever reads."""
        with _one_sentence(self.url):
            remote = self.files.open(
                self.url,
                mode,
                block_size=BLOCK_BYTES,
                details={"name": self.url, "size": self.size},
            )
        return BufferedReader(_Remote(self.url, remote), 1 << 20)


class _Remote(RawIOBase):
    """A remote file whose failures are one sentence each."""

    def __init__(self, url: str, remote: Any) -> None:
        self._url, self._remote = url, remote

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self._remote.seek(offset, whence))

    def tell(self) -> int:
        return int(self._remote.tell())

    def readinto(self, buffer: Any) -> int:
        with _one_sentence(self._url):
            read = self._remote.read(len(buffer))
        buffer[: len(read)] = read
        return len(read)

    def close(self) -> None:
        self._remote.close()
        super().close()


def current_commit(source: HubSource) -> str:
    """Return the commit that the revision is now, as the hub says.

    Raises:
        DataError: If the packages are missing, or the hub does not know or cannot be reached.
    """
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise _needs_packages(source) from error
    with _one_sentence(source.text):
        commit = HfApi().dataset_info(source.name, revision=source.revision).sha
    assert commit is not None, "the hub names the commit of every revision"
    return commit


def _needs_packages(source: HubSource) -> DataError:
    return DataError([f"{source.text}: needs datasets to be read; pip install 'memscale[data]'"])


def hub_files(source: HubSource, commit: str | None = None) -> tuple[str, tuple[HubFile, ...]]:
    """Return the commit, and the files of text that a source asks for, in their order.

    Args:
        source: What is asked for.
        commit: To be read instead of what the revision is by now.

    Raises:
        DataError: If the packages are missing, or the data set cannot be had.
    """
    try:
        from datasets import load_dataset_builder
        from huggingface_hub import HfFileSystem
    except ImportError as error:
        raise _needs_packages(source) from error
    commit = commit or current_commit(source)
    with _one_sentence(source.text):
        files = HfFileSystem()
        if source.files is not None:
            urls = _matching(files, f"datasets/{source.name}@{commit}/{source.files}")
        else:
            builder = load_dataset_builder(source.name, source.config, revision=commit)
            splits = builder.config.data_files or {}
            if source.split not in splits:
                has = ", ".join(map(str, splits)) or "none"
                raise DataError(
                    [f"{source.text}: has no split {source.split!r}; its splits are {has}"]
                )
            urls = list(map(str, splits[source.split]))
        found = tuple(_hub_file(files, url) for url in urls)
    _require_text(source, found)
    return commit, found


def _matching(files: Any, pattern: str) -> list[str]:
    """Return the URLs of the files of a path, a folder or a pattern, sorted; folders hold text."""
    found = set()
    try:
        matches = files.glob(pattern, detail=True)
    except FileNotFoundError:  # of the folder that the pattern is in
        return []
    for name, info in matches.items():
        inside = files.find(name) if info["type"] == "directory" else [name]
        found |= {p for p in inside if p == name or file_format(PurePosixPath(p)) in TEXT_FORMATS}
    return [f"hf://{name}" for name in sorted(found)]


def _hub_file(files: Any, url: str) -> HubFile:
    info = files.info(url)
    sha256 = info["lfs"].sha256 if info.get("lfs") else None
    return HubFile(url, int(info["size"]), sha256, files)


def _require_text(source: HubSource, found: Sequence[HubFile]) -> None:
    if not found:
        raise DataError([f"{source.text}: holds no such file; check the path"])
    other = sorted({file_format(file) for file in found} - set(TEXT_FORMATS))
    if other:
        raise DataError(
            [
                f"{source.text}: holds .{', .'.join(other)}, which is not read; most data sets "
                "have a copy in Parquet: "
                f"hf://datasets/{source.name}@refs/convert/parquet/CONFIG/SPLIT"
            ]
        )


@contextlib.contextmanager
def _one_sentence(what: str) -> Iterator[None]:
    """Turn what the hub, its library or the network raise into a DataError."""
    try:
        yield
    except DataError:
        raise
    # The library raises errors of its own, of its HTTP client, and builtin ones.
    except Exception as error:
        raise _told(what, error) from error


def _told(what: str, error: Exception) -> DataError:
    """Return what went wrong and what to do."""
    reason = _reason(error)
    kind = NetworkError if reason.startswith(_NO_ANSWER) else DataError
    return kind([f"{what}: {reason}"])


def _reason(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    kind = type(error).__name__
    if kind == "GatedRepoError" or status == 403 or "gated dataset" in str(error):
        return "is gated; accept its terms on its page of the hub, and log in with `hf auth login`"
    if kind == "RepositoryNotFoundError" or status == 401:
        return "is not on the hub, or is private; check the name, or log in with `hf auth login`"
    if kind == "RevisionNotFoundError":
        return "has no such revision; name a branch, a tag or a commit"
    text = " ".join(str(error).split()) or kind
    if status is not None or kind.startswith(("Connect", "Read", "Remote", "Timeout", "Offline")):
        return (
            f"{_NO_ANSWER} ({kind}: {text}); check the network, and run the same command "
            "again, which goes on"
        )
    return f"{text.rstrip('.')}; check the name, the configuration and the split"
