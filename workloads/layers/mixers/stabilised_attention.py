"""Causal linear attention whose keys are stabilised by a running maximum.

Features that are exponentials leave the range of fp32 where keys are long. Dividing them by the
largest one would help, but the largest of all positions knows later tokens. Here the level M_t is
the largest exponent of keys up to t, so features `exp(e_j - M_j)` are at most 1, and

    o_t = sum over j <= t of exp(M_j - M_t) (f(q_t) . f(k_j)) v_j,

which no later key changes. All factors `exp(M_j - M_t)` are at most 1. A state that is carried on
falls by them, as in attention with a decay (Sun et al. 2023, arXiv 2307.08621).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from workloads.layers.context import Context
from workloads.layers.mixers.linear_attention import in_chunks

SMALLEST_WEIGHT = 1.0e-30
"""Sums of weights below it count as it, in fp32 and wider."""


def stabilised_mix(
    query: Float[Tensor, "batch heads seq key_width"],
    key: Float[Tensor, "batch heads seq key_width"],
    value: Float[Tensor, "batch heads seq d_head"],
    level: Float[Tensor, "batch heads seq"],
    *,
    chunk: int,
    context: Context,
) -> Float[Tensor, "batch heads seq d_head"]:
    """Return weighted means of values over this and earlier positions.

    Sums run in the levels' type, fp32 or wider, whatever autocast says.

    Args:
        query: Features of queries.
        key: Features of keys, over `exp(level)`.
        value: What is mixed.
        level: Largest exponent of keys up to each position; never falls.
        chunk: Most tokens whose products are taken at once.
        context: Whose cache holds the state of earlier tokens.
    """
    cache = context.cache
    state = None if cache is None else cache.state("state")
    start = None if cache is None else cache.state("level")
    ones = value.new_ones(()).expand(*value.shape[:-1], 1)
    with torch.autocast(query.device.type, enabled=False):
        wide = [x.to(level.dtype) for x in (query, key, torch.cat((value, ones), dim=-1))]
        summed, state = levelled_attention(
            wide[0], wide[1], wide[2], level, chunk=chunk, state=state, start=start
        )
    if cache is not None:
        cache.set_state("state", state)
        cache.set_state("level", level[..., -1])
    total, weight = summed[..., :-1], summed[..., -1:]
    return (total / weight.clamp_min(SMALLEST_WEIGHT)).to(value.dtype)


def levelled_attention(
    query: Float[Tensor, "batch heads seq key_width"],
    key: Float[Tensor, "batch heads seq key_width"],
    value: Float[Tensor, "batch heads seq value_width"],
    level: Float[Tensor, "batch heads seq"],
    *,
    chunk: int,
    state: Float[Tensor, "batch heads key_width value_width"] | None,
    start: Float[Tensor, "batch heads"] | None,
) -> tuple[
    Float[Tensor, "batch heads seq value_width"], Float[Tensor, "batch heads key_width value_width"]
]:
    """Return `sum over j <= t of exp(level_j - level_t) (query_t . key_j) value_j`, and the state.

    The state, of which `start` is the level, is what the last position leaves to those after it.
    """
    seq = level.shape[-1]
    n_chunks = -(-seq // chunk)
    length = -(-seq // n_chunks)
    missing = n_chunks * length - seq
    padded = torch.cat((level, level[..., -1:].expand(*level.shape[:-1], missing)), dim=-1)
    levels = padded.view(*padded.shape[:-1], n_chunks, length)
    query, key, value = (in_chunks(x, n_chunks) for x in (query, key, value))
    last = levels[..., -1]
    fall = (levels[..., None, :] - levels[..., :, None]).clamp_max(0.0).exp()
    within = ((query @ key.mT) * fall).tril() @ value
    added = (key * (levels - last[..., None]).exp()[..., None]).mT @ value
    before = torch.zeros_like(added[:, :, 0]) if state is None else state
    reached = levels[:, :, 0, 0] if start is None else start
    mixed = []
    for number in range(n_chunks):
        read = (reached[..., None] - levels[:, :, number]).exp()[..., None]
        mixed.append(within[:, :, number] + (query[:, :, number] * read) @ before)
        decay = (reached - last[:, :, number]).exp()[..., None, None]
        before = before * decay + added[:, :, number]
        reached = last[:, :, number]
    return torch.stack(mixed, dim=2).flatten(2, 3)[:, :, :seq], before
