"""Provenance of an attempt: code, packages, machine.

Enough to repeat it elsewhere, nothing that should stay private.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

import orchestrator
from orchestrator.records.redaction import USER_AND_PASSWORD, without_password

PACKAGES = (
    *("memscale", "torch", "triton", "numpy", "einops", "tokenizers", "ray", "mlflow"),
    *("pydantic", "scipy", "pandas"),
)
"""What can change a result or how it was run."""
VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    *("PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE"),
    *("TRITON_INTERPRET", "SLURM_JOB_ID", "CUDA_MPS_PIPE_DIRECTORY"),
)
"""The only environment variables that are recorded: the others may hold secrets."""
MAX_DIFF_CHARACTERS = 100_000
GIT_TIMEOUT_S = 10.0

_SECRET_NAME = (
    r"(?:[\w-]*(?:token(?!s|i[sz])|secret|pwd|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|credential)[\w-]*)"
)
_SECRETS = (
    # user:password@ in a URL
    (USER_AND_PASSWORD, "***@"),
    # name = value, "name": "value", --name value
    (
        re.compile(rf"(?i)({_SECRET_NAME}['\"]?\s*(?:[=:]\s*|\s+(?=\S))['\"]?)[^\s'\",;]{{4,}}"),
        r"\1***",
    ),
    (re.compile(r"(?i)(authorization['\"]?\s*[:=]\s*['\"]?\w+\s+)\S+"), r"\1***"),
    # keys that are known by their look
    (
        re.compile(
            r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk-|AKIA|AIza|dapi)[\w-]{12,}"
        ),
        "***",
    ),
    # JSON web tokens
    (re.compile(r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*"), "***"),
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S
        ),
        "***",
    ),
)


def record_environment(*, code: Path | None = None) -> dict[str, Any]:
    """Return what this process runs on, ready for environment.json.

    What cannot be found out is left out; nothing is raised.

    Args:
        code: A folder of the code; default: the package `orchestrator`.
    """
    return {
        "recorded_at": time.time(),
        "argv": redacted_argv(sys.argv),
        "host": socket.gethostname(),
        "git": code_state(code or Path(orchestrator.__file__).resolve().parent),
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
        },
        "packages": package_versions(PACKAGES),
        "system": {"platform": platform.platform(), "libc": " ".join(platform.libc_ver())},
        "hardware": {
            **processors(),
            "memory_bytes": psutil.virtual_memory().total,
            "gpus": gpus(),
        },
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def redacted(text: str) -> str:
    """Return the text with what looks like a password, token or key replaced by `***`."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def redacted_argv(argv: Sequence[str]) -> list[str]:
    """Return a command line without secrets, also where option and value are two words."""
    words: list[str] = []
    hide = False
    for word in argv:
        shown = redacted(without_password(word) if "://" in word else word)
        words.append("***" if hide else shown)
        hide = word.startswith("-") and re.fullmatch(rf"(?i)-+{_SECRET_NAME}", word) is not None
    return words


def code_state(folder: Path) -> dict[str, Any]:
    """Return `git_state` of a package's folder; of a code snapshot that of what was copied."""
    try:
        record = json.loads((folder.parent / "snapshot.json").read_text(encoding="utf-8"))
        return {**record["git"], "snapshot": folder.parent.name}
    except (OSError, ValueError, KeyError, TypeError):
        return git_state(folder)


def git_state(folder: Path) -> dict[str, Any]:
    """Return commit, branch and what differs from it; only `problem` where there is no commit.

    The hash is over the whole diff to the last commit, the text is cut and redacted. Files that git
    does not know are counted, and hashed by name and content when they are Python or YAML.
    """
    try:
        root = Path(_git(folder, "rev-parse", "--show-toplevel").strip())
        # A virtual environment may lie inside another repository, which knows nothing of this code.
        if not _git(folder, "ls-files", "--", "."):
            return {"problem": "installed without its repository"}
        # Names of files as a/… and b/…, whatever the user's git is set to.
        names = ("--src-prefix=a/", "--dst-prefix=b/")
        diff = _git(root, "diff", "--no-ext-diff", "--no-color", "--no-textconv", *names, "HEAD")
        untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z").split("\0")[:-1]
        return {
            "commit": _git(root, "rev-parse", "HEAD").strip(),
            "branch": _git(root, "rev-parse", "--abbrev-ref", "HEAD").strip(),
            "dirty": bool(diff or untracked),
            "diff_sha256": _digest(root, diff, untracked) if diff or untracked else None,
            "diff": redacted(diff)[:MAX_DIFF_CHARACTERS],
            "diff_characters": len(diff),
            "untracked": len(untracked),
        }
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return {
            "problem": redacted(said.strip().splitlines()[0])
            if said.strip()
            else type(error).__name__
        }


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        check=True,
        timeout=GIT_TIMEOUT_S,
        # Another git command of the user must not fail on a lock that a mere look took.
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
    )
    return done.stdout


def _digest(root: Path, diff: str, untracked: Sequence[str]) -> str:
    digest = hashlib.sha256(diff.encode(errors="replace"))
    for name in untracked:
        if name.endswith((".py", ".yaml", ".yml")):
            digest.update(name.encode(errors="replace"))
            try:
                digest.update((root / name).read_bytes())
            except OSError:
                continue
    return digest.hexdigest()


def package_versions(names: Sequence[str]) -> dict[str, str]:
    """Return the installed versions; packages that are not installed are left out."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def processors() -> dict[str, Any]:
    """Return the processor's name, its cores, and how many of them this process may use."""
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "usable_threads": len(os.sched_getaffinity(0)),
    }


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^(?:model name|Hardware|cpu model)\s*:\s*(.+)$", text, re.M)
    return found[1].strip() if found else platform.processor() or platform.machine()


def gpus() -> list[Mapping[str, Any]]:
    """Return the machine's NVIDIA GPUs: name, uuid, memory in bytes, driver; none without a driver.

    From NVML where its Python package is installed, else from nvidia-smi. No CUDA context is made.
    """
    try:
        import pynvml
    except ImportError:
        return _gpus_of_nvidia_smi()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [
            {
                "name": _text(pynvml.nvmlDeviceGetName(handle)),
                "uuid": _text(pynvml.nvmlDeviceGetUUID(handle)),
                "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                "driver": driver,
            }
            for handle in handles
        ]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _gpus_of_nvidia_smi() -> list[Mapping[str, Any]]:
    query = "--query-gpu=name,uuid,memory.total,driver_version"
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
            timeout=GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_nvidia_smi(done.stdout)


def parse_nvidia_smi(text: str) -> list[Mapping[str, Any]]:
    """Return the GPUs in nvidia-smi's CSV of name, uuid, memory in MiB, driver.

    Lines of another form are left out.
    """
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [
        {"name": row[0], "uuid": row[1], "memory_bytes": int(row[2]) * 2**20, "driver": row[3]}
        for row in rows
        if len(row) == 4 and row[2].isdigit()
    ]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
