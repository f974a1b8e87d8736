"""Product-key selection equals scoring every slot, ties included."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from workloads.kernels.product_key_topk import op, reference


def _every_slot(query: Tensor, sub_keys: Tensor) -> Tensor:
    """Scores of all n_keys**2 slots in float64: (tokens, heads, n_slots)."""
    left, right = query.double().chunk(2, dim=-1)
    scores_left = torch.einsum("thd,hnd->thn", left, sub_keys[0].double())
    scores_right = torch.einsum("thd,hnd->thn", right, sub_keys[1].double())
    return (scores_left[..., :, None] + scores_right[..., None, :]).flatten(-2)


def _best_by_brute_force(query: Tensor, sub_keys: Tensor, knn: int) -> tuple[Tensor, Tensor]:
    """Stable, so equal scores stay in the order of their ids."""
    scores, ids = _every_slot(query, sub_keys).sort(dim=-1, descending=True, stable=True)
    return scores[..., :knn], ids[..., :knn]


@st.composite
def _cases(draw: st.DrawFn) -> tuple[int, int, int, int, int, int, int]:
    n_keys = draw(st.integers(1, 40))
    return (
        draw(st.integers(1, 5)),  # tokens
        draw(st.integers(1, 3)),  # heads
        n_keys,
        draw(st.integers(1, 4)),  # half_key_dim
        draw(st.integers(1, n_keys) | st.integers(1, min(n_keys**2, 150))),  # knn
        draw(st.integers(0, 3)),  # largest integer in queries and keys; 0 ties everything
        draw(st.integers(0, 2**31)),
    )


@given(case=_cases(), dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_same_slots_in_the_same_order_as_brute_force_with_many_ties(case, dtype):
    tokens, heads, n_keys, half, knn, largest, seed = case
    generator = torch.Generator().manual_seed(seed)
    query = torch.randint(-largest, largest + 1, (tokens, heads, 2 * half), generator=generator)
    sub_keys = torch.randint(-largest, largest + 1, (2, heads, n_keys, half), generator=generator)
    expected_scores, expected_ids = _best_by_brute_force(query, sub_keys, knn)

    scores, ids = op.product_key_topk(query.to(dtype), sub_keys.to(dtype), knn)

    assert torch.equal(ids, expected_ids)
    assert torch.equal(scores.double(), expected_scores)


@given(case=_cases())
def test_real_numbers(case):
    tokens, heads, n_keys, half, knn, _, seed = case
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(tokens, heads, 2 * half, generator=generator, dtype=torch.float64)
    sub_keys = torch.randn(2, heads, n_keys, half, generator=generator, dtype=torch.float64)
    expected_scores, expected_ids = _best_by_brute_force(query, sub_keys, knn)

    scores, ids = reference.product_key_topk(query, sub_keys, knn)
    single, single_ids = reference.product_key_topk(query.float(), sub_keys.float(), knn)

    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(scores, expected_scores)
    # In fp32 near-equal slots may swap, but each returned slot has the score it claims, and the
    # best are found.
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected_scores, rtol=1e-5, atol=1e-5)
    claimed = _every_slot(query, sub_keys).gather(-1, single_ids)
    torch.testing.assert_close(single.double(), claimed, rtol=1e-5, atol=1e-5)


def test_zero_of_either_sign_is_one_score():
    query = torch.tensor([[[1.0, 1.0]]])
    sub_keys = torch.tensor([[[[-0.0], [0.0]]], [[[0.0], [-0.0]]]])

    _, ids = reference.product_key_topk(query, sub_keys, 2)

    assert ids.tolist() == [[[0, 1]]]


@pytest.mark.parametrize(("knn", "pairs"), [(1, 1), (2, 3), (8, 20), (32, 119)])
def test_number_of_candidate_pairs(knn, pairs):
    left, right = reference.candidate_pairs(knn)

    assert len(left) == len(right) == pairs
    assert all((i + 1) * (j + 1) <= knn for i, j in zip(left, right, strict=True))


@given(n_keys=st.integers(1, 12), data=st.data())
def test_candidates_are_within_the_half_and_enough(n_keys, data):
    knn = data.draw(st.integers(1, n_keys**2))

    left, right = reference.candidate_pairs(knn, n_keys)

    assert knn <= len(left) == len(set(zip(left, right, strict=True))) <= n_keys**2
    assert max(left + right) < n_keys


def test_every_slot_may_be_asked_for():
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, 2, 4, generator=generator)
    sub_keys = torch.randn(2, 2, 7, 2, generator=generator)

    scores, ids = reference.product_key_topk(query, sub_keys, 49)

    assert torch.equal(ids.sort(dim=-1).values, torch.arange(49).expand(3, 2, 49))
    assert (scores.diff(dim=-1) <= 0).all()


def test_gradients_by_finite_differences():
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, 2, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    sub_keys = torch.randn(2, 2, 5, 3, generator=generator, dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(
        lambda q, k: reference.product_key_topk(q, k, 4)[0], (query, sub_keys)
    )


def test_autocast_does_not_round_the_scores():
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(4, 2, 8, generator=generator)
    sub_keys = torch.randn(2, 2, 16, 4, generator=generator)
    expected, expected_ids = reference.product_key_topk(query, sub_keys, 3)

    with torch.autocast("cpu", torch.bfloat16):
        scores, ids = reference.product_key_topk(query, sub_keys, 3)

    assert torch.equal(scores, expected)
    assert torch.equal(ids, expected_ids)


@pytest.mark.parametrize("knn", [0, 26])
def test_more_slots_than_there_are_are_refused(knn):
    with pytest.raises(ValueError, match=rf"knn must lie in 1\.\.n_keys\*\*2 \(25\), got {knn}"):
        reference.product_key_topk(torch.zeros(1, 1, 2), torch.zeros(2, 1, 5, 1), knn)
