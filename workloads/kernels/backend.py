"""Which of an operation's two forms computes: plain torch, or Triton's kernels."""

import torch
from torch import Tensor


def uses_triton(tensor: Tensor) -> bool:
    """Whether Triton's kernels compute what is made of `tensor`: they are there with CUDA, and have no float64."""
    return tensor.is_cuda and tensor.dtype != torch.float64
