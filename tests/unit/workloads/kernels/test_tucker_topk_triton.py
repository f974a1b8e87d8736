"""The GPU kernels of selection by Tucker-decomposed scores, in Triton's interpreter.

Every slot and every gradient is the reference's.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workloads.kernels.tucker_topk import reference

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")
from workloads.kernels.product_key_topk import bitonic_sort, split_fp16
from workloads.kernels.product_key_topk import triton as product_keys
from workloads.kernels.tucker_topk import backward, op
from workloads.kernels.tucker_topk import triton as kernels

INTERPRETED = settings.get_profile("interpreted")
SMALL = product_keys.Tile(16, 16, 16, 16, warps=4, stages=1)


@pytest.fixture(autouse=True)
def _interpreted(interpreted, poisoned, monkeypatch):
    for module in (bitonic_sort, split_fp16, product_keys, kernels, backward):
        interpreted(module)
    monkeypatch.setattr(product_keys, "_crowded_programs", lambda device, warps: 3)
    monkeypatch.setattr(backward, "COMPARED", 2**9)


def _integers(
    tokens: int, heads: int, rank: int, queries: int, n_keys: int, half: int, largest: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Small integers, whose exact scores are exact and tie often.

    A core whose leading pair is one axis, so that approximate scores are exact, too.
    """
    generator = torch.Generator().manual_seed(tokens + n_keys)
    ends = -largest, largest + 1
    query = torch.randint(*ends, (2, heads, queries, tokens, half), generator=generator)
    sub_keys = torch.randint(*ends, (2, heads, rank, n_keys, half), generator=generator)
    core = torch.diag(torch.tensor([4.0] + [1.0] * (rank - 1))).expand(heads, -1, -1)
    return query.float(), sub_keys.float(), core.contiguous()


@st.composite
def _cases(draw: st.DrawFn) -> tuple[int, ...]:
    n_keys = draw(st.integers(1, 40))
    rank = draw(st.integers(1, 3))
    return (
        draw(st.integers(1, 3)),  # tokens
        draw(st.integers(1, 2)),  # heads
        rank,
        draw(st.sampled_from([1, rank])),  # queries
        n_keys,
        draw(st.integers(1, 20)),  # half_key_dim
        draw(st.integers(1, min(n_keys, 20))),  # knn
        draw(st.integers(0, 3)),  # largest integer in queries and keys; 0 ties everything
    )


@given(case=_cases(), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
@INTERPRETED
def test_same_slots_in_the_same_order_with_many_ties(case, dtype):
    *shape, knn, largest = case
    query, sub_keys, core = _integers(*shape, largest)
    expected, expected_ids = reference.tucker_topk(query, sub_keys, core, knn)

    scores, ids, _ = kernels.select(query.to(dtype), sub_keys, core, knn, tile=SMALL)

    assert torch.equal(ids, expected_ids)
    assert torch.equal(scores, expected)


def _normal(
    tokens: int, heads: int, rank: int, queries: int, n_keys: int, half: int
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens + n_keys)
    query = torch.randn(tokens, 2, heads, queries, half, generator=generator)
    sub_keys = torch.randn(2, heads, rank, n_keys, half, generator=generator) / half**0.5
    core = torch.rand(heads, rank, rank, generator=generator)
    # As a projection leaves it: the numbers of a token side by side.
    return query.permute(1, 2, 3, 0, 4), sub_keys, core


SHAPES = [(1, 1, 1, 1, 1, 1, 1), (5, 2, 2, 2, 37, 20, 7)]
LARGER = [(35, 1, 3, 1, 33, 16, 16), (3, 1, 4, 4, 70, 67, 32)]


@pytest.mark.parametrize(
    "shape",
    [*SHAPES, *(pytest.param(shape, marks=pytest.mark.long) for shape in LARGER)],
    ids=str,
)
def test_scores_are_as_exact_as_fp32(shape):
    *sizes, knn = shape
    query, sub_keys, core = _normal(*sizes)
    expected, expected_ids = reference.tucker_topk(
        query.double(), sub_keys.double(), core.double(), knn
    )

    scores, ids, _ = kernels.select(query, sub_keys, core, knn, tile=SMALL, chunk_bytes=1)

    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_bf16_query_is_compared_with_sub_keys_of_eleven_bits():
    query, sub_keys, core = _normal(5, 1, 2, 2, 37, 64)
    query = query.bfloat16()
    expected, _ = reference.tucker_topk(query.double(), sub_keys.double(), core.double(), 8)

    scores, _, _ = kernels.select(query, sub_keys, core, 8, tile=SMALL)

    # Both factors of a product of up to 10 err by a unit of the eleventh bit at most.
    torch.testing.assert_close(scores.double(), expected, rtol=2**-11, atol=2e-3)


# What a type and a small buffer change have nothing to do with each other.
@pytest.mark.parametrize(
    ("dtype", "weight_bytes", "shape"),
    [
        (torch.float32, 1, SHAPES[0]),
        (torch.float32, 1, SHAPES[1]),
        (torch.bfloat16, 2**28, SHAPES[0]),
        pytest.param(torch.bfloat16, 2**28, SHAPES[1], marks=pytest.mark.long),
        *(
            pytest.param(*how, shape, marks=pytest.mark.long)
            for how in [(torch.float32, 1), (torch.bfloat16, 2**28)]
            for shape in LARGER
        ),
    ],
    ids=str,
)
def test_gradients(shape, dtype, weight_bytes):
    *sizes, knn = shape
    query, sub_keys, core = _normal(*sizes)
    query = query.to(dtype)
    generator = torch.Generator().manual_seed(0)
    grad = torch.randn(sizes[1], sizes[0], knn, generator=generator).transpose(0, 1)
    leaves = [x.clone().requires_grad_() for x in (query, sub_keys, core)]
    _, ids, products = kernels.select(query, sub_keys, core, knn, tile=SMALL, chunk_bytes=1)
    # Of the kernels' choice, which a bf16 query may decide another way.
    rows, columns = reference.half_scores(leaves[0], leaves[1])
    slots = ids.transpose(0, 1)[:, None].expand(-1, len(core[0]), -1, -1)
    row, column = (rows.gather(-1, slots // sizes[4]), columns.gather(-1, slots % sizes[4]))
    scores = torch.einsum("hatk,hab,hbtk->thk", row, leaves[2], column)
    expected = torch.autograd.grad(scores, leaves, grad)

    found = backward.gradients(
        grad, ids, products, query, sub_keys, core, weight_bytes=weight_bytes
    )

    # Weights are rounded to bf16, as autocast rounds what is multiplied; the interpreter cuts off.
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == y.dtype
        torch.testing.assert_close(x, y, rtol=0, atol=tolerance * float(y.abs().max()))


def test_the_operator_keeps_its_promises():
    arguments = [x.requires_grad_() for x in _normal(3, 1, 2, 2, 9, 4)]

    torch.library.opcheck(
        op._select,
        (*arguments, 4),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
