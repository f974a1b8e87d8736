"""Products with one-hot matrices, written by Triton's interpreter, equal the float64 reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from workloads.kernels.hash_bag import one_hot, reference
from workloads.kernels.hash_bag import triton as kernel
from workloads.kernels.sign_hash import triton as sign_hash

INTERPRETED = settings.get_profile("interpreted")
SHAPES = st.tuples(
    st.sampled_from([1, 2, 15, 33]),  # tokens
    st.sampled_from([1, 3, 5, 17]),  # chunks
    st.sampled_from([1, 2, 4, 5]),  # bits
    st.sampled_from([1, 16, 17, 40]),  # width
)
# The interpreter cuts off what does not fit bf16.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 2e-2}
HOW = {"temperature": 0.7, "times_l1": True}
BOTH = {"needs_table": True, "needs_z": True}


@pytest.fixture(autouse=True)
def _interpreted(interpreted, poisoned, monkeypatch):
    for module in (kernel, sign_hash):
        interpreted(module)
    # The interpreter takes the product of bits number by number.
    for tokens in ("_TOKENS", "_MATRIX_TOKENS"):
        monkeypatch.setattr(sign_hash, tokens, 4)
    monkeypatch.setattr(sign_hash, "_CHUNKS", 2)


def _case(
    shape: tuple[int, int, int, int], dtype: torch.dtype, shift: float = 0.5
) -> tuple[Tensor, Tensor, Tensor]:
    tokens, chunks, bits, width = shape
    generator = torch.Generator().manual_seed(sum(shape))
    return (
        torch.randn(chunks << bits, width, generator=generator).to(dtype),
        torch.randn(tokens, chunks, bits, generator=generator) + shift,
        torch.randn(tokens, width, generator=generator).to(dtype),
    )


def _expected(table: Tensor, z: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sums and the gradients of table and numbers, in float64."""
    table, z, grad = (x.double() for x in (table, z, grad))
    out, rows, scores = reference.forward(table, z, **HOW)
    table_grad, z_grad = reference.backward(table, z, rows, scores, grad, **HOW, **BOTH)
    assert table_grad is not None
    assert z_grad is not None
    return out, table_grad, z_grad


def _close(found: Tensor | None, expected: Tensor, bound: Tensor, tolerance: float) -> None:
    """Compare within `tolerance` of the largest sum of what was added up, whatever its sign."""
    assert found is not None
    atol = tolerance * float(bound.abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=atol)


@INTERPRETED
@given(
    shape=SHAPES,
    dtype=st.sampled_from(list(TOLERANCE)),
    few_codes=st.booleans(),
    rows_at_once=st.sampled_from([4, 16, 1000]),
)
def test_products_equal_the_reference(shape, dtype, few_codes, rows_at_once):
    """Of few codes: all signs are alike, so most rows have no reader, and the others all."""
    case = table, z, grad = _case(shape, dtype, shift=9.0 if few_codes else 0.5)
    sums, table_grad, z_grad = _expected(*case)
    sums_bound, table_bound, z_bound = _expected(table.abs(), z, grad.abs())
    tolerance = TOLERANCE[dtype]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_hot, "MATRIX_BYTES", rows_at_once * len(table) * table.element_size())

        found, rows, scores = one_hot.forward(table, z, **HOW)
        found_table_grad, found_z_grad = one_hot.backward(table, z, grad, **HOW, **BOTH)

    _close(found, sums, sums_bound, tolerance)
    expected_rows, expected_scores = sign_hash.forward(z, **HOW)
    assert torch.equal(rows, expected_rows)
    assert torch.equal(scores, expected_scores)
    assert rows.T.is_contiguous()
    _close(found_table_grad, table_grad, table_bound, tolerance)
    assert found_table_grad is not None
    assert found_table_grad.dtype == dtype
    unread = torch.ones(len(table), dtype=torch.bool)
    unread[rows.flatten().long()] = False
    assert not found_table_grad[unread].any()
    _close(found_z_grad, z_grad, z_bound, tolerance)


def test_the_matrix_has_a_tokens_scores_in_the_columns_of_its_rows():
    table, z, _ = _case((9, 5, 3, 8), torch.float32)
    matrix = torch.full((9, len(table)), torch.nan)
    rows, scores = sign_hash.forward(z, **HOW)

    sign_hash.write(z, one_hot=matrix, **HOW)

    assert torch.equal(matrix, torch.zeros_like(matrix).scatter_(1, rows.long(), scores))


def test_the_gradient_of_what_was_read_is_taken_from_those_per_code_rows():
    _, z, _ = _case((9, 5, 3, 8), torch.float32)
    per_code = torch.randn(9, 5, 8, generator=torch.Generator().manual_seed(0))
    rows, _ = sign_hash.forward(z, **HOW)
    of_read = per_code.flatten(1).gather(1, rows.long())

    found = sign_hash.backward(z, per_code, **HOW)

    assert torch.equal(found, sign_hash.backward(z, of_read, **HOW))
    turned = per_code.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert torch.equal(found, sign_hash.backward(z, turned, **HOW))


def test_what_is_no_number_stays_with_its_token():
    table, z, _ = _case((70, 3, 4, 6), torch.float32)
    expected = one_hot.forward(table, z, **HOW)[0]
    z[2, 1] = torch.nan

    found = one_hot.forward(table, z, **HOW)[0]

    assert found[2].isnan().all()
    others = torch.arange(70) != 2
    assert torch.equal(found[others], expected[others])


def test_only_what_is_needed_is_made():
    table, z, grad = _case((33, 3, 4, 16), torch.float32)
    both = one_hot.backward(table, z, grad, **HOW, **BOTH)

    one = one_hot.backward(table, z, grad, **HOW, needs_table=True, needs_z=False)
    other = one_hot.backward(table, z, grad, **HOW, needs_table=False, needs_z=True)

    assert one[1] is None
    assert other[0] is None
    assert one[0] is not None
    assert both[0] is not None
    assert torch.equal(one[0], both[0])
    assert other[1] is not None
    assert both[1] is not None
    assert torch.equal(other[1], both[1])


def test_small_tables_of_bf16_are_read_by_products(monkeypatch):
    table, z, grad = case = _case((131, 5, 4, 48), torch.bfloat16)
    called = []
    for name in ("forward", "backward"):
        way = getattr(one_hot, name)
        monkeypatch.setattr(
            one_hot,
            name,
            lambda *a, name=name, way=way, **k: (called.append(name), way(*a, **k))[1],
        )
    sums, table_grad, z_grad = _expected(*case)

    found, rows, scores = kernel.forward(table, z, few=False, **HOW)
    gradients = kernel.backward(table, z, rows, scores, grad, **HOW, **BOTH)

    assert called == ["forward", "backward"]
    bounds = _expected(table.abs(), z, grad.abs())
    results = zip((found, *gradients), (sums, table_grad, z_grad), bounds, strict=True)
    for one, expected, bound in results:
        _close(one, expected, bound, TOLERANCE[torch.bfloat16])


def test_products_pay_for_small_tables_of_bf16():
    z = torch.zeros(8, 3, 5)
    small = torch.empty(3 << 5, 16, dtype=torch.bfloat16)

    assert one_hot.pays(small, z)
    assert not one_hot.pays(small.repeat(2, 1), torch.zeros(8, 3, 6))
    assert not one_hot.pays(small.float(), z)
    assert not one_hot.pays(small[:, :15], z)
    assert not one_hot.pays(small, z[:0])
