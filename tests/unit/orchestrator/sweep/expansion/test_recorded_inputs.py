"""Recorded input files: a recorded sweep file means the same trials from any folder."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from orchestrator.records.errors import ConfigError, StoreError
from orchestrator.sweep.expansion import recorded_inputs
from orchestrator.sweep.load import Sweep, load_sweep
from orchestrator.sweep.parsing import discovery
from workloads.data.preparation.prepare import PrepareRequest, prepare

LoadFiles = Callable[..., Sweep]

HEADER = """
name: test
data: {{source: files, path: {}}}
train: {{tokens: 640, batch_tokens: 64, seq_len: 16, lr: 1.0e-2}}
model: {{architecture: plain, preset: {}}}
"""


@pytest.fixture
def recorded(
    tmp_path: Path, load_files: LoadFiles, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Sweep]:
    """Two files that name data in two ways, recorded in another folder; and what they mean."""
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    for name in ("facts.tsv", "data/part-0.txt", "data/part-1.txt"):
        (project / name).write_text(name)
    monkeypatch.chdir(project)
    sweep = load_files(
        {"a.yaml": "", "b.yaml": ""},
        headers={
            "a.yaml": HEADER.format("facts.tsv", "tiny"),
            "b.yaml": HEADER.format('"data/part-*.txt"', "small"),
        },
    )
    copy = project / "runs" / "test" / "sweep.yaml"
    copy.parent.mkdir(parents=True)
    copy.write_text(sweep.text)
    labels = [source.label for source in discovery.split(copy, sweep.text)]
    recorded_inputs.write(copy, labels, sweep.inputs)
    monkeypatch.chdir("/")
    return copy, sweep


def load_again(load_files: LoadFiles, copy: Path) -> Sweep:
    # `load_files` writes the text again, under the same name in the folder of the test.
    return load_files({str(copy): copy.read_text()}, headers={str(copy): ""})


def test_it_loads_from_any_folder(load_files: LoadFiles, recorded: tuple[Path, Sweep]) -> None:
    copy, sweep = recorded

    again = load_again(load_files, copy)

    assert [t.trial_id for t in again.trials] == [t.trial_id for t in sweep.trials]
    assert [t.data for t in again.trials] == [t.data for t in sweep.trials]
    copy.with_name("sweep.inputs.json").unlink()
    with pytest.raises(ConfigError, match="no such file"):
        load_again(load_files, copy)


def test_it_loads_after_the_project_moved(
    load_files: LoadFiles, recorded: tuple[Path, Sweep], tmp_path: Path
) -> None:
    _, sweep = recorded
    moved = tmp_path / "elsewhere" / "deep"
    moved.parent.mkdir()
    shutil.move(tmp_path / "project", moved)

    again = load_again(load_files, moved / "runs" / "test" / "sweep.yaml")

    assert [t.trial_id for t in again.trials] == [t.trial_id for t in sweep.trials]
    assert again.trials[0].data["path"] == str(moved / "facts.tsv")


def test_another_file_of_that_name_is_passed_over(
    load_files: LoadFiles,
    recorded: tuple[Path, Sweep],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy, sweep = recorded
    monkeypatch.chdir(tmp_path)
    (tmp_path / "facts.tsv").write_text("other facts")

    assert load_again(load_files, copy).trials[0].trial_id == sweep.trials[0].trial_id


@pytest.mark.parametrize("name", ["facts.tsv", "data/part-1.txt"])
def test_changed_content_is_refused(
    load_files: LoadFiles, recorded: tuple[Path, Sweep], tmp_path: Path, name: str
) -> None:
    file = tmp_path / "project" / name
    file.write_text("changed")
    os.utime(file, ns=(1, 1))

    with pytest.raises(
        ConfigError, match="does not hold what it held when the sweep was submitted"
    ):
        load_again(load_files, recorded[0])


def test_without_inputs_an_old_record_goes(load_files: LoadFiles, tmp_path: Path) -> None:
    copy = tmp_path / "copy.yaml"
    recorded_inputs.record_file(copy).write_text("{}")
    recorded_inputs.write(copy, ["copy.yaml"], [{}])

    assert not recorded_inputs.record_file(copy).exists()


@pytest.mark.parametrize("text", ["[]", "{}", '{"files": {"a.yaml": 3}}', "{torn"])
def test_a_damaged_record_is_one_sentence(tmp_path: Path, text: str) -> None:
    copy = tmp_path / "sweep.yaml"
    recorded_inputs.record_file(copy).write_text(text)

    with pytest.raises(StoreError, match=r"sweep\.inputs\.json"):
        recorded_inputs.read(copy, "a.yaml")


@pytest.mark.parametrize(
    "data", ["{source: tokens, path: tokens}", "{source: text, path: corpus, vocab_size: 300}"]
)
def test_folders_are_recorded_by_what_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str
) -> None:
    """Real sources: prepared tokens, of which the manifest counts, and a folder of text."""
    (tmp_path / "corpus").mkdir()
    text = tmp_path / "corpus" / "a.txt"
    text.write_text("a river flows\n" * 50)
    np.arange(2_000, dtype=np.uint16).tofile(tmp_path / "a.bin")
    request = PrepareRequest(
        sources=(str(tmp_path / "a.bin"),), out=tmp_path / "tokens", tokenizer=None, vocab_size=2000
    )
    prepare(request, lambda said: None)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "a.yaml"
    section = HEADER.format("", "d8").replace("{source: files, path: }", data)
    file.write_text(section.replace("plain", "dense"))
    sweep = load_sweep(file)
    copy = tmp_path / "runs" / "sweep.yaml"
    copy.parent.mkdir()
    copy.write_text(sweep.text)
    labels = [source.label for source in discovery.split(copy, sweep.text)]
    recorded_inputs.write(copy, labels, sweep.inputs)
    monkeypatch.chdir("/")

    assert [t.trial_id for t in load_sweep(copy).trials] == [t.trial_id for t in sweep.trials]
    changed = text if "corpus" in data else tmp_path / "tokens" / "manifest.json"
    changed.write_text(changed.read_text() + "\n")
    with pytest.raises(ConfigError, match="does not hold what it held"):
        load_sweep(copy)
