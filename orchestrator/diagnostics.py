"""`memscale doctor`: what this machine has, what is wrong with it, and what to do about it."""

import importlib.metadata
import os
import shutil
import socket
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

SOCKET_PATH_LIMIT = 107
"""Bytes in the path of a Unix socket on Linux; Ray's sit about 60 below its temporary folder."""
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "cifs", "smb3", "beegfs", "fuse.sshfs"}
)
GIB = 1024**3


class Severity(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the report."""

    name: str
    verdict: Severity
    found: str
    fix: str = ""
    """What to do; empty when nothing is to be done."""


def run_checks(runs: Path, *, port: int = 5000) -> Iterator[Check]:
    """Yield one check after another, the quick ones first. Never raises: a check that breaks is a failed check.

    Args:
        runs: Folder that will hold the trial directories.
        port: Port that `memscale ui` would use.
    """
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("python", _python),
        ("cores", _cores),
        ("memory", _memory),
        ("disk", lambda: _disk(runs)),
        ("runs folder", lambda: _runs_folder(runs)),
        ("sqlite", lambda: _sqlite(runs)),
        ("temp folder", _temp_folder),
        ("shared memory", _shared_memory),
        ("open files", _open_files),
        ("loopback", _loopback),
        ("ui port", lambda: _port(port)),
        ("ray", _ray),
        ("mlflow", _mlflow),
        ("torch", _torch),
        ("gpus", _gpus),
    ]
    for name, check in checks:
        try:
            yield check()
        except Exception as error:
            yield Check(
                name=name,
                verdict=Severity.FAIL,
                found=f"{type(error).__name__}: {error}",
                fix="see the message",
            )


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Check(name="python", verdict=Severity.OK, found=version)
    return Check(
        name="python", verdict=Severity.FAIL, found=version, fix="use Python 3.11, 3.12 or 3.13"
    )


def _cores() -> Check:
    usable = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return Check(name="cores", verdict=Severity.OK, found=f"{usable} usable")


def _memory() -> Check:
    memory = psutil.virtual_memory()
    found = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    if memory.available < 2 * GIB:
        return Check(
            name="memory",
            verdict=Severity.WARN,
            found=found,
            fix="Ray and two small trials need about 2 GiB; close something",
        )
    return Check(name="memory", verdict=Severity.OK, found=found)


def _disk(runs: Path) -> Check:
    folder = _existing(runs)
    free = shutil.disk_usage(folder).free
    found = f"{free / GIB:.1f} GiB free at {folder}"
    if free < GIB:
        return Check(
            name="disk",
            verdict=Severity.FAIL,
            found=found,
            fix="free some space, or pass --runs with a folder on another disk",
        )
    if free < 10 * GIB:
        return Check(
            name="disk",
            verdict=Severity.WARN,
            found=found,
            fix="checkpoints of larger models will not fit",
        )
    return Check(name="disk", verdict=Severity.OK, found=found)


def _runs_folder(runs: Path) -> Check:
    folder = _existing(runs)
    if not os.access(folder, os.W_OK):
        return Check(
            name="runs folder",
            verdict=Severity.FAIL,
            found=f"{folder} is not writable",
            fix="pass --runs with a folder of yours",
        )
    return Check(name="runs folder", verdict=Severity.OK, found=str(runs))


def _sqlite(runs: Path) -> Check:
    kind = _file_system(_existing(runs))
    if kind in NETWORK_FILE_SYSTEMS:
        return Check(
            name="sqlite",
            verdict=Severity.WARN,
            found=f"{runs} is on {kind}",
            fix="SQLite corrupts on network file systems; pass --tracking-uri with an MLflow server or a local sqlite:/// file",
        )
    return Check(
        name="sqlite",
        verdict=Severity.OK,
        found=f"SQLite {sqlite3.sqlite_version} on {kind or 'local disk'}",
    )


def _temp_folder() -> Check:
    folder = tempfile.gettempdir()
    if len(folder) > SOCKET_PATH_LIMIT - 60:
        return Check(
            name="temp folder",
            verdict=Severity.FAIL,
            found=f"{folder} is {len(folder)} characters long",
            fix="Ray's sockets will not fit; set TMPDIR=/tmp",
        )
    return Check(name="temp folder", verdict=Severity.OK, found=folder)


def _shared_memory() -> Check:
    shm = Path("/dev/shm")
    if not shm.is_dir():
        return Check(
            name="shared memory",
            verdict=Severity.WARN,
            found="no /dev/shm",
            fix="Ray will use the temp folder; slower",
        )
    total = shutil.disk_usage(shm).total
    found = f"{total / GIB:.1f} GiB in /dev/shm"
    if total < 0.25 * GIB:
        return Check(
            name="shared memory",
            verdict=Severity.WARN,
            found=found,
            fix="in a container: docker run --shm-size=1g",
        )
    return Check(name="shared memory", verdict=Severity.OK, found=found)


def _open_files() -> Check:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1024:
        return Check(
            name="open files", verdict=Severity.WARN, found=str(soft), fix="run: ulimit -n 4096"
        )
    return Check(name="open files", verdict=Severity.OK, found=str(soft))


def _loopback() -> Check:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
    return Check(name="loopback", verdict=Severity.OK, found="127.0.0.1 accepts sockets")


def _port(port: int) -> Check:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            return Check(
                name="ui port",
                verdict=Severity.WARN,
                found=f"{port} is taken",
                fix="`memscale ui` will take the next free port, or pass --port",
            )
    return Check(name="ui port", verdict=Severity.OK, found=f"{port} is free")


def _ray() -> Check:
    version = _version("ray")
    if version is None:
        return Check(
            name="ray",
            verdict=Severity.FAIL,
            found="not installed",
            fix="pip install 'memscale[ray]', or submit with --launcher process",
        )
    if _older(version, (2, 60)):
        return Check(
            name="ray",
            verdict=Severity.WARN,
            found=version,
            fix="2.60 or later cleans up process groups by itself: pip install 'ray>=2.60'",
        )
    others = sum(1 for process in psutil.process_iter(["name"]) if process.info["name"] == "raylet")
    found = (
        version
        if not others
        else f"{version}; {others} other Ray node(s) on this machine are left alone"
    )
    return Check(name="ray", verdict=Severity.OK, found=found)


def _mlflow() -> Check:
    version = _version("mlflow")
    if version is None:
        skinny = _version("mlflow-skinny")
        found = f"only mlflow-skinny {skinny}: no database store" if skinny else "not installed"
        return Check(
            name="mlflow", verdict=Severity.FAIL, found=found, fix="pip install 'memscale[mlflow]'"
        )
    if _older(version, (3, 13)):
        return Check(
            name="mlflow",
            verdict=Severity.FAIL,
            found=version,
            fix="pip install 'mlflow>=3.13,<3.18'",
        )
    return Check(name="mlflow", verdict=Severity.OK, found=version)


def _torch() -> Check:
    version = _version("torch")
    if version is None:
        return Check(
            name="torch",
            verdict=Severity.FAIL,
            found="not installed",
            fix="pip install 'torch>=2.11,<2.14'",
        )
    if _older(version, (2, 11)):
        return Check(
            name="torch",
            verdict=Severity.WARN,
            found=version,
            fix="tested with 2.11 to 2.13: pip install 'torch>=2.11,<2.14'",
        )
    return Check(name="torch", verdict=Severity.OK, found=version)


def _gpus() -> Check:
    import importlib

    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        driver = shutil.which("nvidia-smi")
        if driver:
            return Check(
                name="gpus",
                verdict=Severity.WARN,
                found="a driver, but torch sees no GPU",
                fix="install a torch build with CUDA; see `nvidia-smi`",
            )
        return Check(name="gpus", verdict=Severity.OK, found="none; trials train on CPU")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    bf16 = "bf16" if torch.cuda.is_bf16_supported() else "no bf16"
    return Check(name="gpus", verdict=Severity.OK, found=f"{len(names)} × {names[0]} ({bf16})")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _older(version: str, floor: tuple[int, int]) -> bool:
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) < floor


def _existing(path: Path) -> Path:
    """Return the nearest folder above `path` that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _file_system(path: Path) -> str:
    """Return the type of the file system that holds `path`, empty when unknown."""
    best, kind = "", ""
    for part in psutil.disk_partitions(all=True):
        if str(path).startswith(part.mountpoint) and len(part.mountpoint) > len(best):
            best, kind = part.mountpoint, part.fstype
    return kind
