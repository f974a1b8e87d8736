"""Entry point of the gradient of rotary positions."""

import torch
from jaxtyping import Float
from torch import Tensor

from workloads.kernels.backend import implementation


def rotary_gradient(
    query: Float[Tensor, "batch seq heads d_head"],
    key: Float[Tensor, "batch seq kv_heads d_head"],
    value: Float[Tensor, "batch seq kv_heads d_head"],
    rotation: Float[Tensor, "2 *batch seq 1 columns"],
) -> Float[Tensor, "batch seq all_heads d_head"]:
    """Return the gradient of a joint projection of query, key and value, of which two were rotated.

    Args:
        query: Gradient of the rotated queries, of any strides.
        key: Gradient of the rotated keys, of any strides.
        value: Gradient of the values, of any strides.
        rotation: Cosines and signed sines of each position, the same for all sequences or not. Head
            columns beyond the table's did not turn.

    Returns:
        The gradient of all heads, queries first, then keys, then values: contiguous. It has no
        gradient of its own. `torch.compile` sees one operation.
    """
    result: Tensor = _rotary_gradient(query, key, value, rotation)
    return result


# The kernel takes gradients as attention left them; without the tag, Inductor may copy them first.
@torch.library.custom_op(
    "memscale::rotary_gradient", mutates_args=(), tags=(torch.Tag.flexible_layout,)
)
def _rotary_gradient(query: Tensor, key: Tensor, value: Tensor, rotation: Tensor) -> Tensor:
    result: Tensor = implementation("rotary", query).gradient(query, key, value, rotation)
    return result


@_rotary_gradient.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, rotation: Tensor) -> Tensor:
    batch, seq, n_heads, d_head = query.shape
    return query.new_empty(batch, seq, n_heads + 2 * key.shape[2], d_head)
