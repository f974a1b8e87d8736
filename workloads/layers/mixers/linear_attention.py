"""Causal linear attention in chunks.

What cosFormer, Performer and the causal Linformer have in common.

With features f of queries and keys, the sum `o_t = sum over j <= t of (f(q_t) . f(k_j)) v_j` equals
`f(q_t) S_t`, where the state `S_t = sum over j <= t of f(k_j) v_j^T` has a fixed size: cost grows
with the length, not with its square. Source: Katharopoulos et al. 2020 (arXiv 2006.16236), section
3.3; in chunks as Hua et al. 2022 (arXiv 2202.10447).

Cost per token and head, with key features of width m and values of width d in chunks of C tokens,
in multiply-adds: C (m + d) / 2 for scores and mixture within a chunk (half the square, as
everywhere), m d to add to the state and as much to read it; a single chunk needs no state.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, autograd
from torch.autograd.function import once_differentiable
from torch.nn import functional

from workloads.accounting.counts import Precision
from workloads.kernels.linear_attention.op import is_fused, linear_attention
from workloads.layers.cache import LayerCache
from workloads.layers.context import Context
from workloads.layers.mixers.attention import AttentionShape


@dataclass(frozen=True, kw_only=True)
class LinearAttentionShape(AttentionShape):
    """Sizes of a mixer with normalised products of positive features (`normalised_mix`)."""

    n_features: int
    """Features of a query, and of a key."""
    chunk: int

    def mixing_flops(self, seq_len: int) -> float:
        """Return what mixing positions costs a token.

        The weighted sum of values, and of weights as one more column.
        """
        return self.n_heads * chunked_flops(
            seq_len, key_width=self.n_features, value_width=self.d_head + 1, chunk=self.chunk
        )

    def mixing_activation_bytes(self, seq_len: int, precision: Precision) -> float:
        """Return what feature maps keep, features, values with ones, sums, weights, mixture."""
        c, columns = 4 if precision == "fp32" else 2, self.d_head + 1
        summing = chunked_floats(
            seq_len, key_width=self.n_features, value_width=columns, chunk=self.chunk
        )
        per_head = 2 * self.n_features + 2 * columns + 1 + summing
        return c * (self.n_heads * per_head + self.d_model) + self.map_bytes(precision)

    def map_bytes(self, precision: Precision) -> float:
        """Return what the maps from query and key to features keep beside the features."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its features keep")


