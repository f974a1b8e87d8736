"""Products with one-hot matrices, run by Triton's interpreter, equal torch's embedding bag.

In fp32 and fp16: the interpreter knows no products in bf16, which `tests/gpu` has.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import embedding_bag

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from workloads.kernels.hash_bag import one_hot, reference
from workloads.kernels.hash_bag import triton as kernel
from workloads.kernels.sign_hash import reference as sign_hash
from workloads.kernels.sign_hash import triton as sign_hash_kernel

INTERPRETED = settings.get_profile("interpreted")
SHAPES = st.tuples(
    st.sampled_from([1, 2, 63, 65, 131]),  # tokens
    st.sampled_from([1, 3, 5, 8, 33]),  # chunks
    st.sampled_from([1, 2, 4, 5]),  # bits
    st.sampled_from([1, 16, 17, 40, 130]),  # width
)
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3}
SMALL = {
    "sums": replace(one_hot.SUMS, tokens=64, columns=64),
    "table": replace(one_hot.TABLE_GRADIENT, tokens=16, rows=64, columns=64),
    "scores": replace(one_hot.SCORE_GRADIENT, tokens=64, rows=64, columns=32),
}


@pytest.fixture(autouse=True)
def _interpreted(interpreted, poisoned):
    for module in (kernel, one_hot, sign_hash_kernel):
        interpreted(module)


def _case(
    shape: tuple[int, int, int, int], dtype: torch.dtype, shift: float = 0.5
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tokens, chunks, bits, width = shape
    generator = torch.Generator().manual_seed(sum(shape))
    z = torch.randn(tokens, chunks, bits, generator=generator) + shift
    rows, scores = sign_hash.forward(z, temperature=1.0, times_l1=True)
    return (
        torch.randn(chunks << bits, width, generator=generator).to(dtype),
        rows.T.contiguous().T,
        scores.T.contiguous().T,
        torch.randn(tokens, width, generator=generator).to(dtype),
    )


def _expected(
    table: Tensor, rows: Tensor, scores: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return sums, table's and scores' gradient in float64, by torch's own operation."""
    wide = table.double().requires_grad_()
    # Scores have the table's type, as in the reference.
    weights = scores.to(table.dtype).double().requires_grad_()
    out = embedding_bag(rows.long(), wide, per_sample_weights=weights, mode="sum")
    return (out.detach(), *torch.autograd.grad(out, (wide, weights), grad.double()))


def _close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    size = float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance * size)


@INTERPRETED
@given(shape=SHAPES, dtype=st.sampled_from(list(TOLERANCE)), few_codes=st.booleans())
def test_products_equal_embedding_bag(shape, dtype, few_codes):
    """Of few codes: all signs are alike, so most rows have no reader, and the others all."""
    case = table, rows, scores, grad = _case(shape, dtype, shift=9.0 if few_codes else 0.5)
    sums, table_grad, scores_grad = _expected(*case)
    tolerance = TOLERANCE[dtype]

    _close(one_hot.sums(table, rows, scores, tile=SMALL["sums"]), sums, tolerance)
    found = one_hot.table_gradient(table, rows, scores, grad, tile=SMALL["table"])
    assert found.dtype == dtype
    _close(found, table_grad, tolerance)
    unread = torch.ones(len(table), dtype=torch.bool)
    unread[rows.flatten().long()] = False
    assert not found[unread].any()
    found = one_hot.score_gradient(table, rows, grad, tile=SMALL["scores"])
    assert found.dtype == torch.float32
    assert found.T.is_contiguous()
    _close(found, scores_grad, 1e-6)


def test_tiles_in_use_equal_embedding_bag():
    case = table, rows, scores, grad = _case((257, 9, 4, 300), torch.float32)
    sums, table_grad, scores_grad = _expected(*case)

    _close(one_hot.sums(table, rows, scores), sums, 1e-6)
    _close(one_hot.table_gradient(table, rows, scores, grad), table_grad, 1e-6)
    _close(one_hot.score_gradient(table, rows, grad), scores_grad, 1e-6)


@pytest.mark.parametrize("tokens", [600, 1024, 1031])
def test_tokens_split_up_are_summed_once_each(tokens):
    case = table, rows, scores, grad = _case((tokens, 3, 2, 5), torch.float32)
    tile = replace(SMALL["table"], tokens=4, resident=7)
    assert one_hot._splits(1, tokens // 4, 7) == min(7, tokens // 4 // 32)

    found = one_hot.table_gradient(table, rows, scores, grad, tile=tile)

    _close(found, _expected(*case)[1], 1e-6)
    assert torch.equal(found, one_hot.table_gradient(table, rows, scores, grad, tile=tile))


def test_tokens_are_split_so_that_few_multiprocessors_idle():
    # Queries, keys and values, first and second layer of 30m in tiles of 128 x 256.
    assert [one_hot._splits(blocks, 512, 132) for blocks in (96, 80, 128)] == [4, 3, 1]
    assert one_hot._splits(1, 31, 132) == 1


def test_what_is_no_number_stays_with_its_token():
    case = table, rows, scores, _ = _case((70, 3, 4, 6), torch.float32)
    expected = one_hot.sums(*case[:3], tile=SMALL["sums"])
    scores[2, 1] = torch.nan

    found = one_hot.sums(table, rows, scores, tile=SMALL["sums"])

    assert found[2].isnan().all()
    others = torch.arange(70) != 2
    assert torch.equal(found[others], expected[others])


def test_small_tables_of_bf16_are_read_by_products(monkeypatch):
    monkeypatch.setattr(one_hot, "pays", lambda table, rows: True)
    table, rows, scores, grad = _case((131, 5, 4, 40), torch.float16)
    z = torch.randn(131, 5, 4, generator=torch.Generator().manual_seed(0))
    how = {"temperature": 1.0, "times_l1": False}
    expected, rows, scores = reference.forward(table.double(), z, **how)

    found = kernel.forward(table, z, few=False, **how)

    _close(found[0], expected, TOLERANCE[torch.float16])
    rows, scores = (numbers.T.contiguous().T for numbers in (rows, scores))
    gradients = kernel.backward(table, rows, scores, grad, needs_table=True, needs_scores=True)
    expected_gradients = _expected(table, rows, scores, grad)[1:]
    for one, other in zip(gradients, expected_gradients, strict=True):
        _close(one, other, TOLERANCE[torch.float16])
    one, other = kernel.backward(table, rows, scores, grad, needs_table=False, needs_scores=True)
    assert one is None
    assert torch.equal(other, gradients[1])


def test_products_pay_for_small_tables_of_bf16():
    rows = torch.zeros(8, 3, dtype=torch.int32)
    small = torch.empty(3 << 5, 16, dtype=torch.bfloat16)

    assert one_hot.pays(small, rows)
    assert not one_hot.pays(small.repeat(2, 1), rows)
    assert not one_hot.pays(small.float(), rows)
    assert not one_hot.pays(small[:, :15], rows)
    assert not one_hot.pays(small, rows[:0])
