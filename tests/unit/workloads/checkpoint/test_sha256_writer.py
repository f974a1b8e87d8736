"""Files that are hashed while they are written."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.checkpoint.sha256_writer import Sha256Writer


@given(pieces=st.lists(st.binary(max_size=100), max_size=5))
def test_what_is_written_and_hashed_is_all_there_was(tmp_path_factory, pieces):
    path = tmp_path_factory.mktemp("written") / "file"

    with path.open("wb") as file, ThreadPoolExecutor(1) as thread:
        writer = Sha256Writer(file, thread)
        for piece in pieces:
            assert writer.write(memoryview(piece)) == len(piece)
        writer.flush()
        written = path.read_bytes()

    assert written == b"".join(pieces)
    expected = {"bytes": len(written), "sha256": hashlib.sha256(written).hexdigest()}
    assert writer.manifest_entry() == expected


def test_a_failure_to_write_is_told(tmp_path):
    path = tmp_path / "file"
    path.touch()

    with (
        path.open("rb") as file,
        ThreadPoolExecutor(1) as thread,
        pytest.raises(OSError, match="write"),
    ):
        Sha256Writer(file, thread).write(b"data")
