"""Choice between the plain torch and the Triton form of an operation."""

from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor


def uses_triton(tensor: Tensor) -> bool:
    """Whether Triton kernels compute what is made of `tensor`.

    They exist with CUDA, and have no float64.
    """
    return tensor.is_cuda and tensor.dtype != torch.float64


def implementation(operation: str, tensor: Tensor) -> ModuleType:
    """Return the module that computes an operation for `tensor`: its `triton` or `reference`."""
    form = "triton" if uses_triton(tensor) else "reference"
    return import_module(f"workloads.kernels.{operation}.{form}")
