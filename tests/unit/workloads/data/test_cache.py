import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from workloads.data.cache import cache_key, cached_folder, content_sha256


def write(folder: Path) -> None:
    (folder / "content").write_text("whole")


def forbidden(folder: Path) -> None:
    raise AssertionError("built although it was complete")


def test_builds_once_and_then_only_looks(tmp_path):
    folder = cached_folder(tmp_path / "cache", "key", write)
    assert (folder / "content").read_text() == "whole"
    assert cached_folder(tmp_path / "cache", "key", forbidden) == folder


def test_a_failed_build_leaves_nothing_and_is_tried_again(tmp_path):
    def fail(folder: Path) -> None:
        write(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cached_folder(tmp_path, "key", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["key.lock"]
    assert (cached_folder(tmp_path, "key", write) / "content").exists()


def test_what_a_killed_builder_left_is_ignored_and_removed(tmp_path):
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from workloads.data.cache import cached_folder\n"
        "def build(folder):\n"
        "    (folder / 'content').write_text('ha')\n"
        "    print('half done', flush=True)\n"
        "    sys.stdin.read()\n"
        f"cached_folder(Path({str(tmp_path)!r}), 'key', build)\n"
    )
    builder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with builder:
        assert builder.stdout.readline() == "half done\n"
        os.kill(builder.pid, signal.SIGKILL)
        builder.wait()
    (leftover,) = tmp_path.glob("key.tmp-*")
    assert (leftover / "content").read_text() == "ha"
    assert not (tmp_path / "key").exists()

    folder = cached_folder(tmp_path, "key", write)
    assert (folder / "content").read_text() == "whole"
    assert not leftover.exists()


def test_a_second_caller_waits_for_the_first_and_says_so(tmp_path):
    second_waits = threading.Event()
    built = []

    def build(folder: Path) -> None:
        built.append(folder)
        assert second_waits.wait(timeout=60)
        write(folder)

    first = threading.Thread(target=cached_folder, args=(tmp_path, "key", build))
    first.start()
    said: list[str] = []

    def log(message: str) -> None:
        said.append(message)
        second_waits.set()

    while not built:
        first.join(timeout=0.01)
    folder = cached_folder(tmp_path, "key", forbidden, log)
    first.join()
    assert said == [f"waiting: another process prepares {tmp_path / 'key'}"]
    assert (folder / "content").read_text() == "whole"


def test_keys_follow_the_content():
    assert cache_key("text", {"a": 1, "b": [2]}) == cache_key("text", {"b": [2], "a": 1})
    assert cache_key("text", {"a": 1}) != cache_key("text", {"a": 2})
    assert cache_key("text", {}).startswith("text-")


def test_hashes_follow_the_content_and_are_remembered(tmp_path):
    file, cache = tmp_path / "file", tmp_path / "cache"
    file.write_bytes(b"abc")
    # The published SHA-256 of "abc".
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert content_sha256(file, cache) == expected
    (remembered,) = (cache / "sha256").iterdir()
    remembered.write_text("f" * 64)
    assert content_sha256(file, cache) == "f" * 64
    remembered.write_text("torn")
    assert content_sha256(file, cache) == expected
    file.write_bytes(b"abcd")
    assert content_sha256(file, cache) != expected


def test_a_resumable_build_finds_what_an_earlier_one_left(tmp_path):
    def fail(folder):
        (folder / "half").write_text("1")
        raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        cached_folder(tmp_path, "key", fail, resumable=True)
    assert not (tmp_path / "key").exists()
    found = []
    folder = cached_folder(
        tmp_path, "key", lambda f: found.extend(p.name for p in f.iterdir()), resumable=True
    )
    assert found == ["half"]
    assert [p.name for p in folder.iterdir()] == ["half"]


def test_wrong_data_leave_nothing_to_resume(tmp_path):
    def refuse(folder):
        raise ValueError("bad data")

    with pytest.raises(ValueError, match="bad data"):
        cached_folder(tmp_path, "key", refuse, resumable=True)
    assert not list(tmp_path.glob("key.partial"))
