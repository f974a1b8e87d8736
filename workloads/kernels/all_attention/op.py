"""Entry point of all-attention."""

from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.all_attention import fused, reference


def all_attention(
    query: Float[Tensor, "batch heads seq d_head"],
    key: Float[Tensor, "batch heads keys d_head"],
    value: Float[Tensor, "batch heads keys d_head"],
    persistent_query: Float[Tensor, "batch heads seq d_head"],
    persistent_key: Float[Tensor, "heads vectors d_head"],
    persistent_value: Float[Tensor, "heads vectors d_head"],
    *,
    positions: Int[Tensor, "batch seq"] | None = None,
) -> Float[Tensor, "batch heads seq d_head"]:
    """Return `reference.all_attention`, by fused kernels where there are any."""
    tensors = (query, key, value, persistent_query, persistent_key, persistent_value)
    if positions is None and fused.applies(query, key):
        return fused.all_attention(*tensors)
    return reference.all_attention(*tensors, positions=positions)
