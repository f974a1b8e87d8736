"""Cache of prepared data: folders that are complete or absent, built once.

<cache>/<key>/              complete: it got its name by a rename after the last byte was written
<cache>/<key>.lock          flock held while building; released by the kernel if the builder dies
<cache>/<key>.tmp-<random>/ being built, or left by a killed builder and removed by the next one
<cache>/<key>.partial/      the same, but the next builder goes on with it
<cache>/sha256/             content hashes of input files, by path, size and modification time
"""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from workloads.data.readers.problems import NetworkError

_LOCK_POLL_S = 0.2
_LOG_WAITING_S = 60.0


def cached_folder(
    cache: Path,
    key: str,
    build: Callable[[Path], None],
    log: Callable[[str], None] = lambda message: None,
    *,
    resumable: bool = False,
) -> Path:
    """Return `cache/key`, calling `build(folder)` to fill it if it does not exist.

    Concurrent callers wait for the one that builds. If `build` raises, nothing is left behind,
    unless it is resumable and something else than the data was wrong.

    Args:
        cache: Folder of all caches; made if missing.
        key: Name that changes whenever the content should.
        build: Writes files into the folder it is given.
        log: Told each minute that this call waits for somebody else's.
        resumable: `build` goes on with what an earlier one left in its folder.
    """
    folder = cache / key
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    waiting = f"waiting: another process prepares {folder}"
    with hold_lock(cache / f"{key}.lock", lambda: log(waiting)):
        if folder.is_dir():
            return folder
        for leftover in cache.glob(f"{key}.tmp-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        scratch = cache / f"{key}.{'partial' if resumable else f'tmp-{secrets.token_hex(4)}'}"
        scratch.mkdir(exist_ok=resumable)
        try:
            build(scratch)
            _flush(scratch)
            scratch.rename(folder)
        except BaseException as error:
            wrong_data = isinstance(error, ValueError) and not isinstance(error, NetworkError)
            if not resumable or wrong_data:
                shutil.rmtree(scratch, ignore_errors=True)
            raise
    return folder


@contextlib.contextmanager
def hold_lock(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the flock of a file, made if missing; the kernel releases it if this process dies.

    Args:
        path: Stays where it is, so that everybody locks the same file.
        waiting: Called each minute while somebody else holds it, as a sign of life.
    """
    told = -math.inf
    with path.open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - told >= _LOG_WAITING_S:
                    told = time.monotonic()
                    waiting()
                time.sleep(_LOCK_POLL_S)
        yield


def cache_key(name: str, content: Mapping[str, Any]) -> str:
    """Return `<name>-<16 hex digits>` of the JSON of `content`."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def content_sha256(path: Path, cache: Path) -> str:
    """Return a file's SHA-256, cached until its size or modification time changes."""
    path = path.resolve()
    memory = _sha256_memory(path, cache)
    known = _remembered(memory)
    if known is not None:
        return known
    digest = file_sha256(path)
    memory.parent.mkdir(parents=True, exist_ok=True)
    scratch = memory.with_suffix(f".tmp-{secrets.token_hex(4)}")
    scratch.write_text(digest)
    scratch.rename(memory)
    return digest


def remembered_sha256(path: Path, cache: Path) -> str | None:
    """Return a file's SHA-256 if `content_sha256` knows it; the file is not read."""
    return _remembered(_sha256_memory(path.resolve(), cache))


def _sha256_memory(path: Path, cache: Path) -> Path:
    """Return where the hash of a file is remembered while it is as it is now."""
    status = path.stat()
    known_as = f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}"
    return cache / "sha256" / hashlib.sha256(known_as.encode()).hexdigest()[:24]


def _remembered(memory: Path) -> str | None:
    try:
        digest = memory.read_text()
    except OSError:
        return None  # not known yet
    return digest if len(digest) == 64 else None


def file_sha256(path: Path) -> str:
    """Return a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(folder: Path) -> None:
    """Bring every file of a folder to disk, so that a rename never precedes the content."""
    for path in folder.rglob("*"):
        if stat.S_ISREG(path.stat().st_mode):
            with path.open("rb") as file:
                os.fsync(file.fileno())
