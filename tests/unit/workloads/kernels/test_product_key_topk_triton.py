"""The GPU kernels of product-key selection, in Triton's interpreter.

Every slot and every gradient is the reference's.
"""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workloads.kernels.product_key_topk import reference

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from workloads.kernels.product_key_topk import backward as gradient_kernels
from workloads.kernels.product_key_topk import bitonic_sort, candidate_pairs, op, split_fp16
from workloads.kernels.product_key_topk import triton as kernels

LONG = pytest.mark.long
INTERPRETED = settings.get_profile("interpreted")
SMALL = kernels.Tile(16, 16, 16, 16, warps=4, stages=1)
"""Tile of `_search`; the interpreter takes as long for a number as for a tile."""


@pytest.fixture(autouse=True)
def _interpreted(interpreted, poisoned, monkeypatch):
    for module in (bitonic_sort, split_fp16, candidate_pairs, gradient_kernels, kernels):
        interpreted(module)
    # Each takes the interpreter as long as one that has something to do.
    monkeypatch.setattr(kernels, "_crowded_programs", lambda device, warps: 3)


def _integers(
    tokens: int, heads: int, n_keys: int, half: int, largest: int
) -> tuple[Tensor, Tensor]:
    """Small integers, whose scores are exact and tie often."""
    generator = torch.Generator().manual_seed(tokens + n_keys)
    query = torch.randint(-largest, largest + 1, (tokens, heads, 2 * half), generator=generator)
    sub_keys = torch.randint(-largest, largest + 1, (2, heads, n_keys, half), generator=generator)
    return query.float(), sub_keys.float()


def _assert_equal(query: Tensor, sub_keys: Tensor, knn: int, **settings: object) -> None:
    expected, expected_ids = reference.product_key_topk(query, sub_keys, knn)

    scores, ids = kernels.select(query, sub_keys, knn, **{"tile": SMALL, **settings})

    assert torch.equal(ids, expected_ids)
    assert torch.equal(scores, expected)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[int, int, int, int, int, int]:
    n_keys = draw(st.integers(1, 40))
    return (
        draw(st.integers(1, 3)),  # tokens
        draw(st.integers(1, 2)),  # heads
        n_keys,
        draw(st.integers(1, 20)),  # half_key_dim
        draw(st.integers(1, min(n_keys, 20))),  # knn
        draw(st.integers(0, 3)),  # largest integer in queries and keys; 0 ties everything
    )


@given(case=_cases(), dtypes=st.tuples(*[st.sampled_from([torch.float32, torch.bfloat16])] * 2))
@INTERPRETED
def test_same_slots_in_the_same_order_with_many_ties(case, dtypes):
    *shape, knn, largest = case
    query, sub_keys = _integers(*shape, largest)

    _assert_equal(query.to(dtypes[0]), sub_keys.to(dtypes[1]), knn)


@pytest.mark.parametrize("side", [0, 1], ids=["left", "right"])
def test_different_scores_whose_sums_round_to_one_number(side):
    """Their ids decide, in no order of ranks.

    1 + i 2**-16 beside 256 and more, where numbers are 2**-15 apart.
    """
    generator = torch.Generator().manual_seed(side)
    close = 1 + torch.randperm(40, generator=generator) * 2.0**-16
    large = 256.0 + torch.randperm(40, generator=generator)
    halves = [close, large] if side == 0 else [large, close]
    sub_keys = torch.stack(halves)[:, None, :, None]
    query = torch.ones(2, 1, 2)
    scores, _ = reference.product_key_topk(query[:1], sub_keys, 20)
    assert (scores[..., 1:] == scores[..., :-1]).any()

    _assert_equal(query, sub_keys, 20)


@pytest.mark.parametrize("largest", [0, 1], ids=["all equal", "many ties"])
@pytest.mark.parametrize(
    ("n_keys", "knn"),
    [(97, 32), pytest.param(70, 5, marks=LONG), pytest.param(128, 33, marks=LONG)],
)
def test_more_at_the_bound_than_there_is_room_for(n_keys, knn, largest):
    _assert_equal(*_integers(2, 1, n_keys, 3, largest), knn)


@pytest.mark.parametrize("half_key_dim", [pytest.param(192, marks=LONG), 257])
def test_any_width_by_the_tile_that_a_gpu_takes(half_key_dim):
    _assert_equal(*_integers(1, 1, 20, half_key_dim, 3), 4, tile=None)


def test_more_keys_than_one_warp_holds():
    _assert_equal(*_integers(1, 1, 1100, 4, 9), 7, tile=SMALL._replace(keys=256, first_keys=256))


def test_more_keys_in_the_first_pass_than_in_the_second():
    _assert_equal(*_integers(3, 1, 200, 20, 5), 9, tile=SMALL._replace(first_keys=64))


def test_more_tiles_than_have_groups_of_their_own(monkeypatch):
    """By a tile with half as many groups, or by the most that registers hold."""
    tile = SMALL._replace(groups=2)
    assert kernels._grouping(13, tile, 16) == (8, 4, 32)

    _assert_equal(*_integers(3, 1, 200, 4, 2), 9, tile=tile)

    monkeypatch.setattr(kernels, "MAX_GROUPS", 32)
    assert kernels._grouping(13, SMALL, 16) == (8, 4, 32)


