"""Tucker-decomposed lookup of table rows.

Several queries per head, two codebooks for each, and a small core.

Scores of rank one are those of product keys, but multiplied instead of added.
"""

from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from workloads.accounting.counts import Component, FlopCount, ParamCount, Precision
from workloads.kernels.tucker_topk.op import tucker_topk
from workloads.kernels.tucker_topk.reference import half_scores, leading_pair, topk_of_scores
from workloads.layers.context import Context
from workloads.layers.modules.linear import Linear
from workloads.layers.modules.norms import RMSNorm


@dataclass(frozen=True, kw_only=True)
class TuckerShape(Component):
    """Sizes of the choice, and what follows from them."""

    d_model: int
    n_keys: int
    n_heads: int
    knn: int
    key_dim: int
    rank: int
    norm_eps: float
    key_balance: float = 0.0
    """Weight of the loss that spreads reads over the sub-keys."""
    shared_query: bool = False
    """One query per head and half, which all ranks compare with their own sub-keys."""

    @property
    def n_slots(self) -> int:
        """Rows to choose from."""
        return self.n_keys**2

    @property
    def rows_read(self) -> int:
        """Rows that one token reads."""
        return self.n_heads * self.knn

    @property
    def query_width(self) -> int:
        """Columns of all queries."""
        return self.n_heads * self.queries_per_head * self.key_dim

    @property
    def queries_per_head(self) -> int:
        """Queries of a head in each half."""
        return 1 if self.shared_query else self.rank

    @property
    def initial_gain(self) -> float:
        """Gain of both norms at the start, for chosen scores whose mean square is about 1.

        Normalised halves of k / 2 columns have products of variance k / 2, times gain^4. The core
        begins even in 0..1, so the mean square of its largest singular value is about that of all
        its numbers, rank^2 / 3. The chosen rows stand out from even ones by `_chosen_mean_square`.
        """
        score_variance = (self.key_dim / 2) ** 2 * (self.rank**2 / 3)
        return float((score_variance * _chosen_mean_square(self.n_keys, self.knn)) ** -0.125)

    def param_count(self) -> ParamCount:
        """Count query projection, sub-keys, core, and the gains of both norms."""
        query = self.d_model * self.query_width
        sub_keys = self.n_heads * self.rank * self.n_keys * self.key_dim
        core = self.n_heads * self.rank**2
        return ParamCount(memory_keys=query + sub_keys + core, norm=self.key_dim)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count queries, rank-one scores, the candidates' exact scores and those of the chosen."""
        query = 2.0 * self.d_model * self.query_width
        # The loss approximates once more, where it is taken.
        approximations = 2 if self.key_balance else 1
        scores = 2.0 * self.rank * self.n_keys * (self.key_dim + 2 * approximations)
        candidates = 2.0 * self.rank * self.knn * (self.knn + 2 * self.rank)
        return FlopCount(memory=query + self.n_heads * (scores + candidates))

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return queries around their norm, scores, and ids and factors of the chosen rows' scores.

        All fp32. The input is kept by whoever shares it.
        """
        query = 12.0 * self.query_width + 8.0 * self.n_heads * self.queries_per_head
        if self.shared_query:  # the batched product with the ranks' sub-keys copies it
            query += 4.0 * (self.rank - 1) * self.query_width
        scores = 4.0 * 2 * self.n_heads * self.rank * self.n_keys
        if self.key_balance:
            scores += 4.0 * 2 * self.n_heads * self.n_keys
        # Ids of slot, row and column, two gathered factors, one of them also mixed.
        return query + scores + self.rows_read * (3 * 8 + 3 * 4 * self.rank)


class TuckerLookup(nn.Module):
    """Which rows every token reads, and their raw scores.

    `S[a, i] = norm(q_a) . norm(k_ai)` for each half, rank a and sub-key i; slot (i, j) scores
    `sum_ab S_row[a, i] C[a, b] S_column[b, j]`, which no softmax follows. Every rank has a query of
    its own, or all ranks share one. Sources: Huang et al. 2024 (arXiv 2411.12364) for the scores;
    2025 (arXiv 2508.18756) for the queries.
    """

    PARAM_GROUP: ClassVar[str] = "memory_keys"

    def __init__(self, lookup: TuckerShape) -> None:
        super().__init__()
        self.lookup = lookup
        half = lookup.key_dim // 2
        self.query = Linear(lookup.d_model, lookup.query_width)
        self.sub_keys = nn.Parameter(
            torch.empty(2, lookup.n_heads, lookup.rank, lookup.n_keys, half)
        )
        self.core = nn.Parameter(torch.empty(lookup.n_heads, lookup.rank, lookup.rank))
        self.query_norm = _ScoreNorm(half, eps=lookup.norm_eps, gain=lookup.initial_gain)
        self.key_norm = _ScoreNorm(half, eps=lookup.norm_eps, gain=lookup.initial_gain)

    def select(
        self, tokens: Float[Tensor, "tokens d_model"], context: Context
    ) -> tuple[Int[Tensor, "tokens rows"], Float[Tensor, "tokens rows"]]:
        """Return the rows that each token reads and their scores, fp32 or wider.

        In training add the balance loss.
        """
        lookup = self.lookup
        query = rearrange(
            self.query(tokens),
            "tokens (half heads queries k) -> half heads queries tokens k",
            half=2,
            heads=lookup.n_heads,
            queries=lookup.queries_per_head,
        )
        query = self.query_norm(query)
        with torch.autocast(query.device.type, enabled=False):
            sub_keys = self.key_norm(self.sub_keys)
        if self.training and lookup.key_balance:
            # The loss is of the scores of all sub-keys.
            row_scores, column_scores = half_scores(query, sub_keys).unbind(0)
            chosen, ids = topk_of_scores(row_scores, column_scores, self.core, lookup.knn)
            context.losses.append(
                lookup.key_balance * balance_loss(row_scores, column_scores, self.core, ids)
            )
        else:
            chosen, ids = tucker_topk(query, sub_keys, self.core, lookup.knn)
        return ids.flatten(1), chosen.flatten(1)

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write the core or the sub-keys.

        The core is uniform in 0..1, as in the source; the norm removes the scale of the sub-keys.
        """
        if name == "core":
            value.uniform_(0.0, 1.0, generator=generator)
        else:
            value.normal_(0.0, 1.0, generator=generator)


