"""Score and id as one fp64 number.

In the order of scores, equal ones by lowest id, and both come back.
"""

import math
import struct
import sys

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from workloads.kernels.product_key_topk import reference

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")
import triton
import triton.language as tl

from workloads.kernels.product_key_topk import bitonic_sort
from workloads.kernels.product_key_topk import triton as kernels

LARGEST_ID = bitonic_sort.LARGEST_ID.value


@triton.jit
def _there_and_back(
    scores_ptr, ids_ptr, packed_ptr, scores_back_ptr, ids_back_ptr, N: tl.constexpr
):
    at = tl.arange(0, N)
    packed = bitonic_sort.pack_score_id(tl.load(scores_ptr + at), tl.load(ids_ptr + at))
    tl.store(packed_ptr + at, packed)
    tl.store(scores_back_ptr + at, bitonic_sort.score_of(packed))
    tl.store(ids_back_ptr + at, bitonic_sort.id_of(packed))


@pytest.fixture(autouse=True)
def _interpreted(interpreted):
    for module in (bitonic_sort, sys.modules[__name__]):
        interpreted(module)


def _float_of_bits(bits: int) -> float:
    """Return what an fp32 number holds, infinite and no numbers included."""
    number: float = struct.unpack("f", struct.pack("I", bits))[0]
    return number


N = 16
SCORES = st.lists(
    st.integers(0, 2**32 - 1).map(_float_of_bits)
    | st.floats(width=32)
    | st.sampled_from([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, -math.nan, 1e-45]),
    min_size=N,
    max_size=N,
)
IDS = st.lists(
    st.integers(0, LARGEST_ID) | st.sampled_from([0, 2**24 - 1, 2**24, LARGEST_ID]),
    min_size=N,
    max_size=N,
)


@given(scores=SCORES, ids=IDS)
@example(scores=[0.0, -0.0] * 8, ids=[*range(8), *range(LARGEST_ID - 7, LARGEST_ID + 1)])
@example(scores=[-math.nan, -math.inf] * 4 + [math.inf, math.nan] * 4, ids=[0, LARGEST_ID] * 8)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_finite_numbers_in_the_order_of_scores_and_then_of_ids(scores, ids):
    given_scores = torch.tensor(scores, dtype=torch.float32)
    given_ids = torch.tensor(ids)
    packed = torch.full((N,), math.nan, dtype=torch.float64)
    found_scores, found_ids = torch.empty(N), torch.empty(N, dtype=torch.int64)

    _there_and_back[(1,)](given_scores, given_ids, packed, found_scores, found_ids, N=N)

    # Neither zero, which stands for nothing found, nor subnormal, infinite or no number, which do
    # not compare as bits.
    assert packed.isfinite().all()
    assert (packed >= torch.finfo(torch.float64).smallest_normal).all()
    assert torch.equal(found_ids, given_ids)
    torch.testing.assert_close(found_scores, given_scores, rtol=0.0, atol=0.0, equal_nan=True)
    by_number = sorted(range(N), key=lambda i: -packed[i].item())
    numbers = [i for i in by_number if not math.isnan(scores[i])]
    assert [_rank(given_scores, ids, i) for i in numbers] == sorted(
        _rank(given_scores, ids, i) for i in numbers
    )
    # The reference, too, puts no numbers above or below all others, by their sign.
    expected = reference.ordered_topk(given_scores[None], given_ids[None], N)[0]
    assert [ids[i] for i in by_number] == expected.tolist()


def _rank(scores: Tensor, ids: list[int], i: int) -> tuple[float, int]:
    return -scores[i].item(), ids[i]


def test_every_slot_of_the_most_keys_has_an_id():
    assert kernels.MAX_KEYS**2 <= LARGEST_ID + 1 < (kernels.MAX_KEYS + 1) ** 2
    # 1e8 rows.
    assert kernels.MAX_KEYS >= 10_000
