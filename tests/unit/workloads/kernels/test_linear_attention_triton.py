"""Causal linear attention, interpreted on the CPU, against its sums over j <= t in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workloads.kernels.linear_attention.op import linear_attention
from workloads.layers.context import Context
from workloads.layers.mixers import linear_attention as layer

triton = pytest.importorskip(
    "workloads.kernels.linear_attention.triton", reason="a CPU build of torch comes without Triton"
)


def _case(sizes: tuple[int, ...], shared: str, seed: int) -> list[Tensor]:
    batch, heads, seq, key_width, value_width = sizes
    generator = torch.Generator().manual_seed(seed)
    arguments = []
    for name, width in (("query", key_width), ("key", key_width), ("value", value_width)):
        # As projections leave them: the heads of a position side by side.
        x = torch.randn(batch, seq, heads, width, generator=generator).transpose(1, 2)
        arguments.append(x[0, 0] if name == shared else x)
    return arguments


def _expected(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    weights = (query @ key.mT).tril()
    return weights @ value, weights.sum(-1)


def _compare(arguments: list[Tensor], *, weigh: bool) -> None:
    exact = [x.double().requires_grad_() for x in arguments]
    mixed, weights = _expected(*exact)
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(mixed.shape, generator=generator)
    weights_grad = torch.randn(weights.shape, generator=generator) if weigh else None
    loss = (mixed * grad).sum()
    if weigh:
        loss = loss + (weights * weights_grad).sum()
    grads = torch.autograd.grad(loss, exact)

    found, found_weights = triton.forward(*arguments, weigh=weigh)
    found_grads = triton.backward(*arguments, grad, weights_grad)

    _close(found, mixed)
    if weigh:
        _close(found_weights, weights)
    for one, other in zip(found_grads, grads, strict=True):
        _close(one, other)


def _close(found: Tensor, expected: Tensor) -> None:
    scale = float(expected.detach().abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=3e-6 * scale)


@given(
    sizes=st.tuples(*(st.integers(1, most) for most in (2, 2, 130, 20, 20))),
    shared=st.sampled_from(["", "key", "value"]),
    weigh=st.booleans(),
    seed=st.integers(0, 2**16),
)
@settings(settings.get_profile("interpreted"), deadline=None)
def test_equals_its_sums_with_all_gradients(sizes, shared, weigh, seed, interpreted):
    interpreted(triton)
    _compare(_case(sizes, shared, seed), weigh=weigh)


@pytest.mark.parametrize("widths", [(256, 64), (64, 130)], ids=str)
def test_wide_states_are_split_by_columns(widths, interpreted):
    interpreted(triton)
    assert triton.tile(*widths[::-1]).cols < widths[0] or triton.tile(*widths).cols < widths[1]
    _compare(_case((1, 1, 65, *widths), "", 0), weigh=True)


def test_later_positions_change_nothing(interpreted):
    interpreted(triton)
    arguments = _case((1, 2, 130, 5, 3), "", 3)
    changed = [torch.cat((x[..., :100, :], x[..., 100:, :] + 1), dim=-2) for x in arguments]

    found, weights = triton.forward(*arguments, weigh=True)
    other, other_weights = triton.forward(*changed, weigh=True)

    assert torch.equal(found[..., :100, :], other[..., :100, :])
    assert torch.equal(weights[..., :100], other_weights[..., :100])


@pytest.mark.parametrize("weigh", [False, True])
def test_is_a_sound_custom_operation(weigh, interpreted):
    interpreted(triton)
    arguments = [x.requires_grad_() for x in _case((1, 2, 9, 4, 3), "key", 0)]
    torch.library.opcheck(
        torch.ops.memscale.linear_attention.default,
        (*arguments, weigh),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )
    mixed, weights = linear_attention(*arguments, weigh=weigh)
    grad = torch.ones_like(mixed)
    found = torch.autograd.grad(mixed.sum(), arguments)

    assert (weights is None) != weigh
    expected = triton.backward(*(x.detach() for x in arguments), grad, None)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_nothing_to_mix_is_no_launch():
    query, value = torch.randn(0, 2, 5, 4), torch.randn(0, 2, 5, 3)
    mixed, weights = triton.forward(query, query, value, weigh=True)

    assert mixed.shape == (0, 2, 5, 3)
    assert weights.shape == (0, 2, 5)


@pytest.mark.parametrize("normalised", [False, True])
def test_a_mixer_has_the_same_numbers_from_the_kernel(normalised, interpreted, monkeypatch):
    interpreted(triton)
    arguments = _case((2, 2, 70, 6, 5), "" if normalised else "key", 2)
    arguments = [x.abs().requires_grad_() for x in arguments]
    context = Context(tokens=torch.zeros(2, 70, dtype=torch.long))

    def mixed_and_gradients() -> list[Tensor]:
        if normalised:
            mixed = layer.normalised_mix(*arguments, chunk=32, context=context)
        else:
            mixed, _ = layer.causal_linear_attention(*arguments, chunk=32)
        return [mixed, *torch.autograd.grad(mixed.square().sum(), arguments)]

    expected = mixed_and_gradients()
    launches = []
    monkeypatch.setattr(layer, "is_fused", lambda *_: launches.append(1) or True)
    found = mixed_and_gradients()

    assert launches
    for one, other in zip(found, expected, strict=True):
        _close(one, other.double())
