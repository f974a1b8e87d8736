"""Causal self-attention with rotary positions, and its frame."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from workloads.accounting.counts import Component, FlopCount, ParamCount, Precision
from workloads.kernels.backend import uses_triton
from workloads.kernels.rotary.op import rotary_gradient
from workloads.layers.context import Context
from workloads.layers.modules.linear import Linear
from workloads.layers.modules.norms import RMSNorm


@dataclass(frozen=True, kw_only=True)
class AttentionShape(Component):
    """Sizes of one softmax attention block, and what follows from them."""

    d_model: int
    n_heads: int
    n_kv_heads: int
    qk_norm: bool = False
    bias: bool = False
    """Biases on the four projections."""
    rotary_columns: int | None = None
    """Columns of each head that turn with the position; None is all."""

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads

    @property
    def d_kv(self) -> int:
        """Width of all keys, and of all values."""
        return self.n_kv_heads * self.d_head

    @property
    def projection_params(self) -> int:
        """Weights and biases of the four projections."""
        weights = 2 * self.d_model * (self.d_model + self.d_kv)
        return weights + (2 * (self.d_model + self.d_kv) if self.bias else 0)

    def param_count(self) -> ParamCount:
        """Count projections, and the gains of query and key norms."""
        norm = 2 * self.d_head if self.qk_norm else 0
        return ParamCount(attention=self.projection_params, norm=norm)

    def flops_per_token(self, seq_len: int) -> FlopCount:
        """Count projections and mixing."""
        projections = 4.0 * self.d_model * (self.d_model + self.d_kv)
        return FlopCount(attention=projections + self.mixing_flops(seq_len))

    def mixing_flops(self, seq_len: int) -> float:
        """Return what mixing positions costs a token.

        Scores and weighted sum over the causal half of a sequence.
        """
        return 2.0 * seq_len * self.n_heads * self.d_head

    def activation_bytes_per_token(self, seq_len: int, precision: Precision) -> float:
        """Return the projections' input, normalised query and key if any, and what mixing keeps.

        With bf16, norms keep fp32 copies of their inputs as well.
        """
        c, casts = (4, 0) if precision == "fp32" else (2, 1)
        norms = 0.0
        if self.qk_norm:
            columns, rows = self.d_model + self.d_kv, self.n_heads + self.n_kv_heads
            norms = 4.0 * (1 + casts) * columns + 4.0 * rows
        return c * self.d_model + norms + self.mixing_activation_bytes(seq_len, precision)

    def mixing_activation_bytes(self, seq_len: int, precision: Precision) -> float:
        """Return query, key, value, mixture, the kernel's log-sum-exp, and rotated query and key.

        Mixing is told query, key and value as views of one projection; turning copies query and
        key.
        """
        c = 4 if precision == "fp32" else 2
        turned = 0 if self.rotary_columns == 0 else self.d_model + self.d_kv
        return c * (2.0 * self.d_model + 2.0 * self.d_kv + turned) + 4.0 * self.n_heads


class MultiHead(nn.Module):
    """Queries, keys and values of several heads, mixed by `mix` and projected back."""

    PARAM_GROUP: ClassVar[str] = "attention"

    def __init__(
        self,
        shape: AttentionShape,
        *,
        norm_eps: float,
        input_std: float | None = None,
        output_std: float | None = None,
    ) -> None:
        """Make the projections.

        They begin with the given standard deviations, 1 / sqrt(d_model) if None.
        """
        super().__init__()
        self.shape = shape
        # One matrix, rows in the order query, key, value: one large product is faster than three
        # small ones.
        self.query_key_value = Linear(
            shape.d_model, shape.d_model + 2 * shape.d_kv, bias=shape.bias, std=input_std
        )
        self.output = Linear(shape.d_model, shape.d_model, bias=shape.bias, std=output_std)
        self.query_norm = RMSNorm(shape.d_head, eps=norm_eps) if shape.qk_norm else None
        self.key_norm = RMSNorm(shape.d_head, eps=norm_eps) if shape.qk_norm else None

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], context: Context
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return the block's output, to be added to the residual."""
        return self.attend_rotated(*self.rotated_heads(x, context), context)

    def attend_rotated(
        self,
        query: Float[Tensor, "batch seq heads d_head"],
        key: Float[Tensor, "batch seq kv_heads d_head"],
        value: Float[Tensor, "batch seq kv_heads d_head"],
        context: Context,
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return what heads mix, projected back; queries and keys come rotated."""
        mixed = self.mix(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), context)
        return self.joined(mixed)

    def heads(
        self, x: Float[Tensor, "batch seq d_model"]
    ) -> tuple[
        Float[Tensor, "batch seq heads d_head"],
        Float[Tensor, "batch seq kv_heads d_head"],
        Float[Tensor, "batch seq kv_heads d_head"],
    ]:
        """Return queries, keys (both normalised if the shape says so) and values of all heads."""
        query, key, value = _split(self._projected(x), self.shape.n_heads)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        return query, key, value

    def rotated_heads(
        self, x: Float[Tensor, "batch seq d_model"], context: Context
    ) -> tuple[
        Float[Tensor, "batch seq heads d_head"],
        Float[Tensor, "batch seq kv_heads d_head"],
        Float[Tensor, "batch seq kv_heads d_head"],
    ]:
        """Return `heads`, queries and keys rotated."""
        if self.query_norm is None:
            return split_and_rotate(
                self._projected(x), context.rotation, n_heads=self.shape.n_heads
            )
        query, key, value = self.heads(x)
        # Apart: a rotation of both at once would split its gradient and join it again.
        return rotate(query, context.rotation), rotate(key, context.rotation), value

    def _projected(self, x: Tensor) -> Tensor:
        heads: Tensor = self.query_key_value(x).view(*x.shape[:2], -1, self.shape.d_head)
        return heads

    def joined(
        self, mixed: Float[Tensor, "batch heads seq d_head"]
    ) -> Float[Tensor, "batch seq d_model"]:
        """Return what all heads mixed, projected back."""
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output

    def mix(
        self,
        query: Float[Tensor, "batch heads seq d_head"],
        key: Float[Tensor, "batch kv_heads seq d_head"],
        value: Float[Tensor, "batch kv_heads seq d_head"],
        context: Context,
    ) -> Float[Tensor, "batch heads seq d_head"]:
        """Return for every position a mixture of the values at this and earlier positions."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it mixes")


