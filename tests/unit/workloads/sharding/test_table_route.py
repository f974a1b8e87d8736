"""Partial results of ranks are added up in fp32 or wider."""

import pytest
import torch

from workloads.sharding.table_route import added_up


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 5, 6, 7, 8, 16])
def test_partial_results_have_the_bits_of_a_wide_sum(dtype, n_ranks):
    wide = torch.promote_types(dtype, torch.float32)
    draw = torch.Generator().manual_seed(n_ranks)
    for shape in [(0, 3), (5, 0), (1, 1), (7, 33), (40, 128), (200, 1)]:
        # Of very different sizes: bf16 would lose the small ones.
        sizes = torch.logspace(-2, 2, n_ranks)[:, None, None]
        parts = (torch.randn(n_ranks, *shape, generator=draw) * sizes).to(dtype)

        found = added_up(parts)

        assert found.dtype == dtype
        assert torch.equal(found, parts.sum(0, dtype=wide).to(dtype))


def test_small_parts_are_not_lost():
    parts = torch.tensor([256.0, *[1.0] * 7]).bfloat16().view(8, 1, 1)

    # Each by itself is half a unit of the last place, and would be rounded away.
    assert added_up(parts).item() == 264.0
