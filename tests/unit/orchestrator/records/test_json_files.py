import pytest

from orchestrator.records.errors import StoreError
from orchestrator.records.json_files import read_json, write_json


def test_readers_never_see_half_a_record(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})

    with pytest.raises(TypeError):
        write_json(path, {"a": object()})

    assert read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_not_durable_writes_do_not_wait_for_the_disk(tmp_path, monkeypatch):
    def refuse(file):
        raise AssertionError("fsync")

    monkeypatch.setattr("os.fsync", refuse)
    write_json(tmp_path / "a.json", {"a": 1}, durable=False)

    assert read_json(tmp_path / "a.json") == {"a": 1}


@pytest.mark.parametrize("content", [b"[1]", b"{", b"", b'{"host": "\xff"}'])
def test_damaged_record_says_what_to_do(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)

    with pytest.raises(StoreError, match="restore it or delete it"):
        read_json(tmp_path / "a.json")
