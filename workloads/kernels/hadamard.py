"""Fast Walsh-Hadamard transform in plain torch."""

from functools import cache

import torch
from torch import Tensor

LARGEST = 64
"""Length up to which one product is faster than steps of additions, on CPUs and GPUs alike."""


def hadamard(x: Tensor, dim: int = -1) -> Tensor:
    """Return `H x` along `dim`, with Sylvester's H of entries +-1 (natural order, unnormalised).

    `H_(a b) = H_a (x) H_b`, so a long transform is a short one along each of two dimensions: n log2
    n additions if taken to the end. It ends at `LARGEST`, where a product of n LARGEST
    multiply-adds is faster.

    Raises:
        ValueError: If the length is not a power of two.
    """
    dim %= x.ndim
    length = x.shape[dim]
    if length < 1 or length & (length - 1):
        raise ValueError(
            f"hadamard: the length must be a power of two, got {length}; pad with zeros"
        )
    if length > LARGEST:
        split: Tensor = x.unflatten(  # type: ignore[no-untyped-call]
            dim, (length // LARGEST, LARGEST)
        )
        return hadamard(hadamard(split, dim), dim + 1).flatten(dim, dim + 1)
    matrix = _matrix(length, x.dtype, x.device)
    if dim == x.ndim - 1:
        return x @ matrix
    return (matrix @ x.flatten(dim + 1)).view(x.shape)


@cache
def _matrix(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return H; it is symmetric."""
    with torch.inference_mode(False):
        matrix = torch.ones(1, 1, dtype=dtype, device=device)
        two = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=dtype, device=device)
        while len(matrix) < length:
            matrix = torch.kron(two, matrix)
    return matrix
