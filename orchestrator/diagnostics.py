"""Diagnostics of this machine for `memscale doctor`: each problem with its fix."""

import importlib.metadata
import os
import shutil
import socket
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import psutil
from packaging.requirements import Requirement
from packaging.version import Version

from orchestrator.node import private_folder
from orchestrator.node.hardware import usable_cores, visible_gpus
from orchestrator.planning.runtime_prior import matmul_flops_per_second, params_within
from orchestrator.records import units
from orchestrator.records.storage_errors import nearest_existing, unwritable

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "cifs", "smb3", "beegfs", "fuse.sshfs"}
)
GIB = 1024**3


class Severity(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the report."""

    name: str = ""
    """Set by `run_checks`."""
    severity: Severity
    found: str
    fix: str = ""
    """What to do; empty when nothing is to be done."""


def _ok(found: str) -> Check:
    return Check(severity=Severity.OK, found=found)


def _warn(found: str, fix: str) -> Check:
    return Check(severity=Severity.WARN, found=found, fix=fix)


def _fail(found: str, fix: str) -> Check:
    return Check(severity=Severity.FAIL, found=found, fix=fix)


def run_checks(runs: Path, *, port: int = 5000) -> Iterator[Check]:
    """Yield one check after another, the quick ones first.

    Never raises: a check that breaks is a failed check.

    Args:
        runs: Folder that will hold the trial directories.
        port: Port that `memscale ui` would use.
    """
    checks: dict[str, Callable[[], Check]] = {
        "python": _python,
        "cores": _cores,
        "memory": _memory,
        "disk": lambda: _disk(runs),
        "runs folder": lambda: _runs_folder(runs),
        "sqlite": lambda: _sqlite(runs),
        "temp folder": _temp_folder,
        "shared memory": _shared_memory,
        "open files": _open_files,
        "loopback": _loopback,
        "ui port": lambda: _port(port),
        "ray": _ray,
        "mlflow": _mlflow,
        "torch": lambda: _extra("torch"),
        "analysis": lambda: _extra("analysis"),
        "gpus": _gpus,
        "in an hour": _in_an_hour,
    }
    for name, check in checks.items():
        try:
            result = check()
        except Exception as error:
            result = _fail(f"{type(error).__name__}: {error}", "see the message")
        yield replace(result, name=name)


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return _ok(version)
    return _fail(version, "use Python 3.11, 3.12 or 3.13")


def _cores() -> Check:
    affinity = hasattr(os, "sched_getaffinity")
    usable = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    return _ok(f"{usable} usable")


def _memory() -> Check:
    memory = psutil.virtual_memory()
    found = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    if memory.available < 2 * GIB:
        return _warn(found, "Ray and two small trials need about 2 GiB; close something")
    return _ok(found)


def _disk(runs: Path) -> Check:
    folder = nearest_existing(runs.absolute())
    free = shutil.disk_usage(folder).free
    found = f"{free / GIB:.1f} GiB free at {folder}"
    if free < GIB:
        return _fail(found, "free some space, or pass --runs with a folder on another disk")
    if free < 10 * GIB:
        return _warn(found, "checkpoints of larger models will not fit")
    return _ok(found)


def _runs_folder(runs: Path) -> Check:
    why = unwritable(runs.absolute())
    if why:
        return _fail(f"{runs} {why}", "pass --runs with a folder of yours")
    return _ok(str(runs))


def _sqlite(runs: Path) -> Check:
    kind = _file_system(nearest_existing(runs.absolute()))
    if kind in NETWORK_FILE_SYSTEMS:
        return _warn(
            f"{runs} is on {kind}",
            "SQLite corrupts on network file systems; pass --tracking-uri with an MLflow server "
            "or a local sqlite:/// file",
        )
    return _ok(f"SQLite {sqlite3.sqlite_version} on {kind or 'local disk'}")


def _temp_folder() -> Check:
    root = private_folder.safe_root()
    asked = tempfile.gettempdir()
    if str(root) != str(Path(asked).resolve()):
        return _ok(f"{root} ({asked} is too long for Ray's sockets, or others may rename in it)")
    return _ok(str(root))


def _shared_memory() -> Check:
    shm = Path("/dev/shm")
    if not shm.is_dir():
        return _warn("no /dev/shm", "Ray will use the temp folder; slower")
    total = shutil.disk_usage(shm).total
    found = f"{total / GIB:.1f} GiB in /dev/shm"
    if total < 0.25 * GIB:
        return _warn(found, "in a container: docker run --shm-size=1g")
    return _ok(found)


def _open_files() -> Check:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _warn(str(soft), "run: ulimit -n 4096") if soft < 1024 else _ok(str(soft))


def _loopback() -> Check:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
    return _ok("127.0.0.1 accepts sockets")


def _port(port: int) -> Check:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            fix = "`memscale ui` will take the next free port, or pass --port"
            return _warn(f"{port} is taken", fix)
    return _ok(f"{port} is free")


def _ray() -> Check:
    check = _extra("ray")
    if check.severity is Severity.FAIL:
        return replace(check, fix=f"{check.fix}, or submit with --launcher process")
    others = sum(process.info["name"] == "raylet" for process in psutil.process_iter(["name"]))
    note = f"; {others} other Ray node(s) on this machine are left alone" if others else ""
    return replace(check, found=check.found + note)


def _mlflow() -> Check:
    skinny = None if _version("mlflow") else _version("mlflow-skinny")
    if skinny is not None:
        found = f"only mlflow-skinny {skinny}: no database store"
        return _fail(found, "pip install 'memscale[mlflow]'")
    return _extra("mlflow")


def _extra(extra: str) -> Check:
    """Compare the installed packages with the bounds of an extra in the metadata of memscale.

    A package that is missing or too old fails. One that is newer than what was tried is a warning.
    """
    try:
        wanted = _required("memscale", extra)
    except importlib.metadata.PackageNotFoundError:
        found = "unknown: memscale runs from a source tree that is not installed"
        return _warn(found, f"in the source tree: pip install -e '.[{extra}]'")
    there = {each.name: version for each in wanted if (version := _version(each.name)) is not None}
    fix = f"pip install 'memscale[{extra}]'"
    missing = [each.name for each in wanted if each.name not in there]
    if missing:
        return _fail(f"not installed: {', '.join(missing)}", fix)
    broken = [
        (each, bound)
        for each in wanted
        for bound in each.specifier
        # A build or pre-release of the lower bound counts as it: 2.11.0a0+… in vendors' containers.
        if not bound.contains(Version(there[each.name]).base_version)
    ]
    if not broken:
        return _ok(", ".join(f"{name} {version}" for name, version in there.items()))
    found = ", ".join(f"{e.name} {there[e.name]}, memscale needs {bound}" for e, bound in broken)
    too_old = any(bound.operator == ">=" for _, bound in broken)
    return _fail(found, fix) if too_old else _warn(found, f"memscale was not tried with it: {fix}")


def _required(distribution: str, extra: str) -> list[Requirement]:
    """Return what an extra asks for, and what the extras of those (`ray[client]`) ask for."""
    found = []
    for text in importlib.metadata.requires(distribution) or ():
        requirement = Requirement(text)
        if requirement.marker and requirement.marker.evaluate({"extra": extra}):
            found.append(requirement)
            if requirement.extras and _version(requirement.name) is not None:
                for further in sorted(requirement.extras):
                    found += _required(requirement.name, further)
    return found


def _gpus() -> Check:
    import importlib

    if _version("torch") is None:
        return _warn("unknown without torch", "pip install 'memscale[torch]'")
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        if shutil.which("nvidia-smi"):
            fix = "install a torch build with CUDA; see `nvidia-smi`"
            return _warn("a driver, but torch sees no GPU", fix)
        return _ok("none; trials train on CPU")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    bf16 = "bf16" if torch.cuda.is_bf16_supported() else "no bf16"
    return _ok(f"{len(names)} × {names[0]} ({bf16})")


def _in_an_hour() -> Check:
    """Suggest what to train: trials of as many tokens as suit their size, each an hour long."""
    n_gpus, n_cores = len(visible_gpus()), usable_cores()
    params = params_within(3600.0, None if n_gpus else matmul_flops_per_second())
    at_a_time = f"{n_gpus or n_cores} at a time" if (n_gpus or n_cores) > 1 else "one at a time"
    return _ok(
        f"a model of about {units.count(params)} parameters on {units.count(20 * params)} tokens, "
        f"{at_a_time} (a guess)"
    )


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _file_system(path: Path) -> str:
    """Return the type of the file system that holds `path`, empty when unknown."""
    best, kind = "", ""
    for part in psutil.disk_partitions(all=True):
        if str(path).startswith(part.mountpoint) and len(part.mountpoint) > len(best):
            best, kind = part.mountpoint, part.fstype
    return kind
