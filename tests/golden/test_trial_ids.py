"""Ids of the trials of bundled sweeps that need no data: they are the same in every version.

`trial_ids.json` holds them by sweep file, in the order of the plan. After a change of a sweep file,
or for a new one, write them anew with

    MEMSCALE_UPDATE_GOLDEN=1 python -m pytest tests/golden/test_trial_ids.py

and read `git diff tests/golden`: only ids of that file may differ.
"""

import json
import os
from pathlib import Path

import pytest

from orchestrator.sweep.load import load_sweep

SWEEPS = Path(__file__).parents[2] / "sweeps"
GOLDEN = Path(__file__).with_name("trial_ids.json")
FILES = [
    *(SWEEPS / name for name in ("quickstart.yaml", "quickstart_gpu.yaml")),
    *sorted((SWEEPS / "smoke").glob("*.yaml")),
    SWEEPS / "papers" / "memory_layers" / "table1-mini.yaml",
    SWEEPS / "papers" / "memoryformer" / "table3-mini.yaml",
]


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[str]]:
    if os.environ.get("MEMSCALE_UPDATE_GOLDEN"):
        found = {_name(file): _ids(file) for file in FILES}
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


def _name(file: Path) -> str:
    return file.relative_to(SWEEPS).as_posix()


def _ids(file: Path) -> list[str]:
    return [trial.trial_id for trial in load_sweep([file]).trials]


def test_each_file_has_its_ids_and_no_other(recorded: dict[str, list[str]]) -> None:
    assert list(recorded) == [_name(file) for file in FILES]


@pytest.mark.parametrize("file", FILES, ids=_name)
def test_ids_are_those_that_were_recorded(file: Path, recorded: dict[str, list[str]]) -> None:
    assert _ids(file) == recorded[_name(file)], (
        f"ids of {_name(file)} must not change: results that people have would belong to no trial, "
        "and `submit` would train all again. A new field is None by default, which no id contains; "
        "only a change of the sweep file itself may change its ids"
    )
