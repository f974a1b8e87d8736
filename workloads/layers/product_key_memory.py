"""A product-key memory in the place of a feed-forward block, and the table of values that such layers share."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from workloads.accounting import Precision
from workloads.kernels.product_key_topk.op import product_key_topk
from workloads.kernels.weighted_bag.op import weighted_bag
from workloads.layers.linear import Linear


@dataclass(frozen=True, kw_only=True)
class MemoryShape:
    """Sizes of one memory layer, and what follows from them."""

    d_model: int
    n_keys: int
    n_heads: int
    knn: int
    key_dim: int
    value_dim: int
    qk_norm: bool

    @property
    def n_slots(self) -> int:
        """Rows of the table."""
        return self.n_keys**2

    @property
    def rows_read(self) -> int:
        """Table rows that one token reads."""
        return self.n_heads * self.knn

    @property
    def query_params(self) -> int:
        """Weights and biases of the query projection."""
        return (self.d_model + 1) * self.n_heads * self.key_dim

    @property
    def sub_key_params(self) -> int:
        """Both codebooks of every head, and the score scales."""
        return self.n_heads * self.n_keys * self.key_dim + (self.n_heads if self.qk_norm else 0)

    @property
    def gate_params(self) -> int:
        """Weights and biases of the gate and of the output projection."""
        return 2 * self.d_model * self.value_dim + self.value_dim + self.d_model

    @property
    def params(self) -> int:
        """Everything of a layer but the table."""
        return self.query_params + self.sub_key_params + self.gate_params

    @property
    def table_params(self) -> int:
        """Values, counted once however many layers read them."""
        return self.n_slots * self.value_dim

    @property
    def flops_per_token(self) -> float:
        """Forward FLOPs of the matrix products: query, sub-key scores, bag, gate. Sums and top-k are not counted."""
        query = 2 * self.d_model * self.n_heads * self.key_dim
        scores = 2 * self.n_heads * self.n_keys * self.key_dim
        bag = 2 * self.rows_read * self.value_dim
        gate = 4 * self.d_model * self.value_dim
        return float(query + scores + bag + gate)

    def activation_bytes_per_token(self, precision: Precision) -> float:
        """Return what a forward pass keeps for the backward pass, as plain torch saves it.

        c is 4 or 2 bytes in products; scores, weights and values stay fp32, ids are int64.
        """
        c, casts = (4, 0) if precision == "fp32" else (2, 1)
        heads = self.n_heads
        query = c * self.d_model + 4 * heads * self.key_dim
        if self.qk_norm:
            # The product, its normalised form, and norms of the halves before and after a floor.
            query += c * heads * (2 * self.key_dim + 4)
        scores = 4 * 2 * heads * self.n_keys
        # Left, right and slot ids, and weights.
        chosen = self.rows_read * (3 * 8 + 4)
        # gate, silu(gate) and their product with the bag, which stays in the stream's type; with bf16, the input once more.
        gate = c * (casts * self.d_model + 3 * self.value_dim) + 4 * self.value_dim
        return float(query + scores + chosen + gate)

    def distinct_rows(self, tokens: int) -> float:
        """Return the expected number of different rows that `tokens` tokens read, if every slot is equally likely.

        The rows of one head of one token differ; heads and tokens are independent.
        """
        return self.n_slots * (1.0 - (1.0 - self.knn / self.n_slots) ** (tokens * self.n_heads))


class MemoryTable(nn.Module):
    """The value rows. A model owns one and hands it to each of its memory layers."""

    def __init__(self, n_slots: int, value_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_slots, value_dim))

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write a normal with variance 1 / value_dim."""
        value.normal_(0.0, value.shape[1] ** -0.5, generator=generator)


