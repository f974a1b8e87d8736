import contextlib
import errno
import json
import logging
import os
import resource
import shutil
from pathlib import Path

import pytest
import torch

from orchestrator.node.exception_outcome import exception_outcome
from orchestrator.records.storage_errors import full_message
from orchestrator.records.trial_spec import Outcome
from workloads.checkpoint import checkpoint


def state(step: int) -> dict[str, object]:
    return {
        "step": step,
        "weights": {"w": torch.full((300,), float(step))},
        "seconds": {"train": 0.1 * step},
    }


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_what_was_saved_comes_back(tmp_path):
    path = checkpoint.save(tmp_path, 3, state(3))

    loaded = checkpoint.load(path)

    assert checkpoint.latest(tmp_path) == path == tmp_path / "step-00000003"
    assert loaded["step"] == 3
    assert loaded["seconds"] == {"train": 0.1 * 3}
    assert torch.equal(loaded["weights"]["w"], torch.full((300,), 3.0))


def test_the_newest_two_are_kept_and_final_replaces_them(tmp_path):
    for step in (9, 10, 100):
        checkpoint.save(tmp_path, step, state(step))
    assert names(tmp_path) == ["step-00000010", "step-00000100"]

    path = checkpoint.save_final(tmp_path, {"step": 100, "metrics": {"train/loss": 0.1}})

    assert names(tmp_path) == ["final"]
    assert checkpoint.latest(tmp_path) == path
    assert checkpoint.load(path)["metrics"] == {"train/loss": 0.1}


def test_there_is_nothing_in_a_new_folder(tmp_path):
    assert checkpoint.latest(tmp_path / "absent") is None
    assert checkpoint.latest(tmp_path) is None


def test_leftovers_of_a_kill_are_removed_and_do_not_hinder_the_same_step(tmp_path):
    (tmp_path / ".tmp-step-00000005").mkdir()
    (tmp_path / ".tmp-step-00000005" / "state.pt").write_bytes(b"half")
    assert checkpoint.latest(tmp_path) is None
    assert names(tmp_path) == []

    (tmp_path / ".tmp-step-00000005").mkdir()
    checkpoint.save(tmp_path, 5, state(4))
    path = checkpoint.save(tmp_path, 5, state(5))

    assert names(tmp_path) == ["step-00000005"]
    assert checkpoint.load(path)["step"] == 5


def truncate(path: Path) -> None:
    with (path / "state.pt").open("r+b") as file:
        file.truncate(100)


