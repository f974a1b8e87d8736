"""Choice of experts and order of rows by expert in Triton, without a sort.

It takes two passes over the choices. Rows are counted per expert and block of tokens, the running
sum of the counts says where a block's rows of an expert begin, and within a block every choice
counts the equal ones before it.
"""

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from triton import language as tl

_CHOICES = 64
"""That one program places. It compares every pair of them."""
_TOKENS = 16
"""Whose experts one program chooses."""


def best_experts(
    scores: Float[Tensor, "tokens experts"], top_k: int
) -> Int[Tensor, "tokens top_k"]:
    """Return each token's experts of highest score, best first, the lowest id of equal ones."""
    n_tokens, n_experts = scores.shape
    best = torch.empty(n_tokens, top_k, dtype=torch.int64, device=scores.device)
    if n_tokens:
        _best[(triton.cdiv(n_tokens, _TOKENS),)](
            scores.contiguous(), best, n_tokens, n_experts,
            TOP_K=top_k, TOKENS=_TOKENS, EXPERTS=triton.next_power_of_2(n_experts),
        )  # fmt: skip
    return best


def rows_by_expert(
    experts: Int[Tensor, " choices"], n_experts: int
) -> tuple[Int[Tensor, " rows"], Int[Tensor, " choices"], Int[Tensor, " experts"]]:
    """Return the choice of every row, the row of every choice, and where experts' rows end.

    A stable sort's order.
    """
    n_choices = len(experts)
    blocks = triton.cdiv(n_choices, _CHOICES)
    order, places = torch.empty_like(experts), torch.empty_like(experts)
    counts = torch.empty(n_experts, blocks, dtype=torch.int32, device=experts.device)
    if not n_choices:
        return order, places, counts.new_zeros(n_experts)
    constants = {"CHOICES": _CHOICES, "EXPERTS": triton.next_power_of_2(n_experts)}
    _count[(blocks,)](experts, counts, n_choices, n_experts, **constants)
    sums = counts.view(-1).cumsum(0, dtype=torch.int32)
    _place[(blocks,)](experts, counts, sums, order, places, n_choices, CHOICES=_CHOICES)
    return order, places, sums.view(n_experts, blocks)[:, -1].contiguous()


@triton.jit
def _best(
    scores, best, n_tokens, n_experts,
    TOP_K: tl.constexpr, TOKENS: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    expert = tl.arange(0, EXPERTS)[None, :]
    live = (token < n_tokens)[:, None] & (expert < n_experts)
    at = token.to(tl.int64)[:, None] * n_experts + expert
    score = tl.load(scores + at, mask=live, other=0.0)
    # Below every number and above what is taken or does not exist; a NaN counts as lowest.
    score = tl.where(score == score, score, float("-inf"))
    free = (expert < n_experts) & (token[:, None] >= 0)
    for place in range(TOP_K):
        highest = tl.max(tl.where(free, score, float("-inf")), 1)
        first = tl.where(free & (score == highest[:, None]), expert, EXPERTS)
        found = tl.min(first, 1)
        free = free & (expert != found[:, None])
        tl.store(
            best + token.to(tl.int64) * TOP_K + place, found.to(tl.int64), mask=token < n_tokens
        )


@triton.jit
def _count(
    experts, counts, n_choices, n_experts, CHOICES: tl.constexpr, EXPERTS: tl.constexpr
):  # fmt: skip
    block = tl.program_id(0)
    choice = block * CHOICES + tl.arange(0, CHOICES)
    chosen = tl.load(experts + choice, mask=choice < n_choices, other=-1).to(tl.int32)
    expert = tl.arange(0, EXPERTS)
    found = tl.sum((chosen[:, None] == expert[None, :]).to(tl.int32), 0)
    tl.store(counts + expert * tl.num_programs(0) + block, found, mask=expert < n_experts)


@triton.jit
def _place(experts, counts, sums, order, places, n_choices, CHOICES: tl.constexpr):
    block = tl.program_id(0)
    place = tl.arange(0, CHOICES)
    choice = block * CHOICES + place
    live = choice < n_choices
    chosen = tl.load(experts + choice, mask=live, other=0).to(tl.int32)
    others = tl.load(experts + choice, mask=live, other=-1).to(tl.int32)
    earlier = (chosen[:, None] == others[None, :]) & (place[None, :] < place[:, None])
    at = chosen * tl.num_programs(0) + block
    begin = tl.load(sums + at, mask=live, other=0) - tl.load(counts + at, mask=live, other=0)
    row = begin + tl.sum(earlier.to(tl.int32), 1)
    tl.store(places + choice, row.to(tl.int64), mask=live)
    tl.store(order + row, choice.to(tl.int64), mask=live)