def causal_linear_attention(
    query: Float[Tensor, "... seq key_width"],
    key: Float[Tensor, "... seq key_width"],
    value: Float[Tensor, "... seq value_width"],
    *,
    chunk: int,
    state: Float[Tensor, "... key_width value_width"] | None = None,
    keep_state: bool = False,
) -> tuple[Float[Tensor, "... seq value_width"], Float[Tensor, "... key_width value_width"] | None]:
    """Return `sum over j <= t of (query_t . key_j) value_j` for every t, and the last state.

    Nothing is normalised: a column of ones in `value` sums the weights beside the values
    (`normalised_mix`). Products are in the type of the arguments, whatever autocast says, and
    accumulate in fp32; the state is fp32, float64 for float64. The states of all chunks come from
    one product and one cumulative sum; a tensor of tokens x key_width x value_width never exists.
    On a GPU, 16-bit arguments without a state go to one kernel, which has chunks of its own.

    Args:
        query: Features of queries, (batch, heads, seq, width).
        key: Features of keys; (seq, width) if all heads share them.
        value: Values; (seq, width) if all heads share them.
        chunk: Most tokens of a chunk. Chunks are of even length, so that hardly anything is padded.
        state: What the tokens before these left.
        keep_state: Return the state; without, it is None.
    """
    if state is None and not keep_state:
        if is_fused(query, key, value):
            return linear_attention(query, key, value)[0], None
        return chunked_linear_attention(query, key, value, chunk=chunk), None
    seq = query.shape[-2]
    n_chunks = -(-seq // chunk)
    with torch.autocast(query.device.type, enabled=False):
        query, key, value = (in_chunks(x, n_chunks) for x in (query, key, value))
        mixed, _, before, added = _forward(query, key, value, state)
        after = before[:, :, -1] + added[:, :, -1]
    return mixed.flatten(2, 3)[:, :, :seq], after


def chunked_linear_attention(
    query: Float[Tensor, "... seq key_width"],
    key: Float[Tensor, "... seq key_width"],
    value: Float[Tensor, "... seq value_width"],
    *,
    chunk: int,
) -> Float[Tensor, "... seq value_width"]:
    """Return `causal_linear_attention` from an empty state, in plain torch."""
    seq = query.shape[-2]
    n_chunks = -(-seq // chunk)
    with torch.autocast(query.device.type, enabled=False):
        query, key, value = (in_chunks(x, n_chunks) for x in (query, key, value))
        mixed: Tensor = _Chunked.apply(query, key, value)  # type: ignore[no-untyped-call]
    return mixed.flatten(2, 3)[:, :, :seq]


def _forward(
    query: Tensor, key: Tensor, value: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return mixture, scores within chunks, and each chunk's initial state and increment.

    States are fp32 or wider.
    """
    scores = _product("cm,em->ce", query, key).tril()
    mixed = _product("ce,ed->cd", scores, value)
    added = _product("cm,cd->md", key, value)
    start = torch.zeros_like(added[:, :, :1]) if state is None else state.unsqueeze(2)
    wide = torch.promote_types(added.dtype, torch.float32)
    before = torch.cat((start, added[:, :, :-1]), dim=2).cumsum(dim=2, dtype=wide)
    return _plus_product(mixed, query, before.to(query.dtype)), scores, before, added


class _Chunked(autograd.Function):
    """`_forward` from an empty state.

    Its backward pass has the same form, so its sums run inside the products.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if query.shape[2] == 1:
            scores = _product("cm,em->ce", query, key).tril()
            ctx.save_for_backward(query, key, value, scores)
            return _product("ce,ed->cd", scores, value)
        mixed, scores, before, _ = _forward(query, key, value, None)
        ctx.save_for_backward(query, key, value, scores, before.to(query.dtype))
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value, scores, *before = ctx.saved_tensors
        of_scores = _product("cd,ed->ce", gradient, value).tril()
        of_query = _product("ce,em->cm", of_scores, key)
        of_key = _product("ce,cm->em", of_scores, query, like=key)
        of_value = _product("ce,cd->ed", scores, gradient, like=value)
        if before:
            of_query = _plus_product(of_query, gradient, before[0].mT)
            read = _product("cm,cd->md", query, gradient)
            # What later chunks read of the state: summed from the last one back.
            wide = torch.promote_types(read.dtype, torch.float32)
            later = torch.cat((torch.zeros_like(read[:, :, :1]), read[:, :, 1:].flip(2)), dim=2)
            later = later.cumsum(dim=2, dtype=wide).flip(2).to(read.dtype)
            of_key = _plus_product(of_key, value, later.mT)
            of_value = _plus_product(of_value, key, later)
        return of_query, of_key, of_value


def in_chunks(
    x: Float[Tensor, "... seq width"], n_chunks: int
) -> Float[Tensor, "... chunks length width"]:
    """Return `x` in chunks of even length, the last one filled up with zeros."""
    length = -(-x.shape[-2] // n_chunks)
    missing = n_chunks * length - x.shape[-2]
    # Padding by nothing would be a copy.
    padded = functional.pad(x, (0, 0, 0, missing)) if missing else x
    return padded.view(*x.shape[:-2], n_chunks, length, x.shape[-1])


def _product(pattern: str, left: Tensor, right: Tensor, *, like: Tensor | None = None) -> Tensor:
    """Return the product of every chunk n.

    What all heads share has no batch b and no heads h, and is not repeated.

    The result is summed over batch and heads if `like` is shared.
    """
    inputs, output = pattern.split("->")
    names = [_leading(x) + axes for x, axes in zip((left, right), inputs.split(","), strict=True)]
    leading = "bhn" if like is None else _leading(like)
    return torch.einsum(f"{names[0]},{names[1]}->{leading}{output}", left, right)


def _leading(x: Tensor) -> str:
    return "bhn" if x.dim() == 5 else "n"


def _plus_product(addend: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return `addend + left @ right` per chunk; a shared `addend` sums batch and heads."""
    if min(x.dim() for x in (addend, left, right)) < 5:
        return addend + _product("ij,jk->ik", left, right, like=addend)
    flat = [x.flatten(0, 2) for x in (addend, left, right)]
    return flat[0].baddbmm_(*flat[1:]).view(addend.shape)


def remembering_mix(
    query: Float[Tensor, "batch heads seq key_width"],
    key: Float[Tensor, "... seq key_width"],
    value: Float[Tensor, "... seq value_width"],
    *,
    chunk: int,
    cache: LayerCache | None,
    name: str,
) -> Float[Tensor, "batch heads seq value_width"]:
    """Return `causal_linear_attention` with its state read from and written to a cache entry."""
    if cache is None:
        return causal_linear_attention(query, key, value, chunk=chunk)[0]
    mixed, state = causal_linear_attention(
        query, key, value, chunk=chunk, state=cache.state(name), keep_state=True
    )
    assert state is not None
    cache.set_state(name, state)
    return mixed


def normalised_mix(
    query: Float[Tensor, "batch heads seq key_width"],
    key: Float[Tensor, "batch heads seq key_width"],
    value: Float[Tensor, "batch heads seq d_head"],
    *,
    chunk: int,
    context: Context,
) -> Float[Tensor, "batch heads seq d_head"]:
    """Return `sum of (query . key) value / sum of (query . key)` over this and earlier positions.

    A sum of weights below 1e-6 counts as 1e-6: where no key has a feature in common with the query,
    nothing is mixed in.
    """
    if context.cache is None and is_fused(query, key, value):
        mixed, weights = linear_attention(query, key, value, weigh=True)
        assert weights is not None
        return normalised(mixed, weights)
    d_head = value.shape[-1]
    # A product on a GPU wants rows of a multiple of eight numbers.
    n_ones = 8 - d_head % 8 if value.is_cuda else 1
    ones = value.new_ones(()).expand(*value.shape[:-1], n_ones)
    summed = remembering_mix(
        query, key, torch.cat((value, ones), dim=-1), chunk=chunk, cache=context.cache, name="state"
    )
    total, weight = torch.split_with_sizes(summed, [d_head, n_ones], dim=-1)
    return total / weight[..., :1].clamp_min(1.0e-6)


def normalised(
    sums: Float[Tensor, "batch heads seq d_head"], weights: Float[Tensor, "batch heads seq"]
) -> Float[Tensor, "batch heads seq d_head"]:
    """Return weighted sums over those of their weights, as `normalised_mix` does."""
    return (sums / weights.clamp_min(1.0e-6)[..., None]).to(sums.dtype)


def chunked_flops(seq_len: int, *, key_width: int, value_width: int, chunk: int) -> float:
    """Return forward FLOPs of `causal_linear_attention` per token and head.

    Twice the multiplications of the closed form above.
    """
    n_chunks = -(-seq_len // chunk)
    within = seq_len / n_chunks * (key_width + value_width)
    return within + (4.0 * key_width * value_width if n_chunks > 1 else 0.0)


def chunked_floats(seq_len: int, *, key_width: int, value_width: int, chunk: int) -> float:
    """Return numbers that `causal_linear_attention` keeps per token and head beside its arguments.

    Scores and states.
    """
    n_chunks = -(-seq_len // chunk)
    length = seq_len / n_chunks
    return length + (key_width * value_width / length if n_chunks > 1 else 0.0)


def refuse_longer(context: Context, seq: int, *, max_seq_len: int) -> None:
    """Refuse to read, or to make room for, more positions than a mixer has.

    Raises:
        ValueError: Naming the field.
    """
    end = seq if context.cache is None else context.cache.capacity
    if end > max_seq_len:
        raise ValueError(
            f"max_seq_len must be at least the length of a sequence, "
            f"got {max_seq_len} and a sequence of {end}; "
            f"raise max_seq_len to {end} or shorten the sequence"
        )
