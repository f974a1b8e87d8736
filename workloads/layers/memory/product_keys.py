"""Product-key lookup: the best pairs of sub-keys of two codebooks.

A query per head, two codebooks, the best pairs of their sub-keys.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from workloads.accounting.counts import Component, FlopCount, ParamCount, Precision
from workloads.field_error import FieldError
from workloads.kernels.product_key_topk.op import product_key_topk
from workloads.layers.modules.linear import Linear
from workloads.layers.modules.norms import QueryBatchNorm

Score = Literal["softmax", "softmax_sink", "sigmoid", "relu"]
"""What turns the scores of the chosen rows into weights: competing (softmax), also with one more
score of 0 whose row is zero (softmax_sink), or each for itself."""
KeyInit = Literal["key_dim", "half_key_dim"]
"""Sub-keys begin uniform within 1 / sqrt of this: the released Memory Layers code's bound, or that
of Lample et al."""


@dataclass(frozen=True, kw_only=True)
class LookupShape(Component):
    """Sizes of the choice, and what follows from them."""

    d_model: int
    n_keys: int
    n_heads: int
    knn: int
    key_dim: int
    qk_norm: bool = False
    query_batch_norm: bool = False
    query_bias: bool = True
    shared_keys: bool = False
    """One pair of codebooks for all heads."""
    score: Score = "softmax"
    key_init: KeyInit = "key_dim"

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
        return self.n_heads * self.key_dim

    def param_count(self) -> ParamCount:
        """Count query projection, sub-keys, score scales and query norm."""
        query = (self.d_model + (1 if self.query_bias else 0)) * self.query_width
        sub_keys = (1 if self.shared_keys else self.n_heads) * self.n_keys * self.key_dim
        scales = self.n_heads if self.qk_norm else 0
        norm = 2 * self.query_width if self.query_batch_norm else 0
        return ParamCount(memory_keys=query + sub_keys + scales, norm=norm)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count queries and sub-key scores.

        Sums of pairs and the choice are no products and are not counted.
        """
        query = 2.0 * self.d_model * self.query_width
        return FlopCount(memory=query + 2.0 * self.n_heads * self.n_keys * self.key_dim)

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return input and query, scores, and of the chosen rows ids and weights.

        Scores stay fp32, ids are int64.
        """
        c = 4 if precision == "fp32" else 2
        query = c * self.d_model + 4.0 * self.query_width
        if self.qk_norm:
            # The product, its normalised form, and norms of the halves before and after a floor.
            wide = 4 if self.query_batch_norm else c
            query += wide * self.n_heads * (2 * self.key_dim + 4)
        if self.query_batch_norm:
            query += 4.0 * self.query_width
        scores = 4.0 * 2 * self.n_heads * self.n_keys
        # Left, right and slot ids, and weights.
        return query + scores + self.rows_read * (3 * 8 + 4)


class ProductKeyLookup(nn.Module):
    """Which rows every token reads, and their weights.

    Source: Lample et al. 2019 (arXiv 1907.05242), section 3. With `qk_norm`, scores are cosines of
    query halves and sub-keys times a learned scale per head. `query_batch_norm` is the 2019
    paper's: better use of the rows, but in training a token's query then depends on the whole
    batch.
    """

    PARAM_GROUP: ClassVar[str] = "memory_keys"

    def __init__(self, lookup: LookupShape) -> None:
        super().__init__()
        self.lookup = lookup
        self.query = _Query(lookup.d_model, lookup.query_width, bias=lookup.query_bias)
        self.sub_keys = nn.Parameter(
            torch.empty(
                2,
                1 if lookup.shared_keys else lookup.n_heads,
                lookup.n_keys,
                lookup.key_dim // 2,
            )
        )
        self.score_scale = nn.Parameter(torch.empty(lookup.n_heads)) if lookup.qk_norm else None
        self.query_norm = QueryBatchNorm(lookup.query_width) if lookup.query_batch_norm else None

    def select(
        self, tokens: Float[Tensor, "tokens d_model"]
    ) -> tuple[Int[Tensor, "tokens rows"], Float[Tensor, "tokens rows"]]:
        """Return the rows that each token reads and their weights, fp32 or wider."""
        n_heads, knn = self.lookup.n_heads, self.lookup.knn
        query = self.query(tokens)
        if self.query_norm is not None:
            query = self.query_norm(query)
        query = query.view(-1, n_heads, self.lookup.key_dim)
        sub_keys: Tensor = self.sub_keys
        if self.score_scale is not None:
            halves = (
                functional.normalize(query.unflatten(-1, (2, -1)), dim=-1)
                * self.score_scale[:, None, None]
            )
            query, sub_keys = halves.flatten(-2), functional.normalize(sub_keys, dim=-1)
        if self.lookup.shared_keys:
            sub_keys = sub_keys.expand(-1, n_heads, -1, -1)
        scores, ids = product_key_topk(query, sub_keys, knn)
        # The kernel leaves the heads outermost; a copy now saves the backward pass from keeping
        # two.
        return ids.flatten(1), _weights(scores.contiguous(), self.lookup.score).flatten(1)

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write the sub-keys (uniform, see `KeyInit`) or the scales.

        With these scales, scores of random cosines have variance 1.
        """
        half_key_dim = self.lookup.key_dim // 2
        if name == "score_scale":
            value.fill_(half_key_dim**0.5)
        else:
            whole = self.lookup.key_init == "key_dim"
            bound = (self.lookup.key_dim if whole else half_key_dim) ** -0.5
            value.uniform_(-bound, bound, generator=generator)


def _weights(scores: Tensor, score: Score) -> Tensor:
    if score == "softmax":
        return scores.softmax(dim=-1)
    if score == "softmax_sink":
        sink = scores.new_zeros(()).expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sink), dim=-1).softmax(dim=-1)[..., :-1]
    return scores.sigmoid() if score == "sigmoid" else scores.relu()


class _Query(Linear):
    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        if name == "bias":
            value.zero_()
        else:
            nn.init.xavier_uniform_(value, generator=generator)


def check_lookup(
    *, n_keys: int, knn: int, key_dim: int, key_dim_half_of: str | None = None
) -> None:
    """Refuse what product keys cannot do.

    Args:
        n_keys: Sub-keys of a half.
        knn: Slots read.
        key_dim: Width of a query.
        key_dim_half_of: The field that an absent `key_dim` is half of; None where it is given.

    Raises:
        FieldError: Naming the rule and the nearest value that works.
    """
    if not 1 <= knn <= n_keys:
        nearest = min(max(knn, 1), n_keys)
        rule = f"must lie in 1..n_keys ({n_keys})"
        raise FieldError("knn", rule, knn, f"the nearest is {nearest}", ("n_keys",))
    if key_dim % 2 or key_dim < 2:
        got = str(key_dim) + (f", half of {key_dim_half_of}" if key_dim_half_of else "")
        fix = f"the nearest is {max(2, key_dim + key_dim % 2)}"
        others = (key_dim_half_of,) if key_dim_half_of else ()
        raise FieldError("key_dim", "must be even, for two halves", got, fix, others)
