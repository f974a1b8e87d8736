"""Causal self-attention with rotary positions, optionally with grouped keys and normalised queries and keys."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from workloads.layers.linear import Linear
from workloads.layers.rms_norm import RMSNorm


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """Sizes of one attention block, and what follows from them."""

    d_model: int
    n_heads: int
    n_kv_heads: int
    qk_norm: bool

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads

    @property
    def params(self) -> int:
        """Weights of the four projections."""
        return 2 * self.d_model * self.d_head * (self.n_heads + self.n_kv_heads)

    @property
    def norm_params(self) -> int:
        """Gains of the query and key norms."""
        return 2 * self.d_head if self.qk_norm else 0

    def flops_per_token(self, seq_len: int) -> float:
        """Forward FLOPs: projections, and scores and mixing over the causal half of a sequence."""
        return 2.0 * self.params + 2.0 * seq_len * self.n_heads * self.d_head


class CausalAttention(nn.Module):
    """Multi-head attention to this and earlier positions; no biases."""

    def __init__(self, shape: AttentionShape, *, norm_eps: float) -> None:
        super().__init__()
        self.shape = shape
        d_kv = shape.n_kv_heads * shape.d_head
        # One matrix, rows in the order query, key, value: one large product is faster than three small ones.
        self.query_key_value = Linear(shape.d_model, shape.d_model + 2 * d_kv)
        self.output = Linear(shape.d_model, shape.d_model)
        self.query_norm = RMSNorm(shape.d_head, eps=norm_eps) if shape.qk_norm else None
        self.key_norm = RMSNorm(shape.d_head, eps=norm_eps) if shape.qk_norm else None

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], rotation: Float[Tensor, "2 seq 1 d_head"]
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return the attention output; `rotation` comes from `rotation_table`."""
        batch, seq, _ = x.shape
        n_heads, n_kv_heads, d_head = self.shape.n_heads, self.shape.n_kv_heads, self.shape.d_head
        heads = self.query_key_value(x).view(batch, seq, -1, d_head)
        query_key, value = heads.tensor_split([n_heads + n_kv_heads], dim=2)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = query_key.tensor_split([n_heads], dim=2)
            query_key = torch.cat((self.query_norm(query), self.key_norm(key)), dim=2)
        turned = rotate(query_key, rotation).transpose(1, 2)
        query, key = turned.tensor_split([n_heads], dim=1)
        value = value.transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=n_kv_heads != n_heads
        )
        output: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, seq, -1))
        return output


def rotation_table(
    seq_len: int, d_head: int, *, base: float, device: torch.device
) -> Float[Tensor, "2 seq 1 d_head"]:
    """Return cosines and signed sines of every position and column, ready for `rotate`.

    Columns i and i + d_head / 2 are a pair that turns by position * base ** (-2 i / d_head); the sine is negative in
    the first half. Source: Su et al. 2021 (arXiv 2104.09864), section 3.4.2. Computed in fp32 once per forward pass,
    so a model has no longest sequence.
    """
    frequencies = base ** (-torch.arange(0, d_head, 2, device=device, dtype=torch.float32) / d_head)
    angles = torch.outer(torch.arange(seq_len, device=device, dtype=torch.float32), frequencies)
    cosine, sine = angles.cos(), angles.sin()
    columns = torch.stack((torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)))
    return columns[:, :, None]


def rotate(
    x: Float[Tensor, "batch seq heads d_head"], rotation: Float[Tensor, "2 seq 1 d_head"]
) -> Float[Tensor, "batch seq heads d_head"]:
    """Turn every pair of columns by the angle of its position."""
    cosine, sine = rotation.to(x.dtype)
    return torch.addcmul(x * cosine, x.roll(x.shape[-1] // 2, dims=-1), sine)
