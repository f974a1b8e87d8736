"""The Triton kernels of the look-up by signs, run by Triton's interpreter, equal the reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from workloads.kernels.hash_bag import reference
from workloads.kernels.hash_bag import triton as kernel
from workloads.kernels.segment_sum import triton as row_reduction
from workloads.kernels.sign_hash import reference as sign_hash
from workloads.kernels.sign_hash import triton as sign_hash_kernel
from workloads.kernels.weighted_bag import triton as weighted_bag

INTERPRETED = settings.get_profile("interpreted")
SHAPES = st.tuples(
    st.sampled_from([0, 1, 5, 19]),  # tokens
    st.sampled_from([0, 1, 3, 5]),  # chunks
    st.sampled_from([1, 2, 3]),  # bits
    st.sampled_from([1, 3, 16, 24, 33, 80]),  # width
)


@pytest.fixture(autouse=True)
def _interpreted(interpreted, poisoned):
    for module in (kernel, row_reduction, sign_hash_kernel, weighted_bag):
        interpreted(module)


def _case(
    shape: tuple[int, int, int, int], seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tokens, _, _, width = shape
    generator = torch.Generator().manual_seed(seed)
    z = _numbers(shape, generator)
    rows, scores = sign_hash.forward(z, temperature=1.0, times_l1=True)
    return (
        torch.randn(shape[1] << shape[2], width, generator=generator).to(dtype),
        # Stored as the Triton kernel stores them.
        rows.T.contiguous().T,
        scores.T.contiguous().T,
        torch.randn(tokens, width, generator=generator).to(dtype),
    )


def _numbers(shape: tuple[int, int, int, int], generator: torch.Generator) -> Tensor:
    """Return numbers of codes far from even: most are positive."""
    return torch.randn(*shape[:3], generator=generator) + 1


@INTERPRETED
@given(
    shape=SHAPES,
    seed=st.integers(0, 9),
    block_tokens=st.sampled_from([2, 4]),
    by_chunk=st.booleans(),
)
def test_forward_equals_the_reference(shape, seed, block_tokens, by_chunk):
    table, rows, scores, _ = _case(shape, seed)
    if not by_chunk:
        rows, scores = rows.contiguous(), scores.contiguous()

    found = kernel.bag(table, rows, scores, block_tokens=block_tokens)

    torch.testing.assert_close(found, reference.bag(table, rows, scores))


@INTERPRETED
@given(
    shape=SHAPES,
    seed=st.integers(0, 9),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    times_l1=st.booleans(),
)
def test_one_kernel_that_hashes_and_sums_equals_the_reference(shape, seed, dtype, times_l1):
    """Of more chunks than one round takes, too, and of tables read in pairs or not."""
    tokens, chunks, bits, width = shape
    chunks *= 9
    table, *_ = _case((tokens, chunks, bits, width), seed, dtype)
    z = torch.randn(tokens, chunks, bits, generator=torch.Generator().manual_seed(seed)) + 0.5
    how = {"temperature": 0.7, "times_l1": times_l1}
    expected, rows, scores = reference.forward(table.double(), z, **how)

    found, found_rows, found_scores = kernel.forward(table, z, few=True, **how)

    assert found.dtype == dtype
    assert torch.equal(found_rows, rows)
    assert found_rows.T.is_contiguous()
    torch.testing.assert_close(found_scores, scores)
    accuracy = {torch.float32: 1e-5, torch.float16: 2**-9, torch.bfloat16: 2**-6}[dtype]
    size = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=accuracy * size)


def test_one_kernel_keeps_what_is_no_number_to_its_token():
    table, *_ = _case((5, 3, 2, 6), dtype=torch.bfloat16)
    z = torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(0))
    how = {"temperature": 1.0, "times_l1": False}
    expected = kernel.forward(table, z, few=True, **how)
    z[2, 1] = torch.nan

    found = kernel.forward(table, z, few=True, **how)

    assert found[0][2].isnan().all()
    assert found[1][2, 1] == 4  # the first row of its own table
    others = torch.tensor([0, 1, 3, 4])
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one[others], other[others])


@INTERPRETED
@given(
    tokens=st.sampled_from([1, 5, 19]),
    width=st.sampled_from([2, 3, 32, 34, 80, 128]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
    seed=st.integers(0, 9),
)
def test_forward_of_16_bits_is_summed_in_fp32(tokens, width, dtype, seed):
    """Even widths of bf16 are read in pairs, odd ones one by one."""
    table, rows, scores, _ = _case((tokens, 3, 2, width), seed, dtype)
    expected = reference.bag(table.double(), rows, scores)

    found = kernel.bag(table, rows, scores, block_tokens=8)

    assert found.dtype == dtype
    # The interpreter cuts off what does not fit bf16.
    accuracy = 2**-7 if dtype == torch.bfloat16 else 2**-10
    torch.testing.assert_close(found.double(), expected, rtol=accuracy, atol=1e-6)


@pytest.mark.parametrize("width", [4, 34, 5])
def test_small_integers_are_summed_exactly(width):
    """So nothing of one number of a pair gets into the other."""
    table, rows, scores, _ = _case((9, 3, 2, width), dtype=torch.bfloat16)
    table, scores = (4 * table).round(), (2 * scores).round()
    expected = reference.bag(table.double(), rows, scores)
    assert expected.abs().max() < 2**8

    found = kernel.bag(table, rows, scores, block_tokens=8)

    assert torch.equal(found.double(), expected)


def test_a_table_that_begins_between_two_words():
    table, rows, scores, _ = _case((5, 3, 2, 4), dtype=torch.bfloat16)
    shifted = torch.cat([table.flatten()[:1], table.flatten()])[1:].view_as(table)
    assert shifted.storage_offset() == 1

    found = kernel.bag(shifted, rows, scores, block_tokens=8)

    assert torch.equal(found, kernel.bag(table, rows, scores, block_tokens=8))


def test_nan_stays_with_the_token_and_the_row_that_hold_it():
    table, rows, scores, _ = _case((5, 3, 2, 6), dtype=torch.bfloat16)
    expected = kernel.bag(table, rows, scores, block_tokens=8)
    unread = torch.ones(len(table), dtype=torch.bool)
    unread[rows.flatten().long()] = False
    table[unread] = torch.nan
    scores[2, 1] = torch.nan

    found = kernel.bag(table, rows, scores, block_tokens=8)

    assert unread.any()
    assert found[2].isnan().all()
    others = torch.tensor([0, 1, 3, 4])
    assert torch.equal(found[others], expected[others])


@INTERPRETED
@given(
    shape=SHAPES,
    seed=st.integers(0, 9),
    chunk=st.sampled_from([2, 5, 2048]),
    needs=st.sampled_from([(True, True), (True, False), (False, True), (False, False)]),
)
def test_gradients_equal_the_reference(shape, seed, chunk, needs):
    table, rows, scores, grad = _case(shape, seed)
    z = _numbers(shape, torch.Generator().manual_seed(seed))
    wanted = dict(zip(("needs_table", "needs_z"), needs, strict=True))
    how = {"temperature": 1.0, "times_l1": True, **wanted}
    expected = reference.backward(table, z, rows.contiguous(), scores, grad, **how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_reduction, "CHUNK", chunk)

        found = kernel.backward(table, z, rows, scores, grad, **how)

    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("n_rows", [1, 2**15, 2**15 + 1, 2**16, 2**16 + 1])
@pytest.mark.parametrize("id_type", [torch.int32, torch.int64])
def test_reads_are_sorted_by_row_and_then_by_bag(n_rows, id_type):
    generator = torch.Generator().manual_seed(n_rows)
    ids = torch.randint(n_rows, (7, 40), generator=generator)
    ids[:, :3] = torch.tensor([n_rows - 1, 0, n_rows // 2])
    weights = torch.randn(7, 40, generator=generator)
    order = sorted(range(280), key=lambda read: (int(ids.flatten()[read]), read))

    reads = row_reduction.sort_reads(ids.to(id_type), weights, n_rows)
    by_chunk = row_reduction.sort_reads(ids.T.to(id_type), weights.T, n_rows, by_chunk=True)

    assert reads.order.tolist() == order
    assert torch.equal(reads.rows, ids.flatten()[order].int())
    assert torch.equal(reads.bags, torch.tensor(order).div(40, rounding_mode="floor").int())
    assert torch.equal(reads.weights, weights.flatten()[order])
    assert torch.equal(by_chunk.rows, reads.rows)
    assert torch.equal(by_chunk.weights, weights.T.flatten()[by_chunk.order])
    assert torch.equal(by_chunk.rows, ids.T.flatten()[by_chunk.order].int())
    assert torch.equal(by_chunk.bags, (by_chunk.order % 7).int())
