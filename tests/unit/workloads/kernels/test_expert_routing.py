"""Choice of experts and order of rows: plain torch by hand, Triton's (interpreted) equal to it."""

import pytest
import torch

from workloads.kernels.expert_routing import reference
from workloads.kernels.expert_routing.op import best_experts, rows_by_expert


def test_the_best_experts_by_hand():
    scores = torch.tensor([[0.1, 0.5, 0.5, 0.2], [3.0, -1.0, 0.0, -0.0]])

    assert best_experts(scores, 3).tolist() == [[1, 2, 3], [0, 2, 3]]


def test_rows_by_expert_by_hand():
    order, places, ends = rows_by_expert(torch.tensor([2, 0, 2, 0, 3]), 5)

    assert order.tolist() == [1, 3, 0, 2, 4]
    assert places.tolist() == [2, 0, 3, 1, 4]
    assert ends.tolist() == [2, 2, 4, 5, 5]


@pytest.fixture
def triton(interpreted):
    module = pytest.importorskip(
        "workloads.kernels.expert_routing.triton",
        reason="a CPU build of torch comes without Triton",
    )
    interpreted(module)
    return module


@pytest.mark.parametrize(
    ("n_tokens", "n_experts", "top_k"), [(1, 1, 1), (37, 5, 5), (20, 64, 8), (17, 100, 3)]
)
def test_triton_chooses_the_same_experts(n_tokens, n_experts, top_k, triton):
    generator = torch.Generator().manual_seed(n_tokens)
    # Few distinct scores, so many ties.
    scores = torch.randint(-3, 4, (n_tokens, n_experts), generator=generator) / 2
    scores[0] = -torch.inf

    assert torch.equal(triton.best_experts(scores, top_k), reference.best_experts(scores, top_k))


@pytest.mark.parametrize(("n_choices", "n_experts"), [(1, 1), (64, 3), (1000, 7), (333, 100)])
def test_triton_places_rows_as_a_stable_sort(n_choices, n_experts, triton):
    generator = torch.Generator().manual_seed(n_choices)
    experts = torch.randint(n_experts, (n_choices,), generator=generator)

    for found, expected in zip(
        triton.rows_by_expert(experts, n_experts),
        reference.rows_by_expert(experts, n_experts),
        strict=True,
    ):
        assert torch.equal(found, expected)
        assert found.dtype == expected.dtype
