"""Operations of a decoding step in plain torch: the definition and the CPU path.

A norm is that of RMSNorm, `x / sqrt(mean x^2 + eps) * gain`; without a gain there is none.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from workloads.kernels.product_key_topk.op import product_key_topk


def normed(
    x: Float[Tensor, "tokens width"], gain: Float[Tensor, " width"] | None, eps: float
) -> Float[Tensor, "tokens width"]:
    """Return the normalised `x`, or `x` where there is no gain."""
    if gain is None:
        return x
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return functional.rms_norm(wide, gain.shape, gain.to(wide.dtype), eps)


def linear(
    x: Float[Tensor, "tokens inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None = None,
    *,
    gain: Float[Tensor, " inputs"] | None = None,
    eps: float = 0.0,
    residual: Float[Tensor, "tokens outputs"] | None = None,
) -> Float[Tensor, "tokens outputs"]:
    """Return `residual + weight norm(x) + bias`, in the residual's type, else in the weight's."""
    y = functional.linear(normed(x, gain, eps).to(weight.dtype), weight, bias)
    return y if residual is None else residual + y.to(residual.dtype)


def swiglu(
    x: Float[Tensor, "tokens inputs"],
    gate_up: Float[Tensor, "2*d_ff inputs"],
    *,
    gain: Float[Tensor, " inputs"],
    eps: float,
) -> Float[Tensor, "tokens d_ff"]:
    """Return `silu(gate n) * up n` of `n = norm(x)`; the rows of `gate` come first."""
    gate, up = linear(x, gate_up, gain=gain, eps=eps).chunk(2, dim=-1)
    return functional.silu(gate) * up


def gated(
    x: Float[Tensor, "tokens inputs"],
    gate: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
    factor: Float[Tensor, "tokens outputs"],
    *,
    gain: Float[Tensor, " inputs"],
    eps: float,
) -> Float[Tensor, "tokens outputs"]:
    """Return `silu(gate norm(x) + bias) * factor`."""
    return functional.silu(linear(x, gate, bias, gain=gain, eps=eps)) * factor.to(gate.dtype)


def attend(
    query_key_value: Float[Tensor, "tokens columns"],
    keys: Float[Tensor, "tokens kv_heads capacity d_head"],
    values: Float[Tensor, "tokens kv_heads capacity d_head"],
    positions: Int[Tensor, " tokens"],
    rotation: Float[Tensor, "2 places half"],
    *,
    query_gain: Float[Tensor, " d_head"] | None = None,
    key_gain: Float[Tensor, " d_head"] | None = None,
    eps: float = 0.0,
) -> Float[Tensor, "tokens d_model"]:
    """Return softmax attention of one token of each sequence, and write its key and value.

    Args:
        query_key_value: Of all heads, in this order.
        keys: Rotated keys of earlier positions.
        values: Their values.
        positions: Of the tokens.
        rotation: Cosines and sines of the angles by which columns i and i + half of a head turn,
            for all positions.
        query_gain: Of the norm of each head's query, before it turns.
        key_gain: Of each head's key.
        eps: Of both norms.
    """
    batch, kv_heads, capacity, d_head = keys.shape
    heads = query_key_value.view(batch, -1, d_head)
    n_heads = heads.shape[1] - 2 * kv_heads
    query, key, value = heads.tensor_split([n_heads, n_heads + kv_heads], dim=1)
    cosine, sine = rotation[:, positions, None]

    def turned(x: Tensor, gain: Tensor | None) -> Tensor:
        left, right = normed(x, gain, eps).to(rotation.dtype).chunk(2, dim=-1)
        both = (left * cosine - right * sine, right * cosine + left * sine)
        return torch.cat(both, dim=-1).to(keys.dtype)

    rows = torch.arange(batch, device=keys.device)
    keys[rows, :, positions] = turned(key, key_gain)
    values[rows, :, positions] = value.to(values.dtype)
    mask = torch.arange(capacity, device=keys.device) <= positions[:, None, None, None]
    mixed = functional.scaled_dot_product_attention(
        turned(query, query_gain)[:, :, None],
        keys,
        values,
        attn_mask=mask,
        enable_gqa=n_heads != kv_heads,
    )
    return mixed.flatten(1)


def choose(
    query: Float[Tensor, "tokens columns"],
    sub_keys: Float[Tensor, "2 heads n_keys half_key_dim"],
    knn: int,
    *,
    normalise: bool = False,
) -> tuple[Int[Tensor, "tokens rows"], Float[Tensor, "tokens rows"]]:
    """Return the rows that each token reads by product keys, and their softmax weights.

    Best first in every head, over whose rows the softmax is taken. With `normalise` both halves of
    a query are brought to length 1 first.
    """
    tokens, heads = len(query), sub_keys.shape[1]
    query = query.view(tokens, heads, -1)
    if normalise:
        wide = query.to(torch.promote_types(query.dtype, torch.float32))
        query = functional.normalize(wide.view(tokens, heads, 2, -1), dim=-1).flatten(-2)
    scores, ids = product_key_topk(query, sub_keys, knn)
    return ids.flatten(1), scores.softmax(dim=-1).flatten(1)


def route(
    x: Float[Tensor, "tokens width"],
    router: Float[Tensor, "experts width"],
    top_k: int,
    *,
    gain: Float[Tensor, " width"],
    eps: float,
    bias: Float[Tensor, " experts"] | None = None,
    renormalise: bool = False,
) -> tuple[Int[Tensor, "tokens top_k"], Float[Tensor, "tokens top_k"]]:
    """Return the experts of each token and their weights: probabilities `softmax(router norm(x))`.

    Chosen by probability plus `bias`; equal ones by the lowest id.
    """
    probabilities = functional.linear(normed(x, gain, eps), router).softmax(dim=-1)
    scores = probabilities if bias is None else probabilities + bias
    experts = scores.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = probabilities.gather(1, experts)
    if renormalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return experts, weights


def experts(
    x: Float[Tensor, "tokens width"],
    gate: Float[Tensor, "experts width d_expert"],
    up: Float[Tensor, "experts width d_expert"],
    down: Float[Tensor, "experts d_expert width"],
    chosen: Int[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
    *,
    gain: Float[Tensor, " width"],
    eps: float,
) -> Float[Tensor, "tokens width"]:
    """Return `x` plus the weighted sum of its experts' outputs for `norm(x)`."""
    n = normed(x, gain, eps).to(gate.dtype)
    inputs = torch.einsum("tw,tkwf->tkf", n, gate[chosen])
    hidden = functional.silu(inputs) * torch.einsum("tw,tkwf->tkf", n, up[chosen])
    hidden = hidden * weights[..., None].to(hidden.dtype)
    return x + torch.einsum("tkf,tkfw->tw", hidden, down[chosen])
