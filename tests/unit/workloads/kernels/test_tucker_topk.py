"""Tucker-decomposed selection against brute force over the whole grid, and against product keys."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from workloads.kernels.product_key_topk.op import product_key_topk
from workloads.kernels.tucker_topk.reference import leading_pair, topk_of_scores


def _grid(rows: Tensor, columns: Tensor, core: Tensor) -> Tensor:
    """The score of every slot, one head at a time, (tokens, heads, n_keys**2)."""
    heads = [
        torch.stack([r[:, t].T @ c @ k[:, t] for t in range(r.shape[1])]).flatten(1)
        for r, k, c in zip(rows, columns, core, strict=True)
    ]
    return torch.stack(heads, dim=1)


def _best(scores: Tensor, knn: int) -> Tensor:
    """Ids of the best, equal scores by lowest id."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :knn]


@st.composite
def _sizes(draw: st.DrawFn) -> tuple[int, int, int, int, int]:
    return (
        draw(st.integers(1, 3)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 5)),
        draw(st.integers(1, 9)),
        draw(st.integers(0, 2**31)),
    )


@given(sizes=_sizes())
def test_the_best_of_the_whole_grid_where_every_slot_is_a_candidate(sizes):
    heads, rank, tokens, n_keys, seed = sizes
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.randn(
        2, heads, rank, tokens, n_keys, dtype=torch.float64, generator=generator
    )
    core = torch.randn(heads, rank, rank, dtype=torch.float64, generator=generator)
    grid = _grid(rows, columns, core)

    scores, ids = topk_of_scores(rows, columns, core, n_keys)

    assert torch.equal(ids, _best(grid, n_keys))
    torch.testing.assert_close(scores, grid.gather(-1, ids))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(sizes=_sizes())
def test_equal_scores_go_to_the_lowest_id(dtype, sizes):
    heads, rank, tokens, n_keys, seed = sizes
    generator = torch.Generator().manual_seed(seed)
    # Small whole numbers, whose sums and products are exact: many ties.
    rows, columns = torch.randint(-1, 2, (2, heads, rank, tokens, n_keys), generator=generator)
    core = torch.randint(-1, 2, (heads, rank, rank), generator=generator)
    rows, columns, core = (x.to(dtype) for x in (rows, columns, core))

    _, ids = topk_of_scores(rows, columns, core, n_keys)

    assert torch.equal(ids, _best(_grid(rows, columns, core), n_keys))


@pytest.mark.parametrize("knn", [1, 2, 5, 8])
def test_of_rank_one_it_is_the_search_of_product_keys_on_the_logarithms(knn):
    """A product of positive numbers orders slots as the sum of their logarithms does."""
    generator = torch.Generator().manual_seed(knn)
    logs = torch.randn(2, 3, 20, 13, dtype=torch.float64, generator=generator)
    rows, columns = logs.exp()[:, :, None]
    core = torch.ones(3, 1, 1, dtype=torch.float64)

    scores, ids = topk_of_scores(rows, columns, core, knn)

    for token in range(20):
        # A query of ones against sub-keys of one column scores what the sub-keys say.
        query = torch.ones(1, 3, 2, dtype=torch.float64)
        expected_scores, expected = product_key_topk(query, logs[:, :, token, :, None], knn)
        assert torch.equal(ids[token], expected[0])
        torch.testing.assert_close(scores[token], expected_scores[0].exp())


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_choice_is_exact_among_the_best_rows_and_columns_by_the_largest_singular_pair(rank):
    generator = torch.Generator().manual_seed(rank)
    rows, columns = torch.randn(2, 2, rank, 6, 17, dtype=torch.float64, generator=generator)
    core = torch.rand(2, rank, rank, dtype=torch.float64, generator=generator)
    left, _, right = torch.linalg.svd(core)
    # The pair of positive vectors that a positive matrix has.
    u, t = left[..., 0].abs(), right[:, 0].abs()
    row_rank = (u[:, :, None, None] * rows).sum(1).argsort(-1, descending=True).argsort(-1)
    column_rank = (t[:, :, None, None] * columns).sum(1).argsort(-1, descending=True).argsort(-1)
    candidate = ((row_rank < 4)[..., :, None] & (column_rank < 4)[..., None, :]).flatten(-2)
    grid = _grid(rows, columns, core).masked_fill(~candidate.transpose(0, 1), -torch.inf)

    _, ids = topk_of_scores(rows, columns, core, 4)

    assert torch.equal(ids, _best(grid, 4))


@given(rank=st.integers(1, 5), seed=st.integers(0, 2**31), positive=st.booleans())
def test_leading_pair_is_that_of_the_singular_value_decomposition(rank, seed, positive):
    generator = torch.Generator().manual_seed(seed)
    core = torch.rand(1, rank, rank, dtype=torch.float64, generator=generator)
    if not positive:
        core = core - 0.5
    left, values, right = torch.linalg.svd(core)
    # Two large values that are close leave open which plane vector it is; so does a vector across
    # the start.
    if rank > 1:
        assume(values[0, 1] < 0.97 * values[0, 0] and right[0, 0].sum().abs() > 1e-3)

    u, t = leading_pair(core)

    torch.testing.assert_close(
        u[0, :, None] * t[0], left[0, :, :1] * right[0, :1], rtol=1e-3, atol=1e-3
    )
    assert t.sum() >= 0
    if positive:
        assert (u > 0).all()
        assert (t > 0).all()


def test_a_core_of_zeros_is_no_division_by_zero():
    u, t = leading_pair(torch.zeros(1, 2, 2))

    assert torch.isfinite(u).all()
    assert torch.isfinite(t).all()


def test_gradients_by_finite_differences():
    generator = torch.Generator().manual_seed(0)
    rows, columns = torch.randn(2, 2, 2, 3, 5, dtype=torch.float64, generator=generator)
    core = torch.rand(2, 2, 2, dtype=torch.float64, generator=generator)
    inputs = tuple(x.clone().requires_grad_() for x in (rows, columns, core))

    assert torch.autograd.gradcheck(lambda *x: topk_of_scores(*x, 3)[0], inputs)


def test_autocast_does_not_round_the_scores():
    generator = torch.Generator().manual_seed(0)
    rows, columns = torch.randn(2, 1, 2, 4, 9, generator=generator)
    core = torch.rand(1, 2, 2, generator=generator)
    expected = topk_of_scores(rows, columns, core, 5)

    with torch.autocast("cpu", torch.bfloat16):
        found = topk_of_scores(rows, columns, core, 5)

    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("knn", [0, 6])
def test_more_rows_than_there_are_sub_keys_are_refused(knn):
    scores = torch.zeros(1, 2, 3, 5)

    with pytest.raises(ValueError, match=rf"knn must lie in 1\.\.n_keys \(5\), got {knn}"):
        topk_of_scores(scores, scores, torch.ones(1, 2, 2), knn)
