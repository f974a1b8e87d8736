"""Environment variables of processes that import torch."""

from collections.abc import MutableMapping

BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""With these, OpenMP binds the thread that imports torch to one core. What that process starts is
bound with it: all ranks of a fork server, and all trials of a submission that was planned."""


def set_for_computing(variables: MutableMapping[str, str]) -> None:
    """Remove what binds threads to cores, and number GPUs as NVML and nvidia-smi do.

    By itself CUDA numbers the fastest GPU first, and the memory that NVML gives would be another
    one's. A user's own CUDA_DEVICE_ORDER stands.
    """
    for name in BINDING:
        variables.pop(name, None)
    variables.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
