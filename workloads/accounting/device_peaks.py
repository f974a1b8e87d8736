"""Data-sheet peaks of GPUs, by the names that torch gives them."""

from collections.abc import Mapping

_SXM_A100 = 312e12
_SXM_H100 = 989.4e12

BF16_FLOPS_PER_S: Mapping[str, float] = {
    "NVIDIA A100-SXM4-40GB": _SXM_A100,
    "NVIDIA A100-SXM4-80GB": _SXM_A100,
    "NVIDIA A100 80GB PCIe": _SXM_A100,
    "NVIDIA H100 80GB HBM3": _SXM_H100,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": _SXM_H100,
    "NVIDIA L4": 121e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA B200": 2250e12,
}
"""Dense matrix products of bf16 with sums in fp32, without structured sparsity. Whole devices only:
a MIG slice has another name, and no peak here."""
