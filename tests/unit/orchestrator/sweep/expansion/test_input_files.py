"""Input files: found beside the sweep file or in the current folder, hashed into the identity."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.records.errors import ConfigError
from orchestrator.sweep.expansion.input_files import content_sha256
from orchestrator.sweep.load import Sweep, load_sweep

Load = Callable[..., Sweep]
Problems = Callable[..., list[str]]

HEADER = """
name: test
data: {{source: files, path: {}}}
train: {{tokens: 640, batch_tokens: 64, seq_len: 16, lr: 1.0e-2}}
model: {{architecture: plain, preset: tiny}}
"""


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_path_starts_at_the_sweep_file(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "facts.tsv").write_text("here")
    monkeypatch.chdir(elsewhere)
    from_here = load("", header=HEADER.format("facts.tsv")).trials[0]
    (tmp_path / "facts.tsv").write_text("beside")
    beside = load("", header=HEADER.format("facts.tsv")).trials[0]

    assert from_here.data["path"] == str(elsewhere / "facts.tsv")
    assert from_here.data_sha256 == {"path": sha256("here")}
    assert beside.data["path"] == str(tmp_path / "facts.tsv")
    assert beside.data_sha256 == {"path": sha256("beside")}
    assert beside.trial_id != from_here.trial_id


def test_moving_a_file_trains_nothing(load: Load, tmp_path: Path) -> None:
    for name in ("one.tsv", "two.tsv"):
        (tmp_path / name).write_text("the same facts")

    one, two = (load("", header=HEADER.format(name)).trials[0] for name in ("one.tsv", "two.tsv"))

    assert one.data["path"] != two.data["path"]
    assert one.trial_id == two.trial_id


def test_a_changed_file_is_another_trial(load: Load, tmp_path: Path) -> None:
    file = tmp_path / "facts.tsv"
    file.write_text("a fact")
    before = load("", header=HEADER.format("facts.tsv")).trials[0]
    file.write_text("two facts")

    assert load("", header=HEADER.format("facts.tsv")).trials[0].trial_id != before.trial_id


def test_a_list_of_files_is_hashed_in_its_order(load: Load, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)

    forward, backward = (
        load("", header=HEADER.format(paths)).trials[0] for paths in ("[a, b]", "[b, a]")
    )

    assert forward.data["path"] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert forward.data_sha256["path"] == sha256(f"{sha256('a')}\n{sha256('b')}")
    assert forward.trial_id != backward.trial_id


def test_a_glob_is_hashed_over_what_it_matches(load: Load, tmp_path: Path) -> None:
    for name in ("part-0.txt", "part-1.txt"):
        (tmp_path / name).write_text(name)
    two = load("", header=HEADER.format("part-*.txt")).trials[0]
    (tmp_path / "part-2.txt").write_text("more")
    three = load("", header=HEADER.format("part-*.txt")).trials[0]

    assert two.data["path"] == str(tmp_path / "part-*.txt")
    assert two.data_sha256 != three.data_sha256


def test_a_missing_file_says_what_is_expected_and_what_is_near(
    problems: Problems, tmp_path: Path
) -> None:
    (tmp_path / "facts.tsv.gz").write_text("x")
    (problem,) = problems("", header=HEADER.format("facts.tsv"))

    assert problem == (
        "3:29: data.path: no such file: facts.tsv (looked beside the sweep file and in the current folder); "
        "did you mean facts.tsv.gz? It should be one fact per line"
    )


def test_each_missing_file_of_a_list_is_told_in_its_place(
    problems: Problems, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("a")
    found = problems("", header=HEADER.format("[nothing1, a, nothing2]"))

    assert [problem.partition(" (")[0] for problem in found] == [
        "3:30: data.path[0]: no such file: nothing1",
        "3:43: data.path[2]: no such file: nothing2",
    ]


def test_a_folder_is_no_file(problems: Problems, tmp_path: Path) -> None:
    (tmp_path / "facts").mkdir()
    (problem,) = problems("", header=HEADER.format("facts"))

    assert problem == "3:29: data.path: facts is a folder; expected: one fact per line"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("{source: tokens, path: toks.bin}", r"data\.path: toks\.bin: \S*/toks\.bin is a file; expected: a folder"),
        ("{source: tokens, path: [begun]}", r"\S*/begun/manifest\.json is not there; expected: a folder"),
        ("{source: text, path: 'hf:owner'}", "names no data set of the hub; write hf:OWNER/NAME"),
        ("{source: text, path: 'hf:o/n', max_bytes: 9}", "max_bytes does not go with a data set of the hub"),
    ],
)  # fmt: skip
def test_what_is_to_be_prepared_first_is_told(tmp_path: Path, data: str, told: str) -> None:
    (tmp_path / "toks.bin").write_bytes(b"tokens")
    (tmp_path / "begun").mkdir()
    file = tmp_path / "sweep.yaml"
    train = "train: {tokens: 640, batch_tokens: 64, seq_len: 16, lr: 1.0e-2}"
    file.write_text(
        f"name: test\ndata: {data}\n{train}\nmodel: {{architecture: dense, preset: d8}}\n"
    )

    with pytest.raises(ConfigError, match=told):
        load_sweep(file)


def test_a_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "facts.tsv"
    file.write_text("first")
    status = file.stat()
    assert content_sha256(file) == sha256("first")

    file.write_text("other")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert content_sha256(file) == sha256("first"), "same size and time: taken from memory"

    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert content_sha256(file) == sha256("other")
