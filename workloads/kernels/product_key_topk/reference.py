"""Product-key selection in plain torch: the definition, and the CPU path."""

from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor


def product_key_topk(
    query: Float[Tensor, "tokens heads key_dim"],
    sub_keys: Float[Tensor, "2 heads n_keys half_key_dim"],
    knn: int,
) -> tuple[Float[Tensor, "tokens heads knn"], Int[Tensor, "tokens heads knn"]]:
    """Return scores and ids of the best `knn` of n_keys**2 slots, best first.

    Slot `i * n_keys + j` scores the sum of the left half's score of sub-key i and the right half's
    of sub-key j. Exact: a slot among the best `knn` uses sub-keys among the best `knn` of their own
    half (all of them, where that is more than there are), and of those only the pairs of
    `candidate_pairs` can win. Equal scores are ordered by id, lowest first. Source: Lample et al.
    2019 (arXiv 1907.05242), section 3.2.

    Scores are differentiable in `query` and `sub_keys`; ids are not. Types narrower than fp32 are
    scored in fp32, because bf16 scores tie often.

    Args:
        query: The halves are the first and the last key_dim / 2 columns.
        sub_keys: Left and right codebooks.
        knn: Slots per head, up to all of them.

    Raises:
        ValueError: If knn lies outside 1..n_keys**2.
    """
    n_tokens, n_heads, _ = query.shape
    n_keys, half_key_dim = sub_keys.shape[2:]
    if not 1 <= knn <= n_keys**2:
        raise ValueError(f"knn must lie in 1..n_keys**2 ({n_keys**2}), got {knn}")
    dtype = torch.promote_types(query.dtype, torch.float32)
    # Autocast would score in bf16.
    with torch.autocast(query.device.type, enabled=False):
        halves = query.to(dtype).view(n_tokens, n_heads, 2, half_key_dim).permute(2, 1, 0, 3)
        scores = halves @ sub_keys.to(dtype).mT
    left, right = scores.detach().unbind(0)
    ids = _select(left, right, knn)
    left_ids = ids // n_keys
    right_ids = ids - left_ids * n_keys
    chosen = scores[0].gather(-1, left_ids) + scores[1].gather(-1, right_ids)
    return chosen.transpose(0, 1), ids.transpose(0, 1)


@cache
def candidate_pairs(knn: int, n_keys: int | None = None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks (left, right), from 0, of all pairs that can be among the best `knn`.

    The pair of ranks (i, j), from 1, is beaten or tied at a lower id by the i * j - 1 other pairs
    of ranks up to i and j, so it can only win if i * j <= knn: 119 of 1,024 pairs for knn = 32. A
    half has `n_keys` ranks, at least knn if None.
    """
    ranks = range(knn if n_keys is None else min(knn, n_keys))
    pairs = [(i, j) for i in ranks for j in ranks if (i + 1) * (j + 1) <= knn]
    return tuple(i for i, _ in pairs), tuple(j for _, j in pairs)


def _select(
    left: Float[Tensor, "heads tokens n_keys"],
    right: Float[Tensor, "heads tokens n_keys"],
    knn: int,
) -> Int[Tensor, "heads tokens knn"]:
    n_keys = left.shape[-1]
    per_half = min(knn, n_keys)
    key_ids = torch.arange(n_keys, device=left.device)
    ranks_left, ranks_right = candidate_ranks(knn, per_half, left.device)
    best_left, best_right = (ordered_topk(half, key_ids, per_half) for half in (left, right))
    sums = (
        left.gather(-1, best_left)[..., ranks_left] + right.gather(-1, best_right)[..., ranks_right]
    )
    slots = best_left[..., ranks_left] * n_keys + best_right[..., ranks_right]
    return ordered_topk(sums, slots, knn)


@cache
def candidate_ranks(knn: int, n_keys: int, device: torch.device) -> Int[Tensor, "2 pairs"]:
    """Return `candidate_pairs` on a device.

    Made once, because a copy to a GPU makes the host wait.
    """
    with torch.inference_mode(False):
        return torch.tensor(candidate_pairs(knn, n_keys), device=device)


def ordered_topk(
    scores: Float[Tensor, "*rows n"], ids: Int[Tensor, "*#rows n"], k: int
) -> Int[Tensor, "*rows k"]:
    """Return the ids of the k highest scores, best first, equal scores by lowest id."""
    if scores.dtype != torch.float32:
        by_id = ids.expand_as(scores).sort(dim=-1)
        order = scores.gather(-1, by_id.indices).sort(dim=-1, descending=True, stable=True).indices
        return by_id.values.gather(-1, order[..., :k])
    # torch.topk leaves open which of equal scores it takes, and a stable sort costs twice as much.
    # So both go into one integer: the score's bits, made to rise with the score, above the
    # complement of the id.
    bits = (scores + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0, which it equals
    rising = (bits >> 31).bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits)
    keys = torch.add(ids ^ _LARGEST_ID, rising, alpha=2**32)
    return _LARGEST_ID - (keys.topk(k, dim=-1).values & _LARGEST_ID)


_LARGEST_ID = 2**32 - 1
