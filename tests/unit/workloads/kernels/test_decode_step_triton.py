"""The kernels of a decoding step, run by Triton's interpreter, equal the reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.kernels.decode_step import reference
from workloads.kernels.product_key_topk import reference as product_keys_reference

pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from workloads.kernels.decode_step import attention, elementwise, experts, linear, product_keys
from workloads.kernels.product_key_topk import bitonic_sort

INTERPRETED = settings.get_profile("interpreted")
EPS = 1e-5
SEEDS = st.integers(0, 99)
WIDTHS = st.sampled_from([16, 24, 33])


@pytest.fixture(autouse=True)
def _interpreted(interpreted, poisoned):
    for module in (bitonic_sort, elementwise, linear, attention, product_keys, experts):
        interpreted(module)


def _draw(seed, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def _close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@INTERPRETED
@given(
    k=WIDTHS,
    n=st.sampled_from([1, 8, 13]),
    bias=st.booleans(),
    norm=st.booleans(),
    add=st.booleans(),
    seed=SEEDS,
)
def test_linear(k, n, bias, norm, add, seed):
    x, weight, b, gain, residual = _draw(seed, (1, k), (n, k), n, k, (1, n))
    arguments = (x, weight, b if bias else None)
    options = {"gain": gain if norm else None, "eps": EPS, "residual": residual if add else None}

    found = linear.one_token(*arguments, **options, depth=16)

    _close(found, reference.linear(*arguments, **options))
    _close(linear.linear(*arguments, **options), found)


@INTERPRETED
@given(k=WIDTHS, n=st.sampled_from([1, 8, 13]), tokens=st.sampled_from([1, 3]), seed=SEEDS)
def test_gates(k, n, tokens, seed):
    x, both, gate, bias, factor, gain = _draw(
        seed, (tokens, k), (2 * n, k), (n, k), n, (tokens, n), k
    )
    norm = {"gain": gain, "eps": EPS}

    _close(linear.swiglu(x, both, **norm), reference.swiglu(x, both, **norm))
    _close(
        linear.gated(x, gate, bias, factor, **norm), reference.gated(x, gate, bias, factor, **norm)
    )


@INTERPRETED
@given(
    heads=st.sampled_from([(2, 2), (4, 2), (3, 1)]),
    lengths=st.lists(st.integers(0, 69), min_size=1, max_size=3),
    norm=st.booleans(),
    seed=SEEDS,
)
def test_attention(heads, lengths, norm, seed):
    (n_heads, kv_heads), tokens, d_head = heads, len(lengths), 16
    row, keys, values, gains = _draw(
        seed,
        (tokens, (n_heads + 2 * kv_heads) * d_head),
        (tokens, kv_heads, 70, d_head),
        (tokens, kv_heads, 70, d_head),
        (2, d_head),
    )
    positions = torch.tensor(lengths)
    angles = torch.outer(torch.arange(70), 10.0 ** -torch.arange(d_head // 2))
    rotation = torch.stack((angles.cos(), angles.sin()))
    options = {"query_gain": gains[0], "key_gain": gains[1], "eps": EPS} if norm else {}
    caches = [(keys.clone(), values.clone()) for _ in range(2)]
    # What lies behind the position may be anything.
    for sequence, length in enumerate(lengths):
        caches[0][0][sequence, :, length:] = torch.nan

    found = attention.attend(row, *caches[0], positions, rotation, **options)
    expected = reference.attend(row, *caches[1], positions, rotation, **options)

    _close(found, expected)
    for sequence, length in enumerate(lengths):
        for mine, theirs in zip(*caches, strict=True):
            _close(mine[sequence, :, : length + 1], theirs[sequence, :, : length + 1])


@INTERPRETED
@given(
    n_keys=st.sampled_from([5, 16, 37]),
    knn=st.sampled_from([1, 3, 5]),
    tokens=st.sampled_from([1, 2, 17]),
    coarse=st.booleans(),
    seed=SEEDS,
)
def test_rows_are_those_of_product_keys_also_where_scores_tie(n_keys, knn, tokens, coarse, seed):
    query, sub_keys = _draw(seed, (tokens, 2 * 8), (2, 2, n_keys, 4))
    if coarse:
        query, sub_keys = query.round(), sub_keys.round()

    ids, weights = product_keys.choose(query, sub_keys, knn)

    scores, expected = product_keys_reference.product_key_topk(
        query.view(tokens, 2, 8), sub_keys, knn
    )
    assert torch.equal(ids, expected.flatten(1))
    _close(weights, scores.softmax(-1).flatten(1))


@INTERPRETED
@given(
    n_keys=st.sampled_from([5, 37]),
    tokens=st.sampled_from([1, 2, 17]),
    length=st.sampled_from([0.0, 1e-3, 1.0, 1e3]),
    seed=SEEDS,
)
def test_the_length_of_a_query_plays_no_role_where_scores_are_cosines(n_keys, tokens, length, seed):
    query, sub_keys = _draw(seed, (tokens, 2 * 8), (2, 2, n_keys, 4))
    query = length * query

    ids, weights = product_keys.choose(query, sub_keys, 3, normalise=True)

    halves = query.view(tokens, 2, 2, 4)
    unit = halves / halves.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    expected, _ = product_keys_reference.product_key_topk(unit.flatten(2), sub_keys, 3)
    # By what they score: rows that nearly tie may change places.
    products = torch.einsum("thsd,shnd->thsn", unit, sub_keys)
    chosen = ids.view(tokens, 2, 3)
    left, right = (
        products[:, :, side].gather(-1, place)
        for side, place in enumerate((chosen // n_keys, chosen % n_keys))
    )
    _close(left + right, expected)
    _close(weights, expected.softmax(-1).flatten(1))
    _close(weights, reference.choose(query, sub_keys, 3, normalise=True)[1])


@INTERPRETED
@given(
    tokens=st.sampled_from([1, 3]),
    n_experts=st.sampled_from([3, 4]),
    top_k=st.sampled_from([1, 3]),
    options=st.fixed_dictionaries({"renormalise": st.booleans()}),
    bias=st.booleans(),
    seed=SEEDS,
)
def test_experts(tokens, n_experts, top_k, options, bias, seed):
    width, d_expert = 24, 150
    x, router, gain, b, gate, up, down = _draw(
        seed,
        (tokens, width),
        (n_experts, width),
        width,
        n_experts,
        (n_experts, width, d_expert),
        (n_experts, width, d_expert),
        (n_experts, d_expert, width),
    )
    norm = {"gain": gain, "eps": EPS}
    options = {**options, **norm, "bias": b if bias else None}

    chosen, weights = experts.route(x, router, top_k, **options)

    expected, expected_weights = reference.route(x, router, top_k, **options)
    assert torch.equal(chosen.long(), expected)
    _close(weights, expected_weights)
    arguments = (x, gate, up, down)
    found = experts.experts(*arguments, chosen, weights, **norm)
    torch.testing.assert_close(
        found, reference.experts(*arguments, expected, weights, **norm), rtol=1e-4, atol=1e-3
    )