def flip_a_bit(path: Path) -> None:
    content = bytearray((path / "state.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (path / "state.pt").write_bytes(content)


def lose_the_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def tear_the_manifest(path: Path) -> None:
    (path / "manifest.json").write_text('{"bytes": 1')


def lose_the_state(path: Path) -> None:
    (path / "state.pt").unlink()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (truncate, "state.pt has 100 bytes, its manifest says"),
        (flip_a_bit, "SHA-256 differs"),
        (lose_the_manifest, "unreadable"),
        (tear_the_manifest, "unreadable"),
        (lose_the_state, "unreadable"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path, caplog, damage, says):
    checkpoint.save(tmp_path, 1, state(1))
    damage(checkpoint.save(tmp_path, 2, state(2)))

    with caplog.at_level(logging.WARNING):
        found = checkpoint.latest(tmp_path)

    assert found == tmp_path / "step-00000001"
    assert "step-00000002" in caplog.text
    assert says in caplog.text
    assert names(tmp_path) == ["step-00000001"], (
        "a damaged newer one would be kept before a whole older one"
    )


@pytest.mark.parametrize("where", ["manifest.json", "state.pt", "."])
def test_a_checkpoint_that_cannot_be_read_now_is_not_given_up(tmp_path, monkeypatch, where):
    path = checkpoint.save(tmp_path, 1, state(1))
    unreadable = {str(path / where), str(tmp_path)} if where == "." else {str(path / where)}

    def failing(function):
        def wrapper(target, *args, **kwargs):
            if str(target) in unreadable:
                raise OSError(errno.EIO, "Input/output error", str(target))
            return function(target, *args, **kwargs)

        return wrapper

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", failing(Path.open))
        patch.setattr(os, "listdir", failing(os.listdir))
        with pytest.raises(OSError, match="Input/output error"):
            checkpoint.latest(tmp_path)
    assert checkpoint.latest(tmp_path) == path


class Killed(BaseException):
    pass


def count_down(monkeypatch: pytest.MonkeyPatch, calls_left: int) -> list[int]:
    """Die at the n-th call that changes the disk; return a list whose length is the number of calls made."""
    calls: list[int] = []

    def dying(function):
        def wrapper(*args, **kwargs):
            if len(calls) == calls_left:
                raise Killed
            calls.append(1)
            return function(*args, **kwargs)

        return wrapper

    monkeypatch.setattr(Path, "rename", dying(Path.rename))
    monkeypatch.setattr(Path, "mkdir", dying(Path.mkdir))
    monkeypatch.setattr(os, "fsync", dying(os.fsync))
    monkeypatch.setattr(shutil, "rmtree", dying(shutil.rmtree))
    monkeypatch.setattr(torch, "save", dying(torch.save))
    monkeypatch.setattr(json, "dump", dying(json.dump))
    return calls


@pytest.mark.parametrize("last", [False, True])
def test_a_kill_between_any_two_acts_leaves_a_whole_checkpoint(tmp_path, last):
    for calls_left in range(100):
        folder = tmp_path / str(calls_left)
        checkpoint.save(folder, 1, state(1))
        checkpoint.save(folder, 2, state(2))
        with pytest.MonkeyPatch.context() as patch:
            count_down(patch, calls_left)
            try:
                if last:
                    checkpoint.save_final(folder, state(3))
                else:
                    checkpoint.save(folder, 3, state(3))
                finished = True
            except Killed:
                finished = False

        found = checkpoint.latest(folder)

        assert found is not None
        expected = {"final": 3, "step-00000003": 3, "step-00000002": 2}[found.name]
        assert checkpoint.load(found)["step"] == expected
        assert not list(folder.glob(".tmp-*"))
        if finished:
            assert calls_left > 8
            return
    raise AssertionError("the save never finished")


def test_another_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    path = checkpoint.save(tmp_path, 1, state(1))
    monkeypatch.undo()

    with pytest.raises(ValueError, match="written in checkpoint format 99, this version reads 1"):
        checkpoint.load(path)


class Malicious:
    """Pickled, it is a call of a function of its choice."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self):
        return Path.touch, (self.made,)


def test_a_checkpoint_that_holds_code_is_refused_and_nothing_of_it_runs(tmp_path):
    made = tmp_path / "made"
    path = checkpoint.save(tmp_path / "c", 3, {"step": 3, "weights": Malicious(made)})

    with pytest.raises(ValueError, match="more than tensors and plain values"):
        checkpoint.load(checkpoint.latest(tmp_path / "c"))

    assert not made.exists()
    torch.load(path / "state.pt", weights_only=False)
    assert made.exists(), "the file would have run code"


def test_a_full_disk_keeps_the_checkpoint_before_and_gets_its_space_back(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 3, state(3))

    def full(path, state):
        path.write_bytes(bytes(1000))
        with Path("/dev/full").open("wb", buffering=0) as file:
            file.write(b"x")

    monkeypatch.setattr(checkpoint, "_write_file", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, 6, state(6))

    assert names(tmp_path) == ["step-00000003"]
    assert checkpoint.load(checkpoint.latest(tmp_path))["step"] == 3


@contextlib.contextmanager
def file_limit(n_bytes):
    """Let no file become larger, as `ulimit -f` does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_limit_of_file_sizes_keeps_the_checkpoint_before_and_is_told_as_a_full_disk(tmp_path):
    checkpoint.save(tmp_path, 3, state(3))
    large = {"step": 6, "weights": {"w": torch.zeros(250_000)}}

    with file_limit(500_000), pytest.raises((OSError, RuntimeError)) as failure:
        checkpoint.save(tmp_path, 6, large)

    assert exception_outcome(failure.value) is Outcome.DISK_FULL
    assert "`ulimit -f` shows the limit" in full_message(failure.value, tmp_path)
    assert names(tmp_path) == ["step-00000003"]


def test_a_checkpoint_does_not_make_the_folder_of_a_trial_that_was_moved(tmp_path):
    (tmp_path / "trial").mkdir()
    checkpoint.save(tmp_path / "trial" / "checkpoints", 3, state(3))
    (tmp_path / "trial").rename(tmp_path / "moved")

    with pytest.raises(FileNotFoundError):
        checkpoint.save(tmp_path / "trial" / "checkpoints", 6, state(6))

    assert names(tmp_path) == ["moved"]
    assert checkpoint.load(checkpoint.latest(tmp_path / "moved" / "checkpoints"))["step"] == 3


def test_every_file_is_on_the_disk_before_its_checkpoint_has_a_name(tmp_path, monkeypatch):
    """After a crash of the machine a name without contents would pass for a checkpoint."""
    happened, fsync, rename = [], os.fsync, Path.rename

    def synced(file):
        path = Path(f"/proc/self/fd/{file}").readlink()
        happened.append((path.name, path.stat().st_size if path.is_file() else None))
        fsync(file)

    def renamed(path, target):
        happened.append(("renamed", None))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    path = checkpoint.save(tmp_path, 3, state(3))

    sizes = {(name, (path / name).stat().st_size) for name in names(path)}
    at = happened.index(("renamed", None))
    assert sizes <= {*happened[:at]}
    # The names in a folder are on the disk once the folder is.
    assert {name for name, size in happened[:at] if size is None} == {".tmp-step-00000003"}
    assert happened[at + 1] == (tmp_path.name, None)
