"""Files that change after a trial was named by them; the hashes are hashlib's own."""

import hashlib
from pathlib import Path

import pytest

from orchestrator.sweep.expansion import input_files
from workloads.data.file_hashes import combined, require_unchanged
from workloads.data.readers.problems import DataError
from workloads.data.sources import text


def sha256(content):
    return hashlib.sha256(content.encode()).hexdigest()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("first")
    return path


def test_a_file_that_is_what_it_was_passes_and_is_read_once(file, tmp_path, monkeypatch):
    opened = []
    really_open = Path.open

    def watched(path, *args, **more):
        opened.append(path)
        return really_open(path, *args, **more)

    monkeypatch.setattr(Path, "open", watched)
    for named in (file, (file,)):
        require_unchanged({"path": named}, {"path": sha256("first")}, tmp_path / "cache")

    assert opened.count(file) == 1


def test_a_changed_file_is_named_with_what_to_do(file, tmp_path):
    file.write_text("second, and longer")

    with pytest.raises(DataError) as caught:
        require_unchanged({"path": file}, {"path": sha256("first")}, tmp_path / "cache")
    assert str(caught.value) == (
        f"data.path: {file} changed since this trial was submitted; "
        "restore it, or submit again (which makes other trials)"
    )


def test_a_file_that_is_gone_and_one_more_in_a_pattern_are_told(file, tmp_path):
    other = tmp_path / "z.txt"
    digest = sha256(f"{sha256('first')}\n{sha256('z')}")
    cache = tmp_path / "cache"
    with pytest.raises(DataError, match=rf"data.path: {other} is gone since"):
        require_unchanged({"path": (file, other)}, {"path": digest}, cache)
    other.write_text("z")
    require_unchanged({"path": (file, other)}, {"path": digest}, cache)
    third = tmp_path / "zz.txt"
    third.write_text("zz")

    with pytest.raises(DataError, match=r"one of 3 files \(.*corpus.txt …\) changed since"):
        require_unchanged({"path": (file, other, third)}, {"path": digest}, cache)


@pytest.mark.parametrize("digests", [["a"], ["a", "b"], ["b", "a", "a"]])
def test_hash_of_several_files_is_that_of_the_submission(digests):
    assert combined(digests) == input_files.combined(digests)


def test_a_file_that_changes_while_it_is_read_leaves_nothing_in_the_cache(tmp_path, monkeypatch):
    file, cache = tmp_path / "corpus.txt", tmp_path / "cache"
    file.write_text("A line of text.\n\n" * 2000)
    build = text._build

    def edited_meanwhile(config, folder, log):
        build(config, folder, log)
        with file.open("a") as more:
            more.write("One line more.\n")

    config = text.Config(path=str(file), vocab_size=300, valid_share=0.5)
    with monkeypatch.context() as patch:
        patch.setattr(text, "_build", edited_meanwhile)
        with pytest.raises(DataError, match="data.path: changed while it was read"):
            config.prepare(cache)
    assert list(cache.glob("text-*/*")) == []
    assert len(config.prepare(cache).train) > 0
