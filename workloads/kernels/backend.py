"""Choice between the plain torch and the Triton form of an operation."""

import torch
from torch import Tensor


def uses_triton(tensor: Tensor) -> bool:
    """Whether Triton's kernels compute what is made of `tensor`.

    They are there with CUDA, and have no float64.
    """
    return tensor.is_cuda and tensor.dtype != torch.float64