class ProductKeyMemory(nn.Module):
    """`output(bag * silu(gate x))`, where bag is the weighted sum of the best value rows of every head.

    Sources: Lample et al. 2019 (arXiv 1907.05242) for the lookup; Berges et al. 2024 (arXiv 2412.09764) for sharing
    and gate. With `qk_norm`, scores are cosines of query halves and sub-keys times a learned scale per head.
    """

    def __init__(self, shape: MemoryShape) -> None:
        super().__init__()
        self.shape = shape
        self.query = _Query(shape.d_model, shape.n_heads * shape.key_dim, bias=True)
        self.sub_keys = nn.Parameter(
            torch.empty(2, shape.n_heads, shape.n_keys, shape.key_dim // 2)
        )
        self.score_scale = nn.Parameter(torch.empty(shape.n_heads)) if shape.qk_norm else None
        self.gate = Linear(shape.d_model, shape.value_dim, bias=True)
        self.output = Linear(shape.value_dim, shape.d_model, bias=True)
        self.usage = MemoryUsage(shape.n_slots)

    def forward(
        self, x: Float[Tensor, "*batch d_model"], table: Float[Tensor, "slots value_dim"]
    ) -> Float[Tensor, "*batch d_model"]:
        """Return the layer's output, to be added to the residual."""
        tokens = x.reshape(-1, self.shape.d_model)
        ids, weights = self.select(tokens)
        bag = weighted_bag(table, ids, weights.to(table.dtype))
        if self.training:
            self.usage.record(ids, weights)
        output: Tensor = self.output(bag.to(x.dtype) * functional.silu(self.gate(tokens)))
        return output.view(x.shape)

    def select(
        self, tokens: Float[Tensor, "tokens d_model"]
    ) -> tuple[Int[Tensor, "tokens rows"], Float[Tensor, "tokens rows"]]:
        """Return the slots that each token reads and their weights, fp32 or wider; each head's weights sum to one."""
        n_heads, knn = self.shape.n_heads, self.shape.knn
        query = self.query(tokens).view(-1, n_heads, self.shape.key_dim)
        sub_keys: Tensor = self.sub_keys
        if self.score_scale is not None:
            halves = (
                functional.normalize(query.unflatten(-1, (2, -1)), dim=-1)
                * self.score_scale[:, None, None]
            )
            query, sub_keys = halves.flatten(-2), functional.normalize(sub_keys, dim=-1)
        scores, ids = product_key_topk(query, sub_keys, knn)
        return ids.flatten(1), scores.softmax(dim=-1).flatten(1)

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write the sub-keys (uniform within 1 / sqrt(key_dim)) or the scales (random cosines then score with variance 1)."""
        if name == "score_scale":
            value.fill_((self.shape.key_dim / 2) ** 0.5)
        else:
            bound = self.shape.key_dim**-0.5
            value.uniform_(-bound, bound, generator=generator)


class _Query(Linear):
    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        if name == "bias":
            value.zero_()
        else:
            nn.init.xavier_uniform_(value, generator=generator)


class MemoryUsage(nn.Module):
    """How evenly the slots are read in training, accumulated between two reports.

    All of it lies in buffers, so a resumed run reports what an undisturbed one would. The mass of a slot is counted in
    integers, so that its sum does not depend on the order of addition. Recording is about 1 % of a training step on
    one CPU core (2 of 230 ms, 8,192 tokens of 16 rows, d_model 32).
    """

    mass: Tensor
    effective_rows: Tensor
    tokens: Tensor

    def __init__(self, n_slots: int) -> None:
        super().__init__()
        self.register_buffer("mass", torch.zeros(n_slots, dtype=torch.int64))
        self.register_buffer("effective_rows", torch.zeros((), dtype=torch.float64))
        self.register_buffer("tokens", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def record(
        self, ids: Int[Tensor, "tokens rows"], weights: Float[Tensor, "tokens rows"]
    ) -> None:
        """Add one batch."""
        # One extra unit per read: a slot counts as read however small its weight.
        units = (weights * _UNIT).to(torch.int64).add_(1)
        self.mass.scatter_add_(0, ids.reshape(-1), units.reshape(-1))
        share = weights / weights.sum(dim=-1, keepdim=True)
        self.effective_rows += torch.special.entr(share).sum(dim=-1).exp().sum(dtype=torch.float64)
        self.tokens += len(ids)

    def report(self) -> dict[str, float]:
        """Return usage, kl and effective_rows since the last report and start anew; empty if nothing was read."""
        tokens = int(self.tokens)
        if tokens == 0:
            return {}
        share = self.mass.double() / self.mass.sum()
        values = {
            "usage": float((self.mass > 0).double().mean()),
            "kl": float(torch.special.xlogy(share, share * len(share)).sum()),
            "effective_rows": float(self.effective_rows) / tokens,
        }
        for buffer in self.buffers():
            buffer.zero_()
        return values

    def initialise(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Write zeros."""
        value.zero_()


_UNIT = 2**24
"""Weight 1 in the integer counts of `MemoryUsage`: finer than the fp32 weights' rounding."""
