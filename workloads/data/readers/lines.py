"""Reader of numbered lines of UTF-8 files, plain or compressed (.gz, .zst)."""

import gzip
import json
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path, PurePath
from typing import IO, Any, Literal, Protocol, cast

from workloads.data.readers.problems import Problems

JSON_LINES = ("jsonl", "json", "ndjson")
"""Formats (`file_format`) of a JSON object per line."""
MAX_LINE_BYTES = 1 << 26
"""A longer line is no document: most likely the file has no line ends."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MAGIC = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}
"""First bytes of compressed files (RFC 1952 and RFC 8878)."""


class InputFile(Protocol):
    """A file by its name: a `Path`, or one of the hub."""

    @property
    def name(self) -> str:
        """Last part of the path."""

    @property
    def suffix(self) -> str:
        """Last extension, with its dot."""

    @property
    def stem(self) -> str:
        """Name without the last extension."""

    def open(self, mode: Literal["rb"]) -> IO[bytes]:
        """Open for reading bytes."""


def numbered_lines(path: InputFile, problems: Problems) -> Iterator[tuple[int, str]]:
    r"""Yield (1-based number, text without its line end) of every line; `\n` and `\r\n` end lines.

    A line that is not UTF-8, one that is too long and a damaged stream become problems; what can be
    read is still yielded.
    """
    number = 0
    file = _open(path, problems)
    if file is None:
        return
    try:
        with file:
            while raw := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(raw) > MAX_LINE_BYTES:
                    problems.add(
                        path,
                        number,
                        f"the line is longer than {MAX_LINE_BYTES >> 20} MiB",
                        "split the document, or write one document per line",
                    )
                    return
                if number == 1:
                    raw = raw.removeprefix(_BYTE_ORDER_MARK)
                try:
                    yield number, raw.rstrip(b"\n").removesuffix(b"\r").decode("utf-8")
                except UnicodeDecodeError as error:
                    problems.add(
                        path,
                        number,
                        f"byte {error.start + 1} of the line is not UTF-8 "
                        f"(0x{raw[error.start]:02x})",
                        "convert the file, for example with iconv -f LATIN1 -t UTF-8",
                    )
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        problems.add_damage(path, number + 1, f"damaged gzip stream ({error})")
    except OSError as error:
        if path.suffix != ".zst" or error.errno is not None:
            raise  # the storage's, not the file's
        problems.add_damage(path, number + 1, f"damaged zstd stream ({error})")


def _open(path: InputFile, problems: Problems) -> IO[bytes] | None:
    """Open a file for reading uncompressed bytes; None after noting why that is impossible."""
    magic = _MAGIC.get(path.suffix)
    if magic is None:
        return path.open("rb")
    with path.open("rb") as file:
        start = file.read(len(magic))
    if start and start != magic:
        problems.add(path, None, "is not compressed", f"rename it to {path.stem}")
        return None
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path_or_stream(path), "rb"))
    try:
        import pyarrow
    except ImportError:
        problems.add(path, None, "needs pyarrow to be read", "pip install 'memscale[data]'")
        return None
    return BufferedReader(pyarrow.input_stream(path_or_stream(path), compression="zstd"), 1 << 20)


def path_or_stream(path: InputFile) -> str | IO[bytes]:
    """Return what libraries open themselves: the name of a local file, a stream of any other."""
    return str(path) if isinstance(path, Path) else path.open("rb")


def json_rows(path: InputFile, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (1-based line, object) of a file of JSON lines; blank lines are passed over."""
    fix = "write one JSON object per line"
    for line, text in numbered_lines(path, problems):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            problems.add(path, line, f"is not JSON ({error})", fix)
            continue
        if not isinstance(row, dict):
            problems.add(path, line, f"holds a {type(row).__name__}", fix)
        elif half := _lone_surrogate(text, row):
            problems.add(path, line, f"holds {half}, half a character", "remove or replace it")
        else:
            yield line, row


def _lone_surrogate(text: str, row: Any) -> str | None:
    r"""Return the first `\ud800` … `\udfff` without its other half, None if there is none."""
    if "\\ud" not in text and "\\uD" not in text:
        return None
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return f"\\u{ord(error.object[error.start]):04x}"
    return None


def file_format(path: PurePath | InputFile) -> str:
    """Return the extension without .gz or .zst, lower case, without the dot: `jsonl`, `txt`."""
    name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    return Path(name).suffix.removeprefix(".")
