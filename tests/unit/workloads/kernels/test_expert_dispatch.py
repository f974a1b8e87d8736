"""Copies of tokens and their sums are each other's gradients."""

import pytest
import torch
from torch import Tensor

from workloads.kernels import expert_dispatch

N_TOKENS, WIDTH = 5, 3
TOKEN_OF_ROW = torch.tensor([4, 0, 4, 2, 0, 4, 3])  # the token of index 1 has no row


def _by_token() -> tuple[Tensor, Tensor, Tensor]:
    in_order, rows_by_token = TOKEN_OF_ROW.sort(stable=True)
    return TOKEN_OF_ROW, rows_by_token, torch.searchsorted(in_order, torch.arange(N_TOKENS))


def _x(n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, WIDTH, dtype=dtype, generator=generator, requires_grad=True)


def test_a_row_is_its_token_and_a_token_the_sum_of_its_rows():
    x, rows = _x(N_TOKENS), _x(len(TOKEN_OF_ROW))
    sums = torch.zeros(N_TOKENS, WIDTH, dtype=torch.float64).index_add(0, TOKEN_OF_ROW, rows)

    assert torch.equal(expert_dispatch.spread(x, *_by_token()), x[TOKEN_OF_ROW])
    torch.testing.assert_close(expert_dispatch.collect(rows, *_by_token()), sums)
    assert expert_dispatch.collect(rows, *_by_token())[1].eq(0).all()


@pytest.mark.parametrize(
    ("function", "n"),
    [(expert_dispatch.spread, N_TOKENS), (expert_dispatch.collect, len(TOKEN_OF_ROW))],
)
def test_gradients_by_finite_differences(function, n):
    assert torch.autograd.gradcheck(lambda x: function(x, *_by_token()), (_x(n),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_are_wider_than_bf16(dtype):
    one_token = torch.zeros(300, dtype=torch.long), torch.arange(300), torch.tensor([0])

    found = expert_dispatch.collect(torch.ones(300, 2, dtype=dtype), *one_token)

    # Adding one by one in bf16 would stay at 256.
    assert found.dtype == dtype
    assert found.tolist() == [[300.0, 300.0]]


def test_repeats_are_bit_equal():
    x = _x(N_TOKENS, torch.float32)
    (first,), (second,) = (
        torch.autograd.grad(expert_dispatch.spread(x, *_by_token()).square().sum(), x)
        for _ in range(2)
    )

    assert torch.equal(first, second)
