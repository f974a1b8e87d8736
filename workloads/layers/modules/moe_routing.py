"""Routing of tokens to experts, and load-balancing losses.

Token choice, expert choice, and the losses that keep a router well behaved.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.expert_routing import op as expert_routing
from workloads.kernels.product_key_topk.reference import ordered_topk


@dataclass(frozen=True, kw_only=True)
class Routes:
    """Pairs of a token and an expert, one a row, the rows of an expert together."""

    token_of_row: Int[Tensor, " rows"]
    weights: Float[Tensor, " rows"]
    """What the expert's output for the row's token is multiplied by."""
    ends: Int[Tensor, " experts"]
    """Where each expert's rows end."""
    rows_by_token: Int[Tensor, " rows"]
    """All rows, those of the first token first."""
    starts: Int[Tensor, " tokens"]
    """Where each token's rows start in `rows_by_token`."""

    @property
    def load(self) -> Int[Tensor, " experts"]:
        """Rows of each expert."""
        return torch.diff(self.ends, prepend=self.ends.new_zeros(1))

    @property
    def dropped(self) -> Int[Tensor, ""]:
        """Tokens without a row."""
        n_rows = self.rows_by_token.shape[0]
        return (torch.diff(self.starts, append=self.starts.new_full((1,), n_rows)) == 0).sum()


def best_experts(
    probabilities: Float[Tensor, "tokens experts"],
    top_k: int,
    bias: Float[Tensor, " experts"] | None = None,
) -> Int[Tensor, "tokens top_k"]:
    """Return each token's `top_k` experts of highest probability plus `bias`, best first.

    Ties go to the lowest id.
    """
    scores = probabilities.detach()
    if bias is not None:
        scores = scores + bias.detach()
    return expert_routing.best_experts(scores, top_k)


def token_choice(
    probabilities: Float[Tensor, "tokens experts"],
    experts: Int[Tensor, "tokens top_k"],
    *,
    renormalise: bool,
) -> Routes:
    """Return the routes of tokens to their chosen `experts`.

    Every token has top_k rows, whatever the load.

    Weights are the chosen probabilities; with `renormalise`, divided by their sum over the token's
    experts.
    """
    n_tokens, top_k = experts.shape
    weights = probabilities.gather(-1, experts)
    if renormalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    order, rows_by_token, ends = expert_routing.rows_by_expert(
        experts.flatten(), probabilities.shape[1]
    )
    return Routes(
        token_of_row=order // top_k,
        weights=weights.flatten().gather(0, order),
        ends=ends,
        rows_by_token=rows_by_token,
        starts=torch.arange(0, n_tokens * top_k, top_k, device=experts.device),
    )


def expert_choice(
    probabilities: Float[Tensor, "groups tokens experts"], *, capacity: float
) -> Routes:
    """Return the routes of each expert to the tokens that it takes, `tokens_taken` of every group.

    An expert takes the tokens that give it the highest probability, the first of equal ones (which
    is common: a first token is alike in all sequences that begin with it), weighed by that
    probability. A token may be taken by several experts or by none. Source: Zhou et al. 2022 (arXiv
    2202.09368), section 3.2.
    """
    groups, n_tokens, n_experts = probabilities.shape
    taken = tokens_taken(n_tokens, n_experts=n_experts, capacity=capacity)
    by_expert, device = probabilities.mT, probabilities.device
    places = ordered_topk(by_expert.detach(), torch.arange(n_tokens, device=device), taken)
    tokens = places + n_tokens * torch.arange(groups, device=device)[:, None, None]
    token_of_row = tokens.transpose(0, 1).flatten()
    by_token, rows_by_token = token_of_row.sort(stable=True)
    per_expert = groups * taken
    return Routes(
        token_of_row=token_of_row,
        weights=by_expert.gather(-1, places).transpose(0, 1).flatten(),
        ends=torch.arange(1, n_experts + 1, dtype=torch.int32, device=device) * per_expert,
        rows_by_token=rows_by_token,
        starts=torch.searchsorted(by_token, torch.arange(groups * n_tokens, device=device)),
    )


def tokens_taken(n_tokens: int, *, n_experts: int, capacity: float) -> int:
    """Return how many of `n_tokens` tokens an expert takes.

    `capacity` times an even share, rounded up, at most all.
    """
    # A hair less, so that rounding in the product does not add a token.
    return min(n_tokens, math.ceil(capacity * n_tokens / n_experts - 1e-9))


def loads(experts: Int[Tensor, "groups choices"], n_experts: int) -> Int[Tensor, "groups experts"]:
    """Count how often each expert is chosen in each group."""
    zeros = experts.new_zeros(len(experts), n_experts)
    return zeros.scatter_add_(1, experts, torch.ones_like(experts))


def balance_loss(
    probabilities: Float[Tensor, "groups tokens experts"], load: Int[Tensor, "groups experts"]
) -> Float[Tensor, ""]:
    """Return `E * sum_e f_e p_e`, averaged over groups.

    1 where every expert has the same load or the same probability.

    f_e is the share of choices that fall on expert e, p_e its mean probability; only p_e has a
    gradient. Source: Fedus et al. 2021, "Switch Transformers" (arXiv 2101.03961), section 2.2.
    """
    share = load.to(probabilities.dtype) / load.sum(dim=-1, keepdim=True)
    return load.shape[-1] * (share * probabilities.mean(dim=1)).sum(dim=-1).mean()


def z_loss(logits: Float[Tensor, "tokens experts"]) -> Float[Tensor, ""]:
    """Return `mean logsumexp(logits)**2`, which keeps logits small.

    Source: Zoph et al. 2022 (arXiv 2202.08906).
    """
    return logits.logsumexp(dim=-1).square().mean()
