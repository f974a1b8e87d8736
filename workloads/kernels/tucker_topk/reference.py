"""Top-k selection by Tucker-decomposed scores in torch: definition, CPU path."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from workloads.kernels.product_key_topk.reference import ordered_topk

SQUARINGS = 8
"""Of C^T C in `leading_pair`: of two singular values 1 % apart, 0.6 % of the smaller one's vector
is left."""


def tucker_topk(
    query: Float[Tensor, "2 heads queries tokens half_key_dim"],
    sub_keys: Float[Tensor, "2 heads rank n_keys half_key_dim"],
    core: Float[Tensor, "heads rank rank"],
    knn: int,
) -> tuple[Float[Tensor, "tokens heads knn"], Int[Tensor, "tokens heads knn"]]:
    """Return scores and ids of about the best `knn` slots (`topk_of_scores`), best first.

    Differentiable in query, sub-keys and core.

    Args:
        query: Of both halves, for each rank or one for all.
        sub_keys: Row and column codebooks of each rank.
        core: What combines the ranks' scores.
        knn: Slots per head.

    Raises:
        ValueError: If knn lies outside 1..n_keys.
    """
    row_scores, column_scores = half_scores(query, sub_keys).unbind(0)
    return topk_of_scores(row_scores, column_scores, core, knn)


def half_scores(
    query: Float[Tensor, "2 heads queries tokens half_key_dim"],
    sub_keys: Float[Tensor, "2 heads rank n_keys half_key_dim"],
) -> Float[Tensor, "2 heads rank tokens n_keys"]:
    """Return the products of queries and sub-keys, fp32 or wider."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    # Autocast would score in bf16, where many scores tie.
    with torch.autocast(query.device.type, enabled=False):
        products: Tensor = query.to(dtype) @ sub_keys.to(dtype).mT
    return products


def topk_of_scores(
    row_scores: Float[Tensor, "heads rank tokens n_keys"],
    column_scores: Float[Tensor, "heads rank tokens n_keys"],
    core: Float[Tensor, "heads rank rank"],
    knn: int,
) -> tuple[Float[Tensor, "tokens heads knn"], Int[Tensor, "tokens heads knn"]]:
    """Return scores and ids of about the best `knn` slots of `S_row^T C S_column`, best first.

    Slot `i * n_keys + j` scores `sum_ab S_row[a, i] C[a, b] S_column[b, j]`. Candidates are the
    pairs of the `knn` best rows and the `knn` best columns by the approximation of rank one, `C ~ s
    u t^T` with the largest singular value s: rows by `u^T S_row`, columns by `t^T S_column`. Among
    them the choice is exact, so all of it is where knn is n_keys. Unlike those of product keys no
    pair can be left out beforehand: the exact score need not rise with both approximate ones. Equal
    scores are ordered by id, lowest first. Source: Huang et al. 2024 (arXiv 2411.12364), "Tucker
    decomposed query-key retrieval".

    Scores are differentiable in all three arguments; ids, and so the approximation, are not. Types
    narrower than fp32 are scored in fp32.

    Raises:
        ValueError: If knn lies outside 1..n_keys.
    """
    n_keys = row_scores.shape[-1]
    if not 1 <= knn <= n_keys:
        raise ValueError(f"knn must lie in 1..n_keys ({n_keys}), got {knn}")
    dtype = torch.promote_types(row_scores.dtype, torch.float32)
    rows, columns, core = (x.to(dtype) for x in (row_scores, column_scores, core))
    # Autocast would score in bf16.
    with torch.autocast(rows.device.type, enabled=False):
        ids = _select(rows.detach(), columns.detach(), core.detach(), knn)
        row_ids = ids // n_keys
        column_ids = ids - row_ids * n_keys
        mixed = torch.einsum("hati,hab->hbti", _taken(rows, row_ids), core)
        scores = (mixed * _taken(columns, column_ids)).sum(1)
    return scores.transpose(0, 1), ids.transpose(0, 1)


def leading_pair(
    core: Float[Tensor, "heads rank rank"],
) -> tuple[Float[Tensor, "heads rank"], Float[Tensor, "heads rank"]]:
    """Return left and right singular vectors u, t of the largest singular value of every core.

    By squaring C^T C again and again, which takes no host synchronisation. Of the two signs that u
    t^T leaves open it is the one with sum(t) >= 0, so for a core of positive numbers both vectors
    are positive (Perron & Frobenius), and they change smoothly with the core as long as sum(t)
    stays away from 0.
    """
    gram = core.mT @ core
    for _ in range(SQUARINGS):
        trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(torch.finfo(gram.dtype).tiny)
        gram = gram / trace[:, None, None]
        gram = gram @ gram
    right = functional.normalize(gram.sum(-1), dim=-1)
    left = functional.normalize((core @ right[..., None])[..., 0], dim=-1)
    return left, right


def _select(
    rows: Float[Tensor, "heads rank tokens n_keys"],
    columns: Float[Tensor, "heads rank tokens n_keys"],
    core: Float[Tensor, "heads rank rank"],
    knn: int,
) -> Int[Tensor, "heads tokens knn"]:
    n_keys = rows.shape[-1]
    key_ids = torch.arange(n_keys, device=rows.device)
    row_weights, column_weights = leading_pair(core)
    best_rows, best_columns = (
        ordered_topk(torch.einsum("ha,hatn->htn", weights, scores), key_ids, knn)
        for weights, scores in ((row_weights, rows), (column_weights, columns))
    )
    mixed = torch.einsum("hati,hab->hbti", _taken(rows, best_rows), core)
    grid = torch.einsum("hbti,hbtj->htij", mixed, _taken(columns, best_columns))
    slots = best_rows[..., :, None] * n_keys + best_columns[..., None, :]
    return ordered_topk(grid.flatten(-2), slots.flatten(-2), knn)


def _taken(
    scores: Float[Tensor, "heads rank tokens n_keys"], ids: Int[Tensor, "heads tokens knn"]
) -> Float[Tensor, "heads rank tokens knn"]:
    return scores.gather(-1, ids[:, None].expand(-1, scores.shape[1], -1, -1))
