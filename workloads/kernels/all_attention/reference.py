"""All-attention in plain torch.

The definition of correct, and the path where nothing fused applies.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


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
    """Return a mixture of the values at this and earlier positions and of the persistent values.

    One softmax over both: `query . key / sqrt(d_head)` for positions and `persistent_query .
    persistent_key / sqrt(d_head)` for persistent vectors, which every position sees.

    Args:
        query: Queries of the positions.
        key: Keys of positions 0, 1, ….
        value: Values of the same positions.
        persistent_query: What reads the persistent vectors, one for each query.
        persistent_key: Learned keys.
        persistent_value: Learned values.
        positions: Positions of the queries; None: the last `seq` ones.
    """
    seq, n_keys = query.shape[2], key.shape[2]
    scale = query.shape[-1] ** -0.5
    if positions is None:
        seen = torch.ones(seq, n_keys, dtype=torch.bool, device=query.device).tril(n_keys - seq)
    else:
        seen = torch.arange(n_keys, device=query.device) <= positions[:, None, :, None]
    scores = (query @ key.mT).masked_fill(~seen, -torch.inf)
    # One product a head for all sequences: `@` would copy the vectors for each sequence.
    persistent_scores = torch.einsum("bhsd,hnd->bhsn", persistent_query, persistent_key)
    weights = torch.cat((persistent_scores, scores), dim=-1).mul(scale).softmax(dim=-1)
    persistent, context = weights.tensor_split([persistent_key.shape[1]], dim=-1)
    read = torch.einsum("bhsn,hnd->bhsd", persistent, persistent_value)
    return (read + context @ value).to(value.dtype)
