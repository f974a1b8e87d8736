"""Checkpoints that are complete when they have their name, and that say so when they were damaged later.

    checkpoints/
      .tmp-…            being written or being deleted; removed at the next start
      step-00000120/    state.pt, manifest.json (bytes and SHA-256 of state.pt)
      final/            the same, weights only: written once, after the last evaluation

Order of a save: write aside, fsync, rename, fsync the folder, then delete older ones. A kill between any two
of these leaves a complete checkpoint behind (or none was ever made).
"""

import hashlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import torch

LOG = logging.getLogger(__name__)
FORMAT = 1
FINAL = "final"
_STATE, _MANIFEST, _ASIDE = "state.pt", "manifest.json", ".tmp-"


class DamagedError(Exception):
    """A checkpoint that has its name but not its content."""


def save(folder: Path, step: int, state: dict[str, Any], *, keep: int = 2) -> Path:
    """Write the state after `step`, delete all but the newest `keep`, return the checkpoint's path."""
    path = _write(folder, f"step-{step:08d}", state)
    for older in _steps(folder)[keep:]:
        _discard(older)
    return path


def save_final(folder: Path, state: dict[str, Any]) -> Path:
    """Write what outlives the run, then delete the checkpoints of steps."""
    path = _write(folder, FINAL, state)
    for older in _steps(folder):
        _discard(older)
    return path


def latest(folder: Path) -> Path | None:
    """Return the newest undamaged checkpoint (`final` before any step), None when there is none.

    Removes leftovers of an earlier life and every damaged checkpoint, naming each in the log. Only the process
    that writes here may call this.
    """
    if not folder.is_dir():
        return None
    for leftover in folder.glob(f"{_ASIDE}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    final = folder / FINAL
    for path in ([final] if final.is_dir() else []) + _steps(folder):
        try:
            verify(path)
        except DamagedError as damage:
            LOG.warning("%s; removed it and go on from the one before", damage)
            _discard(path)
        else:
            return path
    return None


def verify(path: Path) -> None:
    """Compare a checkpoint with its manifest.

    Raises:
        DamagedError: Saying what is missing or different.
    """
    try:
        manifest = json.loads((path / _MANIFEST).read_text())
        expected = (manifest["bytes"], manifest["sha256"])
        size = (path / _STATE).stat().st_size
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{path}: manifest or state is unreadable ({error})") from error
    if size != expected[0]:
        raise DamagedError(f"{path}: {_STATE} has {size} bytes, its manifest says {expected[0]}")
    if _sha256(path / _STATE) != expected[1]:
        raise DamagedError(f"{path}: {_STATE} is not what its manifest says (SHA-256 differs)")


def load(path: Path) -> dict[str, Any]:
    """Return the saved state, tensors on the CPU.

    Raises:
        ValueError: If another version of the format wrote it.
    """
    # weights_only: a checkpoint can hold tensors and plain values, never code.
    state: dict[str, Any] = torch.load(path / _STATE, map_location="cpu", weights_only=True)
    if state["format"] != FORMAT:
        raise ValueError(
            f"{path}: written in checkpoint format {state['format']}, this version reads {FORMAT}; "
            "delete the trial's checkpoints to train it anew"
        )
    return state


def _write(folder: Path, name: str, state: dict[str, Any]) -> Path:
    aside, path = folder / f"{_ASIDE}{name}", folder / name
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    with (aside / _STATE).open("wb") as file:
        torch.save({"format": FORMAT, **state}, file)
        file.flush()
        os.fsync(file.fileno())
    manifest = {"bytes": (aside / _STATE).stat().st_size, "sha256": _sha256(aside / _STATE)}
    with (aside / _MANIFEST).open("w") as file:
        json.dump(manifest, file)
        file.flush()
        os.fsync(file.fileno())
    _fsync_folder(aside)
    if path.exists():
        _discard(path)
    aside.rename(path)
    _fsync_folder(folder)
    return path


def _steps(folder: Path) -> list[Path]:
    """Return the checkpoints of steps, newest first."""
    found = {int(p.name[5:]): p for p in folder.glob("step-*") if p.name[5:].isdigit()}
    return [found[step] for step in sorted(found, reverse=True)]


def _discard(path: Path) -> None:
    # Renamed first, so that a kill in the middle leaves no half-deleted folder under a complete one's name.
    aside = path.with_name(f"{_ASIDE}old-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
