"""Chunked linear attention against the quadratic form, in float64, and what it costs."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from workloads.layers.context import Context
from workloads.layers.mixers.linear_attention import (
    causal_linear_attention,
    chunked_floats,
    chunked_flops,
    normalised_mix,
)

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def _quadratic(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT).tril() @ value


def _random(*sizes: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*sizes, dtype=torch.float64, generator=generator)


def _arguments(seq: int, *, width: int = 5, value_width: int = 3) -> list[Tensor]:
    widths = (width, width, value_width)
    return [_random(2, 3, seq, w, seed=seed) for seed, w in enumerate(widths)]


SHARED = {"none": (), "keys": (1,), "values": (2,)}


@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED)
@pytest.mark.parametrize(("seq", "chunk"), list(itertools.product([1, 7, 8, 13], [1, 4, 100])))
def test_equals_the_quadratic_form_with_gradients(seq, chunk, shared):
    arguments = [
        x[0, 0].clone() if index in shared else x for index, x in enumerate(_arguments(seq))
    ]
    gradient = _random(2, 3, seq, 3, seed=9)
    found_in, expected_in = ([x.clone().requires_grad_() for x in arguments] for _ in range(2))

    found, state = causal_linear_attention(*found_in, chunk=chunk)
    expected = _quadratic(*expected_in)

    assert state is None
    torch.testing.assert_close(found, expected, **EXACT)
    found.backward(gradient)
    expected.backward(gradient)
    for x, y in zip(found_in, expected_in, strict=True):
        torch.testing.assert_close(x.grad, y.grad, **EXACT)


@given(
    pieces=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    chunk=st.integers(1, 10),
)
@settings(deadline=None, max_examples=30)
def test_pieces_with_a_state_equal_the_whole(pieces, chunk):
    query, key, value = _arguments(sum(pieces))
    state, found = None, []
    for q, k, v in zip(*(x.split(pieces, dim=2) for x in (query, key, value)), strict=True):
        mixed, state = causal_linear_attention(q, k, v, chunk=chunk, state=state, keep_state=True)
        found.append(mixed)

    torch.testing.assert_close(torch.cat(found, dim=2), _quadratic(query, key, value), **EXACT)
    torch.testing.assert_close(state, key.mT @ value, **EXACT)


def test_gradients_pass_through_a_state():
    arguments = [x.requires_grad_() for x in _arguments(9)]
    first, second = zip(*(x.split([4, 5], dim=2) for x in arguments), strict=True)
    _, state = causal_linear_attention(*first, chunk=2, keep_state=True)
    mixed, _ = causal_linear_attention(*second, chunk=2, state=state, keep_state=True)
    found = torch.autograd.grad(mixed.square().sum(), arguments)

    expected = torch.autograd.grad(_quadratic(*arguments)[:, :, 4:].square().sum(), arguments)

    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, **EXACT)


def test_bf16_sums_over_chunks_in_fp32():
    """A sum of many equal terms, which would stop growing at 256 in bf16."""
    ones = torch.ones(1, 1, 4096, 1, dtype=torch.bfloat16)

    mixed, state = causal_linear_attention(ones, ones, ones, chunk=16, keep_state=True)

    assert mixed.dtype == torch.bfloat16
    assert state.dtype == torch.float32
    assert state.item() == 4096.0
    expected = torch.arange(1, 4097, dtype=torch.bfloat16)
    # One unit in the last place, since the state is rounded before it is read.
    torch.testing.assert_close(mixed[0, 0, :, 0], expected, rtol=2**-7, atol=0)


@pytest.mark.parametrize("autocast", [False, True])
def test_autocast_changes_nothing(autocast):
    arguments = [x.float().requires_grad_() for x in _arguments(12)]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        mixed, _ = causal_linear_attention(*arguments, chunk=4)

    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, _quadratic(*arguments))


def test_normalised_weights_sum_to_one():
    query, key = (x.abs() for x in _arguments(11)[:2])
    constant = torch.full((2, 3, 11, 4), 7.0, dtype=torch.float64)
    context = Context(tokens=torch.zeros(2, 11, dtype=torch.long))

    mixed = normalised_mix(query, key, constant, chunk=4, context=context)

    torch.testing.assert_close(mixed, constant, **EXACT)


def test_nothing_in_common_mixes_in_nothing():
    query, key = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    query, key = (x.expand(1, 1, 5, 2).clone().requires_grad_() for x in (query, key))
    context = Context(tokens=torch.zeros(1, 5, dtype=torch.long))

    mixed = normalised_mix(query, key, torch.ones(1, 1, 5, 3), chunk=2, context=context)
    mixed.sum().backward()

    assert not mixed.any()
    assert torch.isfinite(query.grad).all()
    assert torch.isfinite(key.grad).all()


@pytest.mark.parametrize(("seq", "chunk"), [(8, 8), (16, 8), (24, 4), (24, 100)])
def test_flops_are_those_that_torch_counts_but_for_half_of_each_square(seq, chunk):
    arguments = _arguments(seq, width=6, value_width=4)
    counter = FlopCounterMode(display=False)

    with counter:
        causal_linear_attention(*arguments, chunk=chunk)

    counted = counter.get_total_flops() / (2 * 3 * seq)
    unseen_half = min(seq, chunk) * (6 + 4)
    # Reading the state is a product in place, which torch's counter does not know.
    uncounted = 2 * 6 * 4 if seq > chunk else 0
    flops = chunked_flops(seq, key_width=6, value_width=4, chunk=chunk)
    assert counted == flops + unseen_half - uncounted


@pytest.mark.parametrize(("seq", "chunk"), [(8, 8), (24, 4), (24, 100)])
def test_keeps_scores_and_states(seq, chunk):
    arguments = [x.requires_grad_() for x in _arguments(seq, width=6, value_width=4)]
    own = {x.untyped_storage().data_ptr() for x in arguments}
    kept = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        causal_linear_attention(*arguments, chunk=chunk)

    numbers = sum(size for pointer, size in kept.items() if pointer not in own) / 8
    expected = chunked_floats(seq, key_width=6, value_width=4, chunk=chunk)
    assert numbers / (2 * 3 * seq) == expected


def test_cost_per_token_stops_growing_with_the_length():
    sizes = {"key_width": 128, "value_width": 65, "chunk": 64}
    # Read and write of a 128 x 65 state, and half of a chunk's square.
    assert chunked_flops(2048, **sizes) == 4 * 128 * 65 + 64 * (128 + 65)
    assert chunked_flops(65_536, **sizes) == chunked_flops(2048, **sizes)
    assert chunked_flops(32, **sizes) == 32 * (128 + 65)
    assert chunked_floats(2048, **sizes) == 64 + 128 * 65 / 64
