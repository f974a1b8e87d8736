"""Every mistake a sweep file can hold, with the words its author reads.

The message of `broken_sweeps/NAME.yaml` is in `NAME.expected`. After a change of wording, write them anew with

    MEMSCALE_UPDATE_GOLDEN=1 python -m pytest tests/golden/test_broken_sweeps.py

and read `git diff tests/golden`: one message per line, so the diff is the change as its readers meet it.
Names in <angle brackets> stand for lists that grow: presets, architectures, recipes, what a data file looks like.
"""

import os
from pathlib import Path

import pytest

from orchestrator.records.errors import ConfigError
from orchestrator.sweep import registry
from orchestrator.sweep.load import load_sweep

FOLDER = Path(__file__).parent / "broken_sweeps"
FILES = sorted(FOLDER.glob("*.yaml"))


def _without_lists(told: str) -> str:
    """Replace lists that grow with every architecture and preset, so that adding one changes no file here."""
    lists = [
        ("<architectures>", ", ".join(registry.architectures())),
        ("<data sources>", ", ".join(registry.data_sources())),
        ("<recipes>", ", ".join(registry.recipes())),
    ]
    for name in registry.architectures():
        lists.append(("<presets>", ", ".join(registry.architecture(name).PRESETS)))
    for name in registry.data_sources():
        lists.append(("<format>", registry.data_source(name).Config.FORMAT))
    for placeholder, words in lists:
        told = told.replace(words, placeholder)
    return told


def test_there_are_enough_of_them() -> None:
    assert len(FILES) >= 45


def test_every_expectation_has_its_sweep() -> None:
    assert [p.stem for p in sorted(FOLDER.glob("*.expected"))] == [p.stem for p in FILES]


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_the_author_is_told(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError) as caught:
        load_sweep(file)

    told = _without_lists(str(caught.value).replace(str(file), file.name)) + "\n"
    assert caught.value.exit_code == 2
    assert str(FOLDER) not in told, "a message must not depend on where the file lies"
    expected = file.with_suffix(".expected")
    if os.environ.get("MEMSCALE_UPDATE_GOLDEN"):
        expected.write_text(told, encoding="utf-8")
    assert told == expected.read_text(encoding="utf-8")
