"""Hardware of this process: cores of its container, visible GPUs, their memory."""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import psutil

from orchestrator.records.usable_gpus import gpu_ids


def usable_cores() -> int:
    """Return the cores of the CPU affinity, or the quota of its cgroups if that is less."""
    cores = len(os.sched_getaffinity(0))
    quota = _cgroup_cores()
    return cores if quota is None else max(1, min(cores, int(quota)))


def _cgroup_cores(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> float | None:
    """Return the smallest CPU quota of this process's cgroup and its parents, None without one."""
    quotas = [_quota(folder) for folder in _cgroups(root, own)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _cgroups(root: Path, own: Path) -> Iterator[Path]:
    """Yield the folders of this process's cgroups, v2 and v1, each with its parents.

    One that lies outside its container is not there, and only the container's root is read.
    """
    paths = {root: "/", root / "cpu": "/"}
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                paths[root] = path
            elif "cpu" in controllers.split(","):
                paths[root / "cpu"] = path
    for mount, path in paths.items():
        below = PurePosixPath(path.lstrip("/"))
        for folder in (below, *below.parents):
            yield mount / folder


def _quota(cgroup: Path) -> float | None:
    """Return the cores of cpu.max (cgroup v2) or cpu.cfs_quota_us (v1), None without a quota."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if quota in ("max", "-1"):
        return None
    return int(quota) / int(period)


def visible_gpus(
    environment: dict[str, str] | None = None, devices: Path = Path("/dev")
) -> tuple[str, ...]:
    """Return the ids of the GPUs this process may use, as CUDA_VISIBLE_DEVICES takes them.

    Without that variable: 0..n-1 for the n device files of the NVIDIA driver. Asking CUDA itself
    would initialise it, after which ranks cannot be forked.
    """
    chosen = chosen_gpus(environment)
    if chosen is not None:
        return chosen
    found = [path for path in devices.iterdir() if re.fullmatch(r"nvidia\d+", path.name)]
    return tuple(str(i) for i in range(len(found)))


def chosen_gpus(environment: dict[str, str] | None = None) -> tuple[str, ...] | None:
    """Return the ids in CUDA_VISIBLE_DEVICES, None where it is not set."""
    chosen = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
    return None if chosen is None else gpu_ids(chosen)


def gpu_environment(gpus: Sequence[str]) -> dict[str, str]:
    """Return the variables of a rank that holds these GPUs, or none.

    It must not see GPUs that it does not hold. The workspace of cuBLAS is the one that training
    chooses (`workloads.training.device.numerics`): a rank has it from its start, so that the
    attempt's record says it. A user's setting stands.
    """
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    if not gpus or "CUBLAS_WORKSPACE_CONFIG" in os.environ:
        return visible
    return {**visible, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def network_environment(address: str | None) -> dict[str, str]:
    """Return the variables that bind gloo and NCCL to the interface of this address.

    Variables that are set already are left out. Without them gloo advertises whatever address the
    host's own name has, often 127.0.0.1. Empty for None and where no interface has the address.
    """
    if address is None:
        return {}
    found = [
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(a.address == address for a in addresses)
    ]
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {name: found[0] for name in names if found and name not in os.environ}


def nvml_handles(gpus: Sequence[str], nvml: Any = None) -> tuple[Any, list[Any]]:
    """Return NVML's functions and its handles of these GPUs; no handles where it does not work.

    NVML looks without initialising CUDA, so ranks can be forked afterwards.

    Args:
        gpus: Ids as CUDA_VISIBLE_DEVICES takes them: indices or UUIDs.
        nvml: A module with pynvml's functions; default pynvml itself, where it is installed.
    """
    if nvml is None:
        try:
            import pynvml
        except ImportError:
            return None, []
        nvml = pynvml
    try:
        nvml.nvmlInit()
        return nvml, [
            nvml.nvmlDeviceGetHandleByIndex(int(gpu))
            if gpu.isdigit()
            else nvml.nvmlDeviceGetHandleByUUID(gpu)
            for gpu in gpus
        ]
    except nvml.NVMLError:
        return nvml, []


def gpu_memory_bytes(gpus: Sequence[str], nvml: Any = None) -> float | None:
    """Return the memory of the smallest of these GPUs, None where NVML does not give it.

    The arguments are those of `nvml_handles`.
    """
    nvml, handles = nvml_handles(gpus, nvml)
    if not handles:
        return None
    try:
        return min(float(nvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles)
    except nvml.NVMLError:
        return None
