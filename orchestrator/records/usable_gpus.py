"""The GPUs that an attempt could use, of those of its machine."""

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any


def gpu_ids(chosen: str) -> tuple[str, ...]:
    """Return the ids that a value of CUDA_VISIBLE_DEVICES names: those before the first invalid."""
    ids = (word.strip() for word in chosen.split(","))
    return tuple(takewhile(lambda gpu: gpu not in ("", "-1", "NoDevFiles"), ids))


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
        by_place = machine[int(gpu_id) :][:1] if gpu_id.isdecimal() else []
        found += (
            by_place or [gpu for gpu in machine if str(gpu.get("uuid", "")).startswith(gpu_id)][:1]
        )
    return found if len(found) == len(gpu_ids(chosen)) else machine


def of_attempt(environment: Mapping[str, Any], launch: Mapping[str, Any]) -> dict[str, Any]:
    """Return what environment.json says, with the GPUs of the attempt in place of the machine's.

    Args:
        environment: Written by rank 0, which is told of its own GPU alone.
        launch: The attempt's launch.json. Of several ranks it says how many GPUs they have.
    """
    hardware = environment.get("hardware") or {}
    listed = hardware.get("gpus") or []
    if launch.get("ranks", 1) > 1:
        found = listed[: math.ceil(launch.get("gpus", len(listed)))]
    else:
        chosen = (environment.get("variables") or {}).get("CUDA_VISIBLE_DEVICES")
        found = usable_gpus(listed, chosen)
    if found == listed:
        return dict(environment)
    return {**environment, "hardware": {**hardware, "gpus": found}}
