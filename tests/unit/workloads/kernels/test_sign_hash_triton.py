"""The Triton kernels that hash by signs, run by Triton's interpreter, equal the reference."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from workloads.kernels.sign_hash import reference
from workloads.kernels.sign_hash import triton as kernel

INTERPRETED = settings.get_profile("interpreted")
SHAPES = st.tuples(
    st.sampled_from([0, 1, 3, 9]),  # tokens
    st.sampled_from([0, 1, 2, 5]),  # chunks
    st.sampled_from([1, 2, 3, 8, 10, 16]),  # bits
)


@pytest.fixture(autouse=True)
def _interpreted(interpreted, poisoned, monkeypatch):
    interpreted(kernel)
    # The interpreter takes the product of bits number by number.
    monkeypatch.setattr(kernel, "_TOKENS", 4)
    monkeypatch.setattr(kernel, "_CHUNKS", 2)


def _numbers(shape: tuple[int, int, int], seed: int = 0) -> Tensor:
    """Normal numbers, among them zeros of both signs."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(shape, generator=generator)
    return z * (torch.rand(shape, generator=generator) < 0.8)


@INTERPRETED
@given(
    shape=SHAPES,
    seed=st.integers(0, 9),
    temperature=st.sampled_from([0.3, 1.0, 5.0]),
    times_l1=st.booleans(),
    by_chunk=st.booleans(),
)
def test_rows_and_scores_equal_the_reference(shape, seed, temperature, times_l1, by_chunk):
    z = _numbers(shape, seed)
    how = {"temperature": temperature, "times_l1": times_l1}
    rows, scores = reference.forward(z, **how)

    found = kernel.forward(z, **how, by_chunk=by_chunk)

    assert found[0].dtype == rows.dtype
    assert torch.equal(found[0], rows)
    torch.testing.assert_close(found[1], scores, rtol=2e-6, atol=0)
    assert all((x.T if by_chunk else x).is_contiguous() for x in found)


@INTERPRETED
@given(
    shape=SHAPES,
    seed=st.integers(0, 9),
    temperature=st.sampled_from([0.3, 1.0, 5.0]),
    times_l1=st.booleans(),
    transposed=st.booleans(),
)
def test_gradients_equal_the_reference(shape, seed, temperature, times_l1, transposed):
    z, how = _numbers(shape, seed), {"temperature": temperature, "times_l1": times_l1}
    grad = torch.randn(shape[:2], generator=torch.Generator().manual_seed(seed))
    expected = reference.backward(z, grad, **how)

    found = kernel.backward(z, grad.T.contiguous().T if transposed else grad, **how)

    torch.testing.assert_close(found, expected, rtol=5e-6, atol=1e-7)
    assert not found[z == 0].any()


def test_input_that_is_not_contiguous():
    z = _numbers((8, 5, 6)).transpose(0, 1)
    grad = torch.ones(()).expand(5, 8)
    how = {"temperature": 1.0, "times_l1": True}

    rows, scores = kernel.forward(z, **how)
    z_grad = kernel.backward(z, grad, **how)

    assert torch.equal(rows, reference.forward(z, **how)[0])
    torch.testing.assert_close(scores, reference.forward(z, **how)[1], rtol=2e-6, atol=0)
    torch.testing.assert_close(z_grad, reference.backward(z, grad, **how))


def test_half_precision_is_scored_in_fp32():
    z = _numbers((5, 3, 8)).half()
    how = {"temperature": 0.7, "times_l1": True}

    rows, scores = kernel.forward(z, **how)
    z_grad = kernel.backward(z, torch.ones(5, 3), **how)

    expected = reference.forward(z.float(), **how)
    assert torch.equal(rows, expected[0])
    torch.testing.assert_close(scores, expected[1], rtol=2e-6, atol=0)
    assert z_grad.dtype == torch.float16
    expected_grad = reference.backward(z.float(), torch.ones(5, 3), **how)
    torch.testing.assert_close(z_grad.float(), expected_grad, rtol=2e-3, atol=1e-6)


def test_signs_of_zero_nan_and_infinity():
    """What is no number hashes as negative, so a row outside the tables is never named."""
    z = torch.tensor([[[0.0, -0.0, 1e-38, -1e-38, math.inf, -math.inf, math.nan, -math.nan]]])

    rows, scores = kernel.forward(z, temperature=1.0, times_l1=False)

    assert rows.item() == 0b11101000
    assert torch.equal(rows, reference.forward(z, temperature=1.0, times_l1=False)[0])
    assert scores.isnan().all()


def test_large_numbers_are_certain():
    z = torch.tensor([[[1e30, -1e30]]])

    scores = kernel.forward(z, temperature=1e-3, times_l1=False)[1]
    z_grad = kernel.backward(z, torch.ones(1, 1), temperature=1e-3, times_l1=False)

    assert scores.item() == 1.0
    assert not z_grad.any()
