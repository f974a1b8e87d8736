"""The decoding cache."""

import pytest
import torch

from workloads.layers.cache import Cache


def test_sequences_are_written_at_their_own_positions_and_in_place():
    cache = Cache(2, 5)
    cache.lengths[:] = torch.tensor([0, 3])
    cache.longest = 3
    layer = cache.layer(0)
    places = []
    for value in (1.0, 2.0):
        new = torch.full((2, 1, 4), value)
        whole = layer.append("key", new, dim=1, positions=cache.positions(1))
        places.append(whole.data_ptr())
        cache.advance(1)

    assert whole[:, :, 0].tolist() == [[1, 2, 0, 0, 0], [0, 0, 0, 1, 2]]
    assert places[0] == places[1]


def test_states_are_forgotten_and_keep_their_place():
    cache = Cache(1, 4)
    layer = cache.layer(2)
    layer.set_state("state", torch.ones(1, 3))
    assert layer.state("state") is None  # nothing has been read before this pass
    cache.advance(1)
    kept = layer.state("state")

    cache.clear()
    layer.set_state("state", torch.full((1, 3), 2.0))

    assert layer.state("state") is None
    assert kept.tolist() == [[2, 2, 2]]


def test_what_was_forgotten_multiplies_nothing():
    cache = Cache(1, 3)
    cache.layer(0).append("key", torch.full((1, 2, 1), torch.nan), dim=1, positions=None)
    cache.advance(2)

    cache.clear()
    cache.layer(0).append("key", torch.ones(1, 1, 1), dim=1, positions=None)

    # Attention multiplies what lies behind its mask by zero.
    assert cache.layer(0).tensors["key"].flatten().tolist() == [1, 0, 0]


def test_more_than_there_is_room_for_is_refused():
    cache = Cache(1, 4)
    cache.advance(3)

    assert cache.positions(1).tolist() == [[3]]
    with pytest.raises(ValueError, match="room for 4 tokens, got 5"):
        cache.positions(2)


def test_sequences_of_another_cache_take_their_rows():
    whole, part = Cache(3, 4), Cache(2, 4)
    part.layer(1).append("key", torch.ones(2, 2, 1), dim=1, positions=None)
    part.advance(2)

    whole.put(torch.tensor([2, 0]), part)

    assert whole.lengths.tolist() == [2, 0, 2]
    assert whole.layer(1).tensors["key"].sum((1, 2)).tolist() == [2, 0, 2]
