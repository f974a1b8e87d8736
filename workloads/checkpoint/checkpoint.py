"""Atomic checkpoints: written aside, renamed when complete, verified by hash.

    checkpoints/
      .tmp-…            being written or being deleted; removed at the next start
      step-00000120/    state.pt, manifest.json (bytes and SHA-256 of every file)
                        where ranks share tensors out, parts/: the files of
                        torch.distributed.checkpoint
      final/            the same, weights only: written once, after the last evaluation

Order of a save: write aside, fsync, rename, fsync the folder, then delete older ones. A kill
between any two of these leaves a complete checkpoint behind (or none was ever made). Several ranks
write aside together; rank 0 renames when it has heard of every file, so a checkpoint that has its
name has all its files.
"""

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import torch

from workloads.checkpoint.safe_load import only_plain_values
from workloads.checkpoint.sha256_writer import Sha256Writer
from workloads.checkpoint.tensor_block import SavedTensor, TensorBlock
from workloads.data.cache import file_sha256
from workloads.distributed.process_group import RankGroup

LOG = logging.getLogger(__name__)
FORMAT = 1
FINAL = "final"
_STATE, _MANIFEST, _PARTS, _ASIDE = "state.pt", "manifest.json", "parts", ".tmp-"


class DamagedError(Exception):
    """A checkpoint that has its name but not its content."""


def save(
    folder: Path,
    step: int,
    state: dict[str, Any],
    *,
    blocks: Mapping[str, TensorBlock] | None = None,
    world: RankGroup = RankGroup(),  # noqa: B008, frozen
    keep: int = 2,
) -> Path:
    """Write the state after `step`, delete all but the newest `keep`, return the checkpoint's path.

    With several ranks in `world` all of them must call this: rank 0's `state` is written, and the
    `blocks` of all, of which every rank has some or none has any; what several have alike is
    written once.
    """
    path = _write(folder, f"step-{step:08d}", state, blocks=blocks or {}, world=world)
    if world.is_main:
        for older in _steps(folder)[keep:]:
            _discard(older)
    return path


def save_final(
    folder: Path,
    state: dict[str, Any],
    *,
    blocks: Mapping[str, TensorBlock] | None = None,
    world: RankGroup = RankGroup(),  # noqa: B008, frozen
) -> Path:
    """Write what outlives the run, then delete the checkpoints of steps.

    Collective as `save` is.
    """
    path = _write(folder, FINAL, state, blocks=blocks or {}, world=world)
    if world.is_main:
        for older in _steps(folder):
            _discard(older)
    return path


def latest(folder: Path) -> Path | None:
    """Return the newest undamaged checkpoint (`final` before any step), None when there is none.

    Removes leftovers of an earlier life and every damaged checkpoint, naming each in the log. Only
    the process that writes here may call this.
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
        OSError: If the storage fails.
    """
    try:
        manifest = json.loads((path / _MANIFEST).read_text())
        files = {_STATE: manifest, **manifest.get("parts", {})}
        for name, expected in files.items():
            size = (path / name).stat().st_size
            if size != expected["bytes"]:
                raise DamagedError(
                    f"{path}: {name} has {size} bytes, its manifest says {expected['bytes']}"
                )
            if file_sha256(path / name) != expected["sha256"]:
                raise DamagedError(
                    f"{path}: {name} is not what its manifest says (SHA-256 differs)"
                )
    except (
        *(FileNotFoundError, NotADirectoryError, IsADirectoryError),
        *(ValueError, KeyError, TypeError, AttributeError),
    ) as error:
        # Any other OSError is the storage's: what cannot be read now may be whole.
        raise DamagedError(f"{path}: manifest or state is unreadable ({error})") from error


def load(path: Path, *, mapped: bool = False) -> dict[str, Any]:
    """Return the saved state, tensors on the CPU; if `mapped`, read from the file as they are used.

    Raises:
        ValueError: If another version of the format wrote it, or if it holds anything but tensors
            and plain values.
    """
    state: dict[str, Any] = _load(path / _STATE, mapped=mapped)
    if state["format"] != FORMAT:
        raise ValueError(
            f"{path}: written in checkpoint format {state['format']}, this version reads {FORMAT}; "
            "delete the trial's checkpoints to train it anew"
        )
    return state


