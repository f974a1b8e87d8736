"""A file that is hashed while it is written, so that it need not be read again."""

import hashlib
from concurrent.futures import Executor
from typing import BinaryIO


class Sha256Writer:
    """Passes on what is written, and hashes it in another thread meanwhile."""

    def __init__(self, file: BinaryIO, thread: Executor) -> None:
        """Take a file that is open for writing, at its beginning, and a thread to hash in."""
        self._file, self._thread, self._hash = file, thread, hashlib.sha256()
        self._n_bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data`, which is not needed any more when this returns."""
        hashed = self._thread.submit(self._hash.update, data)
        try:
            written = self._file.write(data)
        finally:
            hashed.result()
        self._n_bytes += written
        return written

    def flush(self) -> None:
        """Hand over to the system what is held back."""
        self._file.flush()

    def manifest_entry(self) -> dict[str, int | str]:
        """Return the bytes that were written, and their SHA-256."""
        return {"bytes": self._n_bytes, "sha256": self._hash.hexdigest()}
