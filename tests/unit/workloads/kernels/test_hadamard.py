"""The fast transform is the product with SciPy's Hadamard matrix."""

import pytest
import scipy.linalg
import torch
from torch import Tensor

from workloads.kernels.hadamard import hadamard


def _case(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


def _matrix(length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(scipy.linalg.hadamard(length), dtype=dtype)


@pytest.mark.parametrize("length", [1, 2, 4, 32, 64, 128, 512])
def test_of_the_last_columns(length):
    x = _case((3, length))

    torch.testing.assert_close(hadamard(x), x @ _matrix(length))


def test_long_transforms_are_split_again(monkeypatch):
    monkeypatch.setattr("workloads.kernels.hadamard.LARGEST", 4)
    x = _case((3, 128, 2))

    found = hadamard(x, dim=1)

    torch.testing.assert_close(found, torch.einsum("ij,ajb->aib", _matrix(128), x))


@pytest.mark.parametrize("length", [1, 2, 16, 256])
def test_of_columns_in_between(length):
    x = _case((2, length, 3, 5))

    expected = torch.einsum("ij,ajbc->aibc", _matrix(length), x)

    torch.testing.assert_close(hadamard(x, dim=1), expected)
    torch.testing.assert_close(hadamard(x, dim=-3), expected)


def test_of_columns_that_are_not_contiguous():
    x = _case((128, 3)).T

    torch.testing.assert_close(hadamard(x), x @ _matrix(128))


@pytest.mark.parametrize("length", [16, 128])
def test_gradient_is_the_transform_of_the_gradient(length):
    x, grad = _case((3, length)).requires_grad_(), _case((3, length)).flip(0)

    found = torch.autograd.grad(hadamard(x), x, grad)[0]

    torch.testing.assert_close(found, hadamard(grad))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_keeps_the_type(dtype, tolerance):
    x = _case((4, 256), dtype)

    found = hadamard(x)

    assert found.dtype == dtype
    expected = x.double() @ _matrix(256)
    error = (found.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error < tolerance


@pytest.mark.parametrize("length", [0, 3, 96])
def test_other_lengths_are_refused(length):
    with pytest.raises(ValueError, match=f"must be a power of two, got {length}; pad with zeros"):
        hadamard(torch.zeros(2, length))
