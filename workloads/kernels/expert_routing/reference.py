"""Choice of experts and order of rows by expert in plain torch."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.product_key_topk.reference import ordered_topk


def best_experts(
    scores: Float[Tensor, "tokens experts"], top_k: int
) -> Int[Tensor, "tokens top_k"]:
    """Return each token's `top_k` experts of highest score, best first, the first of equal ones."""
    ids = torch.arange(scores.shape[1], device=scores.device)
    return ordered_topk(scores.detach(), ids, top_k)


def rows_by_expert(
    experts: Int[Tensor, " choices"], n_experts: int
) -> tuple[Int[Tensor, " rows"], Int[Tensor, " choices"], Int[Tensor, " experts"]]:
    """Return the choice of every row, the row of every choice, and where experts' rows end."""
    by_expert, order = experts.sort(stable=True)
    rows = torch.arange(len(experts), device=experts.device)
    ids = torch.arange(n_experts, device=experts.device)
    ends = torch.searchsorted(by_expert, ids, right=True, out_int32=True)
    return order, torch.empty_like(order).scatter_(0, order, rows), ends
