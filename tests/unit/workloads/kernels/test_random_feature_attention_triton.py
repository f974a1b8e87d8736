"""Sums by random features, interpreted on the CPU, against plain torch in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workloads.architectures import performer
from workloads.kernels.random_feature_attention.op import random_feature_sums
from workloads.layers.context import Context

triton = pytest.importorskip(
    "workloads.kernels.random_feature_attention.triton",
    reason="a CPU build of torch comes without Triton",
)


def _case(sizes: tuple[int, ...], seed: int) -> list[Tensor]:
    batch, heads, seq, width, n_features = sizes
    generator = torch.Generator().manual_seed(seed)
    # As projections leave them: all heads of a position side by side, then those of the next part.
    packed = torch.randn(batch, seq, 3, heads, width, generator=generator)
    vectors = torch.randn(n_features, width, generator=generator)
    return [*packed.permute(2, 0, 3, 1, 4), vectors]


def _expected(query: Tensor, key: Tensor, value: Tensor, vectors: Tensor, eps: float):
    """Plain autograd over features of every pair of positions."""
    query, key = (x / query.shape[-1] ** 0.25 for x in (query, key))
    exponents = query @ vectors.T
    of_query = (exponents - exponents.detach().amax(-1, keepdim=True)).exp() + eps
    of_key = (key @ vectors.T - key.square().sum(-1, keepdim=True) / 2).exp() + eps
    weights = (of_query @ of_key.mT).tril()
    return weights @ value, weights.sum(-1)


def _compare(arguments: list[Tensor], eps: float) -> None:
    *inputs, vectors = (x.double().requires_grad_() for x in arguments)
    expected = _expected(*inputs, vectors, eps)
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randn(x.shape, generator=generator) for x in expected]
    gradients = torch.autograd.grad(expected, inputs, [g.double() for g in grads])

    sums, weights, *kept = triton.forward(*arguments, eps)
    found = triton.backward(*arguments, eps, *kept, *grads)

    for one, other in zip((sums, weights, *found), (*expected, *gradients), strict=True):
        scale = float(other.detach().abs().max())
        torch.testing.assert_close(one.double(), other, rtol=0, atol=6e-6 * scale)


@given(
    sizes=st.tuples(
        st.integers(1, 2),
        st.integers(1, 3),
        st.integers(1, 97),
        st.sampled_from([8, 16, 40]),
        st.integers(1, 150),
    ),
    eps=st.sampled_from([0.0, 1e-6, 1.0]),
    seed=st.integers(0, 2**16),
)
@settings(settings.get_profile("interpreted"), deadline=None)
def test_equals_its_sums_with_all_gradients(sizes, eps, seed, interpreted):
    interpreted(triton)
    _compare(_case(sizes, seed), eps)


@pytest.mark.parametrize(
    "sizes",
    [(1, 1, 1, 8, 1), pytest.param((1, 2, 130, 64, 256), marks=pytest.mark.long)],
    ids=str,
)
def test_the_smallest_and_the_widest(sizes, interpreted):
    interpreted(triton)
    _compare(_case(sizes, 0), 1e-6)


def test_is_a_sound_custom_operation(interpreted):
    interpreted(triton)
    *inputs, vectors = _case((1, 2, 9, 8, 3), 0)
    inputs = [x.requires_grad_() for x in inputs]
    torch.library.opcheck(
        torch.ops.memscale.random_feature_sums.default,
        (*inputs, vectors, 1e-6),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )
    sums, weights = random_feature_sums(*inputs, vectors, eps=1e-6)
    found = torch.autograd.grad(sums.sum() + weights.sum(), inputs)

    plain = [x.detach().double().requires_grad_() for x in inputs]
    expected = _expected(*plain, vectors.double(), 1e-6)
    gradients = torch.autograd.grad(expected[0].sum() + expected[1].sum(), plain)
    for one, other in zip(found, gradients, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_nothing_to_sum_is_no_launch():
    query, vectors = torch.randn(0, 2, 5, 8), torch.randn(3, 8)
    sums, weights, *kept = triton.forward(query, query, query, vectors, 0.0)
    gradients = triton.backward(query, query, query, vectors, 0.0, *kept, sums, weights)

    assert sums.shape == (0, 2, 5, 8)
    assert weights.shape == (0, 2, 5)
    assert [x.shape for x in gradients] == [query.shape] * 3


def test_a_mixer_has_the_same_numbers_from_the_kernel(interpreted, monkeypatch):
    interpreted(triton)
    config = performer.Config(d_model=16, n_layers=1, n_heads=2, d_ff=24, rotary_fraction=0.0)
    mixer = config.mixer(performer.PerformerAttention, eps=1e-6, equal_lengths=False)
    vectors = torch.randn(mixer.random_vectors.shape, generator=torch.Generator().manual_seed(2))
    mixer.random_vectors.copy_(vectors)
    inputs = [x.detach().requires_grad_() for x in _case((2, 2, 70, 8, 1), 2)[:3]]
    context = Context(tokens=torch.zeros(2, 70, dtype=torch.long))

    def mixed_and_gradients() -> list[Tensor]:
        mixed = mixer.mix(*inputs, context)
        return [mixed, *torch.autograd.grad(mixed.square().sum(), inputs)]

    expected = mixed_and_gradients()
    launches = []
    monkeypatch.setattr(performer, "is_fused", lambda *_: launches.append(1) or True)
    found = mixed_and_gradients()

    assert launches
    for one, other in zip(found, expected, strict=True):
        scale = float(other.detach().abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=2e-5 * scale)
