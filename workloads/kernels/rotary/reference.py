"""Gradient of rotary positions in plain torch: the definition, and the CPU path."""

import torch
from jaxtyping import Float
from torch import Tensor


def gradient(
    query: Float[Tensor, "batch seq heads d_head"],
    key: Float[Tensor, "batch seq kv_heads d_head"],
    value: Float[Tensor, "batch seq kv_heads d_head"],
    rotation: Float[Tensor, "2 *batch seq 1 columns"],
) -> Float[Tensor, "batch seq all_heads d_head"]:
    """Return the gradient of all heads, of the gradients of rotated query, rotated key, and value.

    Cosines and sines are rounded to the gradients' type, as the forward pass rounds them. Sums are
    fp32 or wider, and rounded once.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    cosine, sine = rotation.to(query.dtype).to(wide)
    columns = rotation.shape[-1]
    turned = torch.cat((query, key), dim=2)
    turning = turned[..., :columns].to(wide)
    turning = turning * cosine + (turning * sine).roll(columns // 2, dims=-1)
    turned = torch.cat((turning.to(query.dtype), turned[..., columns:]), dim=-1)
    return torch.cat((turned, value), dim=2)
