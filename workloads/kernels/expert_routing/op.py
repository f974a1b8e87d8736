"""Entry points of routing: plain torch on a CPU, two custom operations on a GPU."""

from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.backend import uses_triton
from workloads.kernels.expert_routing import reference


def best_experts(
    scores: Float[Tensor, "tokens experts"], top_k: int
) -> Int[Tensor, "tokens top_k"]:
    """Return each token's `top_k` experts of highest score, best first, no gradient.

    Ties go to the lowest id.
    """
    if scores.dtype == torch.float32 and uses_triton(scores):
        best: Tensor = _best_experts(scores.detach(), top_k)
        return best
    return reference.best_experts(scores, top_k)


def rows_by_expert(
    experts: Int[Tensor, " choices"], n_experts: int
) -> tuple[Int[Tensor, " rows"], Int[Tensor, " choices"], Int[Tensor, " experts"]]:
    """Give every choice a row, those of an expert together and in the order of the choices.

    Returns:
        The choice of every row, the row of every choice, and where each expert's rows end (int32).
    """
    if uses_triton(experts):
        order, places, ends = _rows_by_expert(experts, n_experts)
        return order, places, ends
    return reference.rows_by_expert(experts, n_experts)


def _triton() -> Any:
    return import_module("workloads.kernels.expert_routing.triton")


@torch.library.custom_op("memscale::best_experts", mutates_args=())
def _best_experts(scores: Tensor, top_k: int) -> Tensor:
    result: Tensor = _triton().best_experts(scores, top_k)
    return result


@_best_experts.register_fake
def _(scores: Tensor, top_k: int) -> Tensor:
    return scores.new_empty(scores.shape[0], top_k, dtype=torch.int64)


@torch.library.custom_op("memscale::rows_by_expert", mutates_args=())
def _rows_by_expert(experts: Tensor, n_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    result: tuple[Tensor, Tensor, Tensor] = _triton().rows_by_expert(experts, n_experts)
    return result


@_rows_by_expert.register_fake
def _(experts: Tensor, n_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    ends = experts.new_empty(n_experts, dtype=torch.int32)
    return torch.empty_like(experts), torch.empty_like(experts), ends
