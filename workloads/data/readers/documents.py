"""Reader of text documents: JSON-lines, plain and Parquet, in bounded memory."""

import glob
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from workloads.data.readers.lines import (
    JSON_LINES,
    InputFile,
    file_format,
    json_rows,
    numbered_lines,
    path_or_stream,
)
from workloads.data.readers.problems import Problems

PLAIN_DOCUMENT_CHARS = 4_096
"""Plain text is cut into documents of at least this many characters."""
_LONGEST_PLAIN_CHARS = 16 * PLAIN_DOCUMENT_CHARS
TEXT_FORMATS = (*JSON_LINES, "parquet", "txt")
"""What is taken from a folder."""


def expand(spec: str | Sequence[str]) -> tuple[Path, ...]:
    """Return the files of a path, a folder, a glob pattern or a list of these.

    The files of a folder (all below it that hold text by their names) and those of a pattern are
    sorted. A pattern that matches nothing, and a folder without such files, is returned as it is:
    it will be reported as missing.
    """
    paths: list[Path] = []
    for text in [spec] if isinstance(spec, str) else spec:
        pattern = str(Path(text).expanduser())
        is_pattern = glob.has_magic(pattern) and not Path(pattern).exists()
        # Path.glob does not take absolute patterns.
        matches = sorted(glob.glob(pattern, recursive=True)) if is_pattern else []  # noqa: PTH207
        for path in [Path(match) for match in matches] or [Path(pattern)]:
            inside = sorted(path.rglob("*")) if path.is_dir() else []
            paths += [p for p in inside if file_format(p) in TEXT_FORMATS and p.is_file()] or [path]
    return tuple(dict.fromkeys(paths))


def documents(paths: Sequence[InputFile], *, text_field: str, problems: Problems) -> Iterator[str]:
    """Yield the text of every document; empty ones are passed over.

    Files ending in .jsonl, .json or .ndjson hold one object per line, .parquet a column, all others
    plain text; any but Parquet may be compressed (.gz, .zst).
    """
    for path in paths:
        kind = file_format(path)
        if kind in JSON_LINES:
            yield from _jsonl(path, text_field, problems)
        elif kind == "parquet":
            yield from _parquet(path, text_field, problems)
        else:
            yield from _plain(path, text_field, problems)


def is_plain_text(path: InputFile) -> bool:
    """Whether the file is read as plain text, by its name."""
    return file_format(path) not in (*JSON_LINES, "parquet")


def is_plain(path: InputFile) -> bool:
    """Whether the file holds about as many bytes as its text: it is not compressed."""
    return path.suffix not in (".gz", ".zst") and file_format(path) != "parquet"


def what_separates(path: InputFile) -> str:
    """Return what separates the documents of a file, for a message."""
    kind = file_format(path)
    if kind in JSON_LINES:
        return "each line is one document"
    if kind == "parquet":
        return "each row is one document"
    return (
        f"a document ends at the first blank line after {PLAIN_DOCUMENT_CHARS:,} characters, or at "
        f"a line end after {_LONGEST_PLAIN_CHARS:,}"
    )


def _jsonl(path: InputFile, text_field: str, problems: Problems) -> Iterator[str]:
    for line, row in json_rows(path, problems):
        if text_field not in row:
            problems.add(
                path,
                line,
                f"has no field {text_field!r}; it has {', '.join(map(repr, row)) or 'none'}",
                "set data.text_field (data prepare: --text-field)",
            )
        elif not isinstance(row[text_field], str):
            problems.add(
                path,
                line,
                f"{text_field} must be text, got {type(row[text_field]).__name__}",
                "correct it",
            )
        elif row[text_field].strip():
            yield row[text_field]


def _parquet(path: InputFile, text_field: str, problems: Problems) -> Iterator[str]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        problems.add(path, None, "needs pyarrow to be read", "pip install 'memscale[data]'")
        return
    try:
        file = parquet.ParquetFile(path_or_stream(path))
    except (ArrowInvalid, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise  # the storage's, not the file's
        problems.add(path, None, f"is not Parquet ({error})", "write it again")
        return
    if text_field not in file.schema_arrow.names:
        names = ", ".join(map(repr, file.schema_arrow.names))
        problems.add(
            path,
            None,
            f"has no column {text_field!r}; it has {names}",
            "set data.text_field (data prepare: --text-field)",
        )
        return
    row = 0
    for batch in file.iter_batches(batch_size=1_024, columns=[text_field]):
        for value in batch.column(0).to_pylist():
            row += 1
            if not isinstance(value, str):
                problems.add(path, row, f"{text_field} must be text, got {value!r}", "correct it")
            elif value.strip():
                yield value


def _plain(path: InputFile, text_field: str, problems: Problems) -> Iterator[str]:
    """Yield pieces cut at blank lines, or at line ends where no blank line comes for long.

    A file that begins like JSON lines becomes a problem, since its braces and names are no text.
    """
    held: list[str] = []
    size, begun = 0, False
    for number, line in numbered_lines(path, problems):
        if not begun and line.strip():
            begun = True
            if _has_field(line, text_field):
                wrong = f"is JSON with the field {text_field!r}, and is read as plain text"
                problems.add(path, number, wrong, "name the file .jsonl")
                return
        long_enough = size >= PLAIN_DOCUMENT_CHARS and not line.strip()
        if long_enough or size >= _LONGEST_PLAIN_CHARS:
            yield "\n".join(held)
            held, size = [], 0
        if held or line.strip():
            held.append(line)
            size += len(line) + 1
    if "".join(held).strip():
        yield "\n".join(held)


def _has_field(line: str, text_field: str) -> bool:
    """Whether a line is a JSON object with this field."""
    try:
        row = json.loads(line) if line.lstrip().startswith("{") else None
    except (json.JSONDecodeError, RecursionError):
        return False
    return isinstance(row, dict) and text_field in row
