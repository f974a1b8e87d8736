"""Recorded input files of a submitted sweep: original paths and content hashes.

`NAME.inputs.json` lies beside a recorded `NAME.yaml`, whose relative paths start in another folder.
With it the recorded file can be planned and submitted from anywhere, also after its folder moved
together with the data.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.records.errors import StoreError
from orchestrator.records.json_files import read_json, write_json


@dataclass(frozen=True, kw_only=True)
class RecordedInput:
    """A path or glob of a sweep file."""

    paths: tuple[Path, ...]
    """Where it may be: as it was, then where it lay from the record."""
    sha256: str
    """Of its content; of a glob, of all that it matched."""


def record_file(sweep_file: Path) -> Path:
    """Return the place of the record of a sweep file."""
    return sweep_file.with_name(f"{sweep_file.stem}.inputs.json")


def write(
    sweep_file: Path, labels: Sequence[str], inputs: Sequence[Mapping[str, RecordedInput]]
) -> None:
    """Write the record of a sweep file; delete an old one if no input is to be recorded.

    Args:
        sweep_file: What is recorded.
        labels: Of the files that it holds (`discovery.split`).
        inputs: Of each of them: path as written -> what it means.
    """
    path = record_file(sweep_file)
    if not any(inputs):
        path.unlink(missing_ok=True)
        return
    folder = sweep_file.absolute().parent
    files = {
        label: {
            written: {
                "path": str(found.paths[0]),
                "from_here": os.path.relpath(found.paths[0], folder),
                "sha256": found.sha256,
            }
            for written, found in of_file.items()
        }
        for label, of_file in zip(labels, inputs, strict=True)
    }
    write_json(path, {"files": files})


def read(sweep_file: Path, label: str) -> dict[str, RecordedInput]:
    """Return path as written -> record, for one of the files that a sweep file holds.

    Raises:
        StoreError: If the record is damaged.
    """
    path = record_file(sweep_file)
    record = read_json(path)
    if record is None:
        return {}
    folder = sweep_file.absolute().parent
    try:
        return {
            written: RecordedInput(
                paths=(Path(found["path"]), Path(os.path.normpath(folder / found["from_here"]))),
                sha256=str(found["sha256"]),
            )
            for written, found in record["files"].get(label, {}).items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{path}: no record of input files ({error}); restore it, or delete it and "
            "write absolute paths into the sweep file"
        ) from error
