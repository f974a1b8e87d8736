"""Full disks: real errors of the kernel (/dev/full) as libraries pass them on; and storage that fails."""

import errno
from pathlib import Path

import pytest
import torch

from orchestrator.records import storage_errors

pytestmark = pytest.mark.faults


def full():
    with Path("/dev/full").open("wb", buffering=0) as file:
        file.write(b"x")


def caught(action):
    with pytest.raises(Exception) as info:  # noqa: PT011, whatever the library makes of it
        action()
    return info.value


def save_with_torch():
    with Path("/dev/full").open("wb", buffering=0) as file:
        torch.save({"a": torch.zeros(1000)}, file)


def fail_while_closing():
    """What torch.save does when a part was written: its archive then has another length than it thinks."""
    try:
        full()
    finally:
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598")


def test_full_disk_is_recognised_whatever_a_library_makes_of_it():
    assert storage_errors.is_full(caught(full))
    assert storage_errors.is_full(caught(save_with_torch))
    assert type(caught(fail_while_closing)) is RuntimeError
    assert storage_errors.is_full(caught(fail_while_closing))
    assert storage_errors.is_full(OSError(errno.EDQUOT, "Disk quota exceeded"))


@pytest.mark.parametrize(
    "code",
    ["EIO", "ESTALE", "EROFS", "ETIMEDOUT", "ENOTCONN", "ESHUTDOWN", "EHOSTDOWN", "EREMOTEIO"],
)
def test_storage_that_fails_is_told_from_wrong_paths_and_full_disks(code):
    error = OSError(getattr(errno, code), "…")

    def wrapped():
        try:
            raise error
        finally:
            raise RuntimeError("unexpected pos 704 vs 598")

    assert storage_errors.is_failing(error)
    assert storage_errors.is_failing(caught(wrapped))
    assert storage_errors.is_transient(error)
    assert not storage_errors.is_full(error)


@pytest.mark.parametrize("code", ["EACCES", "ENOENT", "EISDIR", "EMFILE", "ENOSPC"])
def test_other_errors_are_not_storage_that_fails(code):
    assert not storage_errors.is_failing(OSError(getattr(errno, code), "…"))


def test_sentence_names_the_folder_and_what_to_do_without_asking_the_storage(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "stat", lambda *_: pytest.fail("asked"))
    inside = OSError(errno.EIO, "Input/output error", str(tmp_path / ".x.json-abcd1234"))
    outside = OSError(errno.ESTALE, "Stale file handle", "/data/text.jsonl")

    told = storage_errors.failing_message(inside, tmp_path)

    assert told.startswith(f"the storage of {tmp_path} fails (Input/output error); ")
    assert f"`df {tmp_path}`" in told
    assert "training goes on from its last checkpoint" in told
    of_command = storage_errors.failing_message(inside, tmp_path, of_command=True)
    assert of_command.endswith("`dmesg`), then run this command again")
    assert storage_errors.failing_message(outside, tmp_path).startswith(
        "the storage of /data/text.jsonl fails (S"
    )


def test_other_errors_are_not_full_disks():
    assert not storage_errors.is_full(OSError(errno.EIO, "Input/output error"))
    assert not storage_errors.is_full(RuntimeError("No space left on device"))
    assert not storage_errors.is_full(ValueError("x"))


def test_sentence_says_where_how_much_is_free_and_what_to_do(tmp_path):
    told = storage_errors.full_message(caught(full), tmp_path / "not" / "there")

    assert told.startswith(f"no space left on the disk at {tmp_path}/not/there: ")
    assert " free; free some there (`du -sh " in told
    assert f"`du -sh {tmp_path}`" in told


def test_named_file_and_used_up_quota_are_told(tmp_path):
    error = OSError(errno.EDQUOT, "Disk quota exceeded", str(tmp_path / "x.pt"))

    told = storage_errors.full_message(error, Path("/"))
    assert told.startswith(f"your disk quota is used up at {tmp_path}/x.pt (`quota -s` shows it)")
    assert " of " not in told.partition(";")[0], "what the disk has free is beside the point"


def test_a_limit_of_file_sizes_is_told_by_its_name(tmp_path):
    error = OSError(errno.EFBIG, "File too large", str(tmp_path / "x.pt"))

    assert storage_errors.is_full(error)
    assert storage_errors.is_limited(error)
    told = storage_errors.full_message(error, Path("/"))
    assert told.startswith(f"a file at {tmp_path}/x.pt is as large as this process may make one")
    assert "`ulimit -f` shows the limit" in told
    assert "free some" not in told


def test_size_of_a_folder(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(bytes(5000))
    (tmp_path / "y").write_bytes(bytes(300))

    assert 5300 <= storage_errors.folder_bytes(tmp_path) <= 5300 + 2 * 4096