def sharded_tensors(path: Path) -> dict[str, SavedTensor]:
    """Return sharded tensors by name, read lazily; empty where one rank saved all.

    Raises:
        ValueError: If an earlier version wrote them, or if they hold anything but tensors.
    """
    named = json.loads((path / _MANIFEST).read_text()).get("parts", {})
    if not named:
        return {}
    if not all(name.startswith(f"{_PARTS}/") for name in named):
        raise ValueError(
            f"{path}: holds {', '.join(sorted(named))}, files that this version does not read; "
            "delete the trial's checkpoints to train it anew"
        )
    from workloads.checkpoint import sharded  # a second, which only sharded checkpoints pay

    return sharded.saved(path / _PARTS)


def _load(file: Path, *, mapped: bool) -> dict[str, Any]:
    with only_plain_values(file):
        # weights_only: a checkpoint can hold tensors and plain values, never code.
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    return state


def _write(
    folder: Path,
    name: str,
    state: dict[str, Any],
    *,
    blocks: Mapping[str, TensorBlock],
    world: RankGroup,
) -> Path:
    aside = folder / f"{_ASIDE}{name}"
    try:
        return _write_aside_and_rename(aside, folder / name, state, blocks=blocks, world=world)
    except Exception:
        # Most likely the disk is full, and what was written of this one would keep it full.
        if world.is_main:
            shutil.rmtree(aside, ignore_errors=True)
        raise


def _write_aside_and_rename(
    aside: Path,
    path: Path,
    state: dict[str, Any],
    *,
    blocks: Mapping[str, TensorBlock],
    world: RankGroup,
) -> Path:
    if world.is_main:
        shutil.rmtree(aside, ignore_errors=True)
        # Not its trial's folder: where that was moved away, another one would split the trial.
        aside.parent.mkdir(exist_ok=True)
        aside.mkdir()
        if blocks:
            (aside / _PARTS).mkdir()
    world.barrier()
    parts: dict[str, dict[str, int | str]] = {}
    if blocks:
        from workloads.checkpoint import sharded  # as in `sharded_tensors`

        mine = {
            f"{_PARTS}/{file.name}": _manifest_entry(file)
            for file in sharded.write(aside / _PARTS, blocks, world)
        }
        parts = {
            name: entry
            for of_one in world.all_gather_objects(mine)
            for name, entry in of_one.items()
        }
    if world.is_main:
        manifest = _write_file(aside / _STATE, {"format": FORMAT, **state})
        with (aside / _MANIFEST).open("w") as file:
            json.dump({**manifest, **({"parts": parts} if parts else {})}, file)
            file.flush()
            os.fsync(file.fileno())
        for folder in (*([aside / _PARTS] if parts else []), aside):
            _fsync_folder(folder)
        if path.exists():
            _discard(path)
        aside.rename(path)
        _fsync_folder(path.parent)
    world.barrier()
    return path


def _write_file(path: Path, state: dict[str, Any]) -> dict[str, int | str]:
    """Write a file for good and return what the manifest says of it."""
    with path.open("wb") as file, ThreadPoolExecutor(1) as thread, _without_crc32():
        writer = Sha256Writer(file, thread)
        torch.save(state, cast("IO[bytes]", writer))  # which asks for `write` and `flush` alone
        writer.flush()
        os.fsync(file.fileno())
    return writer.manifest_entry()


@contextmanager
def _without_crc32() -> Iterator[None]:
    """Save torch the checksums that it never checks, which take longer than writing."""
    asked = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(asked)


def _manifest_entry(path: Path) -> dict[str, int | str]:
    """Return what the manifest says of a file."""
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}


def _steps(folder: Path) -> list[Path]:
    """Return the checkpoints of steps, newest first."""
    # Not by glob, which passes over a folder that cannot be read: training would begin anew.
    names = os.listdir(folder)  # noqa: PTH208
    numbers = {name: name.removeprefix("step-") for name in names if name.startswith("step-")}
    steps = {int(number): folder / name for name, number in numbers.items() if number.isdigit()}
    return [steps[step] for step in sorted(steps, reverse=True)]


def _discard(path: Path) -> None:
    # Renamed first, so that a kill in the middle leaves no half-deleted folder under a complete
    # one's name.
    aside = path.with_name(f"{_ASIDE}old-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _fsync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