class CausalAttention(MultiHead):
    """Softmax attention to this and earlier positions."""

    def mix(
        self,
        query: Float[Tensor, "batch heads seq d_head"],
        key: Float[Tensor, "batch kv_heads seq d_head"],
        value: Float[Tensor, "batch kv_heads seq d_head"],
        context: Context,
    ) -> Float[Tensor, "batch heads seq d_head"]:
        """Return the softmax mixture (`softmax_mix`)."""
        return softmax_mix(query, key, value, context)


def softmax_mix(
    query: Float[Tensor, "batch heads seq d_head"],
    key: Float[Tensor, "batch kv_heads seq d_head"],
    value: Float[Tensor, "batch kv_heads seq d_head"],
    context: Context,
) -> Float[Tensor, "batch heads seq d_head"]:
    """Return `softmax(q k / sqrt(d_head)) v` over positions up to this one, also cached ones."""
    if context.cache is not None:
        at = context.positions
        key = context.cache.append("key", key, dim=2, positions=at)
        value = context.cache.append("value", value, dim=2, positions=at)
    return causal_softmax(
        query, key, value, positions=context.positions, documents=context.documents
    )


def causal_softmax(
    query: Float[Tensor, "batch heads queries d_head"],
    key: Float[Tensor, "batch kv_heads keys d_head"],
    value: Float[Tensor, "batch kv_heads keys d_head"],
    *,
    positions: Int[Tensor, "batch queries"] | None = None,
    documents: Int[Tensor, "batch queries"] | None = None,
) -> Float[Tensor, "batch heads queries d_head"]:
    """Return `softmax(q k / sqrt(d_head)) v` over keys up to each query's position.

    Args:
        query: One of each position.
        key: Of positions 0, 1, …; all that a cache has room for, where there is one.
        value: As the keys.
        positions: Of the queries; None: those of the keys.
        documents: Number of the document of each position; keys of another one are not seen. Not
            with `positions`.
    """
    mask = None if positions is None else up_to(positions, key.shape[2])
    if documents is not None:
        mask = (documents[:, None, :, None] == documents[:, None, None, :]).tril()
    return functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def up_to(
    positions: Int[Tensor, "batch queries"], n_keys: int
) -> Bool[Tensor, "batch 1 queries keys"]:
    """Return which of the keys at 0, 1, … the queries at these positions may see."""
    return torch.arange(n_keys, device=positions.device) <= positions[:, None, :, None]