def test_groups_of_several_tiles_keep_hardly_more_than_is_wanted(monkeypatch):
    """A coupon collector's numbers.

    To hit 16 of 48 groups takes 48/48 + 48/47 + ... + 48/33 = 19.3 random keys.
    """
    counts: list[Tensor] = []
    crowded = kernels._search_crowded

    class Watched:
        def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
            def launch(*arguments: object, **constants: object) -> None:
                counts.append(arguments[5].clone())
                crowded[grid](*arguments, **constants)

            return launch

    monkeypatch.setattr(kernels, "_search_crowded", Watched())
    monkeypatch.setattr(kernels, "MAX_GROUPS", 64)
    tile = SMALL._replace(keys=64, first_keys=64)
    assert kernels._grouping(17, tile, 16) == (8, 3, 48)

    query, sub_keys = _integers(8, 1, 1088, 16, 99)
    _assert_equal(query, sub_keys.bfloat16(), 16, tile=tile)

    kept = counts[0][:, : len(query)]
    assert (kept >= 16).all()
    # Nothing was left to the search of crowded rows.
    assert (kept <= 32).all()
    assert kept.float().mean() < 1.1 * sum(48 / (48 - i) for i in range(16))


@pytest.mark.slow
def test_the_most_keys_and_the_last_are_the_best():
    """Each score but the first is that of several slots."""
    query = torch.ones(1, 1, 2)
    sub_keys = torch.arange(40.0 - kernels.MAX_KEYS, 40.0).clamp(min=0.0).expand(2, 1, -1)

    _assert_equal(query, sub_keys[..., None], 5, tile=SMALL._replace(keys=64, first_keys=64))


@pytest.mark.slow
def test_the_most_keys_all_equal():
    _assert_equal(
        *_integers(1, 1, kernels.MAX_KEYS, 2, 0), 5, tile=SMALL._replace(keys=64, first_keys=64)
    )


@pytest.mark.parametrize("n_keys", [33, 40, 64])
def test_a_row_of_scores_needs_no_more_room_than_there_are_keys(n_keys):
    """Rounded up to a power of two; a tile may have 128 keys."""
    keys = torch.ones(128, 16, dtype=torch.float16)
    scores = torch.full((256,), float("nan"))

    kernels._score_row[(1,)](
        keys[0], keys, 0, 0, torch.ones(128), scores, n_keys,
        QUERY_PARTS=1, KEY_PARTS=1, WIDTH=16, BLOCK_D=16,
    )  # fmt: skip

    assert (scores[:n_keys] == 16.0).all()
    assert scores[64:].isnan().all()


def test_tokens_beyond_a_block_and_a_chunk():
    query, sub_keys = _integers(33, 1, 24, 4, 5)
    assert kernels._even_chunk(33, 0, kernels.WARP) == 32

    _assert_equal(query, sub_keys, 3)
    _assert_equal(query, sub_keys, 3, chunk_bytes=1)


def test_strides():
    query, sub_keys = _integers(2, 2, 12, 4, 5)
    shared = sub_keys[:, :1].expand(-1, 2, -1, -1)

    _assert_equal(query.transpose(0, 1).contiguous().transpose(0, 1), shared, 4)
    _assert_equal(query.mT.contiguous().mT, sub_keys.mT.contiguous().mT, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_are_as_exact_as_fp32(dtype):
    """Rows of very different sizes, and numbers of very different sizes in a row."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 1, 96, generator=generator) * 10.0 ** torch.randint(
        -6, 6, (2, 1, 96), generator=generator
    )
    sub_keys = torch.randn(2, 1, 48, 48, generator=generator) * 10.0 ** torch.randint(
        -9, 9, (2, 1, 48, 1), generator=generator
    )
    query = query.to(dtype)

    scores, ids = kernels.select(query, sub_keys, 16, tile=SMALL)

    left, right = ids // 48, ids % 48
    halves = query.double().unflatten(-1, (2, 48))
    chosen = [
        halves[:, :, half, None] * sub_keys[half, 0].double()[index]
        for half, index in enumerate((left, right))
    ]
    exact = sum(products.sum(-1) for products in chosen)
    # Of n products rounded in any order, the sum errs by at most n * 2**-24 of the sum of their
    # sizes.
    bound = 48 * 2**-24 * sum(products.abs().sum(-1) for products in chosen)
    assert ((scores - exact).abs() <= bound).all()
    expected = reference.product_key_topk(query.double(), sub_keys.double(), 16)[0]
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=0.0)


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # the interpreter's numpy
def test_not_a_number_is_returned_as_such():
    query, sub_keys = _integers(3, 1, 70, 4, 5)
    query[1] = float("nan")

    scores, ids = kernels.select(query, sub_keys, 4, tile=SMALL)

    expected, expected_ids = reference.product_key_topk(query, sub_keys, 4)
    assert scores[1].isnan().all()
    assert ((ids >= 0) & (ids < 70**2)).all()
    assert torch.equal(ids[[0, 2]], expected_ids[[0, 2]])
    assert torch.equal(scores[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (37, 2, 13, 5, 7), (66, 1, 70, 20, 16)])
def test_gradients(shape, dtype):
    tokens, heads, n_keys, half, knn = shape
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(tokens, heads, 2 * half, generator=generator).to(dtype)
    sub_keys = torch.randn(2, heads, n_keys, half, generator=generator)
    grad = torch.randn(heads, tokens, knn, generator=generator).transpose(0, 1)
    leaves = query.clone().requires_grad_(), sub_keys.clone().requires_grad_()
    scores, ids = reference.product_key_topk(*leaves, knn)
    expected = torch.autograd.grad(scores, leaves, grad)

    # torch has bf16 products with fp32 results on a GPU alone.
    found = gradient_kernels.gradients(
        grad, ids, query, sub_keys, weight_bytes=20_000, product_type=torch.float32
    )

    tolerance = {torch.float32: 1e-5, torch.bfloat16: 8e-3}[dtype]
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == y.dtype
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


def test_the_operator_keeps_its_promises():
    query, sub_keys = _integers(3, 1, 9, 4, 5)

    torch.library.opcheck(
        op._select,
        (query.requires_grad_(), sub_keys.requires_grad_(), 4),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
