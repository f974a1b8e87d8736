"""Hash partitioning: a permutation that deals rows out evenly however they are read."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workloads.distributed.hash_partition import HashPartition
from workloads.distributed.process_group import RankGroup


@given(n_rows=st.integers(1, 500), size=st.integers(1, 9))
def test_every_row_stands_at_one_place_of_one_rank(n_rows, size):
    partition = HashPartition(n_rows)
    shards = [RankGroup(rank=rank, size=size).local_range(n_rows) for rank in range(size)]

    held = [partition.rows(places) for places in shards]

    assert sorted(torch.cat(held).tolist()) == list(range(n_rows))
    for places, rows in zip(shards, held, strict=True):
        assert partition.places(rows).tolist() == list(places)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_of_any_shape_and_type_are_left_as_they_are(dtype):
    ids = torch.tensor([[0, 2_000_000_000], [7, 2_147_483_645]], dtype=dtype)
    before = ids.clone()

    places = HashPartition(2**31 - 1).places(ids)

    assert torch.equal(ids, before)
    assert places.dtype == torch.int64
    assert places.shape == ids.shape
    assert int(places.min()) >= 0
    assert int(places.max()) < 2**31 - 1


@pytest.mark.parametrize("n_rows", [2**31, 2**40])
def test_a_table_too_large_for_products_of_64_bits_keeps_its_order(n_rows):
    rows = torch.tensor([0, 5, n_rows - 1])

    assert torch.equal(HashPartition(n_rows).places(rows), rows)
    assert HashPartition(n_rows).rows(range(n_rows - 2, n_rows)).tolist() == [
        n_rows - 2,
        n_rows - 1,
    ]


@pytest.mark.parametrize("n_keys", [192, 352, 1000, 1024, 2048])
@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_rows_of_one_sub_key_are_dealt_out_evenly(n_keys, size):
    """By ranges of rows, one rank would have all rows of a first sub-key."""
    keys = torch.arange(n_keys)
    places = HashPartition(n_keys**2).places(keys[:, None] * n_keys + keys)
    rank = places * size // n_keys**2

    for by_key in (rank, rank.T):
        counts = torch.stack([(by_key == each).sum(1) for each in range(size)])
        assert (counts.max(0).values <= 1.2 * n_keys / size).all()