def rotation_table(
    seq_len: int,
    columns: int,
    *,
    base: float,
    device: torch.device,
    positions: Int[Tensor, "batch seq"] | None = None,
) -> Float[Tensor, "2 *batch seq 1 columns"]:
    """Return cosines and signed sines of every column at `positions`, for `rotate`.

    None is 0 up to `seq_len`, the same for all sequences.

    Columns i and i + columns / 2 are a pair that turns by position * base ** (-2 i / columns); the
    sine is negative in the first half. Source: Su et al. 2021 (arXiv 2104.09864), section 3.4.2.
    Computed in fp32 once per forward pass, so a model has no longest sequence.
    """
    frequencies = base ** (
        -torch.arange(0, columns, 2, device=device, dtype=torch.float32) / columns
    )
    if positions is None:
        positions = torch.arange(seq_len, device=device)
    angles = positions.to(torch.float32)[..., None] * frequencies
    cosine, sine = angles.cos(), angles.sin()
    table = torch.stack((torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)))
    return table.unsqueeze(-2)


def rotate(
    x: Float[Tensor, "batch seq heads d_head"],
    rotation: Float[Tensor, "2 *batch seq 1 columns"] | None,
) -> Float[Tensor, "batch seq heads d_head"]:
    """Rotate every pair of the first columns, as many as the table has, by its position's angle."""
    if rotation is None:
        return x
    cosine, sine = rotation.to(x.dtype)
    columns = rotation.shape[-1]
    turning = x[..., :columns]
    turned = torch.addcmul(turning * cosine, turning.roll(columns // 2, dims=-1), sine)
    return turned if columns == x.shape[-1] else torch.cat((turned, x[..., columns:]), dim=-1)


def split_and_rotate(
    heads: Float[Tensor, "batch seq all_heads d_head"],
    rotation: Float[Tensor, "2 *batch seq 1 columns"] | None,
    *,
    n_heads: int,
) -> tuple[
    Float[Tensor, "batch seq heads d_head"],
    Float[Tensor, "batch seq kv_heads d_head"],
    Float[Tensor, "batch seq kv_heads d_head"],
]:
    """Return rotated queries, rotated keys, and values, of all heads in this order.

    Autograd would pad three gradients with zeros and add them. On a GPU one kernel writes each
    number of the gradient once (`workloads/kernels/rotary`). The forward pass is the same.
    """
    if rotation is not None and heads.requires_grad and uses_triton(heads):
        # Rounded here and not by each pass, so that both read the same angles, compiled or not.
        query, key, value = _RotatedHeads.apply(  # type: ignore[no-untyped-call]
            heads, rotation.to(heads.dtype), n_heads
        )
        return query, key, value
    return _split_and_rotate(heads, rotation, n_heads)


class _RotatedHeads(torch.autograd.Function):
    """`split_and_rotate` with the gradient of `rotary_gradient`; it keeps the table only."""

    @staticmethod
    def forward(
        ctx: Any, heads: Tensor, rotation: Tensor, n_heads: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(rotation)
        return _split_and_rotate(heads, rotation, n_heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        query, key, value = grads
        return rotary_gradient(query, key, value, *ctx.saved_tensors), None, None


def _split_and_rotate(
    heads: Tensor, rotation: Tensor | None, n_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = _split(heads, n_heads)
    return rotate(query, rotation), rotate(key, rotation), value


def _split(heads: Tensor, n_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values; there are as many keys as values."""
    n_kv_heads = (heads.shape[2] - n_heads) // 2
    query, key, value = heads.tensor_split((n_heads, n_heads + n_kv_heads), dim=2)
    return query, key, value
