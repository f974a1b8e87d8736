"""Routes against brute force, and the router's losses."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from workloads.layers.modules.moe_routing import (
    Routes,
    balance_loss,
    best_experts,
    expert_choice,
    loads,
    token_choice,
    tokens_taken,
    z_loss,
)


def _probabilities(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).softmax(-1)


def _pairs(routes: Routes) -> dict[tuple[int, int], float]:
    """(token, expert) -> weight."""
    experts = torch.repeat_interleave(torch.arange(len(routes.ends)), routes.load)
    pairs = zip(routes.token_of_row.tolist(), experts.tolist(), strict=True)
    found = dict(zip(pairs, routes.weights.tolist(), strict=True))
    assert len(found) == len(routes.token_of_row), "a pair occurs twice"
    return found


def _is_consistent(routes: Routes, n_tokens: int) -> None:
    """What the two orders of the rows say of each other."""
    n_rows = len(routes.token_of_row)
    assert sorted(routes.rows_by_token.tolist()) == list(range(n_rows))
    ends = [*routes.starts.tolist()[1:], n_rows]
    for token, (start, end) in enumerate(zip(routes.starts.tolist(), ends, strict=True)):
        assert (routes.token_of_row[routes.rows_by_token[start:end]] == token).all()
    assert len(routes.starts) == n_tokens
    assert routes.ends[-1] == n_rows
    assert routes.ends.dtype == torch.int32


@given(
    n_tokens=st.integers(1, 9), n_experts=st.integers(1, 6), data=st.data(), seed=st.integers(0, 99)
)
def test_every_token_gets_its_best_experts_and_none_is_dropped(n_tokens, n_experts, data, seed):
    top_k = data.draw(st.integers(1, n_experts))
    probabilities = _probabilities(n_tokens, n_experts, seed=seed)

    routes = token_choice(probabilities, best_experts(probabilities, top_k), renormalise=False)

    expected = {}
    for token, row in enumerate(probabilities.tolist()):
        for expert in sorted(range(n_experts), key=row.__getitem__, reverse=True)[:top_k]:
            expected[token, expert] = row[expert]
    assert _pairs(routes) == expected
    _is_consistent(routes, n_tokens)
    assert routes.dropped == 0


def test_renormalised_weights_of_a_token_sum_to_one():
    probabilities = _probabilities(7, 5)
    experts = best_experts(probabilities, 3)

    plain = _pairs(token_choice(probabilities, experts, renormalise=False))
    found = _pairs(token_choice(probabilities, experts, renormalise=True))

    for token in range(7):
        mine = {pair: weight for pair, weight in plain.items() if pair[0] == token}
        for pair, weight in mine.items():
            assert found[pair] == pytest.approx(weight / sum(mine.values()))


@given(
    groups=st.integers(1, 3),
    n_tokens=st.integers(1, 8),
    n_experts=st.integers(1, 5),
    share=st.floats(0.05, 1),
    seed=st.integers(0, 99),
)
def test_every_expert_takes_its_best_tokens_of_every_group(
    groups, n_tokens, n_experts, share, seed
):
    probabilities = _probabilities(groups, n_tokens, n_experts, seed=seed)
    capacity = share * n_experts

    routes = expert_choice(probabilities, capacity=capacity)

    taken = min(n_tokens, math.ceil(capacity * n_tokens / n_experts))
    expected = {}
    for group in range(groups):
        for expert in range(n_experts):
            column = probabilities[group, :, expert].tolist()
            for place in sorted(range(n_tokens), key=column.__getitem__, reverse=True)[:taken]:
                expected[group * n_tokens + place, expert] = column[place]
    assert _pairs(routes) == expected
    _is_consistent(routes, groups * n_tokens)
    assert routes.load.tolist() == [groups * taken] * n_experts
    assert routes.dropped == groups * n_tokens - len({token for token, _ in expected})


def test_equal_probabilities_go_to_the_first_token_and_the_first_expert():
    even = torch.full((4, 3), 1 / 3)

    assert best_experts(even, 2).tolist() == [[0, 1]] * 4
    routes = expert_choice(even[None], capacity=1.0)
    assert routes.token_of_row.tolist() == [0, 1] * 3
    assert routes.dropped == 2


@pytest.mark.parametrize(
    ("capacity", "taken"), [(1.0, 4), (1.25, 5), (2.0, 7), (0.01, 1), (3.0, 10)]
)
def test_an_expert_takes_its_share_rounded_up_and_at_most_all(capacity, taken):
    assert tokens_taken(10, n_experts=3, capacity=capacity) == taken


def test_a_bias_changes_the_choice_and_not_the_weights():
    probabilities = torch.tensor([[0.6, 0.3, 0.1]])
    bias = torch.tensor([-0.4, 0.0, 0.0])

    experts = best_experts(probabilities, 1, bias)

    assert experts.tolist() == [[1]]
    assert token_choice(probabilities, experts, renormalise=False).weights.item() == pytest.approx(
        0.3
    )


def test_balance_loss_by_brute_force():
    groups, n_tokens, n_experts, top_k = 2, 6, 4, 2
    probabilities = _probabilities(groups, n_tokens, n_experts)
    experts = best_experts(probabilities.flatten(0, 1), top_k).view(groups, -1)

    found = balance_loss(probabilities, loads(experts, n_experts))

    total = 0.0
    for group in range(groups):
        for e in range(n_experts):
            f = sum(int(x) == e for x in experts[group]) / (n_tokens * top_k)
            p = sum(float(probabilities[group, t, e]) for t in range(n_tokens)) / n_tokens
            total += n_experts * f * p
    assert found.item() == pytest.approx(total / groups)


def test_balance_loss_is_one_for_even_loads_and_rises_with_the_skew():
    probabilities = _probabilities(1, 8, 4)
    even = torch.full((1, 4), 3)

    assert balance_loss(probabilities, even).item() == pytest.approx(1.0)
    certain = torch.tensor([[[1.0, 0.0, 0.0, 0.0]]])
    assert balance_loss(certain, torch.tensor([[5, 0, 0, 0]])).item() == 4.0


def test_balance_loss_pushes_the_busy_experts_down():
    probabilities = _probabilities(1, 8, 4).requires_grad_()

    (gradient,) = torch.autograd.grad(
        balance_loss(probabilities, torch.tensor([[4, 2, 2, 0]])), probabilities
    )

    assert gradient[0, 0].tolist() == pytest.approx([4 * 0.5 / 8, 4 * 0.25 / 8, 4 * 0.25 / 8, 0.0])


def test_z_loss_is_the_mean_square_of_the_log_normaliser():
    logits = torch.tensor([[0.0, 0.0], [1.0, 3.0]], dtype=torch.float64)

    normalisers = [math.log(2.0), math.log(math.e + math.e**3)]
    assert z_loss(logits).item() == pytest.approx(sum(n**2 for n in normalisers) / 2)
