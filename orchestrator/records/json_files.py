"""Files that survive every process: replaced atomically, read whole or not at all."""

import ctypes
import json
import os
import re
import secrets
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.records.errors import StoreError
from orchestrator.records.record_fields import check_fields_of

_encode = json.JSONEncoder(ensure_ascii=False).encode
"""As `json.dumps` without escapes, which would make an encoder for every field of ten thousand
specs."""


def write_json(
    path: Path, record: Mapping[str, Any], *, durable: bool = True, private: bool = False
) -> None:
    """Replace `path` atomically: readers see the old or the new content, never a part.

    Args:
        path: In a folder that exists: a sweep that was moved away must not get its folder again.
        record: A JSON object.
        durable: Wait until the disk has it. A heartbeat, replaced every second, need not.
        private: It holds a secret: only its owner may read it.
    """
    # A line per field. With `indent`, json is three times as slow: ten thousand specs take seconds.
    lines = (f" {json.dumps(key)}: {_encode(value)}" for key, value in record.items())
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    write_text(path, text, durable=durable, private=private)


def write_text(path: Path, text: str, *, durable: bool, private: bool = False) -> None:
    """Replace `path` by a text (`write_bytes`)."""
    write_bytes(path, text.encode(), durable=durable, private=private)


def write_bytes(path: Path, content: bytes, *, durable: bool = True, private: bool = False) -> None:
    """Replace `path` atomically, in a folder that exists. The arguments are those of `write_json`.

    Who may read it follows from the umask and from the folder (its setgid bit, its default ACL).
    """
    # Not by `tempfile`, whose files nobody but their owner may ever read.
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    mode = 0o600 if private else 0o666
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def flush_file_system(folder: Path) -> None:
    """Return when all that was written to the file system of a folder is on its disk.

    For ten thousand files it takes seconds, an fsync of each minutes.
    """
    libc, handle = ctypes.CDLL(None, use_errno=True), os.open(folder, os.O_RDONLY)
    try:
        if libc.syncfs(handle) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(handle)


_TEMPORARY = re.compile(r"\.(?P<name>.+)-[a-z0-9_]{8}|\.result-\d+\.json")
"""What `write_json`, and a rank before it links its result, leave behind when they are killed."""


def remove_temporary(folder: Path, *, of: str | None = None, but: Collection[str] = ()) -> None:
    """Delete what killed writers left in a folder. The caller knows that none of them still writes.

    Args:
        folder: It need not exist.
        of: Only what was to become the file of this name.
        but: Not of these.
    """
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            found = _TEMPORARY.fullmatch(entry.name) if entry.name.startswith(".") else None
            if found and found["name"] not in but and of in (None, found["name"]):
                Path(entry.path).unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the record, or None when the file does not exist.

    Raises:
        StoreError: If the file is there and is not a JSON object.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: not valid JSON ({error}); restore it or delete it") from error
    if not isinstance(record, dict):
        raise StoreError(
            f"{path}: expected an object, got {type(record).__name__}; restore it or delete it"
        )
    return record


def read_record(path: Path) -> dict[str, Any] | None:
    """Return a record whose fields are checked, or None when the file does not exist.

    Raises:
        StoreError: If it is damaged, or lacks a field that readers rely on.
    """
    record = read_json(path)
    if record is not None:
        check_fields_of(path, record)
    return record
