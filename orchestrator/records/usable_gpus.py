"""The GPUs that CUDA_VISIBLE_DEVICES leaves a process, of those of its machine."""

from collections.abc import Mapping, Sequence
from typing import Any


def gpu_ids(chosen: str) -> tuple[str, ...]:
    """Return the ids that a value of CUDA_VISIBLE_DEVICES names."""
    ids = (word.strip() for word in chosen.split(","))
    return tuple(gpu for gpu in ids if gpu not in ("", "-1", "NoDevFiles"))


def usable_gpus(
    machine: Sequence[Mapping[str, Any]], chosen: str | None
) -> Sequence[Mapping[str, Any]]:
    """Return those of a machine's GPUs that a process may use.

    Args:
        machine: As NVML and nvidia-smi list them, which do not heed CUDA_VISIBLE_DEVICES.
        chosen: The value of that variable; None: it is not set. Ids are places in the list or
            UUIDs, also cut short. Where one is neither, as a part of a GPU is, all are returned.
    """
    if chosen is None:
        return machine
    found: list[Mapping[str, Any]] = []
    for gpu_id in gpu_ids(chosen):
        by_place = machine[int(gpu_id) :][:1] if gpu_id.isdigit() else []
        found += (
            by_place or [gpu for gpu in machine if str(gpu.get("uuid", "")).startswith(gpu_id)][:1]
        )
    return found if len(found) == len(gpu_ids(chosen)) else machine


def corrected(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment.json that names the GPUs which the attempt could use.

    Earlier versions recorded all of the machine.
    """
    hardware = environment.get("hardware") or {}
    chosen = (environment.get("variables") or {}).get("CUDA_VISIBLE_DEVICES")
    listed = hardware.get("gpus") or []
    if chosen is None or len(listed) <= len(gpu_ids(chosen)):
        return dict(environment)
    return {**environment, "hardware": {**hardware, "gpus": usable_gpus(listed, chosen)}}
