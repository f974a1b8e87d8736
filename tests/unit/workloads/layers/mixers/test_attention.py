"""Attention against its formula, and what rotary positions promise."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from workloads.layers.context import Context
from workloads.layers.mixers import attention as module
from workloads.layers.mixers.attention import (
    AttentionShape,
    CausalAttention,
    rotate,
    rotation_table,
)
from workloads.layers.modules.init import initialise


def _attention(**fields: object) -> CausalAttention:
    shape = AttentionShape(
        **{"d_model": 12, "n_heads": 3, "n_kv_heads": 3, "qk_norm": False, **fields}
    )
    attention = CausalAttention(shape, norm_eps=1e-5).double()
    initialise(attention, 0)
    return attention


@pytest.mark.parametrize("n_kv_heads", [1, 3])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_equals_the_formula(n_kv_heads, qk_norm):
    attention = _attention(n_kv_heads=n_kv_heads, qk_norm=qk_norm)
    x = torch.randn(2, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rotation = rotation_table(5, 4, base=100.0, device=x.device).double()
    rows = attention.query_key_value.weight.split((12, 4 * n_kv_heads, 4 * n_kv_heads))
    query, key, value = ((x @ w.T).view(2, 5, -1, 4) for w in rows)
    if qk_norm:
        query, key = (y * (y.square().mean(-1, keepdim=True) + 1e-5).rsqrt() for y in (query, key))
    query, key = rotate(query, rotation), rotate(key, rotation)
    key, value = (y.repeat_interleave(3 // n_kv_heads, dim=2) for y in (key, value))
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / 2.0
    scores = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
    expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), value).reshape(2, 5, 12)

    found = attention(x, Context(tokens=torch.zeros(2, 5, dtype=torch.long), rotation=rotation))

    torch.testing.assert_close(found, expected @ attention.output.weight.T)


def test_rotation_keeps_lengths_and_makes_products_depend_on_the_distance_only():
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(8, dtype=torch.float64, generator=generator) for _ in range(2))
    rotation = rotation_table(20, 8, base=50.0, device=query.device).double()
    everywhere = [rotate(y.expand(1, 20, 1, 8), rotation)[0, :, 0] for y in (query, key)]

    products = everywhere[0] @ everywhere[1].T

    torch.testing.assert_close(everywhere[0].norm(dim=1), query.norm().expand(20))
    for distance in (-7, 0, 3):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-5, atol=1e-5)


def test_position_zero_is_not_turned():
    x = torch.randn(1, 1, 2, 6, generator=torch.Generator().manual_seed(0))

    assert torch.equal(rotate(x, rotation_table(1, 6, base=10.0, device=x.device)), x)


@pytest.mark.parametrize("columns", [2, 6])
def test_gradient_of_heads_is_autograds(columns):
    generator = torch.Generator().manual_seed(0)
    heads = torch.randn(2, 5, 8, 6, dtype=torch.float64, generator=generator, requires_grad=True)
    rotation = rotation_table(5, columns, base=100.0, device=heads.device).double()
    expected = module.split_and_rotate(heads, rotation, n_heads=4)
    grads = [torch.randn(x.shape, dtype=x.dtype, generator=generator) for x in expected]

    found = module._RotatedHeads.apply(heads, rotation, 4)

    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
    torch.testing.assert_close(
        torch.autograd.grad(found, heads, grads), torch.autograd.grad(expected, heads, grads)
    )


def _gradients(attention: CausalAttention, call: Callable[..., Tensor]) -> list[Tensor]:
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(1), requires_grad=True)
    rotation = rotation_table(5, 4, base=100.0, device=x.device)
    with torch.autocast("cpu", torch.bfloat16):
        output = call(x, Context(tokens=torch.zeros(2, 5, dtype=torch.long), rotation=rotation))
    found = torch.autograd.grad(output.float().square().sum(), [x, *attention.parameters()])
    return [output, *found]


@pytest.mark.parametrize("n_kv_heads", [1, 3])
def test_gradient_of_the_block_also_compiled_and_checkpointed(n_kv_heads, monkeypatch):
    attention = _attention(n_kv_heads=n_kv_heads).float()
    expected = _gradients(attention, attention)
    monkeypatch.setattr(module, "uses_triton", lambda heads: True)

    def checkpointed(x: Tensor, context: Context) -> Tensor:
        return checkpoint(attention, x, context, use_reentrant=False)

    found = _gradients(attention, attention)

    assert torch.equal(found[0], expected[0])
    assert not torch.equal(found[1], expected[1])
    for one, other in zip(found, expected, strict=True):
        # Autograd rounds two products and their sum, the kernel once.
        assert (one - other).norm() <= 1e-2 * other.norm()
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    for call in (compiled, checkpointed):
        again = _gradients(attention, call)
        assert all(torch.equal(one, other) for one, other in zip(again, found, strict=True))


def test_without_gradients_nothing_is_kept(monkeypatch):
    monkeypatch.setattr(module, "uses_triton", lambda heads: True)
    monkeypatch.setattr(module._RotatedHeads, "apply", None)  # a call would fail
    attention = _attention()
    rotation = rotation_table(5, 4, base=100.0, device=torch.device("cpu")).double()
    context = Context(tokens=torch.zeros(2, 5, dtype=torch.long), rotation=rotation)

    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert attention(torch.ones(2, 5, 12, dtype=torch.float64), context).isfinite().all()
