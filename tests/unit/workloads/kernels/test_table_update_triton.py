"""The Triton kernels of table updates, run by Triton's interpreter, equal the reference."""

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from workloads.kernels.segment_sum import triton as row_reduction
from workloads.kernels.table_update import reference
from workloads.kernels.table_update import triton as kernel
from workloads.kernels.table_update.split_master import join, split
from workloads.kernels.table_update.update_rules import Rule, new_state
from workloads.kernels.weighted_bag.reference import row_products

INTERPRETED = settings.get_profile("interpreted")
KINDS = ["adamw", "lazy_adamw", "rowwise", "sgd"]
# Ids far from even: 0 is read in most places.
SHAPES = st.tuples(
    st.sampled_from([1, 2, 17, 40]),  # rows
    st.sampled_from([1, 16, 33]),  # width
    st.sampled_from([0, 1, 7]),  # bags
    st.sampled_from([1, 3, 9]),  # bag size
)


@pytest.fixture(autouse=True)
def _interpreted(interpreted, poisoned):
    interpreted(row_reduction)
    interpreted(kernel)


def case(
    shape: tuple[int, int, int, int], seed: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    rows, width, bags, bag_size = shape
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(rows, (bags, bag_size), generator=generator)
    ids = ids * (torch.rand(bags, bag_size, generator=generator) < 0.5)
    return torch.randn(rows, width, generator=generator).to(dtype), (
        ids,
        torch.randn(bags, bag_size, generator=generator).to(dtype),
        torch.randn(bags, width, generator=generator).to(dtype),
    )


def rule(kind: str, step: int) -> Rule:
    return Rule(kind=kind, step=step, lr=0.1, eps=1e-3, weight_decay=0.2, seed=4)


@INTERPRETED
@given(
    shape=SHAPES,
    seed=st.integers(0, 9),
    kind=st.sampled_from(KINDS),
    chunk=st.sampled_from([2, 5, 512]),
    exact=st.booleans(),
    whole_rows=st.booleans(),
    step=st.sampled_from([1, 2]),
)
# Drawn too rarely: a row's own second moment, known to one program or made by the first of two
# passes.
@example((17, 16, 7, 3), 0, "rowwise", 2, False, True, 2)
@example((17, 33, 7, 3), 0, "rowwise", 2, True, False, 2)
def test_updates_equal_the_reference(shape, seed, kind, chunk, exact, whole_rows, step):
    table, hits = case(shape, seed)
    state, coefficient = new_state(kind, table), torch.tensor(0.7) if exact else None
    if step == 2:
        ids, weights, x = hits
        reference.ReferenceRowSums(table, ids, 2 * weights, x).update_(
            state, rule(kind, 1), coefficient
        )
    expected, expected_state = table.clone(), {name: kept.clone() for name, kept in state.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_reduction, "CHUNK", chunk)
        patch.setattr(row_reduction, "_block_width", lambda *_: 16)
        if not whole_rows:
            patch.setattr(kernel, "_WHOLE_ROW_BYTES", 0)
        reads = reference.ReferenceRowSums(expected, *hits)
        norm = reads.update_(expected_state, rule(kind, step), coefficient)
        sums = kernel.TritonRowSums(table, *hits)
        before = sums.norm() if exact else None
        found = sums.update_(state, rule(kind, step), coefficient)

    torch.testing.assert_close(found, norm)
    assert before is None or torch.equal(before, found)
    # Adam's first step is the sign of a sum, which two orders of summing may not share near zero:
    # eps is large.
    torch.testing.assert_close(table, expected, rtol=1e-4, atol=1e-5)
    for name, value in state.items():
        torch.testing.assert_close(value, expected_state[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clipped", [False, True])
def test_rowwise_takes_the_mean_squares_of_rows_that_are_wider_than_the_table(clipped):
    table, hits = case((17, 24, 7, 9), 0)
    expected, coefficient = table.clone(), torch.tensor(0.5) if clipped else None
    state, expected_state = new_state("rowwise", table), new_state("rowwise", table)
    wanted = reference.ReferenceRowSums(expected, *hits)
    wanted.update_(
        expected_state, rule("rowwise", 1), coefficient, mean_squares=wanted.row_squares() / 5
    )

    sums = kernel.TritonRowSums(table, *hits)
    found = sums.row_squares()
    norm = sums.update_(state, rule("rowwise", 1), coefficient, mean_squares=found / 5)

    torch.testing.assert_close(found, wanted.row_squares())
    torch.testing.assert_close(norm, wanted.norm())
    torch.testing.assert_close(table, expected)
    torch.testing.assert_close(state["mean_square"], expected_state["mean_square"])


# Two tables an example, so fewer of them; the kernels' own arithmetic is what the test above is
# for.
@settings(INTERPRETED, max_examples=2)
@given(
    shape=st.tuples(
        *(st.sampled_from(sizes) for sizes in [(1, 5), (1, 16, 17), (0, 1, 2), (1, 3)])
    ),
    kind=st.sampled_from(KINDS),
    exact=st.booleans(),
    whole_rows=st.booleans(),
)
@example((5, 17, 2, 3), "adamw", False, True)
@example((5, 17, 2, 3), "lazy_adamw", True, True)
@example((5, 16, 2, 3), "rowwise", False, True)
@example((5, 17, 2, 3), "rowwise", True, False)
@example((5, 17, 2, 3), "sgd", False, True)
def test_with_a_master_a_table_is_the_fp32_one_rounded(shape, kind, exact, whole_rows):
    """Bit for bit, from any state on.

    Also with splits, and whatever of the table is not there yet.
    """
    values, hits = case(shape, 0)
    table, low = split(values)
    exact_state = {name: kept.random_(1, 9) / 8 for name, kept in new_state(kind, values).items()}
    state = {name: kept.clone() for name, kept in exact_state.items()} | {"low": low}
    before = table.clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_reduction, "CHUNK", 2)
        patch.setattr(row_reduction, "_block_width", lambda *_: 16)
        if not whole_rows:
            patch.setattr(kernel, "_WHOLE_ROW_BYTES", 0)
        wanted, sums = kernel.TritonRowSums(values, *hits), kernel.TritonRowSums(table, *hits)
        if exact:
            assert torch.equal(sums.norm(), wanted.norm())
        norm = wanted.update_(exact_state, rule(kind, 3))
        found, products = sums.update_with_products_(state, rule(kind, 3))

    assert torch.equal(found, norm)
    torch.testing.assert_close(products, row_products(before.float(), hits[0], hits[2]))
    assert torch.equal(join(table, low), values)
    assert torch.equal(table, split(values)[0])
    for name, value in exact_state.items():
        assert torch.equal(state[name], value)


def test_values_at_the_ends_of_a_masters_range_survive_a_step_that_moves_nothing():
    """Not below bf16's normal numbers, which the interpreter reads as NaN.

    `tests/gpu` has those.
    """
    bits = [0, 0x807FFF, 0x808000, 0x3F808000, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF]
    bits = torch.tensor([*bits, *(b - 2**31 for b in bits), 0x7F800000, -(2**23), 0x7FFFFFFF, -1])
    values = bits.int().view(torch.float32)[None]
    table, low = split(values)
    one = torch.ones(1, 1)

    kernel.TritonRowSums(table, one.long() - 1, one, torch.ones_like(values)).update_(
        {"low": low}, Rule(kind="sgd", step=1, lr=0.0)
    )

    assert join(table, low)[0, :-2].tolist() == values[0, :-2].tolist()
    assert table[0, -2:].isnan().all()
    assert low[0, -4:].tolist() == [0] * 4


@pytest.mark.parametrize(
    ("kind", "width"),
    [
        *((kind, 33) for kind in KINDS),
        ("rowwise", 16),
        *(pytest.param(kind, 16, marks=pytest.mark.long) for kind in KINDS if kind != "rowwise"),
    ],
)
def test_a_norm_asked_for_before_changes_bits_of_narrow_rowwise_rows_only(monkeypatch, kind, width):
    """`table_clip: exact` beside `previous`, while nothing clips."""
    monkeypatch.setattr(kernel, "_WHOLE_ROW_BYTES", 64)
    monkeypatch.setattr(row_reduction, "_block_width", lambda *_: 16)
    table, hits = case((5, width, 4, 3), 0)
    other, state, other_state = table.clone(), new_state(kind, table), new_state(kind, table)

    kernel.TritonRowSums(table, *hits).update_(state, rule(kind, 2))
    sums = kernel.TritonRowSums(other, *hits)
    sums.norm()
    sums.update_(other_state, rule(kind, 2), torch.tensor(1.0))

    if kind != "rowwise" or width > 16:
        assert torch.equal(table, other)
        assert all(torch.equal(value, other_state[name]) for name, value in state.items())
    torch.testing.assert_close(table, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_kept_sums_change_no_bit(monkeypatch, kind):
    table, hits = case((5, 33, 4, 3), 0)
    found = []
    for kept in (False, True):
        monkeypatch.setattr(kernel, "keeps_sums", lambda *_, kept=kept, **__: kept)
        other, state = table.clone(), new_state(kind, table)
        sums = kernel.TritonRowSums(other, *hits)
        norm = sums.norm()
        sums.update_(state, rule(kind, 2), torch.tensor(0.5))
        assert (sums._sums is not None) == kept
        found.append((norm, other, *state.values()))

    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_sums_of_the_same_ids_need_no_sort_of_their_own(monkeypatch):
    table, (ids, weights, x) = case((17, 24, 7, 3), 0)
    first = kernel.TritonRowSums(table, ids, weights, x)
    expected, other = table.clone(), table.clone()
    hits = ids, weights.flip(0), x.flip(1)
    norm = kernel.TritonRowSums(expected, *hits).update_(
        new_state("rowwise", table), rule("rowwise", 1)
    )
    monkeypatch.setattr(kernel, "sort_reads", None)

    sums = kernel.TritonRowSums(other, *hits, like=first)

    assert torch.equal(sums.update_(new_state("rowwise", table), rule("rowwise", 1)), norm)
    assert torch.equal(other, expected)


def test_squares_are_kept_only_where_they_are_wanted(monkeypatch):
    table, hits = case((5, 24, 4, 3), 0)
    sums = kernel.TritonRowSums(table, *hits)
    norm = sums.norm()
    monkeypatch.setattr(Tensor, "new_zeros", lambda *_, **__: pytest.fail("made again"))

    assert torch.equal(sums.update_({}, rule("sgd", 1)), norm)


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_with_the_rows_as_they_were(kind):
    table, hits = case((17, 24, 7, 9), 0)
    before, alone = table.clone(), table.clone()
    kernel.TritonRowSums(alone, *hits).update_(new_state(kind, table), rule(kind, 1))

    _, products = kernel.TritonRowSums(table, *hits).update_with_products_(
        new_state(kind, table), rule(kind, 1)
    )

    torch.testing.assert_close(products, row_products(before, hits[0], hits[2]))
    assert torch.equal(table, alone)


@pytest.mark.parametrize(
    ("origin", "copies"),
    [
        ((0, 0), False),
        ((2**31, 40), True),
        pytest.param((0, 0), True, marks=pytest.mark.long),
        pytest.param((2**31, 40), False, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_bf16_has_the_references_random_numbers(kind, origin, copies):
    """Every row is read once, so sums have no order.

    What is stored may differ where fp32 does in its last bits.
    """
    generator = torch.Generator().manual_seed(3)
    first = replace(rule(kind, 1), origin=origin)
    table = torch.randn(16, 17, generator=generator).bfloat16()
    # The interpreter's own rounding to bf16 is wrong; nothing here is rounded but by our own
    # integers.
    x = torch.randn(4, 17, generator=generator)
    ids, weights = torch.randperm(16, generator=generator).view(4, 4), torch.ones(4, 4)
    expected, state, expected_state = table.clone(), new_state(kind, table), new_state(kind, table)
    row_ids = torch.arange(16) * 2**29 if copies else None

    reference.ReferenceRowSums(expected, ids, weights, x).update_(
        expected_state, first, row_ids=row_ids
    )
    kernel.TritonRowSums(table, ids, weights, x).update_(state, first, row_ids=row_ids)

    pairs = [(table, expected), *((state[name], expected_state[name]) for name in state)]
    for found, wanted in pairs:
        if found.dtype == torch.bfloat16:
            assert (found != wanted).float().mean() < 0.01
        torch.testing.assert_close(found, wanted, rtol=2**-7, atol=1e-4)
