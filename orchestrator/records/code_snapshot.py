"""Snapshot of the code that a submission runs, so that later edits change nothing.

    runs/<sweep>/code/<12 hex digits>/
      orchestrator/…, workloads/…   as they were, committed or not
      snapshot.json                 commit, branch, diff (redacted), Python, package versions

The folder is named by the hash of what it holds, so submitting unchanged code again copies nothing.
It lies on the storage that every node of a sweep must see anyway, and comes first on the import
path of everything that a submission starts: no upload, no limit on its size, and it can still be
read when the cluster is gone.
"""

import email
import hashlib
import importlib.metadata
import os
import platform
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator.records import storage_errors
from orchestrator.records.errors import StoreError
from orchestrator.records.json_files import read_json, write_json
from orchestrator.records.provenance import git_state
from orchestrator.records.sweep_dir import TEMPORARY_CODE, SweepDir

COPIED = ("orchestrator", "workloads")
"""What controller and ranks import. Nothing else of a checkout runs during a sweep."""
MUST_AGREE = ("torch", "triton", "numpy", "einops", "tokenizers")
"""Packages that can change a result: a node with other versions than the submission is not used."""


def take(sweep: SweepDir, *, source: Path | None = None) -> Path:
    """Copy the code into the sweep's folder, unless it is there; return the folder to import from.

    Args:
        sweep: Whose submission, under `locks.submitting`: that deletes copies of killed ones.
        source: Folder that holds the packages; default: where this very program was imported from.

    Raises:
        StoreError: If the code changed, or could not be copied.
    """
    source = source or Path(orchestrator.__file__).resolve().parent.parent
    folder = sweep.path.absolute() / "code"
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f"{TEMPORARY_CODE}{secrets.token_hex(4)}"
    aside.mkdir()
    try:
        for package in COPIED:
            _copy(source / package, aside / package)
        # Of the copy: an editor may have saved a file meanwhile.
        target = folder / _digest(aside)
        if not (target / "snapshot.json").exists():
            write_json(aside / "snapshot.json", _record(source))
            shutil.rmtree(target, ignore_errors=True)
            aside.rename(target)
    except OSError as error:
        if storage_errors.free_bytes(folder) < storage_errors.LEAST_BYTES:
            room = storage_errors.free_space_text(folder)
            fix = storage_errors.full_advice(folder)
            raise StoreError(f"the disk of {folder} is full: {room}; {fix}") from error
        raise StoreError(
            f"{folder}: the code could not be copied there ({error}); "
            "make room, or see that it can be written"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def with_code(code: Path | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a Python that imports from `code` first.

    None is where this very package was imported from, whatever the working folder.
    """
    root = code or Path(orchestrator.__file__).parent.parent
    paths = (str(root), environment.get("PYTHONPATH"))
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        # Neither it nor any Python that it starts imports from the current folder.
        "PYTHONSAFEPATH": "1",
    }


def installed() -> dict[str, str]:
    """Return the versions that must agree between a submission and its nodes."""
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in MUST_AGREE:
        try:
            # 2.13.0+cpu and 2.13.0+cu130 are builds of one version.
            found[name] = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def disagreement(wanted: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return how a node differs from a submission, empty if it does not.

    A package that the submission's machine lacks may have any version.

    Args:
        wanted: `installed()` where the sweep was submitted.
        there: The same on the node.
    """
    return ", ".join(
        f"{name} {there.get(name, 'missing')} instead of {version}"
        for name, version in wanted.items()
        # Machines without a GPU need no triton.
        if there.get(name) != version and (name != "triton" or name in there)
    )


def pinned(code: Path) -> Mapping[str, str]:
    """Return `installed()` as it was when the snapshot was taken.

    Raises:
        StoreError: If the snapshot is damaged or gone.
    """
    record = read_json(code / "snapshot.json")
    if record is None:
        raise StoreError(f"{code}: no snapshot.json; submit again to copy the code anew")
    versions: Mapping[str, str] = record["must_agree"]
    return versions


def _copy(source: Path, target: Path) -> None:
    """Copy the files below a folder, without caches and hidden ones.

    Contents alone: who may read the copy follows from its folder and the umask, not from the
    source, as it would with `shutil.copytree`.
    """
    target.mkdir()
    for path in source.iterdir():
        if path.name == "__pycache__" or path.name.startswith("."):
            continue
        copy = _copy if path.is_dir() else shutil.copyfile
        copy(path, target / path.name)


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:12]


def _name_and_version(package: importlib.metadata.Distribution) -> tuple[str, str | None]:
    """Read both from the headers; parsing the description below them takes most of the time."""
    text = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
    headers = email.message_from_string(text.partition("\n\n")[0])
    return str(headers["Name"]), headers["Version"]


def _record(source: Path) -> dict[str, Any]:
    packages = dict(_name_and_version(found) for found in importlib.metadata.distributions())
    return {
        "taken_at": time.time(),
        "from": str(source),
        "git": git_state(source / "orchestrator"),
        "python": platform.python_version(),
        "must_agree": installed(),
        "packages": dict(sorted(packages.items())),
    }
