"""Data-sheet peaks of GPUs, by the names that torch gives them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DevicePeak:
    """What the manufacturer says a device reaches at most."""

    bf16_flops_per_s: float
    """Dense matrix products of bf16 with sums in fp32, without structured sparsity."""
    bytes_per_s: float
    """Bandwidth of the device's memory."""


_SXM_A100 = 312e12
_SXM_H100 = 989.4e12

PEAKS: Mapping[str, DevicePeak] = {
    "NVIDIA A100-SXM4-40GB": DevicePeak(bf16_flops_per_s=_SXM_A100, bytes_per_s=1.555e12),
    "NVIDIA A100-SXM4-80GB": DevicePeak(bf16_flops_per_s=_SXM_A100, bytes_per_s=2.039e12),
    "NVIDIA A100 80GB PCIe": DevicePeak(bf16_flops_per_s=_SXM_A100, bytes_per_s=1.935e12),
    "NVIDIA H100 80GB HBM3": DevicePeak(bf16_flops_per_s=_SXM_H100, bytes_per_s=3.35e12),
    "NVIDIA H100 PCIe": DevicePeak(bf16_flops_per_s=756e12, bytes_per_s=2.0e12),
    "NVIDIA H200": DevicePeak(bf16_flops_per_s=_SXM_H100, bytes_per_s=4.8e12),
    "NVIDIA L4": DevicePeak(bf16_flops_per_s=121e12, bytes_per_s=0.3e12),
    "NVIDIA L40S": DevicePeak(bf16_flops_per_s=362e12, bytes_per_s=0.864e12),
    "NVIDIA B200": DevicePeak(bf16_flops_per_s=2250e12, bytes_per_s=8.0e12),
}
"""Whole devices only: a MIG slice has another name, and no peak here."""