def balance_loss(
    row_scores: Float[Tensor, "heads rank tokens n_keys"],
    column_scores: Float[Tensor, "heads rank tokens n_keys"],
    core: Float[Tensor, "heads rank rank"],
    ids: Int[Tensor, "tokens heads knn"],
) -> Float[Tensor, ""]:
    """Return `n sum_i p_i f_i` of the rows plus that of the columns, each 1 where reads are even.

    p is the softmax over a half's sub-keys of the approximate score of rank one, a mean over tokens
    and heads; f is the share of reads that use the sub-key, without a gradient. Source: the
    released code of Huang et al. 2025 (arXiv 2508.18756), where f counts the candidates instead of
    the rows read.
    """
    n_keys = row_scores.shape[-1]
    total = core.new_zeros(())
    halves = (row_scores, ids // n_keys), (column_scores, ids % n_keys)
    for weights, (scores, used) in zip(leading_pair(core.detach()), halves, strict=True):
        with torch.autocast(scores.device.type, enabled=False):
            approximate = torch.einsum("ha,hatn->htn", weights.to(scores.dtype), scores)
        probability = approximate.softmax(-1).mean((0, 1))
        reads = torch.zeros(n_keys, dtype=torch.int64, device=ids.device)
        reads.scatter_add_(0, used.flatten(), torch.ones_like(used.flatten()))
        total = total + n_keys * (probability * (reads / used.numel())).sum()
    return total


class _ScoreNorm(RMSNorm):
    """RMS norm of queries or sub-keys, whose gain begins at another value than 1."""

    def __init__(self, width: int, *, eps: float, gain: float) -> None:
        super().__init__(width, eps=eps)
        self.initial_gain = gain

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        value.fill_(self.initial_gain)


@cache
def _chosen_mean_square(n_keys: int, knn: int) -> float:
    """Return the mean square of the `knn` largest products of two sets of standard normals.

    The sets are independent, of `n_keys` each. Expected order statistics are Blom's approximation.
    The result is at least 1, the mean square of a product left to chance.
    """
    best = [
        NormalDist().inv_cdf(1 - (rank - 0.375) / (n_keys + 0.25)) for rank in range(1, knn + 1)
    ]
    products = sorted((left * right for left in best for right in best), reverse=True)[:knn]
    return max(1.0, sum(product**2 for product in products) / knn)
