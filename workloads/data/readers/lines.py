"""Reader of numbered lines of plain or gzipped UTF-8 files."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workloads.data.readers.problems import Problems

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def numbered_lines(path: Path, problems: Problems) -> Iterator[tuple[int, str]]:
    r"""Yield (1-based number, text without its line end) of every line; `\n` and `\r\n` end lines.

    A line that is not UTF-8 becomes a problem, and so does a damaged gzip stream, or none; the rest
    is still yielded.
    """
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for raw in file:
                number += 1
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
                        "convert the file, for example with iconv -t UTF-8",
                    )
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        if number == 0 and not _is_gzip(path):
            problems.add(path, None, "is not compressed", f"rename it to {path.stem}")
        else:
            problems.add(path, number + 1, f"damaged gzip stream ({error})", "copy the file again")


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def json_rows(path: Path, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
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


def file_format(path: Path) -> str:
    """Return the extension without .gz, lower case, without the dot: `jsonl`, `tsv`, `txt`."""
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix.removeprefix(".")
