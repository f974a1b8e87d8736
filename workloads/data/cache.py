"""Cache of prepared data: folders that are complete or absent, built once.

<cache>/<key>/              complete: it got its name by a rename after the last byte was written
<cache>/<key>.lock          flock held while building; released by the kernel if the builder dies
<cache>/<key>.tmp-<random>/ being built, or left by a killed builder and removed by the next one
<cache>/sha256/             content hashes of input files, by path, size and modification time
"""

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_BLOCK_BYTES = 1 << 20


def cached_folder(
    cache: Path,
    key: str,
    build: Callable[[Path], None],
    log: Callable[[str], None] = lambda message: None,
) -> Path:
    """Return `cache/key`, calling `build(folder)` to fill it if it does not exist.

    Concurrent callers wait for the one that builds. If `build` raises, nothing is left behind.

    Args:
        cache: Folder of all caches; made if missing.
        key: Name that changes whenever the content should.
        build: Writes files into the folder it is given.
        log: Told when this call waits for somebody else's.
    """
    folder = cache / key
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{key}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"waiting: another process prepares {folder}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        for leftover in cache.glob(f"{key}.tmp-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        scratch = cache / f"{key}.tmp-{secrets.token_hex(4)}"
        scratch.mkdir()
        try:
            build(scratch)
            _flush(scratch)
            scratch.rename(folder)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    return folder


def cache_key(name: str, content: Mapping[str, Any]) -> str:
    """Return `<name>-<16 hex digits>` of the JSON of `content`."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def content_sha256(path: Path, cache: Path) -> str:
    """Return a file's SHA-256, cached until its size or modification time changes."""
    path = path.resolve()
    status = path.stat()
    known_as = f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}"
    memory = cache / "sha256" / hashlib.sha256(known_as.encode()).hexdigest()[:24]
    try:
        digest = memory.read_text()
        if len(digest) == 64:
            return digest
    except OSError:
        pass  # not known yet
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            hasher.update(block)
    digest = hasher.hexdigest()
    memory.parent.mkdir(parents=True, exist_ok=True)
    scratch = memory.with_suffix(f".tmp-{secrets.token_hex(4)}")
    scratch.write_text(digest)
    scratch.rename(memory)
    return digest


def _flush(folder: Path) -> None:
    """Bring every file of a folder to disk, so that a rename never precedes the content."""
    for path in folder.rglob("*"):
        if stat.S_ISREG(path.stat().st_mode):
            with path.open("rb") as file:
                os.fsync(file.fileno())
