"""Rows and scores equal their definition.

A softmax over all rows, at the row that the signs name.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from workloads.kernels.sign_hash import reference
from workloads.kernels.sign_hash.op import sign_hash

GOLDEN = [[[0.7, -0.1]]]


def _scores(z: Tensor, *, temperature: float = 1.0, times_l1: bool = False) -> Tensor:
    return sign_hash(z, temperature=temperature, times_l1=times_l1)[1]


def _signs(bits: int) -> Tensor:
    """The signs of every row, the highest bit first."""
    rows = torch.arange(2**bits)[:, None]
    return torch.where(rows >> torch.arange(bits - 1, -1, -1) & 1 > 0, 1.0, -1.0).double()


@pytest.mark.parametrize(
    ("times_l1", "temperature", "score"),
    [
        (False, 1.0, 0.4410679740258323),
        (True, 1.0, 0.3528543792206658),
        (False, 0.5, 0.5643683833756836),
        (False, 2.0, 0.350784673716207),
    ],
)
def test_golden_scores(times_l1, temperature, score):
    z = torch.tensor(GOLDEN, dtype=torch.float64)

    found = _scores(z, temperature=temperature, times_l1=times_l1)

    assert found.item() == pytest.approx(score, abs=1e-15)


@pytest.mark.parametrize(
    ("times_l1", "gradient"),
    [(False, [0.1745007, -0.3971076]), (True, [0.5806685, -0.7587541])],
)
def test_golden_gradients(times_l1, gradient):
    z = torch.tensor(GOLDEN, dtype=torch.float64, requires_grad=True)

    _scores(z, times_l1=times_l1).sum().backward()

    assert z.grad is not None
    assert z.grad.flatten().tolist() == pytest.approx(gradient, abs=5e-8)


def test_the_first_number_is_the_highest_bit():
    assert sign_hash(torch.tensor(GOLDEN), temperature=1.0, times_l1=False)[0].item() == 2


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("times_l1", [False, True])
def test_is_the_largest_of_a_softmax_over_all_rows(bits, temperature, times_l1):
    generator = torch.Generator().manual_seed(bits)
    z = torch.randn(5, 3, bits, dtype=torch.float64, generator=generator, requires_grad=True)
    grad = torch.randn(5, 3, dtype=torch.float64, generator=generator)
    every = (z @ _signs(bits).T / temperature).softmax(dim=-1)
    largest, row = every.max(dim=-1)
    expected = largest * z.abs().sum(dim=-1) if times_l1 else largest

    rows, scores = sign_hash(z, temperature=temperature, times_l1=times_l1)

    assert rows.dtype == torch.int32
    assert torch.equal(rows.long(), row + torch.arange(3) * 2**bits)
    torch.testing.assert_close(scores, expected, rtol=1e-12, atol=0)
    found = torch.autograd.grad(scores, z, grad)[0]
    torch.testing.assert_close(found, torch.autograd.grad(expected, z, grad)[0])


@given(
    codes=st.integers(1, 6).flatmap(
        lambda bits: st.tuples(
            st.just(bits), st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=4)
        )
    ),
    size=st.floats(1e-30, 1e30),
)
def test_every_row_is_named_by_its_signs(codes, size):
    bits, wanted = codes
    z = size * _signs(bits)[wanted][None]

    rows, _ = sign_hash(z, temperature=1.0, times_l1=False)

    assert (rows[0] - torch.arange(len(wanted)) * 2**bits).tolist() == wanted


def test_zero_counts_as_positive_and_has_no_slope():
    z = torch.tensor([[[0.0, -0.0, -1e-38]]], requires_grad=True)

    rows, scores = sign_hash(z, temperature=1.0, times_l1=True)
    scores.sum().backward()

    assert rows.item() == 0b110
    assert z.grad is not None
    assert z.grad[0, 0, :2].tolist() == [0.0, 0.0]


def test_large_numbers_are_certain():
    z = torch.tensor([[[1e30, -1e30]]], requires_grad=True)

    scores = _scores(z, temperature=1e-3)
    scores.sum().backward()

    assert scores.item() == 1.0
    assert z.grad is not None
    assert not z.grad.any()


def test_scores_of_half_precision_are_single():
    z = torch.tensor(GOLDEN, dtype=torch.bfloat16, requires_grad=True)

    scores = _scores(z)
    scores.sum().backward()

    assert scores.dtype == torch.float32
    assert scores.item() == pytest.approx(_scores(z.detach().double()).item(), rel=1e-6)
    assert z.grad is not None
    assert z.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("times_l1", [False, True])
def test_is_a_sound_custom_operation(times_l1):
    z = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)

    torch.library.opcheck(torch.ops.memscale.sign_hash.default, (z, 0.7, times_l1))


def test_rows_are_of_32_bits_where_that_holds_the_last():
    assert reference.row_type(2**15, 16) == torch.int32
    assert reference.row_type(2**15 + 1, 16) == torch.int64


@pytest.mark.parametrize("times_l1", [False, True])
def test_gradients_by_finite_differences(times_l1):
    z = torch.randn(5, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    assert torch.autograd.gradcheck(
        lambda x: _scores(x, temperature=0.7, times_l1=times_l1), z.requires_grad_()
    )
